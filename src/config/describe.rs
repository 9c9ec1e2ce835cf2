//! What a configuration runs, in a few aligned lines. Pure.

use super::Config;
use crate::model::{Algorithm, Backend, Frontend, HealthCheck, ProbeKind, Server};

/// The text that `convey check` prints: frontends, backends with their servers, time limits, statistics.
pub fn describe(config: &Config) -> String {
    let mut text = format!("mode {}\n", config.mode.name());
    text.push_str(&table(config.frontends.iter().map(frontend_row)));
    for backend in &config.backends {
        let unused = !config.frontends.iter().any(|frontend| frontend.backend == backend.name);
        text.push_str(&backend_line(backend, unused));
        text.push_str(&table(backend.servers.iter().map(server_row)));
    }
    let (timeouts, stats) = (&config.timeouts, config.stats.listen);
    text.push_str(&format!(
        "timeouts connect {:?}, idle {:?}, drain {:?}\n",
        timeouts.connect, timeouts.idle, timeouts.drain
    ));
    text.push_str(&format!("statistics http://{stats}/stats (also /metrics, /healthz)\n"));
    text
}

fn frontend_row(frontend: &Frontend) -> [String; 3] {
    let listen: Vec<String> = frontend.listen.iter().map(ToString::to_string).collect();
    let limit = limit(frontend.max_connections);
    [
        format!("frontend {}", frontend.name),
        listen.join(", "),
        format!("-> backend {}{limit}", frontend.backend),
    ]
}

fn backend_line(backend: &Backend, unused: bool) -> String {
    let hash = match backend.algorithm {
        Algorithm::RoundRobin | Algorithm::LeastConnections => String::new(),
        Algorithm::Ring | Algorithm::Maglev => format!(" by {}", backend.hash.name()),
    };
    let note = if unused { ", used by no frontend" } else { "" };
    let (algorithm, check) = (backend.algorithm.name(), probe(&backend.health_check));
    format!("backend {} ({algorithm}{hash}; {check}{note})\n", backend.name)
}

fn probe(check: &HealthCheck) -> String {
    let what = match &check.kind {
        ProbeKind::None => return "no health check".to_owned(),
        ProbeKind::Tcp => "tcp check".to_owned(),
        ProbeKind::Http { path, expected_status } => {
            let (low, high) = (expected_status.start(), expected_status.end());
            format!("http check of {path} for {low}-{high}")
        }
    };
    let port = check.port.map_or(String::new(), |port| format!(" on port {port}"));
    let HealthCheck { interval, timeout, rise, fall, .. } = check;
    format!("{what}{port} every {interval:?}, timeout {timeout:?}, rise {rise}, fall {fall}")
}

fn server_row(server: &Server) -> [String; 3] {
    let backup = if server.backup { ", backup" } else { "" };
    let limit = limit(server.max_connections);
    [
        format!("  server {}", server.name),
        server.addr.to_string(),
        format!("weight {}{backup}{limit}", server.weight),
    ]
}

fn limit(connections: Option<u32>) -> String {
    connections.map_or(String::new(), |most| format!(", at most {most} connections"))
}

/// One line a row; each column is as wide as its longest cell.
fn table(rows: impl Iterator<Item = [String; 3]>) -> String {
    let rows: Vec<[String; 3]> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    rows.iter().map(|[a, b, c]| format!("{a:first$}  {b:second$}  {c}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_file_is_described_as_it_will_run() {
        let text = r#"
            [frontends.web]
            listen_addr = ["127.0.0.1:8080", "[::1]:8080"]
            backend = "web"
            [frontends.other]
            listen_addr = "127.0.0.1:8443"
            backend = "web"
            max_connections = 50
            [backends.web]
            algorithm = "maglev"
            health_check = { kind = "http", path = "/up", port = 9000 }
            [backends.web.servers]
            a = { addr = "127.0.0.1:8081", weight = 10 }
            long-name = { addr = "127.0.0.1:18082", max_connections = 9 }
            far = { addr = "192.0.2.1:80", backup = true }
            [backends.old]
            health_check = { kind = "none" }
            servers.x.addr = "[::1]:9000"
        "#;
        let expected = "\
mode proxy
frontend other  127.0.0.1:8443              -> backend web, at most 50 connections
frontend web    127.0.0.1:8080, [::1]:8080  -> backend web
backend old (round_robin; no health check, used by no frontend)
  server x  [::1]:9000  weight 1
backend web (maglev by source; http check of /up for 200-399 on port 9000 every 2s, timeout 1s, rise 2, fall 3)
  server a          127.0.0.1:8081   weight 10
  server far        192.0.2.1:80     weight 1, backup
  server long-name  127.0.0.1:18082  weight 1, at most 9 connections
timeouts connect 5s, idle 600s, drain 30s
statistics http://127.0.0.1:7000/stats (also /metrics, /healthz)
";
        assert_eq!(describe(&config::parse("test.toml", text).unwrap().config), expected);
    }
}
