//! Validation of files in each mode, on a host.

mod host;
mod ports;
mod tunnels;

use std::net::IpAddr;

use super::super::{Config, HostNetwork, Loaded, Problem, parse, validate_mode, validate_without_host};
use super::GOOD;
use convey_model::{Algorithm, HashOn, Interface, Mode, RouteHop};

const PACKETS: [Mode; 2] = [Mode::Passthrough, Mode::Dsr];

fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    Interface { loopback: name == "lo", ..Interface::ethernet(index, name, [2; 6], addresses) }
}

/// Errors or warnings of a file on a host with 10.0.0.0/24 on eth0, 10.1.0.0/24 on eth1, and no
/// default route. 10.2.0.0/16 is behind a router; 2001:db8:0::/48 is on eth0, 2001:db8:1::/48 on
/// eth1.
pub(super) fn diagnostics(text: &str, mode: Mode) -> Result<Vec<String>, Vec<String>> {
    diagnostics_of(&parse("config.toml", text).expect("right in itself").with_default_mode(mode))
}

/// Errors or warnings of a loaded file on the host of `diagnostics`.
pub(super) fn diagnostics_of(loaded: &Loaded) -> Result<Vec<String>, Vec<String>> {
    let interfaces = [
        interface(1, "lo", &["127.0.0.1", "::1"]),
        interface(2, "eth0", &["10.0.0.1", "fe80::1", "2001:db8::1"]),
        interface(3, "eth1", &["10.1.0.1", "fe80::2"]),
        Interface { mac: None, ..interface(4, "wg0", &["10.55.0.1"]) },
    ];
    let hop_to = |ip: IpAddr| {
        let (interface, gateway) = match ip {
            IpAddr::V4(ip) => match ip.octets()[..2] {
                [10, 0] => (2, None),
                [10, 1] => (3, None),
                [10, 55] => (4, None),
                [10, 2] => (2, Some("10.0.0.254")),
                _ => return None,
            },
            IpAddr::V6(ip) => match ip.segments()[..3] {
                [0x2001, 0xdb8, 0] => (2, None),
                [0x2001, 0xdb8, 1] => (3, None),
                _ => return None,
            },
        };
        Some(RouteHop::by(interface, gateway.map(|ip| ip.parse().unwrap())))
    };
    let own = interfaces.iter().flat_map(|interface| interface.addresses.iter().copied()).collect();
    let refusal = |ip| (hop_to(ip)?.interface == 4).then(|| "packets leave by wg0".to_owned());
    let network = HostNetwork { interfaces: &interfaces, own: &own, hop_to: &hop_to, refusal: &refusal };
    let lines = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect();
    validate_mode(loaded, &network).map(lines).map_err(lines)
}

/// [`GOOD`] over IPv6.
fn good6() -> String {
    GOOD.replace("10.0.0.1:80", "[2001:db8::1]:80").replace("10.0.0.2:80", "[2001:db8::2]:80")
}

