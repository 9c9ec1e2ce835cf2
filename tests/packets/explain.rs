//! Server of a client: explained and actual.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;

use convey_lab::Role;
use convey_testkit::{BoundClient, TcpServer, binary, connect, fetch, ping, reset, run, wait_for};
use serde_json::{Value, json};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, STATS, connect_from};
use crate::udp::{ECHO, UdpEcho, exchange_until_answered, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        three_hundred_connections_get_the_servers_that_are_explained,
        explanation_predicts_the_server_of_a_flow_and_its_successor,
        sessions_of_datagrams_are_explained_by_their_flow_too,
    ]
}

/// Answer of the control API at the statistics address.
pub(crate) fn explained(network: &Network, client: impl std::fmt::Display) -> Value {
    let path = format!("/v1/explain?client={client}&frontend=web");
    let (status, body) = network.inside(Role::Balancer, || fetch(STATS.into(), &path).unwrap());
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Text of a step.
pub(crate) fn message<'a>(explanation: &'a Value, subject: &str) -> &'a str {
    let steps = explanation["steps"].as_array().unwrap();
    steps.iter().find(|step| step["subject"] == subject).map_or("", |step| step["message"].as_str().unwrap())
}

fn three_hundred_connections_get_the_servers_that_are_explained(case: Case) {
    let mut network = Network::new(case, 1, 3);
    let servers = vec![(1, "weight = 3"), (2, "weight = 2"), (3, "weight = 1")];
    let algorithm = if case.is_dsr() { "ring" } else { "maglev" };
    let backend =
        if case.is_dsr() { "algorithm = \"ring\"\nhash = \"tuple\"" } else { Config::new(3).backend };
    network.balance(&Config { servers, backend, health: UNCHECKED, ..Config::new(3) });
    let network = &network;
    let _servers = [1, 2, 3].map(|n| {
        network.server(n, move |addr| TcpServer::start(addr, move |mut stream| write!(stream, "s{n}")))
    });
    let bound = || network.inside(Role::Client(1), || BoundClient::new(case.family.address(Role::Client(1))));
    let answer = |client: BoundClient| {
        let (mut stream, mut server) = (client.connect(network.vip()).unwrap(), String::new());
        stream.read_to_string(&mut server).unwrap();
        server
    };
    // Until then, the route to some servers is not resolved, and explain reports that.
    let mut met = BTreeSet::new();
    wait_for("each server to be met", || {
        met.insert(answer(bound()));
        (met.len() == 3).then_some(())
    });
    let mut asked = 0;
    while asked < 300 {
        // The flow is queried before the client connects: no flow has its key, unless one before it
        // had the same port.
        let client = bound();
        let explanation = explained(network, client.addr());
        if !explanation["flow"].is_null() {
            continue;
        }
        asked += 1;
        assert_eq!(explanation["server"], answer(client).as_str(), "{explanation:#}");
    }
    let explanation = explained(network, SocketAddr::new(case.family.address(Role::Client(1)), 4_242));
    let own = case.family.address(Role::Balancer).to_string();
    assert!(message(&explanation, "algorithm").starts_with(algorithm), "{explanation:#}");
    assert!(message(&explanation, "next hop").starts_with("neighbour "), "{explanation:#}");
    match case.is_dsr() {
        true => assert!(message(&explanation, "dsr").starts_with("l3: packets go to "), "{explanation:#}"),
        false => {
            assert!(
                message(&explanation, "snat")
                    .contains(&format!(" sees {own} as the client, with a free port of ")),
                "{explanation:#}"
            )
        }
    }
    let by = if case.is_cached() {
        "the kernel ("
    } else {
        "every packet goes through a worker: passthrough.offload"
    };
    assert!(message(&explanation, "offload").contains(by), "{explanation:#}");
    let own = explained(network, SocketAddr::new(case.family.address(Role::Balancer), 4_242));
    assert_eq!(
        (own["verdict"].as_str(), own["reason"].as_str()),
        (Some("refused"), Some("vip_loop")),
        "{own:#}"
    );
}

/// A balancer with a control socket, with two servers in round robin.
fn in_turn(case: Case, config: Config) -> Network {
    let mut network = Network::new(case, 1, 2);
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    command.env("CONVEY_SOCKET", network.path("control.sock"));
    let backend = "algorithm = \"round_robin\"";
    network.balance_by(command, &Config { backend, health: UNCHECKED, ..config });
    network
}

/// Runs a command for the balancer.
fn command_output(network: &Network, line: &str) -> String {
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    let ran = run(command.env("CONVEY_SOCKET", network.path("control.sock")).args(line.split(' ')));
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    ran.stdout
}

/// Entry of a client's flow in the list of flows.
fn listed(network: &Network, client: SocketAddr) -> Value {
    let list: Value =
        serde_json::from_str(&command_output(network, &format!("flows --client {client} --json"))).unwrap();
    list["flows"][0].clone()
}

