//! Lines of a trace: live events of clients and packets. Pure.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{Label, PreciseTime};

/// Line about the trace itself, or the kind of all other lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TraceRemark {
    /// The trace has started.
    Started,
    /// Events that were left out.
    LeftOut {
        /// Events that exceeded the limit of events per second.
        rate: u64,
        /// Events that the client did not read in time.
        unread: u64,
    },
    /// The trace has ended.
    TraceEnded {
        /// Reason why the trace ended.
        #[cfg_attr(test, schemars(extend("enum" = ["count", "timeout", "upgrade", "stop"])))]
        why: Label,
    },
    /// The line is a [`TraceLine`].
    #[serde(other, skip_serializing)]
    Event,
}

/// Event of a client or a packet. Unknown values are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceLine {
    /// Time of the event.
    pub at: PreciseTime,
    /// Subject of the event.
    #[serde(flatten)]
    pub names: TraceNames,
    /// Kind of the event.
    #[serde(flatten)]
    pub happened: TracedAction,
}

/// Subject of a trace event. Unknown values are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceNames {
    /// Name of the frontend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<String>,
    /// Protocol of the client.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::protocols())))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Label>,
    /// Client, as `IP:PORT`; IPv6 addresses have brackets.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<SocketAddr>,
    /// Proxy that named the client in a PROXY header, as `IP:PORT`.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<SocketAddr>,
    /// Address that the client connects to, as `IP:PORT`.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<SocketAddr>,
    /// Name of the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Name of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Address of the server, as `IP:PORT` or `unix:PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_addr: Option<String>,
}

/// Kind of a trace event: `packet` is of packet modes, `request` of mode http, and the others are of
/// the modes proxy and http.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TracedAction {
    /// A connection was accepted.
    Accepted,
    /// A PROXY header named the client.
    ProxyHeader,
    /// A TLS handshake has succeeded.
    TlsHandshake {
        /// Version of TLS, such as `TLSv1.3`.
        version: Label,
        /// Whether the handshake resumed an earlier session.
        resumed: bool,
    },
    /// A TLS handshake has failed.
    TlsHandshakeFailed {
        /// Label of the counter, or the text of an error.
        reason: Label,
    },
    /// The connection waits for a slot.
    Waits,
    /// The connection got a route by its TLS server name.
    Routed {
        /// TLS server name that the client sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sni: Option<Box<str>>,
        /// Route of the connection. Left out if no route matches.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        route: Option<String>,
    },
    /// A server was chosen.
    Chosen {
        /// Load balancing algorithm.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        algorithm: Option<Label>,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// The connect to the server has failed.
    ConnectFailed {
        /// Error of the connect.
        error: String,
    },
    /// The connection to the server is open.
    Connected {
        /// Duration in milliseconds.
        after_ms: f64,
    },
    /// A UDP session has begun.
    Begun {
        /// Load balancing algorithm.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        algorithm: Option<Label>,
    },
    /// A UDP session continues with another server.
    Moved,
    /// Datagrams were dropped.
    Dropped {
        /// Label of the counter.
        reason: Label,
    },
    /// The client was refused.
    Refused {
        /// Label of the counter.
        reason: Label,
    },
    /// A connection or session has ended.
    Ended {
        /// Label of the counter. Left out if both sides closed, or a UDP session was idle.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Label>,
        /// Bytes from the client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_in: Option<u64>,
        /// Bytes to the client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_out: Option<u64>,
        /// Duration in milliseconds.
        after_ms: f64,
    },
    /// Step of a request (mode http).
    Request(Box<RequestLine>),
    /// A packet has arrived.
    Packet(Box<PacketLine>),
    /// Kind that only a newer version knows.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// Step of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RequestLine {
    /// Number of the request's stream. Left out for HTTP/1.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u64>,
    /// Kind of the step: `received` (the head has arrived), `routed`, `admitted` (access lists,
    /// limits and layers allow the request), `chosen` (a server was chosen),
    /// `connect_failed`, `connected`, `retried`, `responded` (the server's response head has
    /// arrived), `file`, `local_reply`, `refused` (without a reply) or `ended`.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::REQUEST_STEPS)))]
    pub step: Label,
    /// Head of the request (`received`).
    #[serde(flatten)]
    pub head: Option<ReceivedHead>,
    /// Route of the request (`routed`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Load balancing algorithm (`chosen`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Label>,
    /// Number of the attempt, from 1 (`chosen`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Error of the connect (`connect_failed`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the connection has served other requests before (`connected`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<bool>,
    /// Status of the response (`responded`, `file`, `local_reply`), or the status that the client
    /// received (`ended`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Label of the counter (`retried`, `local_reply`, `refused`, and `ended` if the request ended
    /// early).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Label>,
    /// More specific reason, such as the fault in a malformed request. Left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Label>,
    /// Phase of the step; of `local_reply`, `refused` and an early `ended`, the phase that the
    /// request had reached. An older server sends it only for these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Label>,
    /// Bytes of the request's body (`ended`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_in: Option<u64>,
    /// Bytes of the response's head and body (`ended`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<u64>,
    /// Milliseconds since the head of the request (`connected`, `ended`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<f64>,
}

