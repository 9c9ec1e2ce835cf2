//! What a trace tells of: small records, made by the data path.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convey_model::{Protocol, Timestamp};

/// Something that has happened to a connection, a session or a packet.
#[derive(Debug, Clone)]
pub struct TraceEvent {
    /// When.
    pub at: Timestamp,
    /// TCP or UDP; `None`: the packet does not say.
    pub protocol: Option<Protocol>,
    /// Who the client is; `None`: the packet does not say.
    pub client: Option<SocketAddr>,
    /// Proxy mode: the proxy that the client came by, as its PROXY header says.
    pub proxy: Option<SocketAddr>,
    /// Where the client came to.
    pub vip: Option<SocketAddr>,
    /// The frontend, by the number the control path gave it.
    pub frontend: Option<u32>,
    /// The server, by the number the control path gave it, once there is one.
    pub server: Option<u32>,
    /// What has happened.
    pub step: TraceStep,
}

/// What has happened.
#[derive(Debug, Clone)]
pub enum TraceStep {
    /// Proxy mode.
    Connection(ConnectionStep),
    /// Packet modes.
    Packet(PacketStep),
}

/// A step of a proxied connection, or of a session of UDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionStep {
    /// It was accepted.
    Accepted,
    /// Its PROXY header was read.
    Header,
    /// Client and convey have shaken hands (TLS).
    Handshake {
        /// The version that they speak, such as `TLSv1.3`.
        version: &'static str,
        /// Whether the session goes on from an earlier one.
        is_resumed: bool,
    },
    /// They have not.
    HandshakeFailed {
        /// Why, in words.
        reason: &'static str,
    },
    /// It waits for a connection slot of its frontend, or for its client's share.
    Waits,
    /// A route was chosen for it, by what its client asks for.
    Routed {
        /// The server name; `None`: it asks for none, or does not speak TLS.
        sni: Option<Box<str>>,
        /// The route; `None`: there is none.
        route: Option<Arc<str>>,
    },
    /// A server was chosen for it.
    Chosen {
        /// 1 for the first that is tried.
        attempt: u32,
    },
    /// That server could not be connected to.
    ConnectFailed {
        /// The number of the error; `None`: it has none.
        errno: Option<i32>,
        /// Why they have not shaken hands (TLS), in words; `None`: that is not what failed.
        fault: Option<&'static str>,
    },
    /// The server has accepted.
    Connected {
        /// After this time.
        after: Duration,
    },
    /// UDP: the session begins with its server.
    Begun,
    /// UDP: the session goes on with another server.
    Moved,
    /// UDP: datagrams of its client were dropped, for the reason with this label.
    Dropped {
        /// The label of the counter.
        reason: &'static str,
    },
    /// It is over before its client was sent a byte, for the reason with this label.
    Refused {
        /// The label of the counter.
        reason: &'static str,
    },
    /// It is over.
    Ended {
        /// The label of the counter; `None`: both sides have closed, or the session was silent.
        reason: Option<&'static str>,
        /// Bytes from and to the client; `None`: it began while nobody watched.
        bytes: Option<(u64, u64)>,
        /// How long it lasted.
        after: Duration,
    },
}

/// A packet, and what was decided.
#[derive(Debug, Clone)]
pub struct PacketStep {
    /// As it came; `None`: it cannot be read.
    pub came: Option<TracedPacket>,
    /// Index of the interface that it came in by; of one that was not sent, of that which it was to go by.
    pub interface: u32,
    /// Length of the frame in bytes.
    pub frame_len: u32,
    /// What became of it.
    pub way: TracedWay,
    /// The state of its flow, once there is one.
    pub state: Option<&'static str>,
    /// The bytes of the frame, for who has asked for them.
    pub frames: Option<Box<TracedFrames>>,
}

/// The headers of a packet.
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
    /// How much of a packet it is.
    pub kind: PacketKind,
}

/// How much of a packet a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// A whole segment or datagram.
    Whole,
    /// The first fragment of a datagram or segment.
    FirstFragment,
    /// Another fragment.
    LaterFragment,
    /// An ICMP error about one.
    IcmpError,
}