fn explanation_predicts_the_server_of_a_flow_and_its_successor(case: Case) {
    let network = &in_turn(case, Config::new(2));
    let _servers = [1, 2].map(|n| network.server(n, TcpServer::echo));
    let mut held = network.inside(Role::Client(1), || connect(network.vip()));
    (0..3).for_each(|_| ping(&mut held).unwrap());
    let client = held.local_addr().unwrap();
    let server = wait_for("the flow to be explained", || {
        let explanation = explained(network, client);
        let is_there = explanation["flow"]["state"] == "established"
            && explanation["flow"]["kernel"] == case.is_cached();
        is_there.then(|| explanation["server"].as_str().unwrap().to_owned())
    });
    command_output(network, &format!("server weight pool/{server} 0"));
    ping(&mut held).unwrap();
    let (explanation, listed) = (explained(network, client), listed(network, client));
    assert_eq!(
        (&explanation["verdict"], &explanation["server"]),
        (&json!("server"), &json!(server)),
        "{explanation:#}"
    );
    let flow = &explanation["flow"];
    for (of_flow, of_list) in [
        ("id", "id"),
        ("state", "state"),
        ("address", "server_addr"),
        ("snat", "snat_addr"),
        ("kernel", "kernel"),
    ] {
        assert_eq!(flow[of_flow], listed[of_list], "{explanation:#} {listed:#}");
    }
    let other = if server == "s1" { "s2" } else { "s1" };
    assert!(
        message(&explanation, "flow").ends_with(&format!("the flow stays with pool/{server}")),
        "{explanation:#}"
    );
    assert!(message(&explanation, "new").contains(&format!("gets pool/{other}")), "{explanation:#}");
    let subject = if case.is_dsr() { "dsr" } else { "snat" };
    let expected =
        flow["snat"].as_str().map_or("l3: packets go to ".to_owned(), |snat| format!(" sees {snat}"));
    assert!(message(&explanation, subject).contains(&expected), "{explanation:#}");
    assert!(message(&explanation, "next hop").starts_with("neighbour "), "{explanation:#}");
    let by =
        if case.is_cached() { "the kernel (" } else { "a worker forwards its packets: passthrough.offload" };
    assert!(message(&explanation, "offload").starts_with(by), "{explanation:#}");
    let all = explained(network, client.ip());
    let servers = json!([{ "server": format!("pool/{server}"), "flows": 1 }]);
    assert_eq!((&all["open_flows"]["open"], &all["open_flows"]["servers"]), (&json!(1), &servers), "{all:#}");

    command_output(network, &format!("server weight pool/{server} 1"));
    reset(held);
    let over = wait_for("the reset to be known", || {
        let explanation = explained(network, client);
        (explanation["flow"]["over"] == true).then_some(explanation)
    });
    assert_eq!((&over["flow"]["state"], &over["server"]), (&json!("closed"), &json!(server)), "{over:#}");
    assert!(message(&over, "server").starts_with(&format!("pool/{server} again: ")), "{over:#}");
    assert_eq!(explained(network, client.ip())["open_flows"]["open"], 0);
    let mut again = network.inside(Role::Client(1), || connect_from(client, network.vip()).unwrap());
    ping(&mut again).unwrap();
    let now = self::listed(network, client);
    assert_eq!((&now["server"], &now["snat_addr"]), (&json!(server), &flow["snat"]), "{now:#}");
    let free = explained(network, SocketAddr::new(client.ip(), 9));
    assert!(
        free["flow"].is_null() && message(&free, "flow").ends_with("the answer is for a new flow"),
        "{free:#}"
    );
}

fn sessions_of_datagrams_are_explained_by_their_flow_too(case: Case) {
    let network = &in_turn(case, Config::udp(ECHO, 2));
    let _servers = [1, 2].map(|n| {
        let addr = SocketAddr::new(case.family.address(Role::Server(n)), ECHO);
        network.inside(Role::Server(n), || UdpEcho::start(addr))
    });
    let vip = case.family.vip(ECHO);
    let client = network.inside(Role::Client(1), || socket_to(vip));
    exchange_until_answered(&client, b"hello");
    let client_addr = client.local_addr().unwrap();
    let explanation = explained(network, client_addr);
    let listed = listed(network, client_addr);
    assert_eq!(
        [&explanation["server"], &explanation["flow"]["id"]],
        [&listed["server"], &listed["id"]],
        "{explanation:#}"
    );
    command_output(network, &format!("server weight pool/{} 0", listed["server"].as_str().unwrap()));
    exchange_until_answered(&client, b"hello");
    let after = explained(network, client_addr);
    assert_eq!([&after["server"], &after["flow"]["id"]], [&listed["server"], &listed["id"]], "{after:#}");
}
