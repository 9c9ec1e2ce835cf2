//! Text output of a trace: one line for each event of the control API.

use std::fmt::Write as _;

use convey_api::{
    ArrivedPacket, Label, OuterPacket, PacketLine, SentPacket, TraceLine, TraceNames, TraceRemark,
    TracedAction,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Refused;
use super::client::read;
use crate::TraceArgs;

mod request;

/// Line of a trace.
#[derive(Debug, Clone, PartialEq)]
pub enum ShownLine {
    /// Line about the trace itself.
    Remark(TraceRemark),
    /// Event of a client or a packet.
    Event(Box<TraceLine>),
}

/// Path of the request in the control API.
pub fn trace_path(args: &TraceArgs) -> String {
    let number = |n: Option<u64>| n.map(|n| n.to_string());
    let all = [
        ("client", args.client.clone()),
        ("frontend", args.frontend.clone()),
        ("server", args.server.clone()),
        ("drops", args.drops.clone()),
        ("method", args.method.clone()),
        ("host", args.host.clone()),
        ("path", args.path.clone()),
        ("route", args.route.clone()),
        ("status", args.status.clone()),
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

impl ShownLine {
    /// Reads a line.
    ///
    /// # Errors
    /// The line does not belong to a trace of this version. The error is an operator-facing
    /// message.
    pub fn read(line: &str) -> Result<ShownLine, Refused> {
        match read(line.as_bytes())? {
            TraceRemark::Event => Ok(ShownLine::Event(Box::new(read(line.as_bytes())?))),
            remark => Ok(ShownLine::Remark(remark)),
        }
    }

    /// Whether the trace ends with this line.
    pub fn is_end(&self) -> bool {
        matches!(self, ShownLine::Remark(TraceRemark::TraceEnded { .. }))
    }

    /// Text for people.
    pub fn text(&self) -> String {
        match self {
            ShownLine::Remark(TraceRemark::Started) => "-- live events (Ctrl-C ends the trace)\n".to_owned(),
            ShownLine::Remark(TraceRemark::LeftOut { rate, unread }) => left_out(*rate, *unread),
            ShownLine::Remark(TraceRemark::TraceEnded { why }) => format!("-- {}\n", end(why)),
            ShownLine::Remark(TraceRemark::Event) => String::new(),
            ShownLine::Event(line) => event(line),
        }
    }
}

/// Decision about a packet, without the time.
pub(super) fn decision(names: &TraceNames, packet: &PacketLine) -> String {
    let reason = packet.reason.as_deref().unwrap_or_default();
    match &*packet.verdict {
        "forwarded" => forwarded(names, packet),
        "answered" => {
            let answer = words(packet.answer.as_deref().unwrap_or_default());
            format!("dropped: {reason}, answered with {answer}")
        }
        "waits_for_next_hop" => "waits for the link-layer address of its next hop".to_owned(),
        "not_sent" => format!("not sent: {reason}"),
        _ => format!("dropped: {reason}"),
    }
}

fn event(line: &TraceLine) -> String {
    let at = line.at.to_string();
    let time = at.get(11..26).unwrap_or(&at);
    let frontend = line.names.frontend.as_deref().unwrap_or("-");
    match &line.happened {
        TracedAction::Packet(packet) => format!("{time} {frontend} {}\n", self::packet(&line.names, packet)),
        of_client => {
            let client = shown(line.names.client.as_ref());
            format!("{time} {frontend} {client} {}\n", connection(&line.names, of_client))
        }
    }
}

/// Text of a value; empty if there is no value.
fn shown(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn server(names: &TraceNames) -> String {
    let server = names.server.as_deref().unwrap_or_default();
    names.backend.as_ref().map_or_else(|| server.to_owned(), |backend| format!("{backend}/{server}"))
}

fn connection(names: &TraceNames, action: &TracedAction) -> String {
    let by = |algorithm: &Option<Label>| {
        algorithm.as_ref().map_or_else(String::new, |algorithm| format!(", chosen by {algorithm}"))
    };
    let (server, addr, vip) = (server(names), shown(names.server_addr.as_ref()), shown(names.vip.as_ref()));
    match action {
        TracedAction::Accepted => format!("accepted at {vip}"),
        TracedAction::ProxyHeader => {
            format!("named by the PROXY header of {}", shown(names.proxy.as_ref()))
        }
        TracedAction::TlsHandshake { version, resumed: true } => {
            format!("{version}, resumed session")
        }
        TracedAction::TlsHandshake { version, resumed: false } => version.to_string(),
        TracedAction::TlsHandshakeFailed { reason } => format!("TLS handshake failed: {reason}"),
        TracedAction::Waits => "waits: the frontend, or the client's share of it, is full".to_owned(),
        TracedAction::Routed { sni, route } => routed(sni.as_deref(), route.as_deref()),
        TracedAction::Chosen { algorithm, attempt } if *attempt > 1 => {
            format!("server {server} ({addr}){}, attempt {attempt}", by(algorithm))
        }
        TracedAction::Chosen { algorithm, .. } => format!("server {server} ({addr}){}", by(algorithm)),
        TracedAction::ConnectFailed { error } => format!("cannot connect to {server}: {error}"),
        TracedAction::Connected { after_ms } => format!("connected to {server} after {after_ms} ms"),
        TracedAction::Begun { algorithm } => {
            let protocol = names.protocol.as_deref().unwrap_or_default();
            format!("session at {vip}/{protocol} with {server} ({addr}){}", by(algorithm))
        }
        TracedAction::Moved => format!("session continues with {server} ({addr})"),
        TracedAction::Dropped { reason } => format!("datagrams dropped: {reason}"),
        TracedAction::Refused { reason } => format!("refused: {reason}"),
        TracedAction::Ended { reason, bytes_in, bytes_out, after_ms } => {
            let bytes = bytes_in.zip(*bytes_out);
            ended(names.protocol.as_deref(), reason.as_deref(), bytes) + &format!(", after {after_ms} ms")
        }
        TracedAction::Request(line) => request::text(names, line),
        TracedAction::Packet(_) => String::new(),
        TracedAction::Unknown => "event of a newer version of convey".to_owned(),
    }
}

fn routed(sni: Option<&str>, route: Option<&str>) -> String {
    let sni = sni.map_or_else(|| "no SNI".to_owned(), |name| format!("SNI {name}"));
    let route = route.map_or_else(|| "no route".to_owned(), |route| format!("route {route}"));
    format!("{sni}: {route}")
}

fn ended(protocol: Option<&str>, reason: Option<&str>, bytes: Option<(u64, u64)>) -> String {
    let why = match (reason, protocol) {
        (Some(reason), _) => format!("ended: {reason}"),
        (None, Some("udp")) => "ended: idle".to_owned(),
        (None, _) => "ended: both sides closed".to_owned(),
    };
    match bytes {
        Some((bytes_in, bytes_out)) => format!("{why}, {bytes_in} bytes from the client, {bytes_out} to it"),
        None => why,
    }
}

fn packet(names: &TraceNames, packet: &PacketLine) -> String {
    let PacketLine { interface, frame_len, .. } = packet;
    let came = match &packet.came {
        None => format!("{interface} a malformed frame of {frame_len} bytes"),
        Some(ArrivedPacket { from, to, flags, len, kind, .. }) => {
            let flags = if flags.is_empty() { String::new() } else { format!(" [{flags}]") };
            let kind = if kind == "whole" { String::new() } else { format!(" {}", words(kind)) };
            format!("{interface} {from} > {to}{flags}{kind} {len} bytes")
        }
    };
    format!("{came}: {}", decision(names, packet))
}

fn forwarded(names: &TraceNames, packet: &PacketLine) -> String {
    let Some(SentPacket { interface, from, to, next_hop, cut, tunnel }) = &packet.out else {
        return "forwarded".to_owned();
    };
    let by = packet.algorithm.as_ref().map_or_else(String::new, |algorithm| format!(" by {algorithm}"));
    let what = match packet.role.as_deref().unwrap_or_default() {
        "new_flow" => format!("new flow, server {} chosen{by}", server(names)),
        "by_hash" => format!("no flow record, server {} chosen{by}", server(names)),
        role => format!("{}, server {}", words(role), server(names)),
    };
    let state = packet.state.as_ref().map_or_else(String::new, |state| format!(" ({state})"));
    let cut = if *cut { ", in pieces" } else { "" };
    let tunnel = tunnel
        .as_ref()
        .map_or_else(String::new, |OuterPacket { kind, from, to }| format!(" in {kind} {from} > {to}"));
    format!("{what}{state} -> {interface} {from} > {to}{tunnel} to {next_hop}{cut}")
}

fn left_out(rate: u64, unread: u64) -> String {
    let mut text = String::new();
    if rate > 0 {
        let _ = writeln!(text, "-- {rate} events left out: more than --rate a second");
    }
    if unread > 0 {
        let _ = writeln!(text, "-- {unread} events lost: this command read too slowly");
    }
    text
}

fn end(why: &str) -> &str {
    match why {
        "count" => "end: reached --count",
        "timeout" => "end: reached --timeout",
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
        ShownLine::read(&event.to_string()).unwrap().text()
    }

    #[test]
    fn trace_query_omits_absent_options_and_escapes_names() {
        let args = TraceArgs {
            client: None,
            frontend: Some("a&b".to_owned()),
            server: None,
            drops: Some("any".to_owned()),
            method: None,
            host: None,
            path: Some("/a".to_owned()),
            route: None,
            status: Some("5xx".to_owned()),
            count: Some(3),
            timeout: Some(std::time::Duration::from_millis(1_500)),
            sample: None,
            rate: 1_000,
            json: false,
            pcap: None,
        };
        let path = trace_path(&args);
        assert_eq!(
            path,
            "/v1/trace?frontend=a%26b&drops=any&path=%2Fa&status=5xx&count=3&timeout=1s%20500ms&rate=1000"
        );
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
        assert_eq!(said("routed"), "SNI a.example: route *.example");
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
