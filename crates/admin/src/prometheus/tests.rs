use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_model::{FrontendConfig, LookupFault, Missing, Mode, Timestamp};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Name, NameLive, Snapshot, fixture};

use super::*;
use crate::{CertificateView, ReadinessInput};

/// Frontend and backend named `name`, with one server up and one down.
fn busy(name: &str) -> Snapshot {
    let mut limited = fixture::server("a", "127.0.0.1:8081");
    limited.settings.max_connections = Some(50);
    let down = fixture::down("connection refused", Duration::from_millis(500));
    let servers = vec![(limited, fixture::up()), (fixture::server("b", "127.0.0.1:8082"), down)];
    let pool = fixture::pool(name, servers);
    let frontend = fixture::frontend(name, &["127.0.0.1:8080"], &pool);
    let config = convey_model::fixture::frontend("packets", &["127.0.0.2:8080"], name);
    let packets = FrontendConfig { mode: Mode::Passthrough, ..config };
    let packets = fixture::frontend_of(packets, &pool);
    std::mem::forget([frontend.live.waiters.enter(), pool.live.waiters.enter()]);
    frontend.live.traffic.add(0, Counter::Opened, 3);
    frontend.live.traffic.add(0, Counter::Closed, 1);
    frontend.live.traffic.add(0, Counter::NoServer, 1);
    frontend.live.traffic.add(0, Counter::DroppedNoServer, 7);
    frontend.live.traffic.add(0, Counter::RefusedAccess, 8);
    pool.servers[0].live.traffic.add(0, Counter::PacketsTx, 6);
    pool.live.traffic.add(0, Counter::Retries, 4);
    [50, 400].into_iter().for_each(|us| pool.live.connect_times.record(0, Duration::from_micros(us)));
    pool.live.session_times.record(0, Duration::from_secs(200_000));
    pool.servers[0].live.traffic.add(0, Counter::BytesTx, 1 << 52);
    pool.servers[1].live.traffic.add(0, Counter::ConnectFailures, 5);
    let handshakes =
        [(Counter::HandshakesBegun, 7), (Counter::HandshakesCompleted, 4), (Counter::SynsRepeated, 9)];
    pool.servers[0].live.traffic.add(0, Counter::PathMtuToServer, 2);
    handshakes.into_iter().for_each(|(counter, n)| pool.servers[0].live.traffic.add(0, counter, n));
    let live = Arc::new(NameLive::default());
    live.note_lookup(true);
    let host = Name {
        host: "app.internal".into(),
        addresses: [IpAddr::from([10, 0, 0, 3]).into()].into(),
        fault: Some(LookupFault { missing: Missing::All, why: "timed out".into() }),
        since: Timestamp(0),
        live,
    };
    let snapshot = Snapshot { names: vec![host], ..fixture::snapshot(vec![frontend, packets], vec![pool]) };
    snapshot.totals.add(0, Counter::BytesRx, 123);
    snapshot
}

fn text(snapshot: &Snapshot, process: &ProcessMetrics) -> String {
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let certificates = CertificateView::of_readiness(Vec::new(), 0, snapshot);
    let input = ReadinessInput { snapshot, certificates: &certificates, packets: None, is_draining: false };
    let report = crate::stats_report(input, started, Timestamp(0));
    let report = StatsReport { log_lines_dropped: 9, access_log_lines_dropped: 8, ..report };
    render(&report, process).unwrap()
}

