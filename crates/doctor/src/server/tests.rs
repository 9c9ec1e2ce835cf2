use super::diagnose;
use super::facts::{HostLink, ReplyRoute, RouterFacts, ServerFacts, ServerSocket};
use crate::Diagnosis;
use crate::ruleset::{Ruleset, SourceRule, Tool, read_json, read_save};
use std::net::IpAddr;

const PORT: u16 = 80;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Address of the test network that ends with this number.
fn of_lab(v6: bool, last: u8) -> IpAddr {
    if v6 { ip(&format!("fd77::{last}")) } else { ip(&format!("10.77.0.{last}")) }
}

fn vip(v6: bool) -> IpAddr {
    of_lab(v6, 100)
}

/// Facts about a server with `dsr = "l2"` or `"l3"` that has no fault.
fn healthy(l2: bool, v6: bool) -> ServerFacts {
    let single = if v6 { 128 } else { 32 };
    let lo = HostLink {
        name: "lo".to_owned(),
        is_loopback: true,
        mtu: 65_536,
        addresses: [(ip("127.0.0.1"), 8)].into_iter().chain(l2.then(|| (vip(v6), single))).collect(),
        ..HostLink::default()
    };
    let eth0 = HostLink {
        name: "eth0".to_owned(),
        mtu: 1500,
        addresses: vec![(of_lab(v6, 11), if v6 { 64 } else { 24 })],
        arp_ignore: l2.into(),
        arp_announce: if l2 { 2 } else { 0 },
        ..HostLink::default()
    };
    let eth1 = HostLink { name: "eth1".to_owned(), mtu: 1500, ..HostLink::default() };
    let nginx = ServerSocket {
        protocol: "tcp".to_owned(),
        address: if l2 { None } else { Some(of_lab(v6, 11)) },
        port: PORT,
        process: "nginx (process 12)".to_owned(),
    };
    ServerFacts {
        links: vec![lo, eth0, eth1],
        neighbours: vec![
            (of_lab(v6, 1), "02:00:0a:4d:00:01".to_owned()),
            (of_lab(v6, 201), "02:00:0a:4d:00:c9".to_owned()),
        ],
        reply_route: Some(ReplyRoute {
            interface: "eth0".to_owned(),
            router: Some(of_lab(v6, 253)),
            source: Some(of_lab(v6, 11)),
        }),
        has_routers: true,
        gateway: Some(RouterFacts {
            mac: Some("02:00:0a:4d:00:fd".to_owned()),
            forwards: true,
            longest: Some(1500),
        }),
        routers: Vec::new(),
        vip_owner: (!l2).then(|| "02:00:0a:4d:00:01".to_owned()),
        sockets: vec![nginx],
        rules: Ruleset::default(),
        gue_port: None,
        tc: if l2 { Vec::new() } else { vec![rule(v6)] },
        scripts: "tc".to_owned(),
    }
}

fn rule(v6: bool) -> SourceRule {
    SourceRule {
        table: "tc".to_owned(),
        interface: Some("eth0".to_owned()),
        server: Some(of_lab(v6, 11)),
        vip: vip(v6),
        ports: vec!["80".to_owned()],
        protocols: vec!["tcp".to_owned(), "udp".to_owned()],
        spared: vec![of_lab(v6, 1)],
    }
}

fn examine(v6: bool, facts: &ServerFacts) -> Vec<Diagnosis> {
    diagnose(vip(v6), Some(PORT), facts)
}

/// Name and commands of the only finding after one change to a healthy server.
fn found(l2: bool, v6: bool, change: impl Fn(&mut ServerFacts)) -> (&'static str, String) {
    let mut facts = healthy(l2, v6);
    change(&mut facts);
    let found = examine(v6, &facts);
    let [finding] = &found[..] else { panic!("not one: {found:#?}") };
    (finding.check, finding.fix.join("; "))
}

#[test]
fn a_healthy_server_has_no_finding() {
    for (l2, v6) in [(true, false), (true, true), (false, false), (false, true)] {
        assert_eq!(examine(v6, &healthy(l2, v6)), []);
        assert_eq!(diagnose(vip(v6), None, &healthy(l2, v6)), [], "without a port");
    }
}

