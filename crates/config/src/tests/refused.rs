//! Messages about files with errors or warnings.

mod addresses;

use std::fs;

use super::super::load;
use super::{GOOD, errors, warnings};

#[test]
fn errors_of_a_file_are_all_reported_in_order() {
    let text = r#"mode = "prxy"
colour = "red"
[frontends.web]
listen_adr = "10.0.0.1:80"
backend = "wbe"
[frontends.api]
listen_addr = ["10.0.0.1:80", "localhost:81", 82]
backend = "api"
max_connections = 0
[frontends.more]
listen_addr = "10.0.0.1:80"
[backends.web]
algorithm = "roundrobin"
health_check_interval = 3
health_check = { interval = 2, kind = "icmp", path = "/" }
[backends.web.servers.a]
weight = 65536
addr = "10.0.0.2"
[backends.api.servers]
[stats]
port = "http"
[timeouts]
idle = -1
"#;
    assert_eq!(
        errors(text),
        [
            "config.toml:1:8: mode: found \"prxy\"; allowed: proxy, passthrough, dsr, http; did you mean `proxy`?",
            "config.toml:2:1: colour: unknown key (allowed here: access_log, acme, announce, backends, dns, frontends, include, log, mode, passthrough, privileges, state_dir, stats, timeouts, workers)",
            "config.toml:4:1: frontends.web.listen_adr: unknown key; did you mean `listen_addr`? (allowed here: accept_proxy, access, backend, begin_traces, client_address, compression, cors, error_pages, forwarded, headers, http, limits, listen_addr, max_connections, max_connections_per_client, mode, normalize, protocol, ready_needs, redirect, retry, routes, timeouts, tls, trusted_clients, trusted_proxies)",
            "config.toml:5:11: frontends.web.backend: no backend \"wbe\"; did you mean `web`? (backends: api, web)",
            "config.toml:7:31: frontends.api.listen_addr: host names are not supported, found \"localhost:81\"; allowed: IP:port, such as 0.0.0.0:80 or [::]:80, or a range of ports, such as 0.0.0.0:21000-21010",
            "config.toml:7:47: frontends.api.listen_addr: found 82; allowed: IP:port, such as 0.0.0.0:80 or [::]:80, or a range of ports, such as 0.0.0.0:21000-21010",
            "config.toml:9:19: frontends.api.max_connections: found 0; allowed: an integer from 1 to 4294967295",
            "config.toml:10:1: frontends.more.backend: required, but missing",
            "config.toml:11:15: frontends.more.listen_addr: 10.0.0.1:80 is taken by frontends.api.listen_addr (line 7)",
            "config.toml:13:13: backends.web.algorithm: found \"roundrobin\"; allowed: round_robin, least_connections, power_of_two, ewma, ring, maglev; did you mean `round_robin`?",
            "config.toml:14:25: backends.web.health_check_interval: is the former name of health_check.interval, which is also set; keep one of them",
            "config.toml:15:39: backends.web.health_check.kind: found \"icmp\"; allowed: tcp, http, https, grpc, udp, none",
            "config.toml:17:10: backends.web.servers.a.weight: found 65536; allowed: an integer from 0 to 65535",
            "config.toml:18:8: backends.web.servers.a.addr: found \"10.0.0.2\" without a port, so health checks have no port; add the port, or set health_check.port (then each connection keeps the port that its client connected to)",
            "config.toml:19:11: backends.api: no servers; write [backends.NAME.servers.NAME] with addr",
            "config.toml:21:8: stats.port: found \"http\"; allowed: a port from 1 to 65535",
            "config.toml:23:8: timeouts.idle: found -1; allowed: seconds from 0.001 to 31536000, or a time such as \"2s\" or \"500ms\"",
        ]
    );
}

