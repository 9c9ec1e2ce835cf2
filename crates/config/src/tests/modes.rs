//! What files mean in one mode or another, and what a host has to say to it.

use std::net::IpAddr;

use super::super::{Config, Network, Problem, parse, validate_mode};
use super::GOOD;
use convey_model::{Algorithm, HashOn, Interface, Mode, RouteHop};

const PACKETS: [Mode; 2] = [Mode::Passthrough, Mode::Dsr];

fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    Interface { loopback: name == "lo", ..Interface::ethernet(index, name, [2; 6], addresses) }
}

/// What is wrong with a file, or odd about it, on a host between 10.0.0.0/24 on eth0 and 10.1.0.0/24 on eth1, without
/// a default route. 10.2.0.0/16 is behind a router; 2001:db8:0::/48 is on eth0, 2001:db8:1::/48 on eth1.
pub(super) fn told(text: &str, mode: Mode) -> Result<Vec<String>, Vec<String>> {
    let interfaces = [
        interface(1, "lo", &["127.0.0.1", "::1"]),
        interface(2, "eth0", &["10.0.0.1", "fe80::1", "2001:db8::1"]),
        interface(3, "eth1", &["10.1.0.1", "fe80::2"]),
    ];
    let hop_to = |ip: IpAddr| {
        let (interface, gateway) = match ip {
            IpAddr::V4(ip) => match ip.octets()[..2] {
                [10, 0] => (2, None),
                [10, 1] => (3, None),
                [10, 2] => (2, Some("10.0.0.254")),
                _ => return None,
            },
            IpAddr::V6(ip) => match ip.segments()[..3] {
                [0x2001, 0xdb8, 0] => (2, None),
                [0x2001, 0xdb8, 1] => (3, None),
                _ => return None,
            },
        };
        Some(RouteHop { interface, gateway: gateway.map(|ip| ip.parse().unwrap()), mtu: None })
    };
    let own = interfaces.iter().flat_map(|interface| interface.addresses.iter().copied()).collect();
    let network = Network { interfaces: &interfaces, own: &own, hop_to: &hop_to };
    let loaded = parse("config.toml", text).expect("right in itself").with_default_mode(mode);
    let lines = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect();
    validate_mode(&loaded, &network).map(lines).map_err(lines)
}

/// [`GOOD`] over IPv6.
fn good6() -> String {
    GOOD.replace("10.0.0.1:80", "[2001:db8::1]:80").replace("10.0.0.2:80", "[2001:db8::2]:80")
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
        assert_eq!(told(&good6(), mode), Ok(vec![]));
    }
}

