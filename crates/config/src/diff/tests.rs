//! Differences between two files, as text.

use super::*;
use crate::{Diff, parse};

const BEFORE: &str = r#"
    [frontends.api]
    listen_addr = "10.0.0.1:9000"
    backend = "a"
    [frontends.web]
    listen_addr = ["10.0.0.1:80", "10.0.0.1:81"]
    backend = "web"
    [backends.a.servers.x]
    addr = "10.0.1.1:80"
    [backends.web.servers.five]
    addr = "10.0.0.5:80"
    weight = 10
    [backends.web.servers.six]
    addr = "10.0.0.6:80"
"#;

fn config(text: &str) -> Config {
    parse("config.toml", text).expect("valid").config
}

/// Differences between [`BEFORE`] and an edited copy.
fn edited(edits: &[(&str, &str)]) -> Diff {
    let mut text = BEFORE.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    reload(BEFORE, &text)
}

fn reload(before: &str, after: &str) -> Diff {
    parse("config.toml", after).expect("valid").reload(&config(before)).1
}

fn changes(edits: &[(&str, &str)]) -> Vec<String> {
    let diff = edited(edits);
    assert_eq!(diff.needs_restart, [""; 0]);
    diff.changes
}

#[test]
fn a_file_saved_without_a_change_says_nothing() {
    assert_eq!(edited(&[]), Diff::default());
    assert_eq!(
        edited(&[("[\"10.0.0.1:80\", \"10.0.0.1:81\"]", "['10.0.0.1:81', '10.0.0.1:80']")]),
        Diff::default()
    );
}

#[test]
fn named_server_is_identified_by_its_name_in_a_diff() {
    let named = ("10.0.0.6", "App.internal");
    assert_eq!(changes(&[named]), ["backend web: address of web/six 10.0.0.6:80 -> app.internal:80"]);
    let before = BEFORE.replace(named.0, named.1);
    let after = before.replace("internal:80\"", "internal:80\"\nweight = 3");
    let changes = reload(&before, &after).changes;
    assert_eq!(changes, ["backend web: weight of web/six (app.internal:80) 1 -> 3"]);
}

#[test]
fn other_name_servers_need_no_restart() {
    let dns = "[backends.a.servers.x]";
    let with = format!("[dns]\nnameservers = ['10.0.0.53', '127.0.0.1:8600']\n{dns}");
    let line = "dns.nameservers the system's -> 10.0.0.53:53, 127.0.0.1:8600";
    assert_eq!(changes(&[(dns, &with)]), [line]);
}

#[test]
fn servers_that_come_go_and_change_make_one_line() {
    assert_eq!(
        changes(&[
            ("servers.six", "servers.seven"),
            ("10.0.0.6", "10.0.0.7"),
            ("weight = 10", "weight = 50")
        ]),
        [
            "backend web: + web/seven (10.0.0.7:80), - web/six (10.0.0.6:80), weight of web/five (10.0.0.5:80) 10 -> 50"
        ]
    );
}

#[test]
fn everything_about_a_server_that_changes_is_named() {
    assert_eq!(
        changes(&[("servers.five]", "servers.six_]\nbackup = true\nmax_connections = 9")]),
        [
            "backend web: name of web/five (10.0.0.5:80) five -> six_, backup of web/five (10.0.0.5:80) false -> true, \
          max_connections of web/five (10.0.0.5:80) none -> 9"
        ]
    );
}

#[test]
fn moved_server_is_listed_with_both_addresses_and_further_changes() {
    assert_eq!(
        changes(&[("10.0.0.5", "10.0.0.7"), ("weight = 10", "weight = 50")]),
        [
            "backend web: address of web/five 10.0.0.5:80 -> 10.0.0.7:80, weight of web/five (10.0.0.5:80) 10 -> 50"
        ]
    );
}

#[test]
fn two_servers_that_swap_names_are_renamed() {
    assert_eq!(
        changes(&[
            ("servers.five", "servers.S"),
            ("servers.six", "servers.five"),
            ("servers.S", "servers.six")
        ]),
        [
            "backend web: name of web/five (10.0.0.5:80) five -> six, name of web/six (10.0.0.6:80) six -> five"
        ]
    );
}

#[test]
fn a_frontend_tells_where_it_listens_and_who_serves_it() {
    assert_eq!(
        changes(&[
            ("\"10.0.0.1:9000\"", "[\"0.0.0.0:9000\", \"[::]:9000\"]\nmax_connections = 5"),
            ("backend = \"a\"", "backend = \"web\""),
        ]),
        [
            "frontend api: - 10.0.0.1:9000, + 0.0.0.0:9000, + [::]:9000, backend a -> web, max_connections none -> 5"
        ]
    );
}

#[test]
fn frontends_and_backends_come_and_go() {
    assert_eq!(
        changes(&[("frontends.api", "frontends.new"), ("backends.a.", "backends.b."), ("\"a\"", "\"b\"")]),
        [
            "frontend api: removed",
            "frontend new: added (proxy, 10.0.0.1:9000 -> backend b)",
            "backend a: removed",
            "backend b: added (round_robin, servers b/x (10.0.1.1:80))",
        ]
    );
}