#[test]
fn a_number_out_of_range_is_refused_with_the_range() {
    let cases = [
        ("weight = -1", "7:10: backends.web.servers.a.weight: found -1; allowed: an integer from 0 to 65535"),
        (
            "weight = 0x10000",
            "7:10: backends.web.servers.a.weight: found 0x10000; allowed: an integer from 0 to 65535",
        ),
        (
            "weight = 1.5",
            "7:10: backends.web.servers.a.weight: found 1.5; allowed: an integer from 0 to 65535",
        ),
        (
            "max_connections = 99999999999999999999999999999999999999999999",
            "7:19: backends.web.servers.a.max_connections: found 99999999999999999999999999999999999999999999; \
             allowed: an integer from 1 to 4294967295",
        ),
        ("backup = 1", "7:10: backends.web.servers.a.backup: found 1; allowed: true, false"),
        ("[stats]\nport = 0", "8:8: stats.port: found 0; allowed: a port from 1 to 65535"),
        ("[stats]\nport = \"70000\"", "8:8: stats.port: found \"70000\"; allowed: a port from 1 to 65535"),
        (
            "[stats]\nlisten_addr = \"127.0.0.1:7000\"",
            "8:15: stats.listen_addr: found \"127.0.0.1:7000\"; \
             allowed: an IP address without a port, such as 127.0.0.1 or ::1",
        ),
        (
            "[passthrough]\nworkers = 0",
            "8:11: passthrough.workers: found 0; allowed: an integer from 1 to 1024",
        ),
        (
            "[passthrough]\nmax_flows = 0",
            "8:13: passthrough.max_flows: found 0; allowed: an integer from 1 to 1073741824",
        ),
        (
            "[passthrough]\nsnat_ports = \"0-100\"",
            "8:14: passthrough.snat_ports: found \"0-100\"; \
             allowed: a range of ports from 1 to 65535, such as \"33768-61000\"",
        ),
        (
            "[passthrough]\nsnat_ports = \"61000-33768\"",
            "8:14: passthrough.snat_ports: found \"61000-33768\"; \
             allowed: a range of ports from 1 to 65535, such as \"33768-61000\"",
        ),
        (
            "[passthrough]\nsnat_ports = 33768",
            "8:14: passthrough.snat_ports: found 33768; \
             allowed: a range of ports from 1 to 65535, such as \"33768-61000\"",
        ),
        (
            "[passthrough]\nsnat_addresses = \"::ffff:10.0.0.1\"",
            "8:18: passthrough.snat_addresses: found \"::ffff:10.0.0.1\" (an IPv4-mapped address; write 10.0.0.1); \
             allowed: an address of this host without a port, such as 10.0.0.1",
        ),
        (
            "[passthrough]\nsnat_addresses = [\"10.0.0.1\", \"127.0.0.1\"]",
            "8:31: passthrough.snat_addresses: found \"127.0.0.1\"; \
             allowed: an address of this host without a port, such as 10.0.0.1",
        ),
        (
            "[passthrough.timeouts]\nclosed = 0",
            "8:10: passthrough.timeouts.closed: found 0; allowed: seconds from 0.001 to 31536000, or a time such as \"2s\" or \"500ms\"",
        ),
        (
            "[backends.web]\non_down = \"kep\"",
            "8:11: backends.web.on_down: found \"kep\"; allowed: reset, keep; did you mean `keep`?",
        ),
        (
            "[backends.web]\ndsr = \"l4\"",
            "8:7: backends.web.dsr: found \"l4\"; allowed: l3, l2, ipip, gue; did you mean `l2`?",
        ),
        (
            "[passthrough]\ncapture_stats_interval = 0.5",
            "8:26: passthrough.capture_stats_interval: found 0.5; allowed: seconds from 1 to 31536000, or a time such as \"2s\" or \"500ms\"",
        ),
    ];
    for (lines, expected) in cases {
        assert_eq!(error_after(lines), format!("config.toml:{expected}"));
    }
    assert_eq!(
        error_with("backend = ", "protocol = \"icmp\"\nbackend = "),
        "config.toml:4:12: frontends.web.protocol: found \"icmp\"; allowed: tcp, udp"
    );
}

#[test]
fn a_time_is_a_sensible_number_of_seconds() {
    for wrong in [
        "0",
        "0.0",
        "-0.0",
        "-1",
        "1e-9",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "1e999",
        "31536001",
        "\"5 parsecs\"",
        "\"-1s\"",
        "\"0s\"",
        "\"\"",
    ] {
        assert_eq!(
            error_after(&format!("[timeouts]\nconnect = {wrong}")),
            format!(
                "config.toml:8:11: timeouts.connect: found {wrong}; allowed: seconds from 0.001 to 31536000, or a time such as \"2s\" or \"500ms\""
            )
        );
    }
    assert_eq!(
        error_after("[timeouts]\ndrain = -1"),
        "config.toml:8:9: timeouts.drain: found -1; allowed: seconds from 0 to 31536000, or a time such as \"2s\" or \"500ms\""
    );
}

