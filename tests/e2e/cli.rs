//! The command line.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use convey_testkit::{Loopback, Need, Process, Ran, Setup, binary, run, tests};

tests!("cli":
    help_explains_commands_signals_and_exit_codes,
    help_into_a_full_device_is_an_error,
    the_version_is_the_packages,
    an_unknown_flag_is_a_usage_error_with_a_suggestion,
    two_packet_modes_at_once_are_a_usage_error,
    packet_modes_say_what_they_need,
    a_missing_file_is_named,
    default_file_is_that_of_the_host_or_the_current_folder [Need::Other(host_has_a_file)],
    completions_and_the_manual_are_what_shells_and_man_take [Need::Tool("bash", "bash")],
    a_busy_port_is_named_at_the_start,
    a_busy_statistics_port_is_named_at_the_start,
);

fn help_explains_commands_signals_and_exit_codes() {
    let ran = convey(&["--help"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    for part in [
        "Usage: convey",
        "check",
        "demo",
        "--config <PATH|URL>",
        "SIGHUP",
        "RUST_LOG",
        "Exit codes:",
        "Files:",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in\n{}", ran.stdout);
    }
    assert!(convey(&["-h"]).stdout.contains("Usage: convey"));
    assert_eq!(convey(&["help"]).stdout, ran.stdout);
}

fn help_into_a_full_device_is_an_error() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for args in [&["help"][..], &["--help"], &["--version"], &["check", "--config", "/nowhere/some.toml"]] {
        let mut command = binary();
        command.args(args).stdout(full()).stderr(full());
        assert_eq!(Process::spawn(&mut command).wait().code(), Some(1), "{args:?}");
    }
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

fn two_packet_modes_at_once_are_a_usage_error() {
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

fn default_file_is_that_of_the_host_or_the_current_folder() {
    let lab = Loopback::new();
    let check = || run(binary().arg("check").current_dir(lab.directory()));
    assert_eq!(
        check().stderr,
        "convey: cannot read config.toml: No such file or directory (os error 2)\n\
         There is no /etc/convey/config.toml either.\n\
         Name a file with --config, a list of servers with --servers, or try `convey demo`.\n"
    );
    fs::write(
        lab.directory().join("config.toml"),
        Setup::new(&lab).server("a", lab.server(1), "").to_string(),
    )
    .unwrap();
    let checked = check();
    assert!(checked.stdout.starts_with("config.toml is valid; convey would run:"), "{checked:?}");
    let help = convey(&["--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("[default: /etc/convey/config.toml if it exists, else ./config.toml]"), "{help}");
}

fn host_has_a_file() -> Option<String> {
    let file = Path::new("/etc/convey/config.toml");
    file.exists().then(|| format!("there is {}", file.display()))
}

fn completions_and_the_manual_are_what_shells_and_man_take() {
    let lab = Loopback::new();
    let generated = |kind: &str| {
        let ran = convey(&["generate", kind]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        ran.stdout
    };
    assert!(generated("man").contains(".TH convey 8"));
    assert!(generated("complete-fish").contains("complete -c convey"));
    assert!(generated("complete-zsh").starts_with("#compdef convey\n"));
    let file = lab.directory().join("convey.bash");
    fs::write(&file, generated("complete-bash")).unwrap();
    let fetch =
        ". \"$0\"; COMP_WORDS=(convey ch) COMP_CWORD=1; _convey convey ch convey; echo \"${COMPREPLY[@]}\"";
    let ran = run(Command::new("bash").args(["-c", fetch]).arg(&file));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("check\n", ""));
    assert_eq!(convey(&["generate", "complete-tcsh"]).code, Some(2));
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

/// Starts the balancer, which has to fail.
fn start(lab: &Loopback) -> Ran {
    let file = lab.directory().join("busy.toml");
    fs::write(&file, Setup::new(lab).server("a", lab.server(1), "").to_string()).unwrap();
    convey(&["--config", file.to_str().unwrap()])
}

fn convey(args: &[&str]) -> Ran {
    run(binary().args(args))
}
