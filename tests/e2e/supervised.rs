//! Upgrades under a supervisor that mistakes the end of convey's first process for the end of
//! convey: a shell, runit, supervisord, the init of a container.

use std::net::TcpStream;
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, binary, connect, fetch, ping, run, tests, wait_for,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

tests!("supervised":
    first_process_forwards_signals_and_exits_like_the_last_one,
    the_first_process_ends_when_its_successor_crashes,
    the_first_process_of_a_container_can_be_upgraded [Need::Namespaces],
);

fn first_process_forwards_signals_and_exits_like_the_last_one() {
    let lab = Loopback::new();
    let (_echo, mut first) = begun(&lab);
    let held = begin(&lab);
    first.signal(Signal::USR2);
    let second = upgraded(&first, 0);
    drop(held);
    first.wait_for_log(&format!(
        "process {second} has taken over; this process exits when that process exits"
    ));
    // A request to the first process reaches the process that serves.
    first.signal(Signal::USR2);
    let third = upgraded(&first, 1);
    first
        .wait_for_log(&format!("process {third} has taken over; this process exits when that process exits"));
    let mut held = begin(&lab);
    first.signal(Signal::TERM);
    first.wait_for_log("stopping: 1 open connections have 30s to finish");
    ping(&mut held).unwrap();
    drop(held);
    assert_eq!(first.wait(), 0);
    assert!([second, third].into_iter().all(|process| test_kill_process(pid(process)).is_err()));
}

fn the_first_process_ends_when_its_successor_crashes() {
    let lab = Loopback::new();
    let (_echo, mut first) = begun(&lab);
    // The first process does not wait for its own connections then: no process serves new
    // clients.
    let _held = begin(&lab);
    first.signal(Signal::USR2);
    let second = upgraded(&first, 0);
    first.wait_for_log("stopping: 1 open connections continue until they end");
    kill_process(pid(second), Signal::KILL).unwrap();
    assert_eq!(first.wait(), 128 + 9);
    assert!(first.log().contains("the new process has ended with exit code 137"));
}

fn the_first_process_of_a_container_can_be_upgraded() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(binary().get_program());
    let container =
        BalancerProcess::start_with(&lab, &Setup::new(&lab).server("a", lab.server(1), ""), command);
    let ran = run(binary().arg("upgrade").arg("--config").arg(container.config()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    container.wait_for_log("this process exits when that process exits");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    assert_eq!(container.page("/healthz"), (200, "ok\n".to_owned()));
}

/// An open connection.
fn begin(lab: &Loopback) -> TcpStream {
    let mut stream = connect(lab.vip());
    ping(&mut stream).unwrap();
    stream
}

/// A server, and a convey whose only supervisor is this process.
fn begun(lab: &Loopback) -> (TcpServer, BalancerProcess) {
    let echo = TcpServer::echo(lab.server(1));
    (echo, BalancerProcess::start(lab, &Setup::new(lab).server("a", lab.server(1), "")))
}

/// Process of that upgrade.
fn upgraded(first: &BalancerProcess, n: usize) -> i32 {
    wait_for("the next process", || {
        let log = first.log();
        let line = log.lines().filter_map(|line| line.split_once("upgraded: process ")).nth(n)?.1;
        line.split(' ').next()?.parse().ok()
    })
}

fn pid(process: i32) -> Pid {
    Pid::from_raw(process).unwrap()
}
