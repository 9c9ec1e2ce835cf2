//! Text output of a trace: one line for each event of the control API.

use std::fmt::Write as _;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::TraceArgs;

/// Event of the control API, with the fields that the text shows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ShownEvent {
    event: String,
    pub(super) at: String,
    frontend: String,
    client: String,
    proxy: String,
    vip: String,
    protocol: String,
    backend: String,
    server: String,
    server_addr: String,
    sni: String,
    route: String,
    algorithm: String,
    attempt: u32,
    version: String,
    resumed: bool,
    error: String,
    reason: String,
    after_ms: f64,
    bytes_in: Option<u64>,
    bytes_out: Option<u64>,
    rate: u64,
    unread: u64,
    why: String,
    pub(super) interface: String,
    pub(super) frame_len: u32,
    from: String,
    to: String,
    flags: String,
    len: u32,
    kind: String,
    verdict: String,
    answer: String,
    role: String,
    state: String,
    pub(super) out: Option<ShownOut>,
    pub(super) frame_in: Option<String>,
    pub(super) frame_out: Option<String>,
}

/// Packet as sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShownOut {
    pub(super) interface: String,
    from: String,
    to: String,
    next_hop: String,
    cut: bool,
    tunnel: Option<TunnelOut>,
}

/// Outer packet of a tunnel.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TunnelOut {
    kind: String,
    from: String,
    to: String,
}

impl TunnelOut {
    fn text(&self) -> String {
        format!(" in {} {} > {}", self.kind, self.from, self.to)
    }
}

/// Path of the request in the control API.
pub fn trace_path(args: &TraceArgs) -> String {
    let number = |n: Option<u64>| n.map(|n| n.to_string());
    let all = [
        ("client", args.client.clone()),
        ("frontend", args.frontend.clone()),
        ("server", args.server.clone()),
        ("drops", args.drops.clone()),
        ("count", number(args.count)),
        ("timeout", args.timeout.map(|time| humantime::format_duration(time).to_string())),
        ("sample", number(args.sample.map(u64::from))),
        ("rate", Some(args.rate.to_string())),
        ("frames", args.pcap.as_ref().map(|_| "true".to_owned())),
    ];
    let given = all.into_iter().filter_map(|(name, value)| {
        Some(format!("{name}={}", utf8_percent_encode(&value?, NON_ALPHANUMERIC)))
    });
    format!("/v1/trace?{}", given.collect::<Vec<_>>().join("&"))
}

impl ShownEvent {
    /// Whether this is the last event.
    pub fn is_end(&self) -> bool {
        self.event == "trace_ended"
    }

    /// Line of text for this event.
    pub fn text(&self) -> String {
        match &*self.event {
            "started" => "-- live events (Ctrl-C ends the trace)\n".to_owned(),
            "left_out" => self.left_out(),
            "trace_ended" => format!("-- {}\n", end(&self.why)),
            "packet" => format!("{} {} {}\n", self.time(), self.of_frontend(), self.packet()),
            _ => format!("{} {} {} {}\n", self.time(), self.of_frontend(), self.client, self.connection()),
        }
    }

    /// Decision about a packet, without the time.
    pub(super) fn decision(&self) -> String {
        match &*self.verdict {
            "forwarded" => self.forwarded(),
            "answered" => format!("dropped: {}, answered with {}", self.reason, words(&self.answer)),
            "waits_for_next_hop" => "waits for the link-layer address of its next hop".to_owned(),
            "not_sent" => format!("not sent: {}", self.reason),
            _ => format!("dropped: {}", self.reason),
        }
    }

    fn time(&self) -> &str {
        self.at.get(11..26).unwrap_or(&self.at)
    }

    fn of_frontend(&self) -> &str {
        if self.frontend.is_empty() { "-" } else { &self.frontend }
    }

    fn server(&self) -> String {
        if self.backend.is_empty() {
            self.server.clone()
        } else {
            format!("{}/{}", self.backend, self.server)
        }
    }

