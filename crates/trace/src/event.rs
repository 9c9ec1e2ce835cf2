//! Trace events: small records of the steps of connections, requests and packets in the data path.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convey_model::{Protocol, Timestamp};

use crate::request::TracedRequest;

/// Trace event of a connection, a session, a request or a packet.
#[derive(Debug, Clone)]
pub struct TraceEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// TCP or UDP; `None`: the packet is neither, or cannot be parsed.
    pub protocol: Option<Protocol>,
    /// Address of the client; `None`: the packet does not contain it, or cannot be parsed.
    pub client: Option<SocketAddr>,
    /// Address of the proxy in front of convey, if a PROXY header or a trusted HTTP proxy supplied
    /// the client's address.
    pub proxy: Option<SocketAddr>,
    /// Address that the client connected to.
    pub vip: Option<SocketAddr>,
    /// Number of the frontend, assigned by the control path.
    pub frontend: Option<u32>,
    /// Number of the server, assigned by the control path; `None` until a server is chosen.
    pub server: Option<u32>,
    /// Step that the event records.
    pub step: TraceStep,
}

/// Step of a proxied connection, of a request or of a packet.
#[derive(Debug, Clone)]
pub enum TraceStep {
    /// Step of a connection in the modes proxy and http.
    Connection(ConnectionStep),
    /// Step of a request in mode http.
    Request(TracedRequest),
    /// Step in the packet modes.
    Packet(PacketStep),
}

/// Step of a proxied connection or UDP session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionStep {
    /// convey accepted the connection.
    Accepted,
    /// convey read the PROXY header.
    Header,
    /// Client and convey completed the TLS handshake.
    Handshake {
        /// Negotiated TLS version, such as `TLSv1.3`.
        version: &'static str,
        /// Whether the handshake resumed an earlier session.
        is_resumed: bool,
    },
    /// The TLS handshake with the client failed.
    HandshakeFailed {
        /// Reason of the failure, as readable text.
        reason: &'static str,
    },
    /// The connection waits for a connection slot of its frontend, or until the client has fewer
    /// open connections than its share.
    Waits,
    /// convey chose a route by the server name (SNI) and the protocol (ALPN) that the client
    /// requests.
    Routed {
        /// Server name (SNI); `None`: the client sends none, or does not speak TLS.
        sni: Option<Box<str>>,
        /// Name of the route; `None`: no route matches.
        route: Option<Arc<str>>,
    },
    /// convey chose a server for the connection.
    Chosen {
        /// Number of the attempt; the first is 1.
        attempt: u32,
    },
    /// The connection to the server failed.
    ConnectFailed {
        /// Error number; `None`: the error has none.
        errno: Option<i32>,
        /// Reason of a failed TLS handshake, as readable text; `None`: the failure has another
        /// cause.
        fault: Option<&'static str>,
    },
    /// The server accepted the connection.
    Connected {
        /// Time from the attempt to the server's accept.
        after: Duration,
    },
    /// UDP: the session begins with the chosen server.
    Begun,
    /// UDP: the session continues with another server.
    Moved,
    /// UDP: convey dropped datagrams of the client.
    Dropped {
        /// Label of the counter.
        reason: &'static str,
    },
    /// The connection ended before convey sent the client a byte.
    Refused {
        /// Label of the counter.
        reason: &'static str,
    },
    /// The connection or session ended.
    Ended {
        /// Label of the counter of the early end; `None`: both sides closed the connection, or the
        /// session was idle.
        reason: Option<&'static str>,
        /// Bytes from and to the client; `None`: the connection began before any trace ran.
        bytes: Option<(u64, u64)>,
        /// Duration of the connection.
        after: Duration,
    },
}

/// Packet, and the decision about it.
#[derive(Debug, Clone)]
pub struct PacketStep {
    /// Headers of the received packet; `None`: the packet cannot be parsed.
    pub received: Option<TracedPacket>,
    /// Index of the receiving interface. For a packet that could not be sent
    /// (`TracedOutcome::NotSent`), index of the interface that should have sent the packet.
    pub interface: u32,
    /// Length of the frame in bytes.
    pub frame_len: u32,
    /// Outcome of the packet.
    pub outcome: TracedOutcome,
    /// State of the packet's flow; `None`: the packet belongs to no flow.
    pub state: Option<&'static str>,
    /// First bytes of the frames; `None`: no trace requested them.
    pub frames: Option<Box<TracedFrames>>,
}

/// Headers of a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedPacket {
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// TCP: control bits.
    pub flags: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Length of the IP packet in bytes.
    pub len: u32,
    /// Kind of the packet.
    pub kind: PacketKind,
}

/// Kind of the packet within a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// A whole segment or datagram.
    Whole,
    /// The first fragment of a datagram or segment.
    FirstFragment,
    /// A fragment after the first one.
    LaterFragment,
    /// An ICMP error about a packet.
    IcmpError,
}