#[test]
fn a_health_check_must_make_sense() {
    let check = "backends.web.health_check";
    let allowed_status = "allowed: a status from 100 to 599, such as 200, or a range, such as \"200-399\"";
    let allowed_path = "allowed: a path that begins with `/`, encoded as in a URL";
    let cases = [
        (
            "timeout = 3",
            format!("8:11: {check}.timeout: found 3 s; allowed: at most the interval of the checks, 2 s"),
        ),
        ("rise = 0", format!("8:8: {check}.rise: found 0; allowed: an integer from 1 to 4294967295")),
        ("fall = \"3\"", format!("8:8: {check}.fall: found \"3\"; allowed: an integer from 1 to 4294967295")),
        ("path = \"/\"", format!("8:8: {check}.path: is for kind = \"http\"; the kind is \"tcp\"")),
        (
            "expected_status = 200\nkind = \"none\"",
            format!("8:19: {check}.expected_status: is for kind = \"http\"; the kind is \"none\""),
        ),
        ("kind = \"http\"\npath = \"up\"", format!("9:8: {check}.path: found \"up\"; {allowed_path}")),
        (
            "kind = \"http\"\npath = \"/ HTTP/1.1\\r\\nX: y\"",
            format!("9:8: {check}.path: found \"/ HTTP/1.1\\r\\nX: y\"; {allowed_path}"),
        ),
        (
            "kind = \"http\"\nexpected_status = \"399-200\"",
            format!("9:19: {check}.expected_status: found \"399-200\"; {allowed_status}"),
        ),
        (
            "kind = \"http\"\nexpected_status = 20",
            format!("9:19: {check}.expected_status: found 20; {allowed_status}"),
        ),
        (
            "kind = \"http\"\nexpected_status = [200, \"x\"]",
            format!("9:25: {check}.expected_status: found \"x\"; {allowed_status}"),
        ),
        (
            "kind = \"http\"\nexpected_body = \"(up\"",
            format!(
                "9:17: {check}.expected_body: found \"(up\": unclosed group; allowed: a regular expression, such as \"^OK\""
            ),
        ),
        (
            "expected_body = \"up\"",
            format!("8:17: {check}.expected_body: is for kind = \"http\"; the kind is \"tcp\""),
        ),
        (
            "kind = \"http\"\nhost = \"a b\"",
            format!(
                "9:8: {check}.host: found \"a b\"; allowed: a host, such as www.example.org or app.internal:8080"
            ),
        ),
        (
            "kind = \"http\"\nheaders.X = \"a\\nb\"",
            format!(
                "9:13: {check}.headers.X: found 3 characters; allowed: a string of printable ASCII characters, \
                 without a newline at its end"
            ),
        ),
        (
            "kind = \"http\"\nheaders.Host = \"a\"",
            format!("9:9: {check}.headers.Host: is set by the key `host` of the health check"),
        ),
        (
            "kind = \"http\"\nheaders.\"a b\" = \"a\"",
            format!("9:9: {check}.headers.\"a b\": is not a valid HTTP header name"),
        ),
        (
            "kind = \"http\"\ntls_skip_verify = true",
            format!("9:19: {check}.tls_skip_verify: is for kind = \"https\"; the kind is \"http\""),
        ),
        ("headers = {}", format!("8:11: {check}.headers: is for kind = \"http\"; the kind is \"tcp\"")),
        (
            "kind = \"grpc\"\npath = \"/\"",
            format!("9:8: {check}.path: is for kind = \"http\"; the kind is \"grpc\""),
        ),
        (
            "kind = \"http\"\nservice = \"shop.Cart\"",
            format!("9:11: {check}.service: is for kind = \"grpc\"; the kind is \"http\""),
        ),
        (
            "kind = \"grpc\"\nservice = \"a\\nb\"",
            format!(
                "9:11: {check}.service: found \"a\\nb\"; allowed: the name of a service, such as shop.Cart, of at most 255 bytes"
            ),
        ),
    ];
    for (lines, expected) in cases {
        let text = format!("[backends.web.health_check]\n{lines}");
        assert_eq!(error_after(&text), format!("config.toml:{expected}"));
    }
}