#[test]
fn a_vip_belongs_on_lo_with_all_its_bits_and_silent() {
    for v6 in [false, true] {
        let (vip, len) = (vip(v6), if v6 { 128 } else { 32 });
        let up = format!("VIP={vip} tc/dsr-server-l2.sh up");
        let on_eth0 = |facts: &mut ServerFacts| {
            facts.links[0].addresses.pop();
            facts.links[1].addresses.push((vip, len));
        };
        assert_eq!(
            found(true, v6, on_eth0),
            ("vip-not-on-lo", format!("ip addr del {vip}/{len} dev eth0; {up}"))
        );
        let alone = |facts: &mut ServerFacts| {
            on_eth0(facts);
            facts.links[1].addresses.retain(|(ip, _)| *ip == vip || ip.is_ipv4() == v6);
        };
        assert_eq!(found(true, v6, alone), ("vip-not-on-lo", String::new()), "the host would be cut off");
        let wide = |facts: &mut ServerFacts| facts.links[0].addresses[1].1 = 24;
        assert_eq!(found(true, v6, wide), ("vip-prefix", format!("ip addr del {vip}/24 dev lo; {up}")));
    }
    let vip = vip(false);
    let up = format!("VIP={vip} tc/dsr-server-l2.sh up");
    let gone = |facts: &mut ServerFacts| facts.links[0].addresses.truncate(1);
    assert_eq!(found(true, false, gone), ("vip-not-on-lo", up.clone()), "ARP settings tell of dsr = \"l2\"");
    for (ignore, announce) in [(0, 2), (1, 0), (0, 0)] {
        let loud = |facts: &mut ServerFacts| {
            (facts.links[1].arp_ignore, facts.links[1].arp_announce) = (ignore, announce);
            facts.links[2].arp_ignore = 1;
            facts.links[2].arp_announce = 2;
        };
        assert_eq!(found(true, false, loud), ("arp-not-silenced", up.clone()), "{ignore} {announce}");
    }
}

#[test]
fn rules_that_rewrite_answers_must_fit() {
    for v6 in [false, true] {
        let [vip, server, balancer] = [100, 11, 1].map(|last| of_lab(v6, last));
        let script = |name: &str, ports: &str, interface: &str| {
            format!(
                "VIP={vip} PORTS={ports} SERVER={server} BALANCERS={balancer} INTERFACE={interface} tc/{name} up"
            )
        };
        let none = |facts: &mut ServerFacts| facts.tc.clear();
        assert_eq!(found(false, v6, none), ("nat-missing", script("dsr-server-nft.sh", "80", "eth0")));
        let port = |facts: &mut ServerFacts| facts.tc[0].ports = vec!["81".to_owned()];
        assert_eq!(found(false, v6, port), ("nat-wrong-port", script("dsr-server.sh", "\"80 81\"", "eth0")));
        let udp = |facts: &mut ServerFacts| facts.tc[0].protocols.retain(|of| of == "udp");
        assert_eq!(found(false, v6, udp).0, "nat-wrong-port");
        let eth1 = |facts: &mut ServerFacts| facts.tc[0].interface = Some("eth1".to_owned());
        let expected =
            format!("INTERFACE=eth1 tc/dsr-server.sh down; {}", script("dsr-server.sh", "80", "eth0"));
        assert_eq!(found(false, v6, eth1), ("nat-wrong-interface", expected));
        let other_vip = |facts: &mut ServerFacts| facts.tc[0].vip = of_lab(v6, 99);
        assert_eq!(found(false, v6, other_vip), ("nat-wrong-vip", script("dsr-server.sh", "80", "eth0")));
        let other_server = |facts: &mut ServerFacts| facts.tc[0].server = Some(of_lab(v6, 12));
        assert_eq!(
            found(false, v6, other_server),
            ("nat-wrong-address", script("dsr-server.sh", "80", "eth0"))
        );
    }
}