/// Outer packet of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedTunnel {
    /// Encapsulation: `"ipip"` or `"gue"`.
    pub kind: &'static str,
    /// Source address of the outer packet.
    pub from: IpAddr,
    /// Destination address of the outer packet: the server.
    pub to: IpAddr,
}

/// Outcome of a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedOutcome {
    /// convey rewrote the packet and forwards it.
    Forwarded {
        /// Source address and port after the rewrite.
        from: SocketAddr,
        /// Destination address and port after the rewrite.
        to: SocketAddr,
        /// Index of the sending interface.
        interface: u32,
        /// Ethernet address of the next hop.
        next_hop: [u8; 6],
        /// Role of the packet in its flow.
        role: TracedRole,
        /// Whether convey fragments the packet, because it exceeds the next hop's MTU.
        is_cut: bool,
        /// Tunnel that carries the packet.
        tunnel: Option<TracedTunnel>,
    },
    /// convey dropped the packet and notified its sender.
    Answered {
        /// Label of the drop reason.
        reason: &'static str,
        /// Kind of the notice to the sender.
        by: TracedAnswer,
    },
    /// convey dropped the packet.
    Dropped {
        /// Label of the drop reason.
        reason: &'static str,
    },
    /// The packet waits for the link-layer address of its next hop.
    WaitsForNextHop,
    /// convey could not send the packet. In this case, `PacketStep::received` contains the headers
    /// after the rewrite.
    NotSent {
        /// Label of the drop reason.
        reason: &'static str,
    },
}

/// Notice to the sender of a dropped packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedAnswer {
    /// A TCP reset.
    Reset,
    /// An ICMP error.
    IcmpError,
}

/// Role of a forwarded packet in its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedRole {
    /// First packet of a flow: convey chose its server.
    First,
    /// Further packet of a flow that exists already.
    Later,
    /// Server's answer to a SYN, or a datagram from the server.
    Answer,
    /// Server's refusal of the connection or datagram.
    Refusal,
    /// Packet that is forwarded by its hash, without a flow record (DSR).
    Untracked,
}

/// First bytes of a frame as received and as sent.
#[derive(Debug, Clone)]
pub struct TracedFrames {
    received: [u8; TracedFrames::MAX_SNAP],
    received_len: u16,
    sent: [u8; TracedFrames::MAX_SNAP],
    sent_len: u16,
}

impl TracedFrames {
    /// Maximum number of bytes kept of each frame.
    pub const MAX_SNAP: usize = 256;

    /// Starts a record with a received frame; no frame has been sent yet.
    pub fn received(frame: &[u8]) -> TracedFrames {
        let empty = [0; TracedFrames::MAX_SNAP];
        let mut frames = TracedFrames { received: empty, received_len: 0, sent: empty, sent_len: 0 };
        frames.received_len = copy(&mut frames.received, frame);
        frames
    }

    /// Records the frame that is sent on, or back to the sender.
    pub fn set_sent(&mut self, frame: &[u8]) {
        self.sent_len = copy(&mut self.sent, frame);
    }

    /// First bytes of the received frame.
    pub fn frame_in(&self) -> &[u8] {
        &self.received[..self.received_len.into()]
    }

    /// First bytes of the sent frame; empty if none was sent.
    pub fn frame_out(&self) -> &[u8] {
        &self.sent[..self.sent_len.into()]
    }
}

fn copy(to: &mut [u8; TracedFrames::MAX_SNAP], from: &[u8]) -> u16 {
    let len = from.len().min(TracedFrames::MAX_SNAP);
    to[..len].copy_from_slice(&from[..len]);
    len as u16
}

impl TraceEvent {
    /// Label of the reason, if the event records a drop, a refusal or an early end; otherwise
    /// `None`.
    pub fn drop_reason(&self) -> Option<&'static str> {
        match &self.step {
            TraceStep::Connection(step) => step.drop_reason(),
            TraceStep::Request(request) => request.step.drop_reason(),
            TraceStep::Packet(packet) => match packet.outcome {
                TracedOutcome::Answered { reason, .. }
                | TracedOutcome::Dropped { reason }
                | TracedOutcome::NotSent { reason } => Some(reason),
                TracedOutcome::Forwarded { .. } | TracedOutcome::WaitsForNextHop => None,
            },
        }
    }
}

impl ConnectionStep {
    fn drop_reason(&self) -> Option<&'static str> {
        match self {
            ConnectionStep::Dropped { reason } | ConnectionStep::Refused { reason } => Some(reason),
            ConnectionStep::Ended { reason, .. } => *reason,
            _ => None,
        }
    }
}

/// Hash of a flow; all events of the flow have the same hash within a process.
pub(crate) fn flow_hash(client: SocketAddr, vip: SocketAddr, protocol: Protocol) -> u64 {
    let mut hasher = DefaultHasher::new();
    (client, vip, protocol as u8).hash(&mut hasher);
    hasher.finish()
}