#[test]
fn a_backend_tells_how_it_chooses_and_checks() {
    let settings = r#"
        [backends.web]
        algorithm = "maglev"
        hash = "tuple"
        on_down = "keep"
        [backends.web.health_check]
        kind = "http"
        port = 81
        interval = 1.5
        timeout = 0.5
        rise = 1
        fall = 1
        [backends.web.servers.five]"#;
    assert_eq!(
        changes(&[("[backends.web.servers.five]", settings)]),
        ["backend web: algorithm round_robin -> maglev, hash source -> tuple, \
          health check tcp -> http / (200-399), health check port the server's -> 81, \
          health check interval 2s -> 1.5s, health check timeout 1s -> 0.5s, \
          health check rise 2 -> 1, health check fall 3 -> 1, on_down automatic -> keep"]
    );
}

#[test]
fn diff_lists_settings_of_a_grpc_check_without_values_of_headers() {
    let with =
        |check: &str| format!("[backends.web]\nhealth_check = {{ {check} }}\n[backends.web.servers.five]");
    let changes_to = |check: &str| changes(&[("[backends.web.servers.five]", &with(check))]);
    assert_eq!(changes_to("kind = 'grpc'"), ["backend web: health check tcp -> grpc"]);
    let more = "kind = 'grpc', service = 'shop.Cart', host = 'app.internal', headers = { X-Key = 's3cret' }";
    assert_eq!(
        changes_to(more),
        ["backend web: health check tcp -> grpc of service shop.Cart (host app.internal, header X-Key)"]
    );
    let before = BEFORE.replace("[backends.web.servers.five]", &with(more));
    let diff = reload(&before, &before.replace("s3cret", "other"));
    assert_eq!(diff.changes, ["backend web: health check headers: values changed"]);
}

#[test]
fn diff_lists_slow_start_and_outlier_detection_settings() {
    let on = "[backends.web]\nslow_start = 10\n[backends.web.outlier_detection]\n[backends.web.servers.five]";
    let edit = ("[backends.web.servers.five]", on);
    assert_eq!(changes(&[edit]), ["backend web: slow_start 0s -> 10s, outlier detection off -> on"]);
    let settings = "outlier_detection]\nconsecutive_failures = 2\nbase_ejection_time = 1\nmax_ejection_time = 9\n\
        max_ejection_percent = 100";
    let text = BEFORE.replace(edit.0, edit.1);
    let diff = reload(&text, &text.replace("outlier_detection]", settings));
    assert_eq!(
        diff.changes,
        ["backend web: outlier detection consecutive_failures 5 -> 2, \
          outlier detection base_ejection_time 30s -> 1s, outlier detection max_ejection_time 300s -> 9s, \
          outlier detection max_ejection_percent 50 -> 100"]
    );
}

#[test]
fn timeouts_make_one_line_a_table() {
    let timeouts = "[timeouts]\nconnect = 2\nidle = 60\ndrain = 0\n[passthrough.timeouts]\nhalf_open = 1\n\
        established = 2\nhalf_closed = 3\nclosing = 4\ntime_wait = 5\nclosed = 6\n\
        udp_single = 7\nudp_stream = 8\n[frontends.api]";
    assert_eq!(
        changes(&[("[frontends.api]", timeouts)]),
        [
            "timeouts: connect 5s -> 2s, idle 600s -> 60s, drain 30s -> 0s",
            "passthrough.timeouts: half_open 60s -> 1s, established 7440s -> 2s, half_closed 240s -> 3s, \
             closing 60s -> 4s, time_wait 60s -> 5s, closed 10s -> 6s, udp_single 30s -> 7s, udp_stream 300s -> 8s"
        ]
    );
}

#[test]
fn settings_that_need_a_restart_are_listed_apart() {
    let settings = r#"mode = "dsr"
        [stats]
        port = 7001
        [passthrough]
        max_flows = 3
        workers = 2
        capture_stats_interval = 1
        interfaces = ["eth0", "eth1"]
        guard = false
        offload = "off"
        snat_ports = "40000-41000"
        snat_addresses = ["10.0.0.8", "10.0.0.9"]
        [frontends.api]"#;
    let text = BEFORE.replace("[frontends.api]", settings);
    // The running modes stay, and so do the defaults that depend on the modes.
    let diff = reload(BEFORE, &text);
    assert_eq!(diff.changes, [""; 0]);
    assert_eq!(
        diff.needs_restart,
        [
            "frontend api: mode proxy -> dsr",
            "frontend web: mode proxy -> dsr",
            "stats address 127.0.0.1:7000 -> 127.0.0.1:7001",
            "passthrough.max_flows 1000000 -> 3",
            "passthrough.workers automatic -> 2",
            "passthrough.capture_stats_interval 5s -> 1s",
            "passthrough.interfaces automatic -> eth0, eth1",
            "passthrough.guard true -> false",
            "passthrough.offload auto -> off",
            "passthrough.snat_ports 33768-61000 -> 40000-41000",
            "passthrough.snat_addresses automatic -> 10.0.0.8, 10.0.0.9",
        ]
    );
}
