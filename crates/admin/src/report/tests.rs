use std::time::Duration;

use convey_snapshot::{Ejected, Health, fixture};
use serde_json::{Value, json};

use super::*;
use crate::CertificateView;

const STARTED: Duration = Duration::from_secs(1_700_000_000);

fn stats(snapshot: &Snapshot, now: Duration) -> Value {
    let now = Timestamp(now.as_nanos() as u64);
    let certificates = CertificateView::of_readiness(Vec::new(), 0, snapshot);
    let input = ReadinessInput { snapshot, certificates: &certificates, packets: None, is_draining: false };
    let report = stats_report(input, SystemTime::UNIX_EPOCH + STARTED, now);
    serde_json::to_value(report).unwrap()
}

#[test]
fn before_the_first_configuration_everything_is_zero() {
    let stats = stats(&Snapshot::empty(2), Duration::from_millis(61_900));
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "process": 0,
        "started": "2023-11-14T22:13:20.000Z", "uptime_seconds": 61,
        "total_connections": 0, "current_connections": 0, "total_bytes_rx": 0, "total_bytes_tx": 0,
        "total_packets_rx": 0, "total_packets_tx": 0, "log_lines_dropped": 0,
        "access_log_lines_dropped": 0,
        "not_ready": ["starting: no frontend serves yet"],
        "config": {
            "hash": "", "loaded": "2023-11-14T22:13:20.000Z", "last_reload_successful": true,
            "last_reload": "2023-11-14T22:13:20.000Z", "errors": [], "reloads": 0, "reload_failures": 0,
        },
        "frontends": {}, "backends": {},
    });
    assert_eq!(stats, expected);
}

#[test]
fn frontend_report_has_addresses_traffic_and_reasons_of_closed_connections() {
    let pool = fixture::pool("app", vec![]);
    let frontend = fixture::frontend("web", &["127.0.0.1:8080", "[::1]:8080"], &pool);
    let traffic = &frontend.live.traffic;
    for (counter, n) in [
        (Counter::Opened, 5),
        (Counter::Closed, 3),
        (Counter::BytesRx, 100),
        (Counter::BytesTx, 2_000),
        (Counter::IdleTimeout, 1),
        (Counter::ClientReset, 2),
        (Counter::AcceptBackoff, 4),
        (Counter::DroppedFull, 6),
        (Counter::RefusedAccess, 3),
        (Counter::PacketsRx, 8),
        (Counter::PacketsTx, 9),
    ] {
        traffic.add(0, counter, n);
    }
    let snapshot = fixture::snapshot(vec![frontend], vec![pool]);
    let ended = json!({
        "no_server": 0, "connect_failed": 0, "no_local_port": 0, "queue_timeout": 0, "idle_timeout": 1,
        "client_too_slow": 0, "request_deadline": 0,
        "first_byte_timeout": 0, "client_reset": 2, "server_reset": 0, "server_gone": 0, "loop": 0, "client_limit": 0,
        "max_connections": 0,
        "proxy_untrusted": 0, "proxy_header_invalid": 0, "proxy_header_timeout": 0,
        "tls_handshake_failed": 0, "tls_handshake_timeout": 0, "tls_handshake_limit": 0, "acme_challenge": 0,
        "hello_timeout": 0, "hello_invalid": 0, "not_tls": 0, "no_route": 0, "mode_changed": 0,
        "access_denied": 0, "source_connections": 0, "unproven_paths": 0, "cut": 0, "killed": 0, "evicted": 0, "file_changed": 0,
        "compression_failed": 0,
    });
    let expected = json!({
        "mode": "proxy", "protocol": "tcp",
        "listen_addr": ["127.0.0.1:8080", "[::1]:8080"], "backend": "app",
        "not_ready": "backend app has no server: none of its host names has an address",
        "unserved": { "app": "backend app has no server: none of its host names has an address" }, "max_connections": null,
        "waiting_connections": 0,
        "total_connections": 5, "current_connections": 2, "bytes_rx": 100, "bytes_tx": 2_000,
        "packets_rx": 8, "packets_tx": 9,
        "ended": ended,
        "drops": {
            "no_server": 0, "max_connections": 6, "no_resources": 0, "draining": 0, "loop": 0, "client_limit": 0,
            "proxy_untrusted": 0, "proxy_header_invalid": 0, "not_unicast": 0, "transmit_failed": 0,
            "unproven_address": 0, "receive_overrun": 0, "idle_timeout": 0,
            "client_too_slow": 0, "request_deadline": 0,
        },
        "refused": { "access_denied": 3, "source_connections": 0, "source_rate": 0 },
        "uncounted_sources": 0,
        "accept_backoffs": 4,
    });
    assert_eq!(stats(&snapshot, Duration::ZERO)["frontends"]["web"], expected);
}

