//! Backends and their servers. Pure.

use std::time::SystemTime;

use convey_api::{BackendReport, HandshakeReport, PathMtuReport, ServerReport};

use super::requests;
use super::table::{age, table, trimmed, until_when};

/// Numbers of a backend with all of its servers. Filters may hide some of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WholeBackend {
    servers: usize,
    /// Sum of the weights of the servers that can be chosen.
    weight: f64,
}

impl WholeBackend {
    /// Returns the numbers of this backend.
    pub(super) fn of(backend: &BackendReport) -> WholeBackend {
        let eligible = backend.servers.values().filter(|server| server.eligible);
        let weight = eligible.map(|server| server.effective_weight).sum();
        WholeBackend { servers: backend.servers.len(), weight }
    }
}

/// Returns the section about a backend and its servers.
pub(super) fn of_backend(
    name: &str,
    backend: &BackendReport,
    whole: WholeBackend,
    now: SystemTime,
    width: Option<usize>,
) -> String {
    if let Some(files) = &backend.files {
        return format!("\nbackend {name}: files {files}\n");
    }
    let titles = ["SERVER", "ADDRESS", "STATE", "HEALTH", "SINCE", "SHARE", "OPEN", "TOTAL", "FAILED"];
    let mut table = table(titles, 4, width);
    let mut reasons = String::new();
    for (name, server) in &backend.servers {
        let share = if server.eligible && whole.weight > 0.0 {
            server.effective_weight / whole.weight * 100.0
        } else {
            0.0
        };
        let health = match (&server.ejected, server.up) {
            (Some(_), _) => "ejected",
            (None, true) => "up",
            (None, false) => "down",
        };
        let why = server.ejected.as_ref().map_or_else(|| server.health.reason.clone(), until_when);
        // `since` is the time of the last change of health, which an ejection does not change.
        let since = if server.ejected.is_some() { "-".to_owned() } else { age(server.health.since, now) };
        if health != "up" {
            reasons += &format!("  {name}: {why}\n");
        }
        if let Some(remark) = server.handshakes.as_ref().and_then(of_handshakes) {
            reasons += &format!("  {name}: {remark}\n");
        }
        for remark in server.path_mtu_suspicions.iter().flat_map(of_path_mtu) {
            reasons += &format!("  {name}: {remark}\n");
        }
        table.add_row([
            name.clone(),
            server.addr.clone(),
            server.state.to_string(),
            health.to_owned(),
            since,
            format!("{share:.0} %"),
            server.traffic.current_connections.to_string(),
            server.traffic.total_connections.to_string(),
            failures(server).to_string(),
        ]);
    }
    let (up, all) = (backend.servers_up, whole.servers);
    let sources: Vec<String> = backend.source.iter().map(ToString::to_string).collect();
    let source = if sources.is_empty() { String::new() } else { format!(", source {}", sources.join(", ")) };
    let title = format!("\nbackend {name}: {}, {up} of {all} up{source}", backend.algorithm);
    let requests = requests::of_servers(backend, width);
    format!("{title}\n{}\n{reasons}{requests}", trimmed(&table))
}

/// Number of failed connects; in packet modes, of handshakes that clients did not complete.
fn failures(server: &ServerReport) -> u64 {
    let incomplete = |handshakes: &HandshakeReport| handshakes.started.saturating_sub(handshakes.completed);
    server.handshakes.as_ref().map_or(server.connect_failures, incomplete)
}

/// Minimum number of handshakes for a meaningful ratio.
const TELLING_HANDSHAKES: u64 = 5;

/// Returns a remark about a server that answers no client now, or completed fewer than half of its
/// handshakes; `None` for any other server.
fn of_handshakes(handshakes: &HandshakeReport) -> Option<String> {
    let &HandshakeReport { started, completed, syn_repeated, stalled, .. } = handshakes;
    if stalled {
        return Some("answers no client; check its VIP, NAT, gateway and firewall".to_owned());
    }
    (started >= TELLING_HANDSHAKES && completed.saturating_mul(2) < started).then(|| {
        format!("{completed} of {started} handshakes completed, {syn_repeated} SYNs repeated since the start")
    })
}

/// Remarks about large packets that do not arrive.
fn of_path_mtu(&PathMtuReport { to_server, to_client }: &PathMtuReport) -> Vec<String> {
    let remark = |flows: u64, whose: &str| {
        let connections = if flows == 1 { "connection" } else { "connections" };
        (flows > 0).then(|| format!("large packets of {flows} {connections} do not arrive at {whose}"))
    };
    [remark(to_server, "the server"), remark(to_client, "the client")].into_iter().flatten().collect()
}
