//! The command line.

use std::fs;
use std::net::TcpListener;

use convey_testkit::{Loopback, Ran, Setup, binary, run, stories};

stories!("cli":
    help_explains_commands_signals_and_exit_codes,
    the_version_is_the_packages,
    an_unknown_flag_is_a_usage_error_with_a_suggestion,
    both_packet_modes_at_once_are_a_usage_error,
    packet_modes_say_what_they_need,
    a_missing_file_is_named,
    a_busy_port_is_named_at_the_start,
    a_busy_statistics_port_is_named_at_the_start,
);

fn help_explains_commands_signals_and_exit_codes() {
    let ran = convey(&["--help"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    for part in ["Usage: convey", "check", "demo", "--config <PATH>", "SIGHUP", "RUST_LOG", "Exit codes:"] {
        assert!(ran.stdout.contains(part), "no {part:?} in\n{}", ran.stdout);
    }
    assert!(convey(&["-h"]).stdout.contains("Usage: convey"));
    assert_eq!(convey(&["help"]).stdout, ran.stdout);
}

fn the_version_is_the_packages() {
    let ran = convey(&["--version"]);
    assert_eq!((ran.code, ran.stdout), (Some(0), format!("convey {}\n", env!("CARGO_PKG_VERSION"))));
}

fn an_unknown_flag_is_a_usage_error_with_a_suggestion() {
    let ran = convey(&["--confg", "x.toml"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--confg") && ran.stderr.contains("--config"), "{}", ran.stderr);
}

fn both_packet_modes_at_once_are_a_usage_error() {
    let ran = convey(&["-p", "-d"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
}

fn packet_modes_say_what_they_need() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let in_the_file = lab.directory().join("dsr.toml");
    fs::write(&in_the_file, format!("mode = \"dsr\"\n{setup}")).unwrap();
    let sample = lab.directory().join("sample.toml");
    fs::write(&sample, setup.to_string()).unwrap();
    let (in_the_file, sample) = (in_the_file.to_str().unwrap(), sample.to_str().unwrap());
    for (args, file) in
        [(&["-p"][..], sample), (&["check", "--dsr"], sample), (&[], in_the_file), (&["check"], in_the_file)]
    {
        let ran = convey(&[args, &["--config", file]].concat());
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("needs a concrete address"), "{args:?}: {ran:?}");
    }
}

fn a_missing_file_is_named() {
    for args in [&["--config", "/nowhere/some.toml"][..], &["check", "--config", "/nowhere/some.toml"]] {
        let ran = convey(args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert_eq!(
            ran.stderr,
            "convey: cannot read /nowhere/some.toml: No such file or directory (os error 2)\n\
             Name a file with --config, a list of servers with --servers, or try `convey demo`.\n"
        );
    }
    let ran = convey(&["--listen", "7777", "--servers", "/nowhere/hosts.txt"]);
    assert_eq!(
        ran.stderr,
        "convey: cannot read /nowhere/hosts.txt: No such file or directory (os error 2)\n"
    );
    let ran = convey(&["--config", "/"]);
    assert_eq!(ran.stderr, "convey: cannot read /: it is a directory, not a regular file\n");
}

fn a_busy_port_is_named_at_the_start() {
    let lab = Loopback::new();
    let _busy = TcpListener::bind(lab.vip()).unwrap();
    let ran = start(&lab);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains(&format!("cannot listen on {}: Address already in use", lab.vip())),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("shows by which process"), "{ran:?}");
}

fn a_busy_statistics_port_is_named_at_the_start() {
    let lab = Loopback::new();
    let _busy = TcpListener::bind(lab.stats()).unwrap();
    let ran = start(&lab);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&format!("cannot serve statistics on {}", lab.stats())), "{ran:?}");
    assert!(ran.stderr.contains("Address already in use"), "{ran:?}");
}

/// Starts the balancer where it cannot.
fn start(lab: &Loopback) -> Ran {
    let file = lab.directory().join("busy.toml");
    fs::write(&file, Setup::new(lab).server("a", lab.server(1), "").to_string()).unwrap();
    convey(&["--config", file.to_str().unwrap()])
}

fn convey(args: &[&str]) -> Ran {
    run(binary().args(args))
}