#[test]
fn totals_keep_what_a_removed_frontend_carried() {
    let snapshot = Snapshot::empty(1);
    snapshot.totals.add(0, Counter::Opened, 7);
    snapshot.totals.add(0, Counter::Closed, 7);
    snapshot.totals.add(0, Counter::BytesRx, 70);
    snapshot.totals.add(0, Counter::BytesTx, 700);
    let stats = stats(&snapshot, Duration::ZERO);
    assert_eq!(stats["total_connections"], 7);
    assert_eq!(stats["current_connections"], 0);
    assert_eq!(stats["total_bytes_rx"], 70);
    assert_eq!(stats["total_bytes_tx"], 700);
}

#[test]
fn a_server_that_went_down_says_why_and_since_when() {
    let refused = fixture::down("connection refused", Duration::from_millis(90_250));
    let mut server = fixture::server("a", "127.0.0.1:8081");
    server.settings.max_connections = Some(50);
    let pool = fixture::pool("app", vec![(server, refused)]);
    pool.servers[0].live.traffic.add(0, Counter::ConnectFailures, 3);
    pool.servers[0].live.traffic.add(0, Counter::Retries, 2);
    let snapshot = fixture::snapshot(vec![], vec![pool]);
    let expected = json!({
        "addr": "127.0.0.1:8081", "weight": 1, "effective_weight": 1.0, "backup": false, "max_connections": 50,
        "state": "ready", "up": false, "eligible": false,
        "health": { "up": false, "reason": "connection refused", "since": "2023-11-14T22:14:50.250Z" },
        "ejected": null, "ejections": 0,
        "total_connections": 0, "current_connections": 0, "bytes_rx": 0, "bytes_tx": 0,
        "packets_rx": 0, "packets_tx": 0,
        "connect_failures": 3, "retries": 2,
    });
    let stats = stats(&snapshot, Duration::from_secs(100));
    assert_eq!(stats["backends"]["app"]["servers"]["a"], expected);
    assert_eq!(stats["backends"]["app"]["servers_up"], 0);
    assert_eq!(stats["backends"]["app"]["algorithm"], "round_robin");
}

#[test]
fn ejected_server_is_reported_as_up_and_not_eligible() {
    let reason = "5 connections in a row failed: reset before an answer".to_owned();
    let ejected = Some(Ejected { until: Timestamp(31_500_000_000), times: 2, reason: reason.clone() });
    let servers = ["127.0.0.1:1", "127.0.0.1:2"].map(|addr| fixture::server(addr, addr));
    let [bad, mut back] = servers;
    back.settings.weight = 4;
    let healths = [Health { ejected, ..fixture::up() }, Health { percent: 35, ..fixture::up() }];
    let pool = fixture::pool("app", [bad, back].into_iter().zip(healths).collect());
    pool.servers[0].live.count_ejection();
    let stats = stats(&fixture::snapshot(vec![], vec![pool]), Duration::from_secs(1));
    let servers = &stats["backends"]["app"]["servers"];
    let bad = &servers["127.0.0.1:1"];
    assert_eq!((&bad["up"], &bad["eligible"], &bad["ejections"]), (&json!(true), &json!(false), &json!(1)));
    assert_eq!(bad["ejected"], json!({ "reason": reason, "remaining_seconds": 30.5, "times": 2 }));
    let back = &servers["127.0.0.1:2"];
    assert_eq!((&back["ejected"], &back["effective_weight"]), (&Value::Null, &json!(1.4)));
}