    fn connection(&self) -> String {
        let by =
            if self.algorithm.is_empty() { String::new() } else { format!(", chosen by {}", self.algorithm) };
        let (server, addr) = (self.server(), &self.server_addr);
        match &*self.event {
            "accepted" => format!("accepted at {}", self.vip),
            "proxy_header" => format!("named by the PROXY header of {}", self.proxy),
            "tls_handshake" if self.resumed => format!("{}, resumed session", self.version),
            "tls_handshake" => self.version.clone(),
            "tls_handshake_failed" => format!("TLS handshake failed: {}", self.reason),
            "waits" => "waits: the frontend, or the client's share of it, is full".to_owned(),
            "routed" => self.routed(),
            "chosen" if self.attempt > 1 => format!("server {server} ({addr}){by}, attempt {}", self.attempt),
            "chosen" => format!("server {server} ({addr}){by}"),
            "connect_failed" => format!("cannot connect to {server}: {}", self.error),
            "connected" => format!("connected to {server} after {} ms", self.after_ms),
            "begun" => format!("session at {}/{} with {server} ({addr}){by}", self.vip, self.protocol),
            "moved" => format!("session continues with {server} ({addr})"),
            "dropped" => format!("datagrams dropped: {}", self.reason),
            "refused" => format!("refused: {}", self.reason),
            "ended" => self.ended(),
            other => other.to_owned(),
        }
    }

    fn routed(&self) -> String {
        let asks = match &*self.sni {
            "" => "asks for no name".to_owned(),
            name => format!("asks for {name}"),
        };
        let route =
            if self.route.is_empty() { "no route".to_owned() } else { format!("route {}", self.route) };
        format!("{asks}: {route}")
    }

    fn ended(&self) -> String {
        let mut text = match &*self.reason {
            "" if self.protocol == "udp" => "ended: idle".to_owned(),
            "" => "ended: both sides closed".to_owned(),
            reason => format!("ended: {reason}"),
        };
        if let (Some(bytes_in), Some(bytes_out)) = (self.bytes_in, self.bytes_out) {
            let _ = write!(text, ", {bytes_in} bytes from the client, {bytes_out} to it");
        }
        text + &format!(", after {} ms", self.after_ms)
    }

    fn packet(&self) -> String {
        let came = match &*self.from {
            "" => format!("{} a malformed frame of {} bytes", self.interface, self.frame_len),
            _ => {
                let flags = if self.flags.is_empty() { String::new() } else { format!(" [{}]", self.flags) };
                let kind =
                    if self.kind == "whole" { String::new() } else { format!(" {}", words(&self.kind)) };
                format!("{} {} > {}{flags}{kind} {} bytes", self.interface, self.from, self.to, self.len)
            }
        };
        format!("{came}: {}", self.decision())
    }

    fn forwarded(&self) -> String {
        let Some(out) = &self.out else { return "forwarded".to_owned() };
        let by = if self.algorithm.is_empty() { String::new() } else { format!(" by {}", self.algorithm) };
        let what = match &*self.role {
            "new_flow" => format!("new flow, server {} chosen{by}", self.server()),
            "by_hash" => format!("no record, server {} chosen{by}", self.server()),
            role => format!("{}, server {}", words(role), self.server()),
        };
        let state = if self.state.is_empty() { String::new() } else { format!(" ({})", self.state) };
        let cut = if out.cut { ", in pieces" } else { "" };
        let tunnel = out.tunnel.as_ref().map_or(String::new(), TunnelOut::text);
        format!(
            "{what}{state} -> {} {} > {}{tunnel} to {}{cut}",
            out.interface, out.from, out.to, out.next_hop
        )
    }

    fn left_out(&self) -> String {
        let mut text = String::new();
        if self.rate > 0 {
            let _ = writeln!(text, "-- {} events left out: more than --rate a second", self.rate);
        }
        if self.unread > 0 {
            let _ = writeln!(text, "-- {} events lost: this command read too slowly", self.unread);
        }
        text
    }
}

fn end(why: &str) -> &str {
    match why {
        "count" => "end: --count",
        "timeout" => "end: --timeout",
        "upgrade" => "end: convey was upgraded; run the command again to trace the new process",
        "stop" => "end: convey is stopping",
        other => other,
    }
}

