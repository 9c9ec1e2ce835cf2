//! Processes of an upgrade that stop or die.

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use convey_testkit::{
    BalancerProcess, Loopback, Process, Setup, TcpServer, binary, binary_of_upgrade, connect, copy_program,
    fetch, ping, wait_for,
};
use rustix::process::{Pid, Signal, test_kill_process};

use super::pair;
use super::processes::{ROLE, Upgraded, receive_message, replace_by_script, send_message};

pub(super) fn old_process_drains_connections_when_it_is_stopped() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").timeouts("drain = 3");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    upgraded.upgrade();
    upgraded.first.wait_for_log("stopping: 1 open connections continue until they end");
    upgraded.first.signal(Signal::TERM);
    upgraded.first.wait_for_log("stopping: 1 open connections have 3s to finish");
    // systemd does this once the new process, which had no connection, has ended.
    upgraded.first.signal(Signal::TERM);
    upgraded.first.wait_for_log("another SIGTERM has no effect");
    ping(&mut held).unwrap();
    assert_eq!(upgraded.first.wait(), 0);
    assert!(upgraded.first.log().contains("stopped: 1 connections were cut after 3s"));
}

pub(super) fn old_process_ends_at_once_if_interrupted_twice() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").timeouts("drain = 3600");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    upgraded.upgrade();
    upgraded.first.signal(Signal::INT);
    upgraded.first.wait_for_log("stopping: 1 open connections have 3600s to finish");
    upgraded.first.signal(Signal::INT);
    assert_eq!(upgraded.first.wait(), 128 + 2);
    assert!(ping(&mut held).is_err());
}

pub(super) fn stop_after_the_new_process_may_serve_ends_both() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let program = lab.directory().join("convey");
    copy_program(binary_of_upgrade(0), &program);
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut first = BalancerProcess::start_with(&lab, &setup, Command::new(&program));
    let this = std::env::current_exe().unwrap();
    let line = format!("exec env {ROLE}={} {}", lab.directory().display(), this.display());
    replace_by_script(&lab, &program, &line);
    first.signal(Signal::USR2);
    let new = wait_for("the new process to be allowed to serve", || {
        fs::read_to_string(lab.directory().join("may-serve")).ok()?.strip_suffix('\n')?.parse().ok()
    });
    first.signal(Signal::TERM);
    first.wait_for_log("then the new process stops, too");
    fs::write(lab.directory().join("serve"), "").unwrap();
    assert_eq!(first.wait(), 128 + 15);
    assert!(test_kill_process(Pid::from_raw(new).unwrap()).is_err(), "{}", first.log());
}

pub(super) fn new_process_serves_even_if_the_old_one_dies() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let config = lab.directory().join("config.toml");
    fs::write(&config, Setup::new(&lab).server("a", lab.server(1), "").to_string()).unwrap();
    let (ours, theirs) = pair();
    let mut command = binary();
    command.env("CONVEY_UPGRADE", "1").stdin(Stdio::from(theirs)).arg("--config").arg(config);
    let mut new = Process::spawn(&mut command);
    drop(command);
    send_message(&ours, r#"{"Hello":{"formats":[1],"program":"0.0.0"}}"#);
    assert!(receive_message(&ours).starts_with("{\"Hello\":"));
    send_message(&ours, "\"Offered\"");
    assert!(receive_message(&ours).starts_with("{\"Prepared\":"));
    // Simulates a process that is killed after its last message: it reads nothing more.
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Read).unwrap();
    send_message(&ours, "\"Go\"");
    drop(ours);
    let serves = wait_for("an answer", || fetch(lab.vip(), "/").ok());
    assert_eq!((serves, new.ended()), ((200, "a".to_owned()), None));
    new.signal(Signal::TERM);
    assert_eq!(new.wait().code(), Some(0));
}

pub(super) fn a_process_that_stops_lets_the_next_one_have_its_statistics() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut first = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    first.signal(Signal::TERM);
    first.wait_for_log("stopping: 1 open connections have 30s to finish");
    wait_for("its listener to be closed", || TcpStream::connect(lab.vip()).err());
    assert_eq!(first.page("/healthz"), (200, "draining\n".to_owned()));
    let elsewhere = Loopback::new();
    let mut command = binary();
    command.arg("--config").arg(lab.directory().join("config.toml"));
    let _second = convey_testkit::start(command, &elsewhere.directory().join("log"));
    ping(&mut connect(lab.vip())).unwrap();
    assert_eq!(fetch(lab.stats(), "/healthz").unwrap(), (200, "ok\n".to_owned()));
    ping(&mut held).unwrap();
    drop(held);
    assert_eq!(first.wait(), 0);
}
