//! Invalid or conflicting addresses, ports and names.

use super::*;

#[test]
fn a_listen_address_is_an_ip_address_and_a_port() {
    let cases = [
        ("\"10.0.0.1\"", "the port is missing, found \"10.0.0.1\""),
        ("\"[::1]\"", "the port is missing, found \"[::1]\""),
        ("\"::\"", "an IPv6 address with a port needs brackets: did you mean `[::]:PORT`? Found \"::\""),
        (
            "\"::1:80\"",
            "an IPv6 address with a port needs brackets: did you mean `[::1]:80`? Found \"::1:80\"",
        ),
        (
            "\"1:2:3:4:5:6:7:8:80-90\"",
            "an IPv6 address with a port needs brackets: did you mean `[1:2:3:4:5:6:7:8]:80-90`? \
             Found \"1:2:3:4:5:6:7:8:80-90\"",
        ),
        ("\"10.0.0.1:0\"", "a port is 1 to 65535, found \"10.0.0.1:0\""),
        ("\"10.0.0.1:65536\"", "found \"10.0.0.1:65536\""),
        ("\"10.0.0.256:80\"", "found \"10.0.0.256:80\""),
        ("\"*:80\"", "found \"*:80\""),
        ("\"10.0.0.1:80-\"", "found \"10.0.0.1:80-\""),
        ("\"10.0.0.1:0-80\"", "a port is 1 to 65535, found \"10.0.0.1:0-80\""),
        ("\"10.0.0.1:81-80\"", "a range of ports begins with the lower port, found \"10.0.0.1:81-80\""),
        ("\":http\"", "found \":http\""),
        ("\"\"", "found \"\""),
        ("\"tcp://10.0.0.1:80\"", "found \"tcp://10.0.0.1:80\""),
        ("\"224.0.0.1:80\"", "found \"224.0.0.1:80\""),
        ("\"www.example.org\"", "host names are not supported, found \"www.example.org\""),
        ("\"www.example.org:80\"", "host names are not supported, found \"www.example.org:80\""),
        (
            "\"[::ffff:10.0.0.1]:80\"",
            "write an IPv4 address in IPv4 notation, found \"[::ffff:10.0.0.1]:80\"",
        ),
        ("true", "found true"),
        ("{ ip = 1 }", "found a table"),
        ("1979-05-27", "found a date or time"),
    ];
    for (value, found) in cases {
        assert_eq!(
            error_with("\"10.0.0.1:80\"", value),
            format!(
                "config.toml:3:15: frontends.web.listen_addr: {found}; \
                 allowed: IP:port, such as 0.0.0.0:80 or [::]:80, or a range of ports, such as 0.0.0.0:21000-21010"
            )
        );
    }
    assert_eq!(
        error_with("\"10.0.0.1:80\"", "[]"),
        "config.toml:3:15: frontends.web.listen_addr: found an empty array; allowed: one value, or an array of at least one"
    );
}

#[test]
fn a_server_address_is_that_of_one_machine() {
    for value in ["0.0.0.0:80", "[::]:80", "239.1.1.1:80", "[ff02::1]:80", "10.0.0.1:http"] {
        assert_eq!(
            error_with("10.0.0.2:80", value),
            format!(
                "config.toml:6:8: backends.web.servers.a.addr: found \"{value}\"; \
                 allowed: IP:port of one server, such as 10.0.0.1:80 or [2001:db8::1]:80, NAME:port, or unix:/PATH"
            )
        );
    }
}

/// The end of an IPv6 address without brackets could be meant as the port.
#[test]
fn an_ipv6_address_without_a_port_is_in_brackets_too() {
    for (value, meant) in [("2001:db8::2", "[2001:db8::2]:PORT"), ("2001:db8::2:80", "[2001:db8::2]:80")] {
        let error = error_with("10.0.0.2:80", value);
        let missing = format!("needs brackets: did you mean `{meant}`? Found \"{value}\"; allowed: IP:port");
        assert!(error.contains(&missing), "{error}");
    }
}