/// Head of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReceivedHead {
    /// Method.
    pub method: String,
    /// Host of the request; empty if it names none.
    pub host: String,
    /// Path and query.
    pub target: String,
    /// Client's version of HTTP: `1.0`, `1.1`, `2` or `3`.
    pub version: Label,
}

/// Packet, and the verdict on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PacketLine {
    /// Interface of the packet.
    pub interface: String,
    /// Length of the frame.
    pub frame_len: u32,
    /// Packet as it arrived. Left out if it cannot be parsed.
    #[serde(flatten)]
    pub came: Option<ArrivedPacket>,
    /// Verdict on the packet.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::VERDICTS)))]
    pub verdict: Label,
    /// Label of the counter, if the packet was dropped or answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Label>,
    /// Kind of the answer to the packet's sender.
    #[cfg_attr(test, schemars(extend("enum" = ["reset", "icmp_error"])))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Label>,
    /// Role of the packet in its flow.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::ROLES)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Label>,
    /// Load balancing algorithm, if it chose the server for this packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Label>,
    /// State of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Label>,
    /// Packet as it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<SentPacket>,
    /// First bytes of the frame as it arrived, in base64.
    #[cfg_attr(test, schemars(extend("contentEncoding" = "base64")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_in: Option<String>,
    /// First bytes of the frame as it is sent, in base64.
    #[cfg_attr(test, schemars(extend("contentEncoding" = "base64")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_out: Option<String>,
}

/// Packet as it arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArrivedPacket {
    /// Source, as `IP:PORT`; IPv6 addresses have brackets.
    #[cfg_attr(test, schemars(with = "String"))]
    pub from: SocketAddr,
    /// Destination, as `IP:PORT`.
    #[cfg_attr(test, schemars(with = "String"))]
    pub to: SocketAddr,
    /// TCP flags, in the letters of tcpdump.
    pub flags: String,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Length of the IP packet.
    pub len: u32,
    /// Kind of the packet.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::PACKET_KINDS)))]
    pub kind: Label,
}

/// Packet as it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SentPacket {
    /// Interface that the packet leaves by.
    pub interface: String,
    /// Source, as `IP:PORT`.
    #[cfg_attr(test, schemars(with = "String"))]
    pub from: SocketAddr,
    /// Destination, as `IP:PORT`.
    #[cfg_attr(test, schemars(with = "String"))]
    pub to: SocketAddr,
    /// Ethernet address of the next hop.
    pub next_hop: String,
    /// Whether the packet is sent in pieces.
    pub cut: bool,
    /// Outer packet. Left out without a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<OuterPacket>,
}

/// Outer packet of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OuterPacket {
    /// Kind of the tunnel.
    #[cfg_attr(test, schemars(extend("enum" = ["ipip", "gue"])))]
    pub kind: Label,
    /// Source: an IP address of convey.
    #[cfg_attr(test, schemars(with = "String"))]
    pub from: IpAddr,
    /// Destination: the IP address of the server.
    #[cfg_attr(test, schemars(with = "String"))]
    pub to: IpAddr,
}
