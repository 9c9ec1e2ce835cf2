//! What files mean in one mode or another, and what a host has to say to it.

use std::net::IpAddr;

use super::super::{Network, Problem, parse, validate_mode};
use super::GOOD;
use crate::model::{Algorithm, HashOn, Interface, Mode};

const PACKETS: [Mode; 2] = [Mode::Passthrough, Mode::Dsr];

fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
    Interface {
        index,
        name: name.into(),
        mac: Some([2; 6]),
        mtu: 1500,
        up: true,
        loopback: name == "lo",
        addresses: addresses.iter().map(|addr| addr.parse().unwrap()).collect(),
    }
}

/// What is wrong with a file, or odd about it, on a host between 10.0.0.0/24 on eth0 and 10.1.0.0/24 on eth1,
/// without a default route.
fn told(text: &str, mode: Mode) -> Result<Vec<String>, Vec<String>> {
    let interfaces = [
        interface(1, "lo", &["127.0.0.1", "::1"]),
        interface(2, "eth0", &["10.0.0.1", "fe80::1"]),
        interface(3, "eth1", &["10.1.0.1"]),
    ];
    let interface_to = |ip: IpAddr| match ip {
        IpAddr::V4(ip) if ip.octets()[..2] == [10, 0] => Some(2),
        IpAddr::V4(ip) if ip.octets()[..2] == [10, 1] => Some(3),
        _ => None,
    };
    let network = Network { interfaces: &interfaces, interface_to: &interface_to };
    let loaded = parse("config.toml", text).expect("right in itself").for_mode(mode);
    let lines = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect();
    validate_mode(&loaded, &network).map(lines).map_err(lines)
}