#[test]
fn a_file_without_a_frontend_serves_nobody() {
    let nobody = "frontends: no frontend; write [frontends.NAME] with listen_addr and backend";
    assert_eq!(errors(""), [format!("config.toml:1:1: {nobody}")]);
    assert_eq!(errors("\nfrontends = {}"), [format!("config.toml:2:13: {nobody}")]);
    assert_eq!(
        errors("[frontend.web]"),
        ["config.toml:1:2: frontend: unknown key; did you mean `frontends`? \
          (allowed here: access_log, acme, announce, backends, dns, frontends, include, log, mode, passthrough, privileges, state_dir, stats, timeouts, workers)"]
    );
    assert_eq!(errors("frontends = 3"), ["config.toml:1:13: frontends: found 3; allowed: a table"]);
    assert_eq!(errors("[[frontends]]"), ["config.toml:1:1: frontends: found an array; allowed: a table"]);
}

#[test]
fn a_frontend_needs_a_backend_and_a_server_needs_an_address() {
    assert_eq!(
        errors("[frontends.web]\nlisten_addr = \"10.0.0.1:80\"\nbackend = \"web\""),
        ["config.toml:3:11: frontends.web.backend: no backend \"web\" (backends: none)"]
    );
    let unnameable = GOOD.replace("backends.web", "backends.\"we\\nb\"");
    assert_eq!(
        errors(&unnameable)[0],
        "config.toml:4:11: frontends.web.backend: no backend \"web\" (backends: none)"
    );
    assert_eq!(
        error_with("addr = \"10.0.0.2:80\"", ""),
        "config.toml:5:1: backends.web.servers.a.addr: required, but missing"
    );
}

#[test]
fn a_pool_in_which_nobody_can_serve_is_refused() {
    assert_eq!(
        error_with(".servers.a]\naddr = \"10.0.0.2:80\"", "]"),
        "config.toml:5:1: backends.web: no servers; write [backends.NAME.servers.NAME] with addr"
    );
    assert_eq!(
        error_after("weight = 0"),
        "config.toml:5:11: backends.web: every server has weight 0, so none gets a connection"
    );
    let unused = format!("{GOOD}[backends.old.servers.a]\naddr = \"10.0.0.3:80\"\nweight = 0");
    assert_eq!(
        warnings(&unused),
        [
            "config.toml:7:11: backends.old: every server has weight 0, so none gets a connection",
            "config.toml:7:11: backends.old: no frontend uses this backend",
        ]
    );
}

#[test]
fn ready_needs_names_only_backends_of_its_frontend() {
    let with =
        |needed: &str| GOOD.replacen("backend = ", &format!("ready_needs = [\"{needed}\"]\nbackend = "), 1);
    let wrong = errors(&with("other"));
    assert!(wrong.iter().any(|line| line.ends_with("frontend web does not use backend other")), "{wrong:?}");
    assert!(super::super::parse("config.toml", &with("web")).is_ok());
}

#[test]
fn outlier_detection_says_what_it_allows() {
    let with = |line: &str| error_after(&format!("[backends.web.outlier_detection]\n{line}\n"));
    assert_eq!(
        with("max_ejection_time = 29"),
        "config.toml:8:21: backends.web.outlier_detection.max_ejection_time: found 29 s; allowed: at least base_ejection_time, 30 s"
    );
    assert_eq!(
        with("max_ejection_percent = 0"),
        "config.toml:8:24: backends.web.outlier_detection.max_ejection_percent: found 0; allowed: an integer from 1 to 100"
    );
    assert_eq!(
        with("consecutive_5xx = 5"),
        "config.toml:8:1: backends.web.outlier_detection.consecutive_5xx: unknown key \
         (allowed here: base_ejection_time, consecutive_failures, max_ejection_percent, max_ejection_time)"
    );
}

#[test]
fn slow_start_with_an_algorithm_that_hashes_is_odd() {
    let text = GOOD.replace(
        "[backends.web.servers.a]",
        "[backends.web]\nalgorithm = \"maglev\"\nslow_start = 3\n[backends.web.servers.a]",
    );
    assert_eq!(
        warnings(&text),
        [
            "config.toml:7:14: backends.web.slow_start: has no effect with algorithm \"maglev\", which hashes: \
          during a slow start clients would change servers all the time"
        ]
    );
}

#[test]
fn a_syntax_error_does_not_bring_errors_that_are_not_there() {
    assert_eq!(
        errors(&format!("{GOOD}weigth = 3\nmax_connections = \n[backends.web.servers.b]\nadr = 3\n[stats\n")),
        [
            "config.toml:7:1: backends.web.servers.a.weigth: unknown key; did you mean `weight`? \
             (allowed here: addr, backup, max_connections, quic_server_id, weight)",
            "config.toml:8:19: string values must be quoted, expected literal string",
            "config.toml:11:7: unclosed table, expected `]`",
        ]
    );
    assert_eq!(
        error_with("[frontends.web]", "[frontends.web"),
        "config.toml:2:15: unclosed table, expected `]`"
    );
}

