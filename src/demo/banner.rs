//! What runs where, in a few lines to read and one to copy. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::servers::is_local;
use crate::config::Config;
use crate::model::{Backend, Frontend, Server};

/// The text that the demo greets with: frontends, backends with their servers, statistics, and a command
/// that sends a few requests to the first frontend.
pub fn banner(config: &Config) -> String {
    let mut text = table(config.frontends.iter().map(frontend_row));
    for backend in &config.backends {
        let unused = !config.frontends.iter().any(|frontend| frontend.backend == backend.name);
        text.push_str(&backend_line(backend, unused));
        text.push_str(&table(backend.servers.iter().map(server_row)));
    }
    let stats = reachable(config.stats.listen);
    text.push_str(&format!("statistics http://{stats}/stats (also /metrics, /healthz)\n"));
    if let Some(addr) = config.frontends.first().and_then(|frontend| frontend.listen.first()) {
        let url = format!("http://{}/", reachable(*addr));
        text.push_str(&format!("\ntry it:\n  for i in $(seq 12); do curl -s {url}; done\n"));
    }
    text
}

fn frontend_row(frontend: &Frontend) -> [String; 3] {
    let listen: Vec<String> = frontend.listen.iter().map(SocketAddr::to_string).collect();
    [format!("frontend {}", frontend.name), listen.join(", "), format!("-> backend {}", frontend.backend)]
}

fn backend_line(backend: &Backend, unused: bool) -> String {
    let note = if unused { ", used by no frontend" } else { "" };
    format!("backend {} ({}{note})\n", backend.name, backend.algorithm.name())
}

fn server_row(server: &Server) -> [String; 3] {
    let mut notes = format!("weight {}", server.weight);
    if server.backup {
        notes.push_str(", backup");
    }
    if !is_local(server.addr) {
        notes.push_str(", not on this machine: not started by the demo");
    }
    [format!("  server {}", server.name), server.addr.to_string(), notes]
}

/// Where a client on this machine reaches a listener.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
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
    use crate::demo::fixture::{backend, config, frontend};

    #[test]
    fn the_banner_tells_what_runs_where_and_how_to_try_it() {
        let mut web = backend(
            "web",
            &[("a", "127.0.0.1:8081"), ("long-name", "127.0.0.1:18082"), ("far", "192.0.2.1:80")],
        );
        web.servers[0].weight = 10;
        web.servers[2].backup = true;
        let old = backend("old", &[("x", "[::1]:9000")]);
        let frontends = vec![
            frontend("web", &["127.0.0.1:8080", "[::1]:8080"], "web"),
            frontend("other", &["127.0.0.1:8443"], "web"),
        ];
        let expected = "\
frontend web    127.0.0.1:8080, [::1]:8080  -> backend web
frontend other  127.0.0.1:8443              -> backend web
backend web (round_robin)
  server a          127.0.0.1:8081   weight 10
  server long-name  127.0.0.1:18082  weight 1
  server far        192.0.2.1:80     weight 1, backup, not on this machine: not started by the demo
backend old (round_robin, used by no frontend)
  server x  [::1]:9000  weight 1
statistics http://127.0.0.1:8090/stats (also /metrics, /healthz)

try it:
  for i in $(seq 12); do curl -s http://127.0.0.1:8080/; done
";
        assert_eq!(banner(&config(frontends, vec![web, old])), expected);
    }

    #[test]
    fn the_line_to_copy_works_when_a_frontend_listens_on_all_addresses() {
        for (listen, url) in [
            ("0.0.0.0:80", "curl -s http://127.0.0.1:80/;"),
            ("[::]:80", "curl -s http://[::1]:80/;"),
            ("192.0.2.7:80", "curl -s http://192.0.2.7:80/;"),
        ] {
            let config = config(vec![frontend("web", &[listen], "web")], vec![]);
            assert!(banner(&config).contains(url), "{}", banner(&config));
        }
    }
}
