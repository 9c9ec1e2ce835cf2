//! Logging: content, format and destination, and the signals that must not kill convey.

use std::fs;
use std::path::{Path, PathBuf};

use convey_testkit::{
    BalancerProcess, Loopback, Process, Setup, TcpServer, binary, connect, fetch, reset, run, tests,
    wait_for, wait_until_ready, whole_lines,
};
use rustix::process::Signal;

tests!("logging":
    a_file_is_written_and_opened_again_on_sigusr1,
    level_format_and_file_of_the_log_change_by_a_reload,
    a_log_file_that_cannot_be_had_is_refused,
    a_wrong_level_is_an_error_with_a_suggestion,
    stderr_that_is_the_journal_gets_levels_and_no_time,
    a_typo_in_rust_log_is_told_and_silences_nothing,
    ignored_signals_are_logged_and_do_not_end_convey,
);

fn setup(lab: &Loopback) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "")
}

fn wait_for_line(path: &Path, text: &str) -> String {
    wait_for(&format!("a line with {text:?}"), || {
        whole_lines(path).lines().find(|line| line.contains(text)).map(str::to_owned)
    })
}

/// A balancer that logs to a file from the start.
fn start_with_file(lab: &Loopback, log: &str) -> (Process, PathBuf) {
    let path = lab.directory().join("convey.log");
    let setup = setup(lab).and(&format!("[log]\noutput = {path:?}\n{log}"));
    fs::write(lab.directory().join("config.toml"), setup.to_string()).unwrap();
    let mut balancer = Process::spawn(binary().current_dir(lab.directory()));
    wait_until_ready(&mut balancer, &path);
    (balancer, path)
}

fn a_file_is_written_and_opened_again_on_sigusr1() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let (mut balancer, path) = start_with_file(&lab, "");
    let old = lab.directory().join("convey.log.1");
    fs::rename(&path, &old).unwrap();
    balancer.signal(Signal::USR1);
    wait_for_line(&path, "log file reopened");
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait().code(), Some(0));
    assert!(
        whole_lines(&path).contains("stopped") && !whole_lines(&old).contains("stopped"),
        "{}",
        whole_lines(&old)
    );
}

fn level_format_and_file_of_the_log_change_by_a_reload() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let path = lab.directory().join("convey.log");
    let log = |more: &str| setup(&lab).and(&format!("[log]\noutput = {path:?}\nformat = 'json'\n{more}"));
    balancer.save(&log(""));
    let line = wait_for_line(&path, "log.format text -> json");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&line["level"], &line["message"]),
        (&"info".into(), &"reload: log.format text -> json".into())
    );
    balancer.save(&log("level = 'debug'"));
    wait_for_line(&path, "log.level info -> debug");
    reset(connect(lab.vip()));
    wait_for_line(&path, ": ended: client_reset");
    balancer.save(&log("level = 'info'"));
    wait_for_line(&path, "log.level debug -> info");
}

fn a_log_file_that_cannot_be_had_is_refused() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let wrong = setup(&lab).and("[log]\noutput = '/nowhere/convey.log'");
    balancer.save(&wrong);
    balancer.wait_for_log("cannot log to /nowhere/convey.log (log.output): No such file or directory");
    balancer.wait_for_log("not reloaded: the running configuration stays");
    drop(balancer);
    for args in [&[][..], &["check"]] {
        let ran = run(binary().current_dir(lab.directory()).args(args));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("cannot log to /nowhere/convey.log"), "{ran:?}");
    }
}

fn a_wrong_level_is_an_error_with_a_suggestion() {
    let lab = Loopback::new();
    let ran = run(binary().args(["--log-level", "inof"]));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("'inof'") && ran.stderr.contains("'info'"), "{ran:?}");
    let file = lab.directory().join("config.toml");
    fs::write(&file, setup(&lab).and("[log]\nlevel = 'inof'").to_string()).unwrap();
    let ran = run(binary().arg("check").arg("--config").arg(&file));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("log.level: found \"inof\"") && ran.stderr.contains("did you mean `info`?"),
        "{ran:?}"
    );
}

fn a_typo_in_rust_log_is_told_and_silences_nothing() {
    let lab = Loopback::new();
    // Only the environment of the process: the harness removes the variable.
    let mut command = std::process::Command::new("env");
    command.arg("RUST_LOG=eror").arg(binary().get_program()).args(["--config", "config.toml"]);
    fs::write(lab.directory().join("config.toml"), setup(&lab).to_string()).unwrap();
    let _taken = std::net::TcpListener::bind(lab.stats()).unwrap();
    let ran = run(command.current_dir(lab.directory()));
    assert!(ran.stderr.contains("RUST_LOG: found \"eror\"; allowed: error, warn,"), "{ran:?}");
    assert!(ran.stderr.contains("did you mean `error`?"), "{ran:?}");
    assert!(ran.stderr.contains("cannot serve statistics"), "{ran:?}");
}

fn stderr_that_is_the_journal_gets_levels_and_no_time() {
    let line = "JOURNAL_STREAM=$(stat -L -c %d:%i /dev/stderr) exec \"$0\" --config /nonexistent/config.toml";
    let of_journal = |line: &str| {
        let ran = run(std::process::Command::new("sh").arg("-c").arg(line).arg(binary().get_program()));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.stderr
    };
    let journal = of_journal(line);
    assert!(journal.starts_with("<3>") && journal.contains("/nonexistent/config.toml"), "{journal}");
    let other = of_journal(&line.replace("/dev/stderr", "/"));
    assert!(other.contains("/nonexistent/config.toml") && !other.contains("<3>"), "{other}");
}

fn ignored_signals_are_logged_and_do_not_end_convey() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    for (signal, message) in [
        (Signal::USR1, "SIGUSR1: the log is not written to a file"),
        (Signal::ALARM, "ignored signal SIGALRM"),
        (Signal::VTALARM, "ignored signal SIGVTALRM"),
        (Signal::PROF, "ignored signal SIGPROF"),
        (Signal::IO, "ignored signal SIGIO"),
        (Signal::POWER, "ignored signal SIGPWR"),
        (Signal::STKFLT, "ignored signal SIGSTKFLT"),
        (Signal::TRAP, "ignored signal SIGTRAP"),
        (Signal::XCPU, "ignored signal SIGXCPU"),
        (Signal::XFSZ, "ignored signal SIGXFSZ"),
    ] {
        balancer.signal(signal);
        balancer.wait_for_log(message);
    }
    balancer.signal(Signal::PIPE);
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    balancer.signal(Signal::QUIT);
    balancer.wait_for_log("stopped: every connection had ended");
}