#[test]
fn packet_modes_hash_the_tuple_unless_the_file_says_otherwise() {
    let chosen = |settings: &str, mode| {
        let text = format!("{GOOD}[backends.web]\n{settings}");
        let config = parse("config.toml", &text).expect("valid").with_default_mode(mode).config;
        assert_eq!(config.frontends[0].mode, mode);
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
fn a_backend_takes_the_defaults_of_packet_modes_as_soon_as_one_of_its_frontends_is_in_one() {
    let text = format!("{GOOD}[frontends.x]\nmode = 'dsr'\nlisten_addr = '10.0.0.77:80'\nbackend = 'web'");
    let config = parse("config.toml", &text).expect("valid").config;
    assert_eq!((config.frontends[0].mode, config.frontends[1].mode), (Mode::Proxy, Mode::Dsr));
    assert_eq!((config.backends[0].algorithm, config.backends[0].hash), (Algorithm::Ring, HashOn::Tuple));
}

#[test]
fn the_mode_of_the_command_line_overrides_the_files_and_its_defaults() {
    let loaded = parse("config.toml", &format!("mode = 'dsr'\n{GOOD}")).expect("valid");
    let of = |config: &Config| (config.frontends[0].mode, config.backends[0].algorithm);
    assert_eq!(of(&loaded.config), (Mode::Dsr, Algorithm::Ring));
    assert_eq!(of(&loaded.with_default_mode(Mode::Proxy).config), (Mode::Proxy, Algorithm::RoundRobin));
}

/// A proxied frontend and one for DSR, which share a backend.
fn mixed() -> String {
    format!(
        "{}[frontends.x]\nlisten_addr = \"10.0.0.1:80\"\nmode = \"dsr\"\nbackend = \"web\"\n",
        GOOD.replace("10.0.0.1:80\"", "0.0.0.0:80\"\nmode = \"proxy\"")
    )
}

#[test]
fn the_mode_of_the_command_line_leaves_frontends_that_say_theirs() {
    let loaded = parse("config.toml", &mixed()).expect("valid").with_default_mode(Mode::Passthrough);
    let modes: Vec<Mode> = loaded.config.frontends.iter().map(|frontend| frontend.mode).collect();
    assert_eq!(modes, [Mode::Proxy, Mode::Dsr]);
    assert_eq!(
        loaded.warnings.iter().map(Problem::to_string).collect::<Vec<_>>(),
        ["config.toml:4:8: frontends.web.mode: every frontend says its mode: \
          passthrough on the command line has no effect"]
    );
    for text in [mixed().replace("mode = \"dsr\"\n", ""), mixed().replace("\"proxy\"", "\"dsr\"")] {
        let loaded = parse("config.toml", &text).expect("valid").with_default_mode(Mode::Dsr);
        assert_eq!(loaded.warnings, [], "{text}");
    }
}

#[test]
fn a_frontend_that_runs_keeps_its_mode_until_a_restart() {
    let running = parse("config.toml", &mixed()).expect("valid").config;
    let changed = mixed().replace("\"proxy\"", "\"passthrough\"").replace(".x]", ".new]");
    let (loaded, _) = parse("config.toml", &changed).expect("valid").reload(&running);
    let modes: Vec<_> = loaded.config.frontends.iter().map(|f| (f.name.as_str(), f.mode)).collect();
    assert_eq!(modes, [("new", Mode::Dsr), ("web", Mode::Proxy)]);
}

#[test]
fn frontends_in_several_modes_are_each_held_against_their_own() {
    assert_eq!(
        told(&mixed(), Mode::Proxy),
        Ok(vec![]),
        "a wildcard beside an address is right in proxy mode"
    );
    assert_eq!(
        told(&mixed().replace("\"proxy\"", "\"passthrough\""), Mode::Proxy).expect_err("a wildcard"),
        [
            "config.toml:3:15: frontends.web.listen_addr: passthrough mode needs a concrete address, 0.0.0.0 is \
          a wildcard; this host has: 10.0.0.1 (eth0), 10.1.0.1 (eth1)"
        ]
    );
    let port = mixed().replace("10.0.0.2:80", "10.0.0.2:8080");
    assert_eq!(told(&port, Mode::Proxy).expect_err("dsr").len(), 1);
    assert_eq!(told(&port.replace("\"dsr\"", "\"passthrough\""), Mode::Proxy), Ok(vec![]));
    let own = mixed().replace("10.0.0.2:80", "10.1.0.1:80");
    assert!(told(&own, Mode::Proxy).expect_err("own")[0].contains("in dsr mode servers are other machines"));
}

#[test]
fn udp_is_right_in_every_mode() {
    let udp = GOOD.replace("backend = ", "protocol = \"udp\"\nbackend = ");
    for mode in Mode::ALL {
        assert_eq!(told(&udp, mode), Ok(vec![]));
    }
}

#[test]
fn a_time_limit_of_the_other_protocol_has_no_effect() {
    let limits = "[timeouts]\nidle = 2\nudp_idle = 3\n";
    let odd = |text: &str| told(&format!("{text}{limits}"), Mode::Proxy).expect("odd at most");
    let udp = GOOD.replace("backend = ", "protocol = \"udp\"\nbackend = ");
    let why = |protocol| format!("has no effect: no frontend in proxy mode has protocol = {protocol:?}");
    assert_eq!(odd(GOOD), [format!("config.toml:9:12: timeouts.udp_idle: {}", why("udp"))]);
    assert_eq!(odd(&udp), [format!("config.toml:9:8: timeouts.idle: {}", why("tcp"))]);
    let both = format!("{udp}[frontends.other]\nlisten_addr = \"10.0.0.1:80\"\nbackend = \"web\"\n");
    assert_eq!(odd(&both), [""; 0]);
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
fn a_vip_of_ipv6_can_be_reached_from_everywhere() {
    for mode in PACKETS {
        for (vip, kind) in [("::", "a wildcard"), ("::1", "a loopback address"), ("fe80::1", "link-local")] {
            assert_eq!(
                told(&good6().replace("[2001:db8::1]", &format!("[{vip}]")), mode).expect_err(vip),
                [format!(
                    "config.toml:3:15: frontends.web.listen_addr: {} mode needs a concrete address, {vip} is {kind}; \
                     this host has: 2001:db8::1 (eth0)",
                    mode.name()
                )]
            );
        }
    }
}

#[test]
fn a_frontend_in_a_packet_mode_and_its_servers_are_of_one_family() {
    let one = "in dsr mode the addresses of a frontend and of its servers are of one family: \
               write a frontend and a backend for each";
    assert_eq!(
        error_with(Mode::Dsr, "\"10.0.0.1:80\"", "[\"10.0.0.1:80\", \"[2001:db8::1]:80\"]"),
        format!("config.toml:3:31: frontends.web.listen_addr: 2001:db8::1 is IPv6, 10.0.0.1 is IPv4; {one}")
    );
    assert_eq!(
        error_with(Mode::Dsr, "10.0.0.2:80", "[2001:db8::2]:80"),
        format!("config.toml:6:8: backends.web.servers.a.addr: 2001:db8::2 is IPv6, 10.0.0.1 is IPv4; {one}")
    );
    let proxied = GOOD.replace("10.0.0.2:80", "[2001:db8::2]:80");
    assert_eq!(told(&proxied, Mode::Proxy), Ok(vec![]), "the proxy speaks one to clients and one to servers");
}

#[test]
fn a_link_local_server_has_no_route() {
    assert_eq!(
        told(&good6().replace("[2001:db8::2]", "[fe80::9]"), Mode::Dsr).expect_err("link-local"),
        [
            "config.toml:6:8: backends.web.servers.a.addr: fe80::9 is link-local; in dsr mode servers have addresses \
          with a route"
        ]
    );
}

#[test]
fn servers_of_l2_dsr_are_on_the_link() {
    let l2 = |text: &str| format!("{text}[backends.web]\ndsr = \"l2\"");
    assert_eq!(told(&l2(GOOD), Mode::Dsr), Ok(vec![]));
    let far = GOOD.replace("10.0.0.2", "10.2.0.2");
    assert_eq!(told(&far, Mode::Dsr), Ok(vec![]));
    assert_eq!(
        told(&l2(&far), Mode::Dsr).expect_err("behind a router"),
        ["config.toml:6:8: backends.web.servers.a.addr: 10.2.0.2 is behind the router 10.0.0.254; \
          dsr = \"l2\" needs servers on the link, \"l3\" does not"]
    );
    for mode in [Mode::Proxy, Mode::Passthrough] {
        assert_eq!(
            told(&l2(&far), mode),
            Ok(vec![
                "config.toml:8:7: backends.web.dsr: has no effect: no frontend in dsr mode uses this backend"
                    .into()
            ])
        );
    }
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
fn a_vip_of_ipv6_is_added_without_waiting_whether_another_has_it() {
    assert_eq!(
        told(&good6().replace("2001:db8::1", "2001:db8:1::77"), Mode::Dsr),
        Ok(vec![
            "config.toml:3:15: frontends.web.listen_addr: 2001:db8:1::77 is on no interface of this host, so packets \
             to it only come if they are routed here; to add it: ip -6 addr add 2001:db8:1::77/128 dev eth1 nodad \
             preferred_lft 0"
                .to_owned()
        ])
    );
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

/// How a server is written that has the port of its frontend.
const KEPT: &str = "a server without a port has the frontend's";

#[test]
fn a_server_without_a_port_suits_every_mode_and_every_range() {
    let kept = GOOD.replace("10.0.0.2:80", "10.0.0.2") + "[backends.web.health_check]\nport = 80\n";
    let range = kept.replace("10.0.0.1:80", "10.0.0.1:21000-21010");
    for mode in Mode::ALL {
        assert_eq!(told(&kept, mode), Ok(vec![]));
        assert_eq!(told(&range, mode), Ok(vec![]));
    }
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    assert_eq!(
        told(&range.replace("\"10.0.0.2\"", "\"10.0.0.2:21000\""), Mode::Dsr),
        Err(vec![format!(
            "{place}: port 21000 is not that of frontend \"web\", 21000-21010; in dsr mode both must be the same: {KEPT}"
        )])
    );
}

#[test]
fn ports_are_bounded_by_what_they_cost() {
    let with = |listen: &str| {
        GOOD.replace("10.0.0.1:80", listen).replace("10.0.0.2:80", "10.0.0.2")
            + "health_check.kind = 'none'\n"
                .replace("health_check", "\n[backends.web]\nhealth_check")
                .as_str()
    };
    let place = "config.toml:3:15: frontends.web.listen_addr";
    for (listen, is_right) in [
        ("10.0.0.1:10000-11023", [true; 3]),
        ("10.0.0.1:10000-20000", [false, true, true]),
        ("10.0.0.1:10000-42767", [false, true, true]),
        ("10.0.0.1:1-32769", [false; 3]),
    ] {
        let is_refused = |mode| told(&with(listen), mode).is_err_and(|errors| errors[0].starts_with(place));
        assert_eq!(Mode::ALL.map(is_refused), is_right.map(|right| !right), "{listen}");
    }
    assert_eq!(
        told(&with("10.0.0.1:1-32769"), Mode::Dsr),
        Err(vec![format!(
            "{place}: with 10.0.0.1:1-32769 the frontends in packet modes have 32769 ports; they may have 32768"
        )])
    );
}

#[test]
fn dsr_cannot_change_the_port() {
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    assert_eq!(
        error_with(Mode::Dsr, "10.0.0.2:80", "10.0.0.2:8080"),
        format!(
            "{place}: port 8080 is not that of frontend \"web\", 80; in dsr mode both must be the same: {KEPT}"
        )
    );
    assert_eq!(
        error_with(Mode::Dsr, "\"10.0.0.1:80\"", "[\"10.0.0.1:81\", \"10.0.0.1:80\", \"10.0.0.1:82\"]"),
        format!(
            "{place}: port 80 is not that of frontend \"web\", 81 and 82; in dsr mode both must be the same: {KEPT}"
        )
    );
    assert_eq!(told(&GOOD.replace("10.0.0.2:80", "10.0.0.2:8080"), Mode::Passthrough), Ok(vec![]));
}

#[test]
fn the_port_of_a_frontend_is_no_snat_port_and_another_one_has_to_be_left() {
    let text = GOOD.replace("10.0.0.1:80", "10.0.0.1:50051");
    assert_eq!(told(&text, Mode::Passthrough), Ok(vec![]), "gRPC's");
    let error = |ports: &str| {
        format!(
            "config.toml:3:15: frontends.web.listen_addr: port 50051 of a frontend is no SNAT port of 10.0.0.1 ({ports}), \
             and too few others are left; take another one, or set passthrough.snat_ports or passthrough.snat_addresses"
        )
    };
    for (settings, expected) in [
        ("snat_ports = \"50051-50051\"", Err(vec![error("50051-50051")])),
        ("snat_ports = \"50051-50052\"", Ok(vec![])),
        ("snat_ports = \"50051-50053\"\nworkers = 2", Err(vec![error("50051-50053")])),
        ("snat_ports = \"50051-50054\"\nworkers = 2", Ok(vec![])),
        ("snat_ports = \"50051-50051\"\nsnat_addresses = \"10.1.0.1\"", Ok(vec![])),
        (
            "snat_ports = \"50051-50051\"\nsnat_addresses = [\"10.1.0.1\", \"10.0.0.1\"]",
            Err(vec![error("50051-50051")]),
        ),
    ] {
        let text = format!("{text}[passthrough]\n{settings}");
        assert_eq!(told(&text, Mode::Passthrough), expected, "{settings}");
    }
    let dsr = text.replace("10.0.0.2:80", "10.0.0.2:50051");
    assert_eq!(told(&format!("{dsr}[passthrough]\nsnat_ports = \"50051-50051\""), Mode::Dsr), Ok(vec![]));
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
}

#[test]
fn servers_see_an_address_of_their_own_family() {
    let named = "[passthrough]\nsnat_addresses = \"2001:db8::1\"";
    assert_eq!(
        after(Mode::Passthrough, named).expect_err("IPv4"),
        ["config.toml:8:18: passthrough.snat_addresses: none is IPv4, as frontend \"web\" needs"]
    );
    assert_eq!(after(Mode::Dsr, named), Ok(vec![]));
    assert_eq!(told(&format!("{}{named}", good6()), Mode::Passthrough), Ok(vec![]));
    let without = good6().replace("2001:db8::2", "2001:db8:1::2");
    assert_eq!(
        told(&without, Mode::Passthrough).expect_err("eth1 has none"),
        [
            "config.toml:3:15: frontends.web.listen_addr: servers need an IPv6 address to answer to, and eth1, which leads \
          to them, has none; set passthrough.snat_addresses"
        ]
    );
    assert_eq!(told(&format!("{without}{named}"), Mode::Passthrough), Ok(vec![]));
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
        let effect = "has no effect: no frontend is in proxy mode";
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

#[test]
fn a_server_known_by_name_is_for_proxy_mode_only() {
    for mode in PACKETS {
        assert_eq!(
            error_with(mode, "10.0.0.2:80", "app.internal:80"),
            format!(
                "config.toml:6:8: backends.web.servers.a.addr: in {} mode servers have addresses; \
                 names are looked up for proxy mode only",
                mode.name()
            )
        );
    }
    assert_eq!(told(&GOOD.replace("10.0.0.2:80", "app.internal:80"), Mode::Proxy), Ok(vec![]));
}