/// The only error, in this mode, of [`GOOD`] with something in it replaced.
fn error_with(mode: Mode, from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    let mut all = told(&GOOD.replace(from, to), mode).expect_err("the host cannot run it");
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// What is said, in this mode, about [`GOOD`] with lines added to the end.
fn after(mode: Mode, lines: &str) -> Result<Vec<String>, Vec<String>> {
    told(&format!("{GOOD}{lines}"), mode)
}

#[test]
fn a_file_that_suits_the_host_runs_in_every_mode() {
    for mode in Mode::ALL {
        assert_eq!(told(GOOD, mode), Ok(vec![]));
    }
}

#[test]
fn packet_modes_hash_the_tuple_unless_the_file_says_otherwise() {
    let chosen = |settings: &str, mode| {
        let text = format!("{GOOD}[backends.web]\n{settings}");
        let config = parse("config.toml", &text).expect("valid").for_mode(mode).config;
        assert_eq!(config.mode, mode);
        (config.backends[0].algorithm, config.backends[0].hash)
    };
    for mode in PACKETS {
        assert_eq!(chosen("", mode), (Algorithm::Ring, HashOn::Tuple));
        assert_eq!(chosen("algorithm = 'maglev'", mode), (Algorithm::Maglev, HashOn::Tuple));
        assert_eq!(chosen("hash = 'source'", mode), (Algorithm::Ring, HashOn::Source));
        assert_eq!(chosen("algorithm = 'least_connections'", mode).0, Algorithm::LeastConnections);
    }
    assert_eq!(chosen("", Mode::Proxy), (Algorithm::RoundRobin, HashOn::Source));
    assert_eq!(chosen("algorithm = 'ring'", Mode::Proxy), (Algorithm::Ring, HashOn::Source));
}

#[test]
fn the_mode_of_the_command_line_overrides_the_files_and_its_defaults() {
    let loaded = parse("config.toml", &format!("mode = 'dsr'\n{GOOD}")).expect("valid");
    assert_eq!((loaded.config.mode, loaded.config.backends[0].algorithm), (Mode::Dsr, Algorithm::Ring));
    let config = loaded.for_mode(Mode::Proxy).config;
    assert_eq!((config.mode, config.backends[0].algorithm), (Mode::Proxy, Algorithm::RoundRobin));
}

#[test]
fn a_hash_that_nobody_reads_is_odd_only_where_the_default_does_not_hash() {
    let hash = "[backends.web]\nhash = \"tuple\"";
    let odd = "config.toml:8:8: backends.web.hash: has no effect with algorithm \"round_robin\", which does not hash";
    assert_eq!(after(Mode::Proxy, hash), Ok(vec![odd.to_owned()]));
    assert_eq!(after(Mode::Dsr, hash), Ok(vec![]));
}

#[test]
fn packet_modes_need_an_address_of_their_own_and_are_told_which_there_are() {
    for mode in PACKETS {
        for (vip, kind) in [
            ("0.0.0.0", "a wildcard"),
            ("127.0.0.1", "a loopback address"),
            ("255.255.255.255", "the broadcast address"),
        ] {
            assert_eq!(
                error_with(mode, "10.0.0.1", vip),
                format!(
                    "config.toml:3:15: frontends.web.listen_addr: {} mode needs a concrete address, {vip} is {kind}; \
                     this host has: 10.0.0.1 (eth0), 10.1.0.1 (eth1)",
                    mode.name()
                )
            );
        }
    }
    for vip in ["0.0.0.0", "127.0.0.1"] {
        assert_eq!(told(&GOOD.replace("10.0.0.1", vip), Mode::Proxy), Ok(vec![]));
    }
}

#[test]
fn ipv6_is_not_built_yet_in_packet_modes() {
    let not_yet = "IPv6 is not built yet in dsr mode, found 2001:db8::1; allowed: IPv4";
    assert_eq!(
        error_with(Mode::Dsr, "\"10.0.0.1:80\"", "[\"10.0.0.1:80\", \"[2001:db8::1]:80\"]"),
        format!("config.toml:3:31: frontends.web.listen_addr: {not_yet}")
    );
    assert_eq!(
        error_with(Mode::Dsr, "10.0.0.2:80", "[2001:db8::1]:80"),
        format!("config.toml:6:8: backends.web.servers.a.addr: {not_yet}")
    );
}

#[test]
fn a_vip_on_no_interface_comes_with_the_line_that_mends_it() {
    for (vip, device) in [("10.0.0.77", "eth0"), ("10.1.0.77", "eth1"), ("203.0.113.7", "eth0")] {
        for mode in PACKETS {
            assert_eq!(
                told(&GOOD.replace("10.0.0.1", vip), mode),
                Ok(vec![format!(
                    "config.toml:3:15: frontends.web.listen_addr: {vip} is on no interface of this host, so packets \
                     to it only come if they are routed here; to add it: ip addr add {vip}/32 dev {device}"
                )])
            );
        }
    }
}

#[test]
fn servers_of_packet_modes_are_other_machines() {
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    for mode in PACKETS {
        let reason = format!("; in {} mode servers are other machines (proxy mode can do this)", mode.name());
        assert_eq!(
            error_with(mode, "10.0.0.2", "10.1.0.1"),
            format!("{place}: 10.1.0.1 is this host's own address (eth1){reason}")
        );
        assert_eq!(
            error_with(mode, "10.0.0.2", "127.0.0.9"),
            format!("{place}: 127.0.0.9 is this host itself{reason}")
        );
        let more = "[frontends.x]\nlisten_addr = \"10.0.0.77:81\"\nbackend = \"web\"\n";
        let text = format!("{}{more}", GOOD.replace("10.0.0.2", "10.0.0.77"));
        let errors = told(&text, mode).expect_err("a frontend is no server");
        assert!(errors.contains(&format!("{place}: 10.0.0.77 is where frontend \"x\" listens{reason}")));
    }
}

#[test]
fn a_server_that_no_route_leads_to_is_odd() {
    let far = GOOD.replace("10.0.0.2", "192.0.2.9");
    let odd = "config.toml:6:8: backends.web.servers.a.addr: no route leads to 192.0.2.9";
    assert_eq!(told(&far, Mode::Passthrough), Ok(vec![odd.to_owned()]));
    assert_eq!(told(&far, Mode::Proxy), Ok(vec![]));
    let unused = "[backends.old.servers.a]\naddr = \"192.0.2.9:80\"";
    assert_eq!(after(Mode::Dsr, unused), Ok(vec![]), "nobody sends anything there");
}

#[test]
fn dsr_cannot_change_the_port() {
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    assert_eq!(
        error_with(Mode::Dsr, "10.0.0.2:80", "10.0.0.2:8080"),
        format!("{place}: port 8080 is not that of frontend \"web\", 80; in dsr mode both must be the same")
    );
    assert_eq!(
        error_with(Mode::Dsr, "\"10.0.0.1:80\"", "[\"10.0.0.1:81\", \"10.0.0.1:80\", \"10.0.0.1:82\"]"),
        format!(
            "{place}: port 80 is not that of frontend \"web\", 81 and 82; in dsr mode both must be the same"
        )
    );
    assert_eq!(told(&GOOD.replace("10.0.0.2:80", "10.0.0.2:8080"), Mode::Passthrough), Ok(vec![]));
}

#[test]
fn a_frontend_and_the_snat_ports_keep_out_of_each_others_way() {
    let error = "config.toml:3:15: frontends.web.listen_addr: port 33768 is among the SNAT ports of 10.0.0.1 \
                 (33768-61000); take another one, or set passthrough.snat_ports or passthrough.snat_addresses";
    assert_eq!(error_with(Mode::Passthrough, "10.0.0.1:80", "10.0.0.1:33768"), error);
    let text = GOOD.replace("10.0.0.1:80", "10.0.0.1:33768").replace("10.0.0.2:80", "10.0.0.2:33768");
    assert_eq!(told(&text, Mode::Dsr), Ok(vec![]), "there is no SNAT");
    for mended in ["snat_ports = \"33769-61000\"", "snat_addresses = \"10.1.0.1\""] {
        assert_eq!(told(&format!("{text}[passthrough]\n{mended}"), Mode::Passthrough), Ok(vec![]));
    }
    let listed = "[passthrough]\nsnat_addresses = [\"10.1.0.1\", \"10.0.0.1\"]";
    assert_eq!(told(&format!("{text}{listed}"), Mode::Passthrough), Err(vec![error.to_owned()]));
}

#[test]
fn every_worker_needs_a_snat_port() {
    let three = "[passthrough]\nsnat_ports = \"40000-40001\"\nworkers = 3";
    assert_eq!(
        after(Mode::Passthrough, three),
        Err(vec![
            "config.toml:9:11: passthrough.workers: 3 workers cannot share 2 SNAT ports; \
             each needs one of its own, better thousands"
                .to_owned()
        ])
    );
    assert_eq!(after(Mode::Passthrough, &three.replace('3', "2")), Ok(vec![]));
    assert_eq!(after(Mode::Dsr, three), Ok(vec![]));
}

#[test]
fn replies_to_a_snat_address_of_nobody_do_not_come() {
    assert_eq!(
        after(Mode::Passthrough, "[passthrough]\nsnat_addresses = [\"10.0.0.1\", \"10.1.0.7\"]"),
        Ok(vec![
            "config.toml:8:31: passthrough.snat_addresses: 10.1.0.7 is on no interface of this host, so packets \
             to it only come if they are routed here; to add it: ip addr add 10.1.0.7/32 dev eth1"
                .to_owned()
        ])
    );
    assert_eq!(
        after(Mode::Passthrough, "[passthrough]\nsnat_addresses = \"2001:db8::1\""),
        Err(vec![
            "config.toml:8:18: passthrough.snat_addresses: IPv6 is not built yet in passthrough mode, \
             found 2001:db8::1; allowed: IPv4"
                .to_owned()
        ])
    );
}

#[test]
fn interfaces_must_be_there_and_carry_packets() {
    for mode in PACKETS {
        assert_eq!(
            after(mode, "[passthrough]\ninterfaces = [\"eth1\", \"ehh0\", \"lo\"]"),
            Err(vec![
                "config.toml:8:23: passthrough.interfaces: no interface \"ehh0\"; did you mean `eth0`? \
                 (this host has: eth0, eth1)"
                    .to_owned(),
                "config.toml:8:31: passthrough.interfaces: \"lo\" is not an Ethernet interface \
                 (this host has: eth0, eth1)"
                    .to_owned(),
            ])
        );
    }
}

#[test]
fn what_only_the_proxy_does_is_named() {
    let text = format!("{GOOD}[timeouts]\nconnect = 1\nidle = 2\ndrain = 3\n");
    for mode in PACKETS {
        let warnings = told(&text, mode).expect("it runs");
        let effect = format!("has no effect in {} mode", mode.name());
        assert_eq!(
            warnings,
            [
                format!("config.toml:8:11: timeouts.connect: {effect}"),
                format!("config.toml:9:8: timeouts.idle: {effect}"),
            ]
        );
    }
    assert_eq!(told(&text, Mode::Proxy), Ok(vec![]));
}
