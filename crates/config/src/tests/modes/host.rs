//! Addresses, interfaces and servers of packet modes, compared with the host's.

use super::*;

#[test]
fn packet_modes_need_a_concrete_address_and_the_error_lists_them() {
    for mode in PACKETS {
        for (vip, kind) in [
            ("0.0.0.0", "a wildcard"),
            ("127.0.0.1", "a loopback address"),
            ("255.255.255.255", "the broadcast address"),
        ] {
            assert_eq!(
                error_with(mode, "10.0.0.1", vip),
                format!(
                    "config.toml:3:15: frontends.web.listen_addr: {} mode needs a concrete address, but {vip} is {kind}; \
                     this host has: 10.0.0.1 (eth0), 10.1.0.1 (eth1)",
                    mode.name()
                )
            );
        }
    }
    for vip in ["0.0.0.0", "127.0.0.1"] {
        assert_eq!(diagnostics(&GOOD.replace("10.0.0.1", vip), Mode::Proxy), Ok(vec![]));
    }
}

#[test]
fn a_vip_of_ipv6_can_be_reached_from_everywhere() {
    for mode in PACKETS {
        for (vip, kind) in
            [("::", "a wildcard"), ("::1", "a loopback address"), ("fe80::1", "a link-local address")]
        {
            assert_eq!(
                diagnostics(&good6().replace("[2001:db8::1]", &format!("[{vip}]")), mode).expect_err(vip),
                [format!(
                    "config.toml:3:15: frontends.web.listen_addr: {} mode needs a concrete address, but {vip} is {kind}; \
                     this host has: 2001:db8::1 (eth0)",
                    mode.name()
                )]
            );
        }
    }
}

#[test]
fn dsr_frontend_and_servers_need_the_same_address_family() {
    let one = "in dsr mode all addresses of a frontend and of its servers must be of one family: \
               write a frontend and a backend for each family";
    assert_eq!(
        error_with(Mode::Dsr, "\"10.0.0.1:80\"", "[\"10.0.0.1:80\", \"[2001:db8::1]:80\"]"),
        format!(
            "config.toml:3:31: frontends.web.listen_addr: 2001:db8::1 is IPv6, but 10.0.0.1 is IPv4; {one}"
        )
    );
    assert_eq!(
        error_with(Mode::Dsr, "10.0.0.2:80", "[2001:db8::2]:80"),
        format!(
            "config.toml:6:8: backends.web.servers.a.addr: 2001:db8::2 is IPv6, but 10.0.0.1 is IPv4; {one}"
        )
    );
    let proxied = GOOD.replace("10.0.0.2:80", "[2001:db8::2]:80");
    assert_eq!(
        diagnostics(&proxied, Mode::Proxy),
        Ok(vec![]),
        "the proxy speaks one to clients and one to servers"
    );
}

#[test]
fn a_link_local_server_has_no_route() {
    assert_eq!(
        diagnostics(&good6().replace("[2001:db8::2]", "[fe80::9]"), Mode::Dsr).expect_err("link-local"),
        [
            "config.toml:6:8: backends.web.servers.a.addr: fe80::9 is a link-local address, which a server cannot \
          have in dsr mode"
        ]
    );
}

#[test]
fn servers_of_l2_dsr_are_on_the_link() {
    let l2 = |text: &str| format!("{text}[backends.web]\ndsr = \"l2\"");
    assert_eq!(diagnostics(&l2(GOOD), Mode::Dsr), Ok(vec![]));
    let far = GOOD.replace("10.0.0.2", "10.2.0.2");
    assert_eq!(diagnostics(&far, Mode::Dsr), Ok(vec![]));
    assert_eq!(
        diagnostics(&l2(&far), Mode::Dsr).expect_err("behind a router"),
        ["config.toml:6:8: backends.web.servers.a.addr: 10.2.0.2 is behind the router 10.0.0.254; \
          dsr = \"l2\" needs servers on the link, \"l3\" does not"]
    );
    for mode in [Mode::Proxy, Mode::Passthrough] {
        assert_eq!(
            diagnostics(&l2(&far), mode),
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
                diagnostics(&GOOD.replace("10.0.0.1", vip), mode),
                Ok(vec![format!(
                    "config.toml:3:15: frontends.web.listen_addr: {vip} is on no interface of this host, so packets \
                     to it arrive only if they are routed here; to add it: ip addr add {vip}/32 dev {device}"
                )])
            );
        }
    }
}

#[test]
fn a_vip_of_ipv6_is_added_without_waiting_whether_another_has_it() {
    assert_eq!(
        diagnostics(&good6().replace("2001:db8::1", "2001:db8:1::77"), Mode::Dsr),
        Ok(vec![
            "config.toml:3:15: frontends.web.listen_addr: 2001:db8:1::77 is on no interface of this host, so packets \
             to it arrive only if they are routed here; to add it: ip -6 addr add 2001:db8:1::77/128 dev eth1 nodad \
             preferred_lft 0"
                .to_owned()
        ])
    );
}

