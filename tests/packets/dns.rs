//! DNS, the most common use of UDP balancing: real dnsmasq servers and real dig.

use std::collections::BTreeSet;
use std::process::Stdio;

use convey_lab::Role;
use convey_testkit::{Process, Ran, wait_for};

use crate::case::{Case, PacketTest, tests};
use crate::config::Config;
use crate::network::{DNS, Network};
use crate::udp::{exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        names_are_resolved_by_every_server [DIG, DNSMASQ],
        queries_and_earlier_clients_avoid_a_killed_server [DIG, DNSMASQ],
        without_a_server_queries_are_refused_at_once [DIG],
    ]
}

fn names_are_resolved_by_every_server(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _servers = [dnsmasq(&network, 1), dnsmasq(&network, 2)];
    network.balance(&Config::udp(DNS, 2));
    let mut names = BTreeSet::new();
    for _ in 0..20 {
        let dig = dig(&network, &["+short", "www.convey.test", "A", "www.convey.test", "AAAA"]);
        assert_eq!(dig.stdout, "192.0.2.80\n2001:db8::80\n", "{dig:?}");
        names.insert(server(&network, None));
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["s1", "s2"]);
    for number in [1, 2] {
        let flows = network.stat(&format!("/backends/pool/servers/s{number}/total_connections"));
        assert!(flows.as_u64() > Some(0), "s{number}: {flows}");
    }
}

fn queries_and_earlier_clients_avoid_a_killed_server(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let (mut first, _second) = (dnsmasq(&network, 1), dnsmasq(&network, 2));
    network.balance(&Config::udp(DNS, 2));
    // A port whose queries go to the first server.
    let port = (20_000..20_050).find(|port| server(&network, Some(*port)) == "s1").unwrap();
    first.kill();
    network.wait_for_health(1, false);
    assert_eq!(server(&network, Some(port)), "s2");
    for _ in 0..20 {
        assert_eq!(server(&network, None), "s2");
    }
    let _first = dnsmasq(&network, 1);
    network.wait_for_health(1, true);
    wait_for("the first to be asked again", || (server(&network, None) == "s1").then_some(()));
}

fn without_a_server_queries_are_refused_at_once(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::udp(DNS, 1));
    network.wait_for_health(1, false);
    let refused = network
        .inside(Role::Client(1), || exchange(&socket_to(case.family.vip(DNS)), b"anybody?").unwrap_err());
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let dig = dig(&network, &["www.convey.test"]);
    assert!(dig.code != Some(0) && dig.stdout.contains("connection refused"), "{dig:?}");
}

/// Starts a server that resolves one name, and returns its own name as the text of
/// `who.convey.test`.
fn dnsmasq(network: &Network, number: u8) -> Process {
    let role = Role::Server(number);
    let addr = network.case.family.address(role);
    let mut command = network.lab.command(role, "dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root"]);
    command.args(["--no-resolv", "--no-hosts", "--bind-interfaces", "--log-facility=-"]);
    command.args([format!("--listen-address={addr}"), format!("--port={DNS}")]);
    command.args(["--host-record=www.convey.test,192.0.2.80,2001:db8::80".to_owned()]);
    command.args([format!("--txt-record=who.convey.test,s{number}")]);
    let server = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    network.inside(role, || {
        wait_for("dnsmasq", || std::net::TcpStream::connect((addr, DNS)).ok());
    });
    server
}

/// Server that answers, to a certain source port or any.
fn server(network: &Network, port: Option<u16>) -> String {
    let from = port.map(|port| format!("{}#{port}", network.case.family.any()));
    let mut arguments = vec!["+short", "who.convey.test", "TXT"];
    arguments.extend(from.iter().flat_map(|from| ["-b", from]));
    let dig = dig(network, &arguments);
    assert_eq!(dig.code, Some(0), "{dig:?}");
    dig.stdout.trim().trim_matches('"').to_owned()
}

/// A query that is sent once.
fn dig(network: &Network, arguments: &[&str]) -> Ran {
    let vip = format!("@{}", network.case.family.vip(DNS).ip());
    network.run(1, "dig", &[&[&vip, "+tries=1", "+time=3"], arguments].concat())
}