#[test]
fn proxied_backend_reports_connect_and_session_times() {
    let pools = ["app", "unused"].map(|name| fixture::pool(name, vec![]));
    let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pools[0]);
    [1, 2, 9].into_iter().for_each(|s| pools[0].live.session_times.record(0, Duration::from_secs(s)));
    let stats = stats(&fixture::snapshot(vec![frontend], pools.into()), Duration::ZERO);
    let backend = &stats["backends"]["app"];
    let connects = &backend["connect_seconds"];
    assert_eq!((&connects["count"], &connects["percentiles"]), (&json!(0), &json!(INTERPOLATED)));
    assert!(["mean", "p50", "p99"].iter().all(|of| connects[of].is_null()));
    let sessions = &backend["session_seconds"];
    let at_most = |seconds: &str| sessions["buckets"][seconds].as_u64();
    assert_eq!([at_most("0.25"), at_most("1"), at_most("5"), at_most("15")], [0, 1, 2, 3].map(Some));
    assert_eq!((&sessions["count"], &sessions["mean"]), (&json!(3), &json!(4.0)));
    assert!(sessions["p50"].as_f64().unwrap() < 5.0 && sessions["p99"].as_f64().unwrap() > 5.0);
    assert!(stats["backends"]["unused"].get("connect_seconds").is_none());
}

#[test]
fn a_server_of_a_packet_mode_tells_how_handshakes_with_it_fare() {
    let pools = ["app", "proxied"]
        .map(|name| fixture::pool(name, vec![(fixture::server("a", "127.0.0.1:8081"), fixture::up())]));
    let [app, proxied] = &pools;
    let config = convey_model::fixture::frontend("web", &["127.0.0.1:80"], "app");
    let packets = fixture::frontend_of(FrontendConfig { mode: convey_model::Mode::Dsr, ..config }, app);
    let proxy = fixture::frontend("proxy", &["127.0.0.1:8080"], proxied);
    let traffic = &app.servers[0].live.traffic;
    let counts =
        [(Counter::HandshakesBegun, 7), (Counter::HandshakesCompleted, 4), (Counter::SynsRepeated, 9)];
    counts.into_iter().for_each(|(counter, n)| traffic.add(0, counter, n));
    let snapshot = fixture::snapshot(vec![packets, proxy], pools.clone().into());
    let stats_now = || stats(&snapshot, Duration::ZERO);
    let stats = stats_now();
    let handshakes = |backend: &str| stats["backends"][backend]["servers"]["a"].get("handshakes").cloned();
    assert_eq!(
        handshakes("app"),
        Some(
            json!({ "started": 7, "completed": 4, "syn_repeated": 9, "consecutive_incomplete": 0, "stalled": false })
        )
    );
    assert_eq!(handshakes("proxied"), None);
    traffic.add(0, Counter::PathMtuToServer, 3);
    traffic.add(0, Counter::PathMtuToClient, 1);
    let suspicions =
        |backend: &str| stats_now()["backends"][backend]["servers"]["a"].get("path_mtu_suspicions").cloned();
    assert_eq!(suspicions("app"), Some(json!({ "to_server": 3, "to_client": 1 })));
    assert_eq!(suspicions("proxied"), None);
}

#[test]
fn a_backup_is_up_but_not_eligible_until_it_is_needed() {
    let mut backup = fixture::server("spare", "127.0.0.1:8082");
    backup.settings.backup = true;
    let app = fixture::server("a", "127.0.0.1:8081");
    let eligible = |health: Health| {
        let pool = fixture::pool("app", vec![(app.clone(), health), (backup.clone(), fixture::up())]);
        let stats = stats(&fixture::snapshot(vec![], vec![pool]), Duration::ZERO);
        let servers = &stats["backends"]["app"]["servers"];
        assert_eq!(servers["spare"]["up"], true);
        (servers["a"]["eligible"].clone(), servers["spare"]["eligible"].clone())
    };
    assert_eq!(eligible(fixture::up()), (json!(true), json!(false)));
    assert_eq!(eligible(fixture::down("timed out", Duration::ZERO)), (json!(false), json!(true)));
}
