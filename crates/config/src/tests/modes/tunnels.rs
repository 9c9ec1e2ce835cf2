//! Tunnels of backends, compared with their frontends and servers.

use super::*;

fn with(lines: &str) -> String {
    format!("{GOOD}[backends.web]\n{lines}\n")
}

#[test]
fn tunneled_servers_may_be_routed_and_of_the_other_family() {
    for kind in ["ipip", "gue"] {
        let text = with(&format!("dsr = \"{kind}\""));
        for server in ["10.2.0.2:80", "[2001:db8:1::2]:80"] {
            assert_eq!(diagnostics(&text.replace("10.0.0.2:80", server), Mode::Dsr), Ok(vec![]), "{server}");
        }
    }
    let other = diagnostics(&GOOD.replace("10.0.0.2:80", "[2001:db8:1::2]:80"), Mode::Dsr);
    assert!(other.is_err_and(|lines| lines[0].contains("must be of one family")));
}

#[test]
fn other_modes_have_no_tunnels() {
    for mode in [Mode::Proxy, Mode::Passthrough] {
        assert_eq!(
            diagnostics(&with("dsr = \"gue\""), mode),
            Err(vec![format!(
                "config.toml:8:7: backends.web.dsr: \"gue\" is a tunnel, which needs mode = \"dsr\"; frontend \"web\" is in {} \
                 mode and needs a backend of its own",
                mode.name()
            )])
        );
    }
}

#[test]
fn keys_of_tunnels_go_with_one_and_with_its_family() {
    for (lines, said) in [
        ("dsr = \"ipip\"\ngue_port = 7", "9:12: backends.web.gue_port: has no effect without dsr = \"gue\""),
        (
            "tunnel_source = \"10.0.0.0/24\"",
            "8:17: backends.web.tunnel_source: has no effect without dsr = \"ipip\" or \"gue\"",
        ),
    ] {
        assert_eq!(diagnostics(&with(lines), Mode::Dsr), Ok(vec![format!("config.toml:{said}")]));
    }
    assert_eq!(
        diagnostics(&with("dsr = \"gue\"\ngue_port = 7\ntunnel_source = \"10.0.9.0/24\""), Mode::Dsr),
        Ok(vec![])
    );
    assert_eq!(
        diagnostics(&with("dsr = \"ipip\"\ntunnel_source = \"fd00::/64\""), Mode::Dsr),
        Err(vec![
            "config.toml:9:17: backends.web.tunnel_source: fd00::/64 is IPv6, but server 10.0.0.2 is IPv4; both addresses \
             of an outer packet must be of one family"
                .to_owned()
        ])
    );
}

#[test]
fn outer_packets_come_from_somewhere() {
    for (source, what) in [
        ("0.0.0.0/0", "an unusable address"),
        ("127.0.0.0/8", "a loopback address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255", "an unusable address"),
    ] {
        let said = diagnostics(&with(&format!("dsr = \"ipip\"\ntunnel_source = \"{source}\"")), Mode::Dsr);
        assert!(said.is_err_and(|lines| lines[0].contains(what)), "{source}");
    }
}

#[test]
fn host_with_only_vips_of_a_family_has_no_tunnel_source() {
    let text = with("dsr = \"ipip\"")
        .replace("10.0.0.1:80", "[2001:db8::1]:80")
        .replace("10.0.0.2:80", "[2001:db8:1::2]:80");
    let said = diagnostics(&text, Mode::Dsr).unwrap();
    assert!(said.iter().any(|line| line.contains("no packet can reach 2001:db8:1::2")), "{said:?}");
    let named = text.replace("dsr = \"ipip\"", "dsr = \"ipip\"\ntunnel_source = \"2001:db8:9::/64\"");
    assert_eq!(diagnostics(&named, Mode::Dsr), Ok(vec![]));
}