#[test]
fn every_number_of_the_report_is_a_sample() {
    let process = ProcessMetrics {
        cpu_seconds: 1.5,
        open_fds: Some(20),
        max_fds: Some(1024),
        resident_memory_bytes: Some(8_192),
        connection_panics: 4,
    };
    let text = text(&busy("web"), &process);
    for sample in [
        concat!("convey_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "convey_received_bytes_total 123",
        "convey_log_lines_dropped_total 9",
        "convey_access_log_lines_dropped_total 8",
        "convey_connection_panics_total 4",
        "convey_frontend_connections_total{frontend=\"web\"} 3",
        "convey_frontend_open_connections{frontend=\"web\"} 2",
        "convey_frontend_waiting_connections{frontend=\"web\"} 1",
        "convey_backend_waiting_connections{backend=\"web\"} 1",
        "convey_config_info{hash=\"\"} 1",
        "convey_config_last_reload_successful 1",
        "convey_config_last_reload_timestamp_seconds 1700000000",
        "convey_config_last_reload_success_timestamp_seconds 1700000000",
        "convey_config_reloads_total{result=\"failure\"} 0",
        "convey_config_reloads_total{result=\"success\"} 0",
        "convey_frontend_connections_ended_total{frontend=\"web\",reason=\"no_server\"} 1",
        "convey_frontend_connections_ended_total{frontend=\"web\",reason=\"cut\"} 0",
        "convey_frontend_datagrams_dropped_total{frontend=\"web\",reason=\"no_server\"} 7",
        "convey_frontend_refused_total{frontend=\"web\",reason=\"access_denied\"} 8",
        "convey_server_sent_packets_total{backend=\"web\",server=\"a\"} 6",
        "convey_backend_retries_total{backend=\"web\"} 4",
        "convey_backend_connect_duration_seconds_bucket{backend=\"web\",le=\"0.0001\"} 1",
        "convey_backend_connect_duration_seconds_bucket{backend=\"web\",le=\"0.0005\"} 2",
        "convey_backend_connect_duration_seconds_sum{backend=\"web\"} 0.00045",
        "convey_backend_connect_duration_seconds_count{backend=\"web\"} 2",
        "convey_backend_session_duration_seconds_bucket{backend=\"web\",le=\"86400\"} 0",
        "convey_backend_session_duration_seconds_bucket{backend=\"web\",le=\"+Inf\"} 1",
        "convey_backend_session_duration_seconds_sum{backend=\"web\"} 200000",
        "convey_backend_servers{backend=\"web\"} 2",
        "convey_backend_servers_up{backend=\"web\"} 1",
        "convey_server_up{backend=\"web\",server=\"a\"} 1",
        "convey_server_up{backend=\"web\",server=\"b\"} 0",
        "convey_server_eligible{backend=\"web\",server=\"b\"} 0",
        "convey_server_state{backend=\"web\",server=\"b\",state=\"ready\"} 1",
        "convey_server_state{backend=\"web\",server=\"b\",state=\"maint\"} 0",
        "convey_server_health_changed_timestamp_seconds{backend=\"web\",server=\"b\"} 1700000000.5",
        "convey_server_max_connections{backend=\"web\",server=\"a\"} 50",
        "convey_server_effective_weight{backend=\"web\",server=\"a\"} 1",
        "convey_server_ejected{backend=\"web\",server=\"a\"} 0",
        "convey_server_ejections_total{backend=\"web\",server=\"a\"} 0",
        "convey_server_sent_bytes_total{backend=\"web\",server=\"a\"} 4503599627370496",
        "convey_server_connect_failures_total{backend=\"web\",server=\"b\"} 5",
        "convey_server_handshakes_started_total{backend=\"web\",server=\"a\"} 7",
        "convey_server_handshakes_completed_total{backend=\"web\",server=\"a\"} 4",
        "convey_server_syns_repeated_total{backend=\"web\",server=\"a\"} 9",
        "convey_server_path_mtu_suspicions_total{backend=\"web\",server=\"a\",direction=\"to_server\"} 2",
        "convey_server_path_mtu_suspicions_total{backend=\"web\",server=\"a\",direction=\"to_client\"} 0",
        "convey_name_resolved{name=\"app.internal\"} 0",
        "convey_name_addresses{name=\"app.internal\"} 1",
        "convey_name_lookups_total{name=\"app.internal\"} 1",
        "convey_name_lookup_failures_total{name=\"app.internal\"} 1",
        "process_start_time_seconds 1700000000",
        "process_cpu_seconds_total 1.5",
        "process_open_fds 20",
        "process_max_fds 1024",
        "process_resident_memory_bytes 8192",
    ] {
        assert!(text.lines().any(|line| line == sample), "no `{sample}` in\n{text}");
    }
}

#[test]
fn unlimited_and_unknown_values_have_no_sample() {
    let text = text(&busy("web"), &ProcessMetrics::default());
    assert!(!text.contains("convey_server_max_connections{backend=\"web\",server=\"b\"}"), "{text}");
    assert!(!text.contains("convey_frontend_max_connections"), "{text}");
    assert!(!text.contains("process_max_fds"), "{text}");
}

#[test]
fn renamed_metric_is_exported_under_both_names() {
    let page = text(&busy("web"), &ProcessMetrics::default());
    let samples = |name: &str| -> Vec<String> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(name));
        lines.filter(|rest| rest.starts_with('{')).map(str::to_owned).collect()
    };
    let new = samples("convey_server_handshakes_stalled");
    assert_eq!(new.len(), 2, "{page}");
    assert_eq!(samples("convey_server_answers_nobody"), new);
    let help = "# HELP convey_server_answers_nobody Deprecated: use convey_server_handshakes_stalled.\n";
    assert!(page.contains(help), "{page}");
}