#[test]
fn server_without_a_port_needs_a_health_check_port() {
    let missing = |found: &str| {
        format!(
            "config.toml:6:8: backends.web.servers.a.addr: found \"{found}\" without a port, so health checks have no \
             port; add the port, or set health_check.port (then each connection keeps the port that its client connected to)"
        )
    };
    for (value, found) in
        [("10.0.0.2", "10.0.0.2"), ("[2001:db8::2]", "2001:db8::2"), ("App.internal", "app.internal")]
    {
        assert_eq!(error_with("10.0.0.2:80", value), missing(found));
        let kept = GOOD.replace("10.0.0.2:80", value);
        for right in ["health_check.port = 80", "health_check.kind = \"none\""] {
            assert_eq!(warnings(&format!("{kept}[backends.web]\n{right}")), [""; 0], "{right}");
        }
        let unprobed =
            format!("{kept}[backends.web]\nhealth_check.kind = \"none\"\noutlier_detection = {{}}");
        assert_eq!(errors(&unprobed), [missing(found)], "who ejects servers has to ask them");
    }
    for value in ["::ffff:10.0.0.1", "0.0.0.0", "ff02::1"] {
        assert!(
            error_with("10.0.0.2:80", value)
                .contains(&format!("ound \"{value}\"; allowed: IP:port of one server"))
        );
    }
}

#[test]
fn a_range_takes_each_of_its_ports() {
    let with = |other: &str| {
        format!(
            "{}[frontends.other]\nlisten_addr = \"{other}\"\nbackend = \"web\"\n",
            GOOD.replace("10.0.0.1:80", "10.0.0.1:80-90")
        )
    };
    let place = "config.toml:8:15: frontends.other.listen_addr";
    let first = "is taken by frontends.web.listen_addr (line 3)";
    assert_eq!(errors(&with("10.0.0.1:90")), [format!("{place}: 10.0.0.1:90 {first}")]);
    assert_eq!(errors(&with("10.0.0.1:85-100")), [format!("{place}: 10.0.0.1:85 {first}")], "once");
    assert_eq!(
        errors(&with("0.0.0.0:6990-7010")),
        [format!("{place}: 0.0.0.0:7000 is taken by the statistics (127.0.0.1:7000)")]
    );
    for beside in ["10.0.0.1:91", "10.0.0.1:1-79", "10.0.0.3:80-90", "0.0.0.0:80-90", "[::]:80-90"] {
        assert_eq!(warnings(&with(beside)), [""; 0], "{beside}");
    }
}

#[test]
fn named_server_needs_a_valid_host_name_and_port() {
    let long = format!("{}:80", "a".repeat(64));
    for (value, found) in [
        ("app.internal:0", "a port is 1 to 65535, found \"app.internal:0\""),
        ("app:http", "a port is 1 to 65535, found \"app:http\""),
        ("app..internal:80", "found \"app..internal:80\""),
        ("-app:80", "found \"-app:80\""),
        ("10.0.0.256:80", "found \"10.0.0.256:80\""),
        ("http://app:80", "found \"http://app:80\""),
        (&long, &format!("found {:?}...", &long[..60])),
    ] {
        assert_eq!(
            error_with("10.0.0.2:80", value),
            format!(
                "config.toml:6:8: backends.web.servers.a.addr: {found}; \
                 allowed: IP:port of one server, such as 10.0.0.1:80 or [2001:db8::1]:80, NAME:port, or unix:/PATH"
            )
        );
    }
}

#[test]
fn the_servers_of_a_name_have_names_that_are_nobody_elses() {
    let text = GOOD.replace("10.0.0.2:80", "app:80")
        + "[backends.web.servers.\"a/10.0.0.2\"]\naddr = \"10.0.0.2:80\"\n";
    assert_eq!(
        errors(&text),
        ["config.toml:8:8: backends.web.servers.\"a/10.0.0.2\".addr: \
          the name is reserved for the addresses of server \"a\", which has a host name"]
    );
}

