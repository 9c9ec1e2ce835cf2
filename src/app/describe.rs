//! What a configuration would run, in words.

use std::fmt::Write;

use crate::config::Config;
use crate::model::{Algorithm, Backend, HealthCheck, ProbeKind, Server};

/// The text `convey check` prints: frontends, backends with their servers, statistics.
pub(super) fn describe(config: &Config) -> String {
    let mut text = format!("mode {}\n", config.mode.name());
    for frontend in &config.frontends {
        let addrs: Vec<String> = frontend.listen.iter().map(ToString::to_string).collect();
        let limit = limit(frontend.max_connections);
        _ = writeln!(
            text,
            "frontend {} on {} -> backend {}{limit}",
            frontend.name,
            addrs.join(", "),
            frontend.backend
        );
    }
    for backend in &config.backends {
        _ = writeln!(text, "backend {}: {}, {}", backend.name, choice(backend), probe(&backend.health_check));
        for server in &backend.servers {
            _ = writeln!(text, "  {}", describe_server(server));
        }
    }
    let timeouts = &config.timeouts;
    _ = writeln!(
        text,
        "timeouts connect {:?}, idle {:?}, drain {:?}",
        timeouts.connect, timeouts.idle, timeouts.drain
    );
    _ = writeln!(text, "statistics on http://{}/stats and /metrics", config.stats.listen);
    text
}

fn choice(backend: &Backend) -> String {
    match backend.algorithm {
        Algorithm::RoundRobin | Algorithm::LeastConnections => backend.algorithm.name().to_owned(),
        Algorithm::Ring | Algorithm::Maglev => {
            format!("{} by {}", backend.algorithm.name(), backend.hash.name())
        }
    }
}

fn probe(check: &HealthCheck) -> String {
    let what = match &check.kind {
        ProbeKind::None => return "no health check".to_owned(),
        ProbeKind::Tcp => "tcp probe".to_owned(),
        ProbeKind::Http { path, expected_status } => {
            let (low, high) = (expected_status.start(), expected_status.end());
            format!("http probe of {path} expecting {low}-{high}")
        }
    };
    let port = check.port.map_or(String::new(), |port| format!(" on port {port}"));
    let HealthCheck { interval, timeout, rise, fall, .. } = check;
    format!("{what}{port} every {interval:?} (timeout {timeout:?}, rise {rise}, fall {fall})")
}

fn describe_server(server: &Server) -> String {
    let backup = if server.backup { ", backup" } else { "" };
    let limit = limit(server.max_connections);
    format!("{} {} weight {}{backup}{limit}", server.name, server.addr, server.weight)
}

fn limit(connections: Option<u32>) -> String {
    connections.map_or(String::new(), |most| format!(", at most {most} connections"))
}