/// The only error of [`GOOD`] after a replacement, in this mode.
fn error_with(mode: Mode, from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    let mut all = diagnostics(&GOOD.replace(from, to), mode).expect_err("the host cannot run it");
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Errors or warnings of [`GOOD`] with lines added at the end, in this mode.
fn after(mode: Mode, lines: &str) -> Result<Vec<String>, Vec<String>> {
    diagnostics(&format!("{GOOD}{lines}"), mode)
}

#[test]
fn check_without_host_refuses_everything_that_the_file_alone_decides() {
    let without_host = |text: &str, mode| {
        let loaded = parse("config.toml", text).expect("right in itself").with_default_mode(mode);
        let lines = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect::<Vec<_>>();
        validate_without_host(&loaded).map(lines).map_err(lines)
    };
    for mode in Mode::ALL {
        assert_eq!(without_host(GOOD, mode), Ok(vec![]));
        // An address that this host does not have may be the address of another host.
        assert_eq!(without_host(&GOOD.replace("10.0.0.1:80", "192.0.2.1:80"), mode), Ok(vec![]));
    }
    let check = |lines: &str| format!("{GOOD}[backends.web.health_check]\n{lines}");
    let kubernetes = "[frontends.web]\nlisten_addr = \"10.0.0.1:80\"\nbackend = \"web\"\n[backends.web.kubernetes]\n\
                      service = \"default/web\"\nport = 80\n";
    let cases = [
        (
            GOOD.replace("10.0.0.1:80", "10.0.0.1:1000-3000"),
            Mode::Proxy,
            "a range in proxy mode has at most 1024",
        ),
        (check("via = \"vip\""), Mode::Passthrough, "needs a TCP frontend in dsr mode"),
        (kubernetes.to_owned(), Mode::Passthrough, "Services work only in modes proxy and http"),
        (GOOD.replace("10.0.0.2:80", "a.test:80"), Mode::Dsr, "host names work only in modes proxy and http"),
        (GOOD.replace("10.0.0.2:80", "10.0.0.2:81"), Mode::Dsr, "in dsr mode both must be equal"),
        (GOOD.replace("10.0.0.1:80", "0.0.0.0:80"), Mode::Dsr, "0.0.0.0 is a wildcard"),
        (GOOD.replace("10.0.0.2:80", "[2001:db8::2]:80"), Mode::Passthrough, "must be of one family"),
        (GOOD.replace("10.0.0.2:80", "127.0.0.1:80"), Mode::Passthrough, "is this host itself"),
        (GOOD.replace("10.0.0.2:80", "10.0.0.1:81"), Mode::Passthrough, "is the address of frontend \"web\""),
        (
            format!("{GOOD}[passthrough]\nworkers = 9\nsnat_ports = \"4000-4003\""),
            Mode::Passthrough,
            "cannot share 4 SNAT ports",
        ),
    ];
    for (text, mode, expected) in cases {
        let errors = without_host(&text, mode).expect_err(expected);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {errors:?}");
        assert!(!errors[0].contains("this host has"), "{errors:?}");
    }
}

#[test]
fn a_file_that_suits_the_host_runs_in_every_mode() {
    for mode in Mode::ALL {
        assert_eq!(diagnostics(GOOD, mode), Ok(vec![]));
        assert_eq!(diagnostics(&good6(), mode), Ok(vec![]));
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
fn backend_of_a_packet_mode_frontend_gets_packet_mode_defaults() {
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

/// File in which a proxied frontend and a DSR frontend share a backend.
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
        ["config.toml:4:8: frontends.web.mode: mode passthrough of the command line \
          has no effect: every frontend sets its own mode"]
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
        diagnostics(&mixed(), Mode::Proxy),
        Ok(vec![]),
        "a wildcard beside an address is right in proxy mode"
    );
    assert_eq!(
        diagnostics(&mixed().replace("\"proxy\"", "\"passthrough\""), Mode::Proxy).expect_err("a wildcard"),
        [
            "config.toml:3:15: frontends.web.listen_addr: passthrough mode needs a concrete address, but 0.0.0.0 is \
          a wildcard; this host has: 10.0.0.1 (eth0), 10.1.0.1 (eth1)"
        ]
    );
    let port = mixed().replace("10.0.0.2:80", "10.0.0.2:8080");
    assert_eq!(diagnostics(&port, Mode::Proxy).expect_err("dsr").len(), 1);
    assert_eq!(diagnostics(&port.replace("\"dsr\"", "\"passthrough\""), Mode::Proxy), Ok(vec![]));
    let own = mixed().replace("10.0.0.2:80", "10.1.0.1:80");
    assert!(
        diagnostics(&own, Mode::Proxy).expect_err("own")[0]
            .contains("in dsr mode a server must be another machine")
    );
}

#[test]
fn udp_is_right_in_every_mode_but_http() {
    let udp = GOOD.replace("backend = ", "protocol = \"udp\"\nbackend = ");
    for mode in Mode::ALL.into_iter().filter(|mode| !mode.is_http()) {
        assert_eq!(diagnostics(&udp, mode), Ok(vec![]));
    }
}

#[test]
fn a_time_limit_of_the_other_protocol_has_no_effect() {
    let limits = "[timeouts]\nidle = 2\nudp_idle = 3\n";
    let odd = |text: &str| diagnostics(&format!("{text}{limits}"), Mode::Proxy).expect("odd at most");
    let udp = GOOD.replace("backend = ", "protocol = \"udp\"\nbackend = ");
    let why = |protocol| format!("has no effect: no frontend is in proxy mode with protocol = {protocol:?}");
    assert_eq!(odd(GOOD), [format!("config.toml:9:12: timeouts.udp_idle: {}", why("udp"))]);
    assert_eq!(odd(&udp), [format!("config.toml:9:8: timeouts.idle: {}", why("tcp"))]);
    let both = format!("{udp}[frontends.other]\nlisten_addr = \"10.0.0.1:80\"\nbackend = \"web\"\n");
    assert_eq!(odd(&both), [""; 0]);
}

#[test]
fn timeouts_without_effect_in_a_mode_are_warned_about() {
    let own = GOOD.replace("backend = ", "timeouts = { idle = 2, udp_idle = 3 }\nbackend = ");
    let place = "config.toml:4:";
    assert_eq!(
        diagnostics(&own, Mode::Proxy),
        Ok(vec![format!(
            "{place}35: frontends.web.timeouts.udp_idle: has no effect with protocol = \"tcp\""
        )])
    );
    assert_eq!(
        diagnostics(&own, Mode::Passthrough),
        Ok(vec![
            format!("{place}21: frontends.web.timeouts.idle: has no effect in passthrough mode"),
            format!("{place}35: frontends.web.timeouts.udp_idle: has no effect in passthrough mode"),
        ])
    );
    let why = "has no effect: no frontend that uses this backend";
    let of_backend = |mode| after(mode, "[backends.web.timeouts]\nconnect = 2\nudp_idle = 3");
    assert_eq!(
        of_backend(Mode::Proxy),
        Ok(vec![format!(
            "config.toml:9:12: backends.web.timeouts.udp_idle: {why} is in proxy mode with protocol = \"udp\""
        )])
    );
    assert_eq!(
        of_backend(Mode::Passthrough),
        Ok(vec![
            format!("config.toml:8:11: backends.web.timeouts.connect: {why} is in proxy mode"),
            format!("config.toml:9:12: backends.web.timeouts.udp_idle: {why} is in proxy mode"),
        ])
    );
}

#[test]
fn unused_hash_is_warned_about_if_the_algorithm_does_not_hash() {
    let hash = "[backends.web]\nhash = \"tuple\"";
    let odd = "config.toml:8:8: backends.web.hash: has no effect with algorithm \"round_robin\", which does not hash";
    assert_eq!(after(Mode::Proxy, hash), Ok(vec![odd.to_owned()]));
    assert_eq!(after(Mode::Dsr, hash), Ok(vec![]));
}

#[test]
fn proxy_only_timeouts_are_warned_about_in_packet_modes() {
    let text = format!("{GOOD}[timeouts]\nconnect = 1\nidle = 2\ndrain = 3\n");
    for mode in PACKETS {
        let warnings = diagnostics(&text, mode).expect("it runs");
        let effect = "has no effect: no frontend is in proxy mode";
        assert_eq!(
            warnings,
            [
                format!("config.toml:8:11: timeouts.connect: {effect}"),
                format!("config.toml:9:8: timeouts.idle: {effect}"),
            ]
        );
    }
    assert_eq!(diagnostics(&text, Mode::Proxy), Ok(vec![]));
}

#[test]
fn a_server_known_by_name_is_for_proxy_mode_only() {
    for mode in PACKETS {
        assert_eq!(
            error_with(mode, "10.0.0.2:80", "app.internal:80"),
            format!(
                "config.toml:6:8: backends.web.servers.a.addr: in {} mode a server needs an IP address; \
                 host names work only in modes proxy and http",
                mode.name()
            )
        );
    }
    assert_eq!(diagnostics(&GOOD.replace("10.0.0.2:80", "app.internal:80"), Mode::Proxy), Ok(vec![]));
}

#[test]
fn announced_address_in_a_packet_mode_needs_a_capture_interface() {
    for mode in PACKETS {
        let file = |more: &str| GOOD.replace("10.0.0.1:80", "10.5.0.1:80") + more;
        let warns = |diagnostics: &[String]| {
            diagnostics.iter().any(|line| line.contains("is on no interface of this host"))
        };
        assert!(warns(&diagnostics(&file(""), mode).unwrap()));
        assert!(!warns(&diagnostics(&file("[announce]\n"), mode).unwrap()));
        let elsewhere = diagnostics(&file("[announce]\ninterface = 'vips'\n"), mode).unwrap_err();
        assert!(elsewhere[0].contains("announce.interface: needs passthrough.interfaces"), "{elsewhere:?}");
        let named = "[announce]\ninterface = 'vips'\n[passthrough]\ninterfaces = 'eth0'\n";
        let named = diagnostics(&file(named), mode).unwrap();
        assert!(warns(&named), "nobody puts the address on an interface that is not there: {named:?}");
    }
    let nowhere = diagnostics(&(GOOD.to_owned() + "[announce]\ninterface = 'vips'\n"), Mode::Proxy).unwrap();
    assert!(
        nowhere.len() == 1 && nowhere[0].contains("announce.interface: no interface \"vips\""),
        "{nowhere:?}"
    );
    assert_eq!(diagnostics(&(GOOD.to_owned() + "[announce]\ninterface = 'eth1'\n"), Mode::Proxy), Ok(vec![]));
}

#[test]
fn left_out_frontend_of_a_draining_process_lends_no_mode() {
    let frontend = |name: &str, addr: &str, mode: &str| {
        format!("[frontends.{name}]\nlisten_addr = '{addr}'\nbackend = 'web'\nmode = '{mode}'\n")
    };
    let backend = "[backends.web.servers.a]\naddr = '10.0.0.2:80'\n";
    let proxied = frontend("web", "127.0.0.1:80", "proxy");
    let running = parse("config.toml", &format!("{proxied}{backend}")).unwrap().config;
    // In dsr the loopback address of `web` would be an error.
    let text = format!("{}{proxied}{backend}", frontend("new", "10.0.0.1:80", "dsr"));
    let (loaded, _) = parse("config.toml", &text).unwrap().reload_draining(&running);
    assert_eq!(loaded.config.frontends.len(), 1);
    assert_eq!(diagnostics_of(&loaded), Ok(vec![]));
}
