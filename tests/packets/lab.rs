//! The lab itself: it connects its machines, and removes everything at its end.

use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use convey_lab::{Lab, LabPlan, NARROW, Role};
use convey_testkit::{Need, Process, wait_for};
use libtest_mimic::Trial;

use crate::case::Family;

/// The argument that makes this program hold a lab.
pub(crate) const HOLD: &str = "hold-lab";

pub(crate) fn trials() -> Vec<Trial> {
    let tests = [
        ("lab::every_machine_reaches_every_other", every_machine_reaches_every_other as fn()),
        (
            "lab::a_lab_is_gone_when_dropped_with_what_runs_in_it",
            a_lab_is_gone_when_dropped_with_what_runs_in_it,
        ),
        ("lab::a_lab_is_gone_when_its_process_is_killed", a_lab_is_gone_when_its_process_is_killed),
        ("lab::the_next_lab_removes_what_a_crash_has_left", the_next_lab_removes_what_a_crash_has_left),
        ("lab::error_of_a_tool_includes_its_output", error_of_a_tool_includes_its_output),
    ];
    let mut trials = convey_testkit::trials(tests, &[Need::Namespaces]);
    let narrow = ("lab::a_narrow_hop_tells_both_sides", a_narrow_hop_tells_both_sides as fn());
    trials.extend(convey_testkit::trials([narrow], &[Need::Namespaces, Need::PING]));
    let losses =
        ("lab::a_lab_loses_as_many_packets_as_it_is_told", a_lab_loses_as_many_packets_as_it_is_told as fn());
    trials.extend(convey_testkit::trials([losses], &[Need::Namespaces, Need::NFT]));
    trials
}

/// Makes a lab, prints its namespace, and waits to be killed.
pub(crate) fn hold() {
    let lab = Lab::new(1, 1).unwrap();
    println!("{}", lab.namespace(Role::Balancer));
    let _ = io::stdin().read_line(&mut String::new());
}

fn every_machine_reaches_every_other() {
    let lab = LabPlan::new(2, 2).standby().narrow(Role::Client(2)).build().unwrap();
    for family in [Family::V4, Family::V6] {
        let address = |role: Role| family.address(role);
        for to in lab.machines() {
            let listener = lab.enter(*to, || TcpListener::bind((family.any(), 99)).unwrap()).unwrap();
            for from in lab.machines().iter().filter(|from| *from != to) {
                let stream = lab.enter(*from, || TcpStream::connect((address(*to), 99)).unwrap()).unwrap();
                let (_, peer) = listener.accept().unwrap();
                assert_eq!(stream.local_addr().unwrap(), peer);
                // The router has an address for each of its links.
                assert!(peer.ip() == address(*from) || *from == Role::Router, "{peer}: from {from} to {to}");
            }
        }
        let vip = family.vip(80);
        let _listener = lab.enter(Role::Balancer, || TcpListener::bind(vip).unwrap()).unwrap();
        lab.enter(Role::Client(1), || TcpStream::connect(vip).unwrap()).unwrap();
    }
}

fn a_narrow_hop_tells_both_sides() {
    let lab = LabPlan::new(1, 1).narrow(Role::Client(1)).build().unwrap();
    for family in [Family::V4, Family::V6] {
        let [client, server] = [Role::Client(1), Role::Server(1)];
        for (from, to) in [(client, server), (server, client)] {
            let to = family.address(to).to_string();
            // More than the hop takes, without fragmentation.
            let ping = ["ping", "-n", "-M", "do", "-c", "1", "-s", "1400", "-W", "5", &to];
            let said = convey_testkit::run(lab.command(from, ping[0]).args(&ping[1..]));
            assert_ne!(said.code, Some(0), "{said:?}");
            let route = lab.run(from, "ip", &["route", "get", &to]).unwrap();
            assert!(route.contains(&format!("mtu {NARROW}")), "{route}");
        }
    }
}

fn a_lab_is_gone_when_dropped_with_what_runs_in_it() {
    let lab = Lab::new(1, 1).unwrap();
    let names: Vec<String> = lab.machines().iter().map(|role| lab.namespace(*role)).collect();
    let mut sleep = lab.command(Role::Server(1), "sleep").arg("1000").spawn().unwrap();
    assert!(names.iter().all(|name| exists(name)));
    wait_for("sleep to be in the namespace", || {
        let pids = Command::new("ip").args(["netns", "pids", &lab.namespace(Role::Server(1))]).output();
        (!pids.unwrap().stdout.is_empty()).then_some(())
    });
    drop(lab);
    assert!(!names.iter().any(|name| exists(name)));
    assert!(!sleep.wait().unwrap().success());
}

fn a_lab_is_gone_when_its_process_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg(HOLD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut name = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut name).unwrap();
    assert!(exists(name.trim()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the lab to be gone", || (!exists(name.trim())).then_some(()));
}

fn the_next_lab_removes_what_a_crash_has_left() {
    let mut ended = Process::spawn(&mut Command::new("true"));
    let pid = ended.id();
    ended.wait();
    let (left, foreign) = (format!("convey-{pid}-0-client1"), format!("other-{pid}-0-client1"));
    assert!(Command::new("ip").args(["netns", "add", &foreign]).status().unwrap().success());
    // This may fail: the lab of another test that begins just now removes it while it is made.
    let _ = Command::new("ip").args(["netns", "add", &left]).output();
    let _lab = Lab::new(1, 1).unwrap();
    assert!(!exists(&left));
    assert!(exists(&foreign), "not one of ours");
    assert!(Command::new("ip").args(["netns", "del", &foreign]).status().unwrap().success());
}

fn a_lab_loses_as_many_packets_as_it_is_told() {
    let lab = Lab::new(1, 1).unwrap();
    let _listener = lab.enter(Role::Server(1), || TcpListener::bind("0.0.0.0:99").unwrap()).unwrap();
    let to = SocketAddr::from((Role::Server(1).address(), 99));
    let arrives = || {
        let patience = Duration::from_millis(500);
        lab.enter(Role::Client(1), || TcpStream::connect_timeout(&to, patience).is_ok()).unwrap()
    };
    wait_for("the way to be open", || arrives().then_some(()));
    lab.lose(1000).unwrap();
    assert!(!arrives());
    lab.lose(0).unwrap();
    wait_for("the way to be open again", || arrives().then_some(()));
}

fn error_of_a_tool_includes_its_output() {
    let lab = Lab::new(1, 1).unwrap();
    let error = lab.run(Role::Switch, "ip", &["link", "show", "nosuch"]).unwrap_err().to_string();
    assert!(error.contains("ip link show nosuch") && error.contains("does not exist"), "{error}");
}

fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}
