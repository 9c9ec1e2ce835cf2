//! An operator lists the flows of a packet mode, and ends one.

use std::process::Command;

use convey_lab::Role;
use convey_testkit::{Ran, TcpServer, connect, ping, run, wait_for, was_reset};
use serde_json::Value;

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::udp::{ECHO, UdpEcho, exchange_until_answered, socket_to};
use crate::upgrade::Program;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        flow_list_names_the_forwarder_and_killed_flows_are_reset,
        datagrams_are_listed_and_go_on_after_a_kill,
        flows_keep_their_age_through_an_upgrade_and_old_names_kill_nobody,
    ]
}

fn program(network: &Network, program: &Program) -> Command {
    let mut command = program.command(network);
    command.env("CONVEY_SOCKET", network.path("control.sock"));
    command
}

fn flows(network: &Network, line: &str) -> Ran {
    let mut command = network.lab.command(Role::Balancer, convey_testkit::binary().get_program());
    command.env("CONVEY_SOCKET", network.path("control.sock"));
    run(command.arg("flows").args(line.split_whitespace()))
}

fn json(network: &Network, line: &str) -> Value {
    let ran = flows(network, &format!("{line} --json"));
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {ran:?}"))
}

/// Waits until these filters select so many flows, all of which are as expected.
fn wait_for_flows(network: &Network, line: &str, n: usize, is_right: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut last = Value::Null;
    wait_for(&format!("{n} flows ({line})"), || {
        last = json(network, line);
        let flows = last["flows"].as_array().unwrap();
        (flows.len() == n && flows.iter().all(&is_right)).then(|| flows.clone())
    })
}

fn flow_list_names_the_forwarder_and_killed_flows_are_reset(case: Case) {
    listed_and_killed(&mut Network::new(case, 2, 1));
}

pub(crate) fn listed_and_killed(network: &mut Network) {
    let case = network.case;
    let installed = Program::install(network);
    network.balance_by(program(network, &installed), &Config { health: UNCHECKED, ..Config::new(1) });
    let network = &*network;
    let _server = network.server(1, TcpServer::echo);
    let begin = |client: u8| network.inside(Role::Client(client), || connect(network.vip()));
    let mut held = [begin(1), begin(1), begin(2)];
    held.iter_mut().for_each(|held| ping(held).unwrap());
    let is_cached = |flow: &Value| flow["kernel"] == case.is_cached();
    let listed = wait_for_flows(network, "--state established", 3, is_cached);
    for flow in &listed {
        assert_eq!([&flow["mode"], &flow["protocol"], &flow["frontend"]], [case.mode.name(), "tcp", "web"]);
        assert_eq!([&flow["backend"], &flow["server"]], ["pool", "s1"]);
        assert_eq!(flow["snat_addr"].is_string(), case.is_passthrough(), "{flow}");
        assert_eq!(flow["server_addr"], network.address(Role::Server(1)).to_string());
        assert!(flow["age_seconds"].as_f64().is_some() && flow["idle_seconds"].as_f64().is_some(), "{flow}");
        assert!(flow["bytes_rx"].is_null(), "nobody counts them: {flow}");
    }
    let victim = held[1].local_addr().unwrap();
    let chosen = wait_for_flows(network, &format!("--client {victim}"), 1, |flow| {
        flow["client"] == *victim.to_string()
    });
    let groups = json(network, "--count-by client");
    let (name, count) = (&groups["groups"][0]["name"], &groups["groups"][0]["flows"]);
    assert_eq!((name, count), (&Value::from(victim.ip().to_string()), &Value::from(2)));
    let id = chosen[0]["id"].as_str().unwrap();
    let killed = flows(network, &format!("kill {id}"));
    assert_eq!(killed.code, Some(0), "{killed:?}");
    assert!(was_reset(&mut held[1]));
    wait_for_flows(network, "--state established", 2, is_cached);
    [0, 2].into_iter().for_each(|n| ping(&mut held[n]).unwrap());
    wait_for("it to be counted", || (network.stat("/frontends/web/ended/killed") == 1).then_some(()));
    let again = flows(network, &format!("kill {id}"));
    assert!(again.code == Some(1) && again.stderr.contains("it has ended"), "{again:?}");
}

fn datagrams_are_listed_and_go_on_after_a_kill(case: Case) {
    datagrams(&mut Network::new(case, 1, 1));
}

pub(crate) fn datagrams(network: &mut Network) {
    let installed = Program::install(network);
    let config = Config { health: UNCHECKED, ..Config::udp(ECHO, 1) };
    network.balance_by(program(network, &installed), &config);
    let network = &*network;
    let _server = network.inside(Role::Server(1), || {
        UdpEcho::start((network.case.family.address(Role::Server(1)), ECHO).into())
    });
    let vip = network.case.family.vip(ECHO);
    let client = network.inside(Role::Client(1), || socket_to(vip));
    exchange_until_answered(&client, b"hello");
    let listed = wait_for_flows(network, "--frontend web", 1, |flow| flow["protocol"] == "udp");
    assert_eq!(flows(network, &format!("kill {}", listed[0]["id"].as_str().unwrap())).code, Some(0));
    wait_for_flows(network, "--frontend web", 0, |_| true);
    exchange_until_answered(&client, b"hello");
    wait_for_flows(network, "--frontend web", 1, |flow| flow["id"] != listed[0]["id"]);
}

fn flows_keep_their_age_through_an_upgrade_and_old_names_kill_nobody(case: Case) {
    through_an_upgrade(&mut Network::new(case, 1, 1));
}

pub(crate) fn through_an_upgrade(network: &mut Network) {
    let installed = Program::install(network);
    network.balance_by(program(network, &installed), &Config { health: UNCHECKED, ..Config::new(1) });
    let network = &*network;
    let _server = network.server(1, TcpServer::echo);
    let mut held = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut held).unwrap();
    let age = |flow: &Value| flow["age_seconds"].as_f64().unwrap();
    let before = wait_for_flows(network, "--state established --older-than 1s", 1, |flow| age(flow) >= 1.0);
    installed.upgrade(network, 1);
    let after = wait_for_flows(network, "--older-than 1s", 1, |flow| flow["state"] == "established");
    assert!(age(&after[0]) >= age(&before[0]), "{before:?} {after:?}");
    let killed = flows(network, &format!("kill {}", before[0]["id"].as_str().unwrap()));
    assert!(killed.code == Some(1) && killed.stderr.contains("there is no flow"), "{killed:?}");
    ping(&mut held).unwrap();
    assert_eq!(flows(network, &format!("kill {}", after[0]["id"].as_str().unwrap())).code, Some(0));
    assert!(was_reset(&mut held));
}
