//! Which server a client gets, as it is explained and as it is.

use std::io::{Read, Write};
use std::net::SocketAddr;

use convey_lab::Role;
use convey_testkit::{TcpServer, ask, connect};
use serde_json::Value;

use crate::case::{Case, Story, stories};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, STATS};

pub(crate) fn stories() -> Vec<Story> {
    stories![three_hundred_connections_get_the_servers_that_are_explained]
}

fn explained(network: &Network, client: SocketAddr) -> Value {
    let path = format!("/v1/explain?client={client}&frontend=web");
    let (status, body) = network.inside(Role::Balancer, || ask(STATS.into(), &path).unwrap());
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// What a step says.
fn says<'a>(said: &'a Value, about: &str) -> &'a str {
    let steps = said["steps"].as_array().unwrap();
    steps.iter().find(|step| step["about"] == about).map_or("", |step| step["says"].as_str().unwrap())
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
    for _ in 0..300 {
        let (client, server) = network.inside(Role::Client(1), || {
            let mut stream = connect(network.vip());
            let mut server = String::new();
            stream.read_to_string(&mut server).unwrap();
            (stream.local_addr().unwrap(), server)
        });
        let said = explained(network, client);
        assert_eq!(said["server"], server.as_str(), "{said:#}");
    }
    let said = explained(network, SocketAddr::new(case.family.address(Role::Client(1)), 4_242));
    let own = case.family.address(Role::Balancer).to_string();
    assert!(says(&said, "algorithm").starts_with(algorithm), "{said:#}");
    assert!(says(&said, "next hop").contains(" on the link by "), "{said:#}");
    match case.is_dsr() {
        true => assert!(says(&said, "dsr").starts_with("l3: packets go to "), "{said:#}"),
        false => {
            assert!(says(&said, "snat").contains(&format!(" sees {own} with a free port of ")), "{said:#}")
        }
    }
    let by = if case.is_cached() {
        "the kernel ("
    } else {
        "every packet goes through a worker: passthrough.offload"
    };
    assert!(says(&said, "offload").contains(by), "{said:#}");
    let own = explained(network, SocketAddr::new(case.family.address(Role::Balancer), 4_242));
    assert_eq!(
        (own["verdict"].as_str(), own["reason"].as_str()),
        (Some("refused"), Some("vip_loop")),
        "{own:#}"
    );
}