#[test]
fn a_name_server_is_an_address() {
    let text = format!("dns.nameservers = ['10.0.0.53', 'ns.internal', '0.0.0.0']\n{GOOD}");
    let allowed = "allowed: IP or IP:port of a name server, such as 10.0.0.53 or 127.0.0.1:8600";
    assert_eq!(
        errors(&text),
        [
            format!("config.toml:1:33: dns.nameservers: found \"ns.internal\"; {allowed}"),
            format!("config.toml:1:48: dns.nameservers: found \"0.0.0.0\"; {allowed}"),
        ]
    );
}

#[test]
fn an_address_is_listened_on_once() {
    assert_eq!(
        error_with("\"10.0.0.1:80\"", "[\"10.0.0.1:80\", \"10.0.0.1:81\", \"10.0.0.1:80\"]"),
        "config.toml:3:46: frontends.web.listen_addr: 10.0.0.1:80 is taken by frontends.web.listen_addr (line 3)"
    );
    let udp = "listen_addr = \"10.0.0.1:53\"\nprotocol = \"udp\"\n";
    let twice = format!(
        "{}[frontends.x]\n{udp}backend = 'web'",
        GOOD.replace("listen_addr = \"10.0.0.1:80\"\n", udp)
    );
    assert_eq!(
        errors(&twice),
        [
            "config.toml:9:15: frontends.x.listen_addr: 10.0.0.1:53/udp is taken by frontends.web.listen_addr (line 3)"
        ]
    );
    for addr in ["127.0.0.1:7000", "0.0.0.0:7000"] {
        assert_eq!(
            error_with("10.0.0.1:80", addr),
            format!(
                "config.toml:3:15: frontends.web.listen_addr: {addr} is taken by the statistics (127.0.0.1:7000)"
            )
        );
    }
    let beside = GOOD.replace(
        "\"10.0.0.1:80\"",
        "[\"10.0.0.1:80\", \"0.0.0.0:80\", \"[::]:80\", \"[::1]:7000\", \"10.0.0.1:7000\"]",
    );
    assert_eq!(warnings(&beside), [""; 0]);
}

#[test]
fn a_frontend_cannot_be_its_own_server() {
    assert_eq!(
        error_with("10.0.0.2:80", "10.0.0.1:80"),
        "config.toml:6:8: backends.web.servers.a.addr: 10.0.0.1:80 would send connections back to frontend \"web\", \
         which listens on 10.0.0.1:80"
    );
    let wildcard = GOOD.replace("10.0.0.1:80", "0.0.0.0:80");
    assert_eq!(
        errors(&wildcard.replace("10.0.0.2:80", "127.0.0.1:80")),
        [
            "config.toml:6:8: backends.web.servers.a.addr: 127.0.0.1:80 would send connections back to frontend \"web\", \
          which listens on 0.0.0.0:80"
        ]
    );
    assert_eq!(warnings(&wildcard), [""; 0], "a server elsewhere may have the port");
}

#[test]
fn frontends_cannot_be_servers_of_each_other() {
    let circle = GOOD.replace("10.0.0.2:80", "10.0.0.1:81")
        + "[frontends.back]\nlisten_addr = \"10.0.0.1:81\"\nbackend = \"back\"\n\
           [backends.back.servers]\nb.addr = \"10.0.0.1:80\"\n";
    let found = errors(&circle);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .ends_with(": 10.0.0.1:81 would send connections back to frontend \"web\": web -> back -> web"),
        "{found:?}"
    );
    assert_eq!(
        warnings(&circle.replace("b.addr = \"10.0.0.1:80\"", "b.addr = \"10.0.0.3:80\"")),
        [""; 0],
        "a chain is right"
    );
}