#[test]
fn a_duplicate_key_does_not_hide_other_errors() {
    assert_eq!(
        errors(&format!("{GOOD}weight = 1\nweight = 2\nbackup = 3\n")),
        [
            "config.toml:8:1: duplicate key `weight`: already used in line 7; keep one of them",
            "config.toml:9:10: backends.web.servers.a.backup: found 3; allowed: true, false",
        ]
    );
}

#[test]
fn a_table_that_stands_there_twice_is_told_once_with_both_lines() {
    let again = "[frontends.web]\nlisten_addr = \"10.0.0.1:81\"\nbackend = \"web\"\n";
    assert_eq!(
        errors(&format!("{GOOD}{again}[backends.web]\nservers.a.addr = \"10.0.0.3:80\"\n")),
        [
            "config.toml:7:12: duplicate key `web`: already used in line 2; keep one of them",
            "config.toml:11:9: duplicate key `a`: already used in line 5; keep one of them",
        ]
    );
}

#[test]
fn algorithm_names_of_other_load_balancers_get_a_suggestion() {
    for (word, meant) in [
        ("leastconn", "least_connections`"),
        ("source", "ring` with hash = \"source\""),
        ("random", "power_of_two`"),
    ] {
        let error = error_after(&format!("[backends.web]\nalgorithm = \"{word}\"\n"));
        assert!(error.ends_with(&format!("; did you mean `{meant}?")), "{error}");
    }
}

#[test]
fn a_file_that_is_not_utf_8_says_where() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("latin1.toml");
    fs::write(&path, b"# one\nname = \"caf\xe9\"\n").expect("writable");
    let error = load(&path).expect_err("Latin-1").to_string();
    assert_eq!(error, format!("{}:2:12: byte 0xe9 is not UTF-8; save the file as UTF-8", path.display()));
}

#[test]
fn a_month_is_never_meant_for_minutes() {
    for text in ["1M", "2h 5M"] {
        let diagnostics = error_after(&format!("[timeouts]\nidle = '{text}'\n"));
        assert!(
            diagnostics.contains("the unit M could mean minutes or months; write \"m\" for minutes"),
            "{diagnostics}"
        );
    }
    assert!(error_after("[timeouts]\nidle = '5 Mm'\n").contains("or a time such as"));
}

#[test]
fn a_check_has_each_header_once_and_none_of_the_connection() {
    let diagnostics = |headers: &str| {
        error_after(&format!("[backends.web.health_check]\nkind = 'http'\nheaders = {{ {headers} }}\n"))
    };
    for own in ["Expect", "TE", "Upgrade", "content-length"] {
        let diagnostics = diagnostics(&format!("{own} = 'a'"));
        assert!(
            diagnostics.contains("is a header of the connection, which convey sets itself"),
            "{diagnostics}"
        );
    }
    assert!(diagnostics("X-a = '1', x-A = '2'").contains("keep one of them"));
}

#[test]
fn a_file_that_cannot_be_read_says_which_and_why() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("none.toml");
    let error = load(&path).expect_err("no such file").to_string();
    assert_eq!(error, format!("cannot read {}: No such file or directory (os error 2)", path.display()));
    fs::write(&path, "mode = 1\ncolor = 2\n[frontends]\n").expect("writable");
    let error = load(&path).expect_err("wrong").to_string();
    assert_eq!(error.lines().count(), 3, "{error}");
    assert!(error.lines().all(|line| line.starts_with(&format!("{}:", path.display()))), "{error}");
}

/// The only error of [`GOOD`] after a replacement.
fn error_with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    let mut all = errors(&GOOD.replace(from, to));
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The only error of [`GOOD`] with lines added at the end, in the table of its server.
fn error_after(lines: &str) -> String {
    let mut all = errors(&format!("{GOOD}{lines}"));
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn a_check_via_the_vip_is_one_that_begins_a_connection() {
    for kind in ["udp", "none"] {
        let text = format!("{GOOD}[backends.web.health_check]\nkind = \"{kind}\"\nvia = \"vip\"");
        let expected = format!(
            "config.toml:9:7: backends.web.health_check.via: \"vip\" is for kind = \"tcp\", \"http\", \"https\" or \"grpc\"; the kind is \"{kind}\""
        );
        assert_eq!(errors(&text), [expected]);
    }
}
