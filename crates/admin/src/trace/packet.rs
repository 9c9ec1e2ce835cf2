//! Packet of a trace event. Pure.

use std::net::{IpAddr, SocketAddr};

use convey_snapshot::Snapshot;
use convey_trace::{PacketKind, PacketStep, TracedAnswer, TracedPacket, TracedRole, TracedTunnel, TracedWay};
use data_encoding::BASE64;
use serde::Serialize;

/// Packet, and the verdict on it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PacketLine {
    interface: String,
    /// Length of the frame.
    frame_len: u32,
    /// Packet as it arrived; left out if it cannot be parsed.
    #[serde(flatten)]
    came: Option<CameLine>,
    /// `forwarded`, `answered`, `dropped`, `waits_for_next_hop` or `not_sent`.
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Kind of the answer to the packet's sender: `reset` or `icmp_error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'static str>,
    /// Role of the packet in its flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// Rule that chose its server.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<WentLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frame_in: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frame_out: Option<String>,
}

/// Packet as it arrived.
#[derive(Debug, Clone, Serialize)]
struct CameLine {
    from: SocketAddr,
    to: SocketAddr,
    /// TCP flags, in the letters of tcpdump.
    flags: String,
    ttl: u8,
    len: u32,
    kind: &'static str,
}

/// Packet as it is sent.
#[derive(Debug, Clone, Serialize)]
struct WentLine {
    interface: String,
    from: SocketAddr,
    to: SocketAddr,
    next_hop: String,
    /// Whether the packet is sent in pieces.
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<TunnelLine>,
}

/// Outer packet of a tunnel.
#[derive(Debug, Clone, Serialize)]
struct TunnelLine {
    kind: &'static str,
    from: IpAddr,
    to: IpAddr,
}

impl TunnelLine {
    fn new(TracedTunnel { kind, from, to }: TracedTunnel) -> TunnelLine {
        TunnelLine { kind, from, to }
    }
}

impl PacketLine {
    pub(super) fn new(packet: &PacketStep, snapshot: &Snapshot, algorithm: Option<&'static str>) -> Self {
        let name = |index| interface(snapshot, index);
        let frame = |bytes: &[u8]| (!bytes.is_empty()).then(|| BASE64.encode(bytes));
        let mut line = PacketLine {
            interface: name(packet.interface),
            frame_len: packet.frame_len,
            came: packet.came.map(|came| came_line(&came)),
            verdict: "dropped",
            reason: None,
            answer: None,
            role: None,
            algorithm: None,
            state: packet.state,
            out: None,
            frame_in: packet.frames.as_ref().and_then(|frames| frame(frames.frame_in())),
            frame_out: packet.frames.as_ref().and_then(|frames| frame(frames.frame_out())),
        };
        match packet.way {
            TracedWay::Forwarded { from, to, interface, next_hop, role, is_cut, tunnel } => {
                line.verdict = "forwarded";
                line.role = Some(role_name(role));
                line.algorithm =
                    algorithm.filter(|_| matches!(role, TracedRole::First | TracedRole::Unrecorded));
                let next_hop = next_hop.map(|byte| format!("{byte:02x}")).join(":");
                line.out = Some(WentLine {
                    interface: name(interface),
                    from,
                    to,
                    next_hop,
                    cut: is_cut,
                    tunnel: tunnel.map(TunnelLine::new),
                });
            }
            TracedWay::Answered { reason, by } => {
                line.verdict = "answered";
                line.reason = Some(reason);
                line.answer = Some(match by {
                    TracedAnswer::Reset => "reset",
                    TracedAnswer::IcmpError => "icmp_error",
                });
            }
            TracedWay::Dropped { reason } => line.reason = Some(reason),
            TracedWay::WaitsForNextHop => line.verdict = "waits_for_next_hop",
            TracedWay::NotSent { reason } => {
                line.verdict = "not_sent";
                line.reason = Some(reason);
            }
        }
        line
    }
}

fn came_line(came: &TracedPacket) -> CameLine {
    let TracedPacket { from, to, flags, ttl, len, kind } = *came;
    let kind = match kind {
        PacketKind::Whole => "whole",
        PacketKind::FirstFragment => "first_fragment",
        PacketKind::LaterFragment => "later_fragment",
        PacketKind::IcmpError => "icmp_error",
    };
    CameLine { from, to, flags: letters(flags), ttl, len, kind }
}

/// Control bits of TCP in the letters of tcpdump.
fn letters(flags: u8) -> String {
    let bits = [(0x01, 'F'), (0x02, 'S'), (0x04, 'R'), (0x08, 'P'), (0x10, '.'), (0x20, 'U')];
    bits.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, letter)| letter).collect()
}

fn role_name(role: TracedRole) -> &'static str {
    match role {
        TracedRole::First => "new_flow",
        TracedRole::Later => "existing_flow",
        TracedRole::Answer => "servers_answer",
        TracedRole::Refusal => "servers_refusal",
        TracedRole::Unrecorded => "by_hash",
    }
}

fn interface(snapshot: &Snapshot, index: u32) -> String {
    let found = snapshot.network.interfaces().iter().find(|interface| interface.index == index);
    found.map_or_else(|| format!("#{index}"), |interface| interface.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_bits_are_written_as_tcpdump_writes_them() {
        assert_eq!([0x02, 0x12, 0x18, 0x04, 0].map(letters), ["S", "S.", "P.", "R", ""]);
    }
}