/// The packet that another one goes within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedTunnel {
    /// `"ipip"` or `"gue"`.
    pub kind: &'static str,
    /// Its source.
    pub from: IpAddr,
    /// Its destination: the server.
    pub to: IpAddr,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedWay {
    /// It was rewritten and goes on.
    Forwarded {
        /// Source address and port as it goes.
        from: SocketAddr,
        /// Destination address and port as it goes.
        to: SocketAddr,
        /// Index of the interface.
        interface: u32,
        /// Ethernet address of the next hop.
        next_hop: [u8; 6],
        /// What it is to its flow.
        role: TracedRole,
        /// Whether it goes in pieces, being too long for the next hop.
        is_cut: bool,
        /// The tunnel that it goes through.
        tunnel: Option<TracedTunnel>,
    },
    /// It was dropped, and its sender is told so.
    Answered {
        /// The label of the drop reason.
        reason: &'static str,
        /// How its sender is told.
        by: TracedAnswer,
    },
    /// It was dropped.
    Dropped {
        /// The label of the drop reason.
        reason: &'static str,
    },
    /// It waits for the link-layer address of its next hop.
    WaitsForNextHop,
    /// It was to go by the interface, and could not be sent. Its headers are those that it has by then.
    NotSent {
        /// The label of the drop reason.
        reason: &'static str,
    },
}

/// How the sender of a dropped packet is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedAnswer {
    /// By a reset of TCP.
    Reset,
    /// By an ICMP error.
    IcmpError,
}

/// What a forwarded packet is to its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedRole {
    /// It begins it: its server was chosen for it.
    First,
    /// It belongs to a flow that is known.
    Later,
    /// The server's answer to a SYN, or its datagram.
    Answer,
    /// The server says that nobody takes it.
    Refusal,
    /// It goes by its hash, without a record (DSR).
    Unrecorded,
}

/// The first bytes of a frame as it came and as it went.
#[derive(Debug, Clone)]
pub struct TracedFrames {
    came: [u8; TracedFrames::MAX_SNAP],
    came_len: u16,
    went: [u8; TracedFrames::MAX_SNAP],
    went_len: u16,
}

impl TracedFrames {
    /// Bytes of each frame that are kept at most.
    pub const MAX_SNAP: usize = 256;

    /// A frame as it came; nothing has gone on yet.
    pub fn came(frame: &[u8]) -> TracedFrames {
        let empty = [0; TracedFrames::MAX_SNAP];
        let mut frames = TracedFrames { came: empty, came_len: 0, went: empty, went_len: 0 };
        frames.came_len = copy(&mut frames.came, frame);
        frames
    }

    /// What goes on in its place, or back to its sender.
    pub fn set_went(&mut self, frame: &[u8]) {
        self.went_len = copy(&mut self.went, frame);
    }

    /// The first bytes as it came.
    pub fn frame_in(&self) -> &[u8] {
        &self.came[..self.came_len.into()]
    }

    /// The first bytes as it went; empty if nothing went.
    pub fn frame_out(&self) -> &[u8] {
        &self.went[..self.went_len.into()]
    }
}

fn copy(to: &mut [u8; TracedFrames::MAX_SNAP], from: &[u8]) -> u16 {
    let len = from.len().min(TracedFrames::MAX_SNAP);
    to[..len].copy_from_slice(&from[..len]);
    len as u16
}

impl TraceEvent {
    /// The label of the reason, if something was dropped or refused, or has ended early.
    pub fn drop_reason(&self) -> Option<&'static str> {
        match &self.step {
            TraceStep::Connection(step) => step.drop_reason(),
            TraceStep::Packet(packet) => match packet.way {
                TracedWay::Answered { reason, .. }
                | TracedWay::Dropped { reason }
                | TracedWay::NotSent { reason } => Some(reason),
                TracedWay::Forwarded { .. } | TracedWay::WaitsForNextHop => None,
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

/// A number of a flow, the same for all of its events, in each process.
pub(crate) fn flow_hash(client: SocketAddr, vip: SocketAddr, protocol: Protocol) -> u64 {
    let mut hasher = DefaultHasher::new();
    (client, vip, protocol as u8).hash(&mut hasher);
    hasher.finish()
}
