//! Summary of a configuration in a few aligned lines. Pure.

use std::array;
use std::collections::HashMap;

use super::Config;
use super::tables::{access_log, acme, announce, backend, frontend, logs, passthrough, stats, timeouts};
use convey_model::{Mode, Protocol};

/// Text that `convey check` prints: frontends, backends with their servers, timeouts, settings of
/// packet modes, statistics.
pub fn describe(config: &Config) -> String {
    let mut text = table(config.frontends.iter().flat_map(frontend::rows));
    let mut modes: HashMap<&str, Vec<Mode>> = HashMap::new();
    for frontend in &config.frontends {
        frontend.backends().for_each(|backend| modes.entry(backend).or_default().push(frontend.mode));
    }
    for backend in &config.backends {
        let modes = modes.get(&*backend.name).map_or(&[][..], Vec::as_slice);
        text.push_str(&backend::line(backend, modes));
        text.push_str(&table(backend::rows(backend).into_iter()));
    }
    let frontends: Vec<(Mode, Protocol)> =
        config.frontends.iter().map(|frontend| (frontend.mode, frontend.protocol)).collect();
    text.push_str(&timeouts::describe(&config.timeouts, &frontends));
    if config.frontends_where(Mode::forwards_packets).next().is_some() {
        text.push_str(&passthrough::describe(&config.passthrough));
    }
    if config.frontends_where(Mode::has_snat).next().is_some() {
        text.push_str(&passthrough::describe_snat(&config.passthrough));
    }
    if config.frontends_where(Mode::is_dsr).next().is_some() {
        text.push_str(
            "dsr servers answer clients directly, from the frontend's address; tc/README.md shows how to set up the servers\n",
        );
    }
    if let Some(acme) = &config.acme {
        text.push_str(&acme::describe(acme));
    }
    text.push_str(&announce::describe(config));
    text.push_str(&logs::describe(&config.log));
    text.push_str(&access_log::describe(&config.access_log));
    text.push_str(&stats::describe(&config.stats));
    text
}

/// Text of a connection limit, such as `, at most 50 connections`; empty without a limit.
pub(super) fn limit(connections: Option<u32>) -> String {
    connections.map_or(String::new(), |most| format!(", at most {most} connections"))
}

/// Table with a line for each row; each column is as wide as its longest cell.
fn table<const COLUMNS: usize>(rows: impl Iterator<Item = [String; COLUMNS]>) -> String {
    let rows: Vec<[String; COLUMNS]> = rows.collect();
    let widths: [usize; COLUMNS] =
        array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            known = { addr = "app.internal:80", weight = 2 }
            [backends.web.outlier_detection]
            consecutive_failures = 7
            [backends.old]
            slow_start = 20
            health_check = { kind = "none" }
            servers.x.addr = "[::1]:9000"
        "#;
        let expected = "\
frontend other  proxy tcp  127.0.0.1:8443              -> backend web, at most 50 connections
frontend web    proxy tcp  127.0.0.1:8080, [::1]:8080  -> backend web
backend old (round_robin, slow start 20s; no health check, used by no frontend)
  server x  [::1]:9000  weight 1
backend web (maglev by source; http check of /up (status 200-399) on port 9000 every 2s, timeout 1s, rise 2, fall 3; ejected after 7 failures for 30s to 300s, at most 50 % of servers; on_down keep)
  server a          127.0.0.1:8081   weight 10
  server far        192.0.2.1:80     weight 1, backup
  server known      app.internal:80  weight 2, for each address of the name
  server long-name  127.0.0.1:18082  weight 1, at most 9 connections
timeouts connect 5s, idle 600s, tcp_user_timeout 30s, drain 30s
statistics http://127.0.0.1:7000/stats (also /metrics, /healthz, /readyz)
";
        assert_eq!(describe(&crate::parse("test.toml", text).unwrap().config), expected);
    }

    #[test]
    fn a_packet_mode_tells_what_it_is_set_to() {
        let text = r#"
            frontends.web = { mode = "passthrough", listen_addr = "10.0.0.1:80", backend = "web" }
            backends.web = { on_down = "keep", servers.a.addr = "10.0.0.2:80" }
            [passthrough]
            interfaces = ["eth0", "eth1"]
            guard = false
            timeouts.established = 900
        "#;
        let expected = "\
frontend web  passthrough tcp  10.0.0.1:80  -> backend web
backend web (ring by tuple; tcp check every 2s, timeout 1s, rise 2, fall 3; on_down keep)
  server a  10.0.0.2:80  weight 1
timeouts drain 30s
packets interfaces eth0, eth1; workers automatic; guard off; offload auto
flows at most 1000000; timeouts half_open 60s, handshake_only 240s, established 900s, half_closed 240s, closing 60s, time_wait 60s, closed 10s, udp_single 30s, udp_stream 300s
snat ports 33768-61000; addresses automatic
statistics http://127.0.0.1:7000/stats (also /metrics, /healthz, /readyz)
";
        assert_eq!(describe(&crate::parse("test.toml", text).unwrap().config), expected);
    }

    #[test]
    fn description_shows_mode_settings_only_for_modes_in_use() {
        let text = r#"
            frontends.dns = { mode = "dsr", protocol = "udp", listen_addr = "10.0.0.1:53", backend = "dns" }
            frontends.web = { listen_addr = "10.0.0.1:80", backend = "web" }
            frontends.logs = { protocol = "udp", listen_addr = "10.0.0.1:514", backend = "web" }
            backends.dns = { dsr = "l2", servers.a.addr = "10.0.0.2:53" }
            backends.web.servers.a.addr = "10.0.0.2:80"
        "#;
        let text = describe(&crate::parse("test.toml", text).unwrap().config);
        let expected = "\
frontend dns   dsr udp    10.0.0.1:53   -> backend dns
frontend logs  proxy udp  10.0.0.1:514  -> backend web
frontend web   proxy tcp  10.0.0.1:80   -> backend web
backend dns (ring by tuple; udp check every 4s, timeout 3.5s, rise 2, fall 3; on_down reset; dsr l2)
  server a  10.0.0.2:53  weight 1
backend web (round_robin; tcp check every 2s, timeout 1s, rise 2, fall 3; on_down keep)
  server a  10.0.0.2:80  weight 1
timeouts connect 5s, idle 600s, tcp_user_timeout 30s, udp_idle 60s, drain 30s
packets interfaces automatic";
        assert!(text.starts_with(expected) && !text.contains("snat"), "{text}");
        assert!(text.contains("\ndsr servers answer clients directly"), "{text}");
    }
}