#[test]
fn a_gateway_is_there_is_a_router_and_is_not_the_balancer() {
    for (l2, v6) in [(true, false), (false, true), (false, false)] {
        let router = of_lab(v6, 254);
        let gateway = |change: fn(&mut RouterFacts)| {
            found(l2, v6, |facts| {
                facts.gateway.iter_mut().for_each(change);
                facts.routers = vec![router];
            })
        };
        let fix = format!("ip route replace default via {router} dev eth0");
        assert_eq!(gateway(|router| router.mac = None), ("gateway", fix.clone()));
        assert_eq!(gateway(|router| router.forwards = false), ("gateway", fix.clone()));
        // With several candidates, or none, only the operator can choose the right router.
        for (routers, words) in
            [(vec![], "found no router on eth0."), (vec![router, of_lab(v6, 253)], "these routers on eth0: ")]
        {
            let mut facts = healthy(l2, v6);
            facts.gateway.iter_mut().for_each(|router| router.mac = None);
            facts.routers = routers;
            let found = examine(v6, &facts);
            assert!(found[0].fix == [""; 0] && found[0].why.contains(words), "{found:#?}");
        }
        let none = |facts: &mut ServerFacts| {
            (facts.reply_route, facts.gateway, facts.has_routers) = (None, None, false);
        };
        // Clients may be on the link, or behind another route.
        let mut facts = healthy(l2, v6);
        none(&mut facts);
        assert_eq!(examine(v6, &facts), []);
        let setup = super::ServerSetup::of(vip(v6), Some(PORT), &facts);
        assert_eq!(super::reply_route::unseen(&setup, &facts).unwrap().check, "client-route");
        assert_eq!(super::reply_route::unseen(&setup, &healthy(l2, v6)), None);
        // The VIP is on another network, and there is no route to it.
        facts.links[1].addresses[0].0 = if v6 { ip("fd78::11") } else { ip("10.78.0.11") };
        let found_far = examine(v6, &facts);
        assert!(found_far.iter().any(|one| one.check == "gateway" && one.fix == [""; 0]), "{found_far:#?}");
        let (check, _) = gateway(|router| router.longest = Some(1400));
        assert_eq!(check, "mtu");
    }
    let balancer = |facts: &mut ServerFacts| {
        facts.gateway.iter_mut().for_each(|router| router.mac = Some("02:00:0a:4d:00:01".to_owned()));
    };
    assert_eq!(found(false, false, balancer).0, "gateway");
}

#[test]
fn a_gateway_whose_errors_the_firewall_drops_is_not_judged_by_them() {
    let deaf = |rule: &str| {
        let text =
            format!("*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp --dport 80 -j ACCEPT\n{rule}\nCOMMIT\n");
        let mut facts = healthy(false, false);
        facts.gateway.iter_mut().for_each(|router| router.forwards = false);
        facts.rules.tables = read_save(&text, Tool::Iptables);
        examine(false, &facts).len()
    };
    assert_eq!(deaf("-A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT"), 0);
    assert_eq!(deaf("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"), 1);
    assert_eq!(deaf("-A INPUT -p icmp -j ACCEPT"), 1);
}

#[test]
fn strict_reverse_paths_drop_clients_that_are_answered_by_another_interface() {
    let crossed = |facts: &mut ServerFacts| {
        facts.links[1].rp_filter = 1;
        facts.reply_route.iter_mut().for_each(|way| way.interface = "eth1".to_owned());
        facts.tc.iter_mut().for_each(|rule| rule.interface = Some("eth1".to_owned()));
    };
    for l2 in [true, false] {
        let expected = ("rp-filter", "sysctl -w net.ipv4.conf.eth0.rp_filter=2".to_owned());
        assert_eq!(found(l2, false, crossed), expected);
        let mut facts = healthy(l2, false);
        facts.links[1].rp_filter = 1;
        assert_eq!(examine(false, &facts), [], "they leave by the interface by which they come");
        crossed(&mut facts);
        facts.links[1].rp_filter = 2;
        assert_eq!(examine(false, &facts), []);
    }
}

