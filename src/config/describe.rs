//! What a configuration runs, in a few aligned lines. Pure.

use super::Config;
use super::diff::{list, or};
use crate::model::{Backend, FlowTimeouts, Frontend, HealthCheck, Mode, ProbeKind, Server};

/// The text that `convey check` prints: frontends, backends with their servers, time limits or what
/// packet modes are set to, statistics.
pub fn describe(config: &Config) -> String {
    let mut text = format!("mode {}\n", config.mode.name());
    text.push_str(&table(config.frontends.iter().map(frontend_row)));
    for backend in &config.backends {
        let unused = !config.frontends.iter().any(|frontend| frontend.backend == backend.name);
        text.push_str(&backend_line(backend, config.mode, unused));
        text.push_str(&table(backend.servers.iter().map(server_row)));
    }
    text.push_str(&match config.mode {
        Mode::Proxy => timeouts(config),
        Mode::Passthrough => packets(config) + &snat(config),
        Mode::Dsr => packets(config),
    });
    text.push_str(&format!("statistics http://{}/stats (also /metrics, /healthz)\n", config.stats.listen));
    text
}

fn timeouts(config: &Config) -> String {
    let timeouts = &config.timeouts;
    format!("timeouts connect {:?}, idle {:?}, drain {:?}\n", timeouts.connect, timeouts.idle, timeouts.drain)
}

fn packets(config: &Config) -> String {
    let settings = &config.passthrough;
    let FlowTimeouts {
        half_open,
        established,
        half_closed,
        closing,
        time_wait,
        closed,
        udp_single,
        udp_stream,
    } = settings.timeouts;
    let (interfaces, workers) = (list(&settings.interfaces), or(settings.workers, "automatic"));
    let (guard, capacity) = (if settings.guard { "on" } else { "off" }, settings.capacity);
    format!(
        "packets interfaces {interfaces}; workers {workers}; guard {guard}\n\
         flows at most {capacity}; timeouts half_open {half_open:?}, established {established:?}, \
         half_closed {half_closed:?}, closing {closing:?}, time_wait {time_wait:?}, closed {closed:?}, \
         udp_single {udp_single:?}, udp_stream {udp_stream:?}\n"
    )
}

fn snat(config: &Config) -> String {
    let settings = &config.passthrough;
    let (first, last) = (settings.snat_ports.start(), settings.snat_ports.end());
    format!("snat ports {first}-{last}; addresses {}\n", list(&settings.snat_addresses))
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

fn backend_line(backend: &Backend, mode: Mode, unused: bool) -> String {
    let hash = match backend.algorithm.hashes() {
        true => format!(" by {}", backend.hash.name()),
        false => String::new(),
    };
    let on_down = match mode {
        Mode::Proxy => String::new(),
        Mode::Passthrough | Mode::Dsr => format!("; on down {}", backend.on_down.name()),
    };
    let note = if unused { ", used by no frontend" } else { "" };
    let (algorithm, check) = (backend.algorithm.name(), probe(&backend.health_check));
    format!("backend {} ({algorithm}{hash}; {check}{on_down}{note})\n", backend.name)
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

    #[test]
    fn a_packet_mode_tells_what_it_is_set_to() {
        let text = r#"
            frontends.web = { listen_addr = "10.0.0.1:80", backend = "web" }
            backends.web = { on_down = "keep", servers.a.addr = "10.0.0.2:80" }
            [passthrough]
            interfaces = ["eth0", "eth1"]
            guard = false
            timeouts.established = 900
        "#;
        let expected = "\
mode passthrough
frontend web  10.0.0.1:80  -> backend web
backend web (ring by tuple; tcp check every 2s, timeout 1s, rise 2, fall 3; on down keep)
  server a  10.0.0.2:80  weight 1
packets interfaces eth0, eth1; workers automatic; guard off
flows at most 1000000; timeouts half_open 60s, established 900s, half_closed 240s, closing 60s, time_wait 60s, closed 10s
snat ports 33768-61000; addresses automatic
statistics http://127.0.0.1:7000/stats (also /metrics, /healthz)
";
        let loaded = config::parse("test.toml", text).unwrap().for_mode(Mode::Passthrough);
        assert_eq!(describe(&loaded.config), expected);
        let dsr = describe(&loaded.for_mode(Mode::Dsr).config);
        assert!(!dsr.contains("snat") && dsr.contains("guard off"), "{dsr}");
    }
}
