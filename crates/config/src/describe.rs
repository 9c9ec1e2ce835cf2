//! What a configuration runs, in a few aligned lines. Pure.

use std::array;
use std::collections::HashMap;
use std::time::Duration;

use super::diff::{list, or};
use super::tables::backend;
use super::{AccessLogConfig, Config, LogConfig, acme, announce};
use convey_http_core::{FieldRules, PathView};
use convey_model::{
    FrontendConfig, HeaderRules, HttpConfig, HttpLimits, Mode, OwnTimeouts, Protocol, RequestRate,
    RouteCompression, RouteConfig, Timeouts,
};

/// The text that `convey check` prints: frontends, backends with their servers, time limits, what packet modes
/// are set to, statistics.
pub fn describe(config: &Config) -> String {
    let mut text = table(config.frontends.iter().flat_map(frontend_rows));
    let mut modes: HashMap<&str, Vec<Mode>> = HashMap::new();
    for frontend in &config.frontends {
        frontend.backends().for_each(|backend| modes.entry(backend).or_default().push(frontend.mode));
    }
    for backend in &config.backends {
        let modes = modes.get(&*backend.name).map_or(&[][..], Vec::as_slice);
        text.push_str(&backend::line(backend, modes));
        text.push_str(&table(backend::rows(backend).into_iter()));
    }
    text.push_str(&timeouts(config));
    if config.frontends_where(Mode::forwards_packets).next().is_some() {
        text.push_str(&packets(config));
    }
    if config.frontends_where(Mode::has_snat).next().is_some() {
        text.push_str(&snat(config));
    }
    if config.frontends_where(Mode::is_dsr).next().is_some() {
        text.push_str(
            "dsr servers answer clients themselves, with the frontend's address: see tc/README.md\n",
        );
    }
    if let Some(acme) = &config.acme {
        text.push_str(&acme::describe(acme));
    }
    text.push_str(&announce::describe(config));
    if config.log != LogConfig::default() {
        let LogConfig { level, format, output } = &config.log;
        text.push_str(&format!("log {} and above as {} to {output}\n", level.name(), format.name()));
    }
    if let AccessLogConfig { output: Some(output), format, sample } = &config.access_log {
        let sample = if *sample == 1 { String::new() } else { format!(", one line in {sample}") };
        text.push_str(&format!("access log as {} to {output}{sample}\n", format.source()));
    }
    text.push_str(&format!(
        "statistics http://{}/stats (also /metrics, /healthz, /readyz)\n",
        config.stats.listen
    ));
    if let Some(token) = &config.stats.token {
        text.push_str(&format!("changes there with the token of {}\n", token.path.display()));
    }
    text
}

fn timeouts(config: &Config) -> String {
    let Timeouts { connect, idle, response, tcp_user_timeout, udp_idle, drain, drain_delay } =
        config.timeouts;
    let proxied =
        |protocol| config.frontends_where(Mode::is_proxied).any(|frontend| frontend.protocol == protocol);
    let of_tcp = match proxied(Protocol::Tcp) {
        true => format!("connect {connect:?}, idle {idle:?}, tcp_user_timeout {tcp_user_timeout:?}, "),
        false => String::new(),
    };
    let of_http = match config.frontends_where(Mode::is_http).next() {
        Some(_) => format!("response {response:?}, "),
        None => String::new(),
    };
    let of_udp = match proxied(Protocol::Udp) {
        true => format!("udp_idle {udp_idle:?}, "),
        false => String::new(),
    };
    let delay = match drain_delay {
        Duration::ZERO => String::new(),
        _ => format!(", drain_delay {drain_delay:?}"),
    };
    format!("timeouts {of_tcp}{of_http}{of_udp}drain {drain:?}{delay}\n")
}

fn packets(config: &Config) -> String {
    let settings = &config.passthrough;
    let timeouts = settings.timeouts.named().map(|(name, time)| format!("{name} {time:?}")).join(", ");
    let (interfaces, workers) = (list(&settings.interfaces), or(settings.workers, "automatic"));
    let (guard, capacity) = (if settings.guard { "on" } else { "off" }, settings.max_flows);
    format!(
        "packets interfaces {interfaces}; workers {workers}; guard {guard}; offload {}\n\
         flows at most {capacity}; timeouts {timeouts}\n",
        settings.offload
    )
}