#[test]
fn a_service_listens_where_packets_come() {
    for (l2, v6) in [(true, false), (true, true), (false, false), (false, true)] {
        let wanted = if l2 { vip(v6) } else { of_lab(v6, 11) };
        for elsewhere in [of_lab(v6, 12), ip("127.0.0.1")] {
            let (check, _) = found(l2, v6, |facts| facts.sockets[0].address = Some(elsewhere));
            assert_eq!(check, "service-address");
        }
        let (check, fix) = found(l2, v6, |facts| facts.sockets[0].port = 8080);
        let at = std::net::SocketAddr::new(wanted, PORT);
        assert_eq!(
            (check, fix),
            ("service-address", format!("# start the service on {at}, or on every address"))
        );
        let mut facts = healthy(l2, v6);
        facts.sockets[0].address = Some(wanted);
        assert_eq!(examine(v6, &facts), []);
    }
    let datagrams = |facts: &mut ServerFacts| facts.sockets[0].protocol = "udp".to_owned();
    assert_eq!(found(true, false, datagrams).0, "service-address", "it may answer from another address");
}

#[test]
fn a_firewall_lets_requests_in_and_answers_out() {
    for (rule, check, fix) in [
        (
            "-A INPUT -p tcp -m tcp --dport 80 -j DROP",
            "firewall-drops",
            "iptables -t filter -I INPUT 1 -p tcp --dport 80 -j ACCEPT",
        ),
        (
            "-A INPUT -j REJECT --reject-with icmp-port-unreachable",
            "firewall-rejects",
            "iptables -t filter -I INPUT 1 -p tcp --dport 80 -j ACCEPT",
        ),
        (
            "-A OUTPUT -p tcp -m tcp --sport 80 -j DROP",
            "firewall-drops",
            "iptables -t filter -I OUTPUT 1 -p tcp --sport 80 -j ACCEPT",
        ),
    ] {
        for l2 in [true, false] {
            let text = format!("*filter\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{rule}\nCOMMIT\n");
            let blocked = |facts: &mut ServerFacts| facts.rules.tables = read_save(&text, Tool::Iptables);
            assert_eq!(found(l2, false, blocked), (check, fix.to_owned()));
        }
    }
}

