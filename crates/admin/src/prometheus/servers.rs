//! Metrics of servers.

use convey_api::{ServerReport, StatsReport};
use convey_model::AdminState;

use super::page::{Labels, MetricsPage, labels};
use super::{flag, traffic, unix_time};

/// Adds the servers of all backends.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let mut all = Vec::new();
    for (backend, b) in &report.backends {
        all.extend(b.servers.iter().map(|(name, s)| (labels([("backend", backend), ("server", name)]), s)));
    }
    page.gauge("convey_server_up", "Whether the server is healthy.", &all, |s| flag(s.up));
    page.gauge(
        "convey_server_eligible",
        "Whether the server can be chosen now: ready, healthy, not ejected, weight above 0. A backup can be chosen only while no regular server can.",
        &all,
        |s| flag(s.eligible),
    );
    server_states(page, &all);
    page.gauge(
        "convey_server_health_changed_timestamp_seconds",
        "When the server's health last changed, in Unix time.",
        &all,
        |s| unix_time(s.health.since),
    );
    page.gauge("convey_server_weight", "Share of new connections in the backend.", &all, |s| {
        f64::from(s.weight)
    });
    page.gauge("convey_server_effective_weight", "Current weight: lower during a slow start.", &all, |s| {
        s.effective_weight
    });
    page.gauge(
        "convey_server_ejected",
        "Whether the server is ejected because connections or requests of clients failed.",
        &all,
        |s| flag(s.ejected.is_some()),
    );
    page.counter("convey_server_ejections_total", "Times the server has been ejected.", &all, |s| {
        s.ejections as f64
    });
    page.gauge("convey_server_max_connections", "Maximum number of open connections.", &all, |s| {
        s.max_connections.map(f64::from)
    });
    traffic(page, "convey_server", "the server", &all, |s| &s.traffic);
    page.counter(
        "convey_server_connect_failures_total",
        "Failed attempts to connect to the server.",
        &all,
        |s| s.connect_failures as f64,
    );
    page.counter(
        "convey_server_retries_total",
        "Attempts to connect to the server after an attempt to another server failed.",
        &all,
        |s| s.retries as f64,
    );
    handshakes(page, &all);
}

fn server_states(page: &mut MetricsPage, servers: &[(Labels, &ServerReport)]) {
    let states = servers.iter().flat_map(|(of, server)| {
        AdminState::ALL.map(|state| {
            let name = state.name();
            ([of.clone(), labels([("state", name)])].concat(), server.state == name)
        })
    });
    page.gauge(
        "convey_server_state",
        "Whether the server is in this administrative state: ready, drain or maint.",
        &states.collect::<Vec<_>>(),
        |is_in_state| flag(*is_in_state),
    );
}

fn handshakes(page: &mut MetricsPage, servers: &[(Labels, &ServerReport)]) {
    page.counter(
        "convey_server_handshakes_started_total",
        "TCP handshakes that clients have started with the server (packet modes).",
        servers,
        |s| s.handshakes.map(|handshakes| handshakes.started as f64),
    );
    page.counter(
        "convey_server_handshakes_completed_total",
        "TCP handshakes that clients have completed with the server (packet modes).",
        servers,
        |s| s.handshakes.map(|handshakes| handshakes.completed as f64),
    );
    page.counter(
        "convey_server_syns_repeated_total",
        "SYNs to the server that were repeated before their handshake was complete (packet modes).",
        servers,
        |s| s.handshakes.map(|handshakes| handshakes.syn_repeated as f64),
    );
    page.gauge(
        "convey_server_handshakes_stalled",
        "Whether the server recently completed no handshake, while others of its backend did (packet modes).",
        servers,
        |s| s.handshakes.map(|handshakes| f64::from(u8::from(handshakes.stalled))),
    );
    let ways = |(of_server, server): &(Labels, &ServerReport)| {
        let counts = server.path_mtu_suspicions?;
        let ways = [("to_server", counts.to_server), ("to_client", counts.to_client)];
        Some(ways.map(|(way, n)| ([of_server.clone(), labels([("direction", way)])].concat(), n)))
    };
    let all: Vec<(Labels, u64)> = servers.iter().filter_map(ways).flatten().collect();
    page.counter(
        "convey_server_path_mtu_suspicions_total",
        "Connections whose large packets do not arrive while short ones do, by direction (packet modes).",
        &all,
        |n| *n as f64,
    );
}