fn snat(config: &Config) -> String {
    let settings = &config.passthrough;
    let (first, last) = (settings.snat_ports.start(), settings.snat_ports.end());
    format!("snat ports {first}-{last}; addresses {}\n", list(&settings.snat_addresses))
}

/// A frontend, and below it its routes.
fn frontend_rows(frontend: &FrontendConfig) -> impl Iterator<Item = [String; 4]> {
    let routes = frontend.http.iter().flat_map(|http| &http.routes).map(route_row);
    let sni_routes = frontend.sni_routes.iter().map(|route| {
        let to = format!("-> backend {}", route.backend);
        [format!("  route {}", route.name), String::new(), String::new(), to]
    });
    [frontend_row(frontend)].into_iter().chain(routes).chain(sni_routes)
}

fn route_row(route: &RouteConfig) -> [String; 4] {
    let path = route.rewrite_path.as_ref().map(|path| format!(", path becomes {path}"));
    let host = route.rewrite_host.as_ref().map(|host| format!(", host becomes {host}"));
    let rewrites: String = path.into_iter().chain(host).collect();
    let rate = route.rate.map_or(String::new(), |rate| format!("; a source has {}", requests(rate)));
    let compression = match &route.compression {
        RouteCompression::OfFrontend => String::new(),
        own => format!("; compression: {own}"),
    };
    let to = format!("-> {}{rewrites}{}{rate}{compression}", route.action, headers(&route.headers));
    [format!("  route {}", route.name), String::new(), String::new(), to]
}

/// The headers that change; nothing if none does.
fn headers(rules: &HeaderRules) -> String {
    let of = |what: &str, rules: &FieldRules| match rules.is_empty() {
        true => String::new(),
        false => format!("; {what} headers: {rules}"),
    };
    of("request", &rules.request) + &of("response", &rules.response)
}

/// Where requests of mode http, or connections of another one, go if no route says another place.
fn default_way(frontend: &FrontendConfig) -> String {
    let of_http = frontend.http.as_ref().and_then(|http| http.default_action(frontend.backend.as_deref()));
    match (of_http, &frontend.backend) {
        (Some(action), _) => action.to_string(),
        (None, Some(backend)) => format!("backend {backend}"),
        (None, None) if frontend.mode.is_http() => "404".to_owned(),
        (None, None) => "refused".to_owned(),
    }
}

/// What is said of clients in requests.
fn forwarded(frontend: &FrontendConfig, http: &HttpConfig) -> String {
    let believed = match &frontend.trusted_proxies[..] {
        [] => String::new(),
        trusted => format!(", X-Forwarded-* believed from {}", list(trusted)),
    };
    let forwarded = if http.forwarded { ", Forwarded is sent" } else { "" };
    let traces = if http.begin_traces { ", traces are begun" } else { "" };
    let pages = http.error_pages.statuses().map(|status| status.to_string()).collect::<Vec<_>>();
    let pages = if pages.is_empty() { String::new() } else { format!("; error pages: {}", pages.join(", ")) };
    let compressed =
        http.compression.as_ref().map_or(String::new(), |rules| format!("; compression: {rules}"));
    let (headers, limits) = (headers(&http.headers), http_limits(&http.limits));
    let paths = if http.path_view == PathView::AsSent { ", paths are matched as sent" } else { "" };
    format!("{believed}{forwarded}{traces}{paths}{headers}{limits}{pages}{compressed}")
}

/// The limits of requests that are not the usual ones.
fn http_limits(limits: &HttpLimits) -> String {
    let all = limits.named().into_iter().zip(HttpLimits::default().named());
    let set = all.filter(|(one, usual)| one != usual).map(|((name, value), _)| format!("{name} {value}"));
    let set: Vec<String> = set.collect();
    if set.is_empty() { String::new() } else { format!("; http: {}", set.join(", ")) }
}