#[test]
fn servers_of_packet_modes_are_other_machines() {
    let place = "config.toml:6:8: backends.web.servers.a.addr";
    for mode in PACKETS {
        let reason = format!(
            "; in {} mode a server must be another machine (in proxy mode it may be this host)",
            mode.name()
        );
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
        let errors = diagnostics(&text, mode).expect_err("a frontend is no server");
        assert!(errors.contains(&format!("{place}: 10.0.0.77 is the address of frontend \"x\"{reason}")));
    }
}

#[test]
fn vip_on_an_interface_without_ethernet_is_refused() {
    for mode in PACKETS {
        assert_eq!(
            error_with(mode, "10.0.0.1", "10.55.0.1"),
            "config.toml:3:15: frontends.web.listen_addr: 10.55.0.1 is on wg0, which carries no Ethernet frames; packet \
             modes need a VIP on an Ethernet interface (mode proxy does not)"
        );
    }
    assert_eq!(diagnostics(&GOOD.replace("10.0.0.1", "10.55.0.1"), Mode::Proxy), Ok(vec![]));
}

#[test]
fn server_that_packets_must_not_go_to_is_odd() {
    let far =
        format!("{}[passthrough]\nsnat_addresses = \"10.0.0.1\"", GOOD.replace("10.0.0.2", "10.55.0.2"));
    let odd = "config.toml:6:8: backends.web.servers.a.addr: 10.55.0.2 counts as down: packets leave by wg0";
    assert_eq!(diagnostics(&far, Mode::Passthrough), Ok(vec![odd.to_owned()]));
}

#[test]
fn a_server_that_no_route_leads_to_is_odd() {
    let far = GOOD.replace("10.0.0.2", "192.0.2.9");
    let odd = "config.toml:6:8: backends.web.servers.a.addr: no route leads to 192.0.2.9";
    assert_eq!(diagnostics(&far, Mode::Passthrough), Ok(vec![odd.to_owned()]));
    assert_eq!(diagnostics(&far, Mode::Proxy), Ok(vec![]));
    let unused = "[backends.old.servers.a]\naddr = \"192.0.2.9:80\"";
    assert_eq!(after(Mode::Dsr, unused), Ok(vec![]), "nobody sends anything there");
}

#[test]
fn replies_to_a_snat_address_of_nobody_do_not_come() {
    assert_eq!(
        after(Mode::Passthrough, "[passthrough]\nsnat_addresses = [\"10.0.0.1\", \"10.1.0.7\"]"),
        Ok(vec![
            "config.toml:8:31: passthrough.snat_addresses: 10.1.0.7 is on no interface of this host, so packets \
             to it arrive only if they are routed here; to add it: ip addr add 10.1.0.7/32 dev eth1"
                .to_owned()
        ])
    );
}

#[test]
fn servers_see_an_address_of_their_own_family() {
    let named = "[passthrough]\nsnat_addresses = \"2001:db8::1\"";
    assert_eq!(
        after(Mode::Passthrough, named).expect_err("IPv4"),
        [
            "config.toml:8:18: passthrough.snat_addresses: frontend \"web\" needs an IPv4 address here; add one"
        ]
    );
    assert_eq!(after(Mode::Dsr, named), Ok(vec![]));
    assert_eq!(diagnostics(&format!("{}{named}", good6()), Mode::Passthrough), Ok(vec![]));
    let without = good6().replace("2001:db8::2", "2001:db8:1::2");
    assert_eq!(
        diagnostics(&without, Mode::Passthrough).expect_err("eth1 has none"),
        [
            "config.toml:3:15: frontends.web.listen_addr: interface eth1, which leads to the servers, has no IPv6 \
          address for SNAT; add one, or set passthrough.snat_addresses"
        ]
    );
    assert_eq!(diagnostics(&format!("{without}{named}"), Mode::Passthrough), Ok(vec![]));
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
fn a_check_via_the_vip_needs_connections_in_dsr_mode() {
    let via = |text: &str| format!("{text}[backends.web.health_check]\nvia = \"vip\"");
    assert_eq!(diagnostics(&via(GOOD), Mode::Dsr), Ok(vec![]));
    let expected = "config.toml:8:7: backends.web.health_check.via: \"vip\" needs a TCP frontend in dsr \
                    mode, and no such frontend uses this backend";
    for mode in [Mode::Proxy, Mode::Passthrough] {
        assert_eq!(diagnostics(&via(GOOD), mode), Err(vec![expected.to_owned()]));
    }
    let udp = GOOD.replace("backend = ", "protocol = \"udp\"\nbackend = ");
    assert!(
        diagnostics(&format!("{}\nkind = \"tcp\"", via(&udp)), Mode::Dsr).unwrap_err()[0]
            .contains("needs a TCP frontend")
    );
}

#[test]
fn outlier_detection_says_where_it_sees_nothing() {
    let outlier = |text: &str| format!("{text}[backends.web.outlier_detection]");
    assert_eq!(diagnostics(&outlier(GOOD), Mode::Dsr), Ok(vec![]));
    let udp = GOOD.replace("backend = ", "protocol = \"udp\"\nbackend = ");
    let diagnostics = diagnostics(&outlier(&udp), Mode::Dsr).unwrap();
    assert!(
        diagnostics.len() == 1 && diagnostics[0].contains("has no effect with UDP in dsr mode"),
        "{diagnostics:?}"
    );
}
