//! Packets under the host's policy rules, and servers that packet modes must not send to.

use convey_lab::{INTERFACE, Role};
use convey_testkit::wait_for;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::interfaces::ip;
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        server_behind_an_interface_without_ethernet_is_down[NGINX],
        ipsec_policy_that_comes_takes_the_server_out[NGINX],
    ];
    // In mode dsr, servers answer.
    tests.extend(tests![when Case::is_passthrough =>
        answers_take_the_way_of_a_policy_rule_for_the_vip [NGINX],
    ]);
    tests
}

/// A server on a network behind an interface as WireGuard has it.
fn far(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("10.55.0.1/24", "10.55.0.2:80"),
        Family::V6 => ("fd55::1/64", "[fd55::2]:80"),
    }
}

fn server_behind_an_interface_without_ethernet_is_down(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let (own, server) = far(case.family);
    ip(&network, Role::Balancer, "tuntap add dev wg0 mode tun");
    ip(&network, Role::Balancer, "link set wg0 up");
    let nodad = if case.family == Family::V6 { " nodad" } else { "" };
    ip(&network, Role::Balancer, &format!("addr add {own} dev wg0{nodad}"));
    let _server = network.nginx(1);
    let config = Config::new(1).text(case);
    network.balance_with(&format!("{config}\n[backends.pool.servers.s2]\naddr = \"{server}\"\n"));
    network.wait_for_health(1, true);
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    let health = network.stat("/backends/pool/servers/s2/health");
    let reason = health["reason"].as_str().unwrap();
    assert!(health["up"] == false && reason.contains("wg0") && reason.contains("Ethernet"), "{health}");
    network.wait_for_log("server pool/s2");
}

fn ipsec_policy_that_comes_takes_the_server_out(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    network.wait_for_health(1, true);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    let (any, server) = (case.family.any(), network.address(Role::Server(1)).ip());
    let policy = format!("src {any}/0 dst {server} dir out");
    ip(&network, Role::Balancer, &format!("xfrm policy add {policy} tmpl proto esp mode transport"));
    let reason = |network: &Network| {
        network.stat("/backends/pool/servers/s1/health/reason").as_str().unwrap().to_owned()
    };
    wait_for("the policy to be seen", || reason(&network).contains("IPsec").then_some(()));
    network.wait_for_health(1, false);
    assert!(network.fetch(1).is_err(), "nothing is sent in the clear");
    ip(&network, Role::Balancer, &format!("xfrm policy delete {policy}"));
    network.wait_for_health(1, true);
    assert_eq!(network.fetch(1).unwrap(), "s1");
}

fn answers_take_the_way_of_a_policy_rule_for_the_vip(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    network.wait_for_health(1, true);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    // Server 2 is a router.
    let sysctl = match case.family {
        Family::V4 => ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0"],
        Family::V6 => ["net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.all.accept_redirects=0"],
    };
    for setting in sysctl {
        network.lab.run(Role::Server(2), "sysctl", &["-qw", setting]).unwrap();
    }
    let router = network.address(Role::Server(2)).ip();
    let client = network.address(Role::Client(1)).ip();
    let vip = network.vip().ip();
    let six = if case.family == Family::V6 { "-6 " } else { "" };
    ip(&network, Role::Balancer, &format!("{six}route add {client} via {router} dev {INTERFACE} table 200"));
    let counted = || network.received(Role::Server(2));
    let before = counted();
    ip(&network, Role::Balancer, &format!("{six}rule add from {vip} lookup 200"));
    // A page is some hundred bytes, and neighbour discovery takes fewer.
    wait_for("answers by the router", || {
        assert_eq!(network.fetch(1).unwrap(), "s1");
        (counted() > before + 5_000).then_some(())
    });
}