/// Text for a word of the control API.
fn words(name: &str) -> String {
    name.replace('_', " ").replace("servers ", "the server's ").replace("icmp", "ICMP")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(event: serde_json::Value) -> String {
        serde_json::from_value::<ShownEvent>(event).unwrap().text()
    }

    #[test]
    fn trace_query_omits_absent_options_and_escapes_names() {
        let args = TraceArgs {
            client: None,
            frontend: Some("a&b".to_owned()),
            server: None,
            drops: Some("any".to_owned()),
            count: Some(3),
            timeout: Some(std::time::Duration::from_millis(1_500)),
            sample: None,
            rate: 1_000,
            json: false,
            pcap: None,
        };
        let path = trace_path(&args);
        assert_eq!(path, "/v1/trace?frontend=a%26b&drops=any&count=3&timeout=1s%20500ms&rate=1000");
    }

    #[test]
    fn a_connection_is_told_step_by_step() {
        let at = "2026-01-01T12:00:01.234567Z";
        let of = |event: &str| {
            json!({ "at": at, "event": event, "frontend": "web", "protocol": "tcp", "client": "192.0.2.9:7",
                "vip": "10.0.0.1:80", "backend": "app", "server": "a", "server_addr": "10.0.1.1:80",
                "algorithm": "round_robin", "attempt": 2, "sni": "a.example", "route": "*.example", "error": "Connection refused", "after_ms": 1.5,
                "bytes_in": 5, "bytes_out": 7 })
        };
        let said = |event: &str| {
            let text = text(of(event));
            text.strip_prefix("12:00:01.234567 web 192.0.2.9:7 ").unwrap().trim_end().to_owned()
        };
        assert_eq!(said("accepted"), "accepted at 10.0.0.1:80");
        assert_eq!(said("routed"), "asks for a.example: route *.example");
        assert_eq!(said("chosen"), "server app/a (10.0.1.1:80), chosen by round_robin, attempt 2");
        assert_eq!(said("connect_failed"), "cannot connect to app/a: Connection refused");
        assert_eq!(said("ended"), "ended: both sides closed, 5 bytes from the client, 7 to it, after 1.5 ms");
    }

    #[test]
    fn packet_line_shows_input_decision_and_output() {
        let packet = json!({
            "at": "2026-01-01T12:00:01.234567Z", "event": "packet", "frontend": "web", "interface": "eth0",
            "frame_len": 74, "from": "192.0.2.9:7", "to": "10.0.0.1:80", "flags": "S", "len": 60, "ttl": 64,
            "kind": "whole", "verdict": "forwarded", "role": "new_flow", "algorithm": "maglev", "backend": "app",
            "server": "a", "state": "syn_sent",
            "out": { "interface": "eth1", "from": "10.0.9.1:30001", "to": "10.0.1.1:80",
                "next_hop": "02:00:00:00:00:01", "cut": false },
        });
        assert_eq!(
            text(packet),
            "12:00:01.234567 web eth0 192.0.2.9:7 > 10.0.0.1:80 [S] 60 bytes: new flow, server app/a chosen by maglev \
             (syn_sent) -> eth1 10.0.9.1:30001 > 10.0.1.1:80 to 02:00:00:00:00:01\n"
        );
        let tunneled = json!({
            "at": "2026-01-01T12:00:01.234567Z", "event": "packet", "frontend": "web", "interface": "eth0",
            "frame_len": 74, "from": "192.0.2.9:7", "to": "10.0.0.1:80", "flags": ".", "len": 52, "ttl": 64,
            "kind": "whole", "verdict": "forwarded", "role": "known_flow",
            "out": { "interface": "eth1", "from": "192.0.2.9:7", "to": "10.0.0.1:80", "next_hop": "02:00:00:00:00:01",
                "cut": false, "tunnel": { "kind": "gue", "from": "10.0.9.1", "to": "10.2.0.1" } },
        });
        let tunneled = text(tunneled);
        let expected = "-> eth1 192.0.2.9:7 > 10.0.0.1:80 in gue 10.0.9.1 > 10.2.0.1 to 02:00:00:00:00:01\n";
        assert!(tunneled.ends_with(expected), "{tunneled}");
        let dropped = json!({
            "at": "2026-01-01T12:00:01.234567Z", "event": "packet", "interface": "eth0", "frame_len": 20,
            "verdict": "dropped", "reason": "truncated",
        });
        assert_eq!(
            text(dropped),
            "12:00:01.234567 - eth0 a malformed frame of 20 bytes: dropped: truncated\n"
        );
        let not_sent = json!({
            "at": "2026-01-01T12:00:01.234567Z", "event": "packet", "interface": "eth1", "frame_len": 74,
            "from": "10.0.9.1:30001", "to": "10.0.1.1:80", "flags": "S", "len": 60, "ttl": 63, "kind": "whole",
            "verdict": "not_sent", "reason": "interface_down",
        });
        assert_eq!(
            text(not_sent),
            "12:00:01.234567 - eth1 10.0.9.1:30001 > 10.0.1.1:80 [S] 60 bytes: not sent: interface_down\n"
        );
    }
}