fn frontend_row(frontend: &FrontendConfig) -> [String; 4] {
    let listen: Vec<String> = frontend.listen.iter().map(ToString::to_string).collect();
    let limit = limit(frontend.max_connections);
    let per_client =
        frontend.max_connections_per_client.map_or(String::new(), |most| format!(", {most} a client"));
    let proxies = match frontend.accept_proxy {
        true => format!(", PROXY header from {}", list(&frontend.trusted_proxies)),
        false => String::new(),
    };
    let times = own_timeouts(", ", &frontend.timeouts);
    let http = frontend.http.as_ref().map_or(String::new(), |http| forwarded(frontend, http));
    let access = match frontend.access.is_open() {
        true => String::new(),
        false => format!("; access: {}", frontend.access),
    };
    [
        format!("frontend {}", frontend.name),
        format!("{} {}", frontend.mode.name(), frontend.protocol.name()),
        listen.join(", "),
        format!(
            "-> {}{limit}{per_client}{proxies}{times}{access}{}{}{http}",
            default_way(frontend),
            of_sources(frontend),
            tls(frontend)
        ),
    ]
}

/// How clients shake hands.
fn tls(frontend: &FrontendConfig) -> String {
    let Some(tls) = &frontend.tls else { return String::new() };
    let certificates = match tls.certificates.len() {
        1 => "1 certificate".to_owned(),
        0 => "no certificate yet".to_owned(),
        count => format!("{count} certificates"),
    };
    let clients = match tls.client_ca.as_ref().map(|ca| ca.is_required) {
        None => "",
        Some(true) => ", clients need a certificate",
        Some(false) => ", clients may have a certificate",
    };
    let http3 = if tls.http3 { ", HTTP/3" } else { "" };
    format!("; tls {} and later, {certificates}{clients}{http3}", tls.min_version.name())
}

/// The limits of one source.
fn of_sources(frontend: &FrontendConfig) -> String {
    let limits = &frontend.limits;
    let connections = limits.connections_per_source.map(|most| format!("{most} connections"));
    let rate = limits.rate_per_source.map(|rate| format!("{rate} new ones a second"));
    let requests = frontend.http.as_ref().and_then(|http| http.rate).map(requests);
    let parts: Vec<String> = connections.into_iter().chain(rate).chain(requests).collect();
    if parts.is_empty() { String::new() } else { format!("; a source has {}", parts.join(", ")) }
}

/// How many requests one source may send.
fn requests(rate: RequestRate) -> String {
    format!("{} requests a second", rate.per_source)
}

/// The time limits of a frontend or backend, after `before`; nothing if none is set.
pub(super) fn own_timeouts(before: &str, own: &OwnTimeouts) -> String {
    let set = own.named().into_iter().filter_map(|(name, time)| Some(format!("{name} {:?}", time?)));
    let set: Vec<String> = set.collect();
    if set.is_empty() { String::new() } else { format!("{before}{}", set.join(", ")) }
}

/// Such as `, at most 50 connections`.
pub(super) fn limit(connections: Option<u32>) -> String {
    connections.map_or(String::new(), |most| format!(", at most {most} connections"))
}

/// One line a row; each column is as wide as its longest cell.
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
backend web (maglev by source; http check of /up for 200-399 on port 9000 every 2s, timeout 1s, rise 2, fall 3; ejected after 7 failures for 30s to 300s, at most 50 % of servers; on down keep)
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
backend web (ring by tuple; tcp check every 2s, timeout 1s, rise 2, fall 3; on down keep)
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
    fn what_a_mode_is_set_to_is_told_where_a_frontend_is_in_it() {
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
backend dns (ring by tuple; udp check every 4s, timeout 3.5s, rise 2, fall 3; on down reset; dsr l2)
  server a  10.0.0.2:53  weight 1
backend web (round_robin; tcp check every 2s, timeout 1s, rise 2, fall 3; on down keep)
  server a  10.0.0.2:80  weight 1
timeouts connect 5s, idle 600s, tcp_user_timeout 30s, udp_idle 60s, drain 30s
packets interfaces automatic";
        assert!(text.starts_with(expected) && !text.contains("snat"), "{text}");
        assert!(text.contains("\ndsr servers answer clients themselves"), "{text}");
    }
}
