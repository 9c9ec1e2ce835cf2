//! Configuration changes while traffic flows.

use convey_lab::Role;
use convey_testkit::{TcpServer, Wrk, connect, ping, wait_for};

use crate::case::{Case, PacketTest, tests};
use crate::config::Config;
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![twenty_reloads_under_load_break_no_connection [NGINX, WRK], a_removed_server_finishes_its_connections]
}

fn twenty_reloads_under_load_break_no_connection(case: Case) {
    let mut network = Network::new(case, 1, 3);
    let _servers = [network.nginx(1), network.nginx(2), network.nginx(3)];
    network.balance(&Config::new(3));
    let wrk = Wrk::spawn(network.client(1, "wrk"), network.path("").as_path(), network.vip(), 16);
    for n in 0..20 {
        let weight = if n % 2 == 0 { 5 } else { 1 };
        let lines = if weight == 5 { "weight = 5" } else { "weight = 1" };
        let before = network.stat("/frontends/web/total_connections").as_u64().unwrap();
        network.save(&Config { servers: vec![(1, lines), (2, ""), (3, "")], ..Config::new(3) });
        wait_for("the reload and traffic after it", || {
            let now = network.stat("/frontends/web/total_connections").as_u64().unwrap();
            let loaded = network.stat("/backends/pool/servers/s1/weight") == weight;
            (loaded && now > before + 50).then_some(())
        });
    }
    let summary = wrk.stop();
    assert_eq!(summary.failed, 0, "{}", summary.text);
    assert!(summary.requests > 1000, "{}", summary.text);
}

fn a_removed_server_finishes_its_connections(case: Case) {
    let mut network = Network::new(case, 1, 2);
    network.balance(&Config { servers: vec![(1, "")], ..Config::new(1) });
    let network = &network;
    let _servers =
        [network.server(1, TcpServer::echo), network.server(2, |addr| TcpServer::named("s2", addr))];
    network.wait_for_health(1, true);
    let mut old = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut old).unwrap();
    network.save(&Config { servers: vec![(2, "")], ..Config::new(2) });
    network.wait_for_health(2, true);
    for _ in 0..50 {
        assert_eq!(network.fetch(1).unwrap(), "s2");
        ping(&mut old).unwrap();
    }
}