/// An operator who expects packets only from the balancer may admit only the balancer.
#[test]
fn firewall_that_admits_only_the_balancer_is_reported() {
    let of = |exprs: &str| {
        let chain = r#"{ "chain": { "family": "inet", "table": "fw", "name": "input", "handle": 1, "type": "filter",
            "hook": "input", "prio": 0, "policy": "accept" } }"#;
        let table = r#"{ "table": { "family": "inet", "name": "fw", "handle": 1 } }"#;
        format!(r#"{{ "nftables": [{table}, {chain}, {exprs}] }}"#)
    };
    let rule = |handle: u8, exprs: &str| {
        format!(
            r#"{{ "rule": {{ "family": "inet", "table": "fw", "chain": "input", "handle": {handle}, "expr": [{exprs}] }} }}"#
        )
    };
    let source = |op: &str, right: &str| {
        format!(
            r#"{{ "match": {{ "op": "{op}", "left": {{ "payload": {{ "protocol": "ip", "field": "saddr" }} }}, "right": {right} }} }}"#
        )
    };
    let network = source("==", r#"{ "prefix": { "addr": "10.77.0.0", "len": 24 } }"#);
    let (balancer, others) = (source("==", r#""10.77.0.1""#), source("!=", r#""10.77.0.1""#));
    let (drop, accept) = (r#"{ "drop": null }"#, r#"{ "accept": null }"#);
    let in_one = rule(7, &[&network, &others, drop].join(","));
    let in_two = [rule(6, &[&balancer, accept].join(",")), rule(7, &[&network, drop].join(","))].join(",");
    for rules in [in_one, in_two] {
        let tables = crate::ruleset::read_json(&of(&rules)).unwrap();
        for l2 in [false, true] {
            let change = |facts: &mut ServerFacts| facts.rules.tables.clone_from(&tables);
            let expected = "nft insert rule inet fw input handle 7 tcp dport 80 accept".to_owned();
            assert_eq!(found(l2, false, change), ("firewall-drops", expected));
            let mut facts = healthy(l2, false);
            change(&mut facts);
            let found = examine(false, &facts).remove(0);
            assert_eq!(found.severity, crate::Severity::Warning, "it may be meant");
            assert!(found.seen.contains("requests of clients in 10.77.0.0/24 to port 80"), "{}", found.seen);
        }
    }
    // A rule for a single client causes no finding.
    let one = rule(7, &[source("==", r#""10.77.0.201""#).as_str(), drop].join(","));
    let some = rule(
        7,
        &[source("==", r#"{ "prefix": { "addr": "10.77.0.128", "len": 25 } }"#).as_str(), drop].join(","),
    );
    for rules in [one, some] {
        let mut facts = healthy(false, false);
        facts.rules.tables = crate::ruleset::read_json(&of(&rules)).unwrap();
        assert_eq!(examine(false, &facts), []);
    }
}

/// Facts about a server behind a tunnel: the VIP on `lo`, as with `dsr = "l2"`, and a tunnel
/// device.
fn behind_a_tunnel(v6: bool, device: &str) -> ServerFacts {
    let mut facts = healthy(true, v6);
    facts.links.push(HostLink { name: device.to_owned(), mtu: 1480, ..HostLink::default() });
    facts
}

#[test]
fn a_server_behind_a_tunnel_takes_packets_out_and_lets_them_in() {
    for (v6, device) in [(false, "tunl0"), (false, "ip6tnl0"), (true, "sit0"), (true, "ip6tnl0")] {
        assert_eq!(examine(v6, &behind_a_tunnel(v6, device)), [], "{device}");
    }
    let other = examine(true, &behind_a_tunnel(true, "tunl0"));
    assert_eq!((other.len(), other[0].check), (1, "tunnel-device"));
    assert_eq!(other[0].fix, ["VIP=fd77::100 KIND=ipip SERVER=fd77::11 tc/dsr-server-tunnel.sh up"]);
    assert!(other[0].seen.starts_with("neither sit0 nor ip6tnl0 is up"), "{other:?}");

    let mut partly = behind_a_tunnel(false, "sit0");
    partly.links.push(HostLink { name: "ip6tnl0".to_owned(), ..HostLink::default() });
    let found = examine(false, &partly);
    assert_eq!((found[0].check, found.len()), ("tunnel-device", 1));
    assert!(found[0].seen.starts_with("tunl0 is not up"), "{found:?}");

    let mut strict = behind_a_tunnel(false, "tunl0");
    strict.links.last_mut().unwrap().rp_filter = 1;
    let found = examine(false, &strict);
    assert_eq!((found.len(), found[0].check), (1, "rp-filter"));
    assert_eq!(found[0].fix[1], "sysctl -w net.ipv4.conf.tunl0.rp_filter=0");

    let mut without_vip = behind_a_tunnel(false, "tunl0");
    without_vip.gue_port = Some(7_000);
    let table = r#"{ "nftables": [{ "table": { "family": "inet", "name": "convey_dsr_tunnel" } }] }"#;
    without_vip.rules.tables = read_json(table).unwrap();
    without_vip.links[0].addresses = vec![(ip("127.0.0.1"), 8)];
    let found = examine(false, &without_vip);
    assert_eq!((found[0].check, found.len()), ("vip-not-on-lo", 1));
    assert_eq!(
        found[0].fix,
        ["VIP=10.77.0.100 KIND=gue SERVER=10.77.0.11 PORT=7000 MSS=clamp tc/dsr-server-tunnel.sh up"]
    );

    // Other software also uses such devices, and gives them addresses.
    let mut other = healthy(true, false);
    let addresses = vec![(ip("192.168.7.0"), 32)];
    other.links.push(HostLink { name: "tunl0".to_owned(), addresses, rp_filter: 1, ..HostLink::default() });
    assert_eq!(examine(false, &other), []);
}
