//! Packet in a line of a trace. Pure.

use convey_api::{ArrivedPacket, OuterPacket, PacketLine, SentPacket};
use convey_snapshot::Snapshot;
use convey_trace::{
    PacketKind, PacketStep, TracedAnswer, TracedOutcome, TracedPacket, TracedRole, TracedTunnel,
};
use data_encoding::BASE64;

/// Converts a packet and the verdict on it. `algorithm` is the name of the algorithm that chose the
/// server.
pub(super) fn packet_line(
    packet: &PacketStep,
    snapshot: &Snapshot,
    algorithm: Option<&'static str>,
) -> PacketLine {
    let name = |index| interface(snapshot, index);
    let frame = |bytes: &[u8]| (!bytes.is_empty()).then(|| BASE64.encode(bytes));
    let mut line = PacketLine {
        interface: name(packet.interface),
        frame_len: packet.frame_len,
        came: packet.received.map(|packet| arrived_packet(&packet)),
        verdict: "dropped".into(),
        reason: None,
        answer: None,
        role: None,
        algorithm: None,
        state: packet.state.map(Into::into),
        out: None,
        frame_in: packet.frames.as_ref().and_then(|frames| frame(frames.frame_in())),
        frame_out: packet.frames.as_ref().and_then(|frames| frame(frames.frame_out())),
    };
    match packet.outcome {
        TracedOutcome::Forwarded { from, to, interface, next_hop, role, is_cut, tunnel } => {
            line.verdict = "forwarded".into();
            line.role = Some(role_name(role).into());
            let is_new = matches!(role, TracedRole::First | TracedRole::Untracked);
            line.algorithm = algorithm.filter(|_| is_new).map(Into::into);
            let next_hop = next_hop.map(|byte| format!("{byte:02x}")).join(":");
            let tunnel = tunnel.map(outer_packet);
            line.out =
                Some(SentPacket { interface: name(interface), from, to, next_hop, cut: is_cut, tunnel });
        }
        TracedOutcome::Answered { reason, by } => {
            line.verdict = "answered".into();
            line.reason = Some(reason.into());
            let answer = match by {
                TracedAnswer::Reset => "reset",
                TracedAnswer::IcmpError => "icmp_error",
            };
            line.answer = Some(answer.into());
        }
        TracedOutcome::Dropped { reason } => line.reason = Some(reason.into()),
        TracedOutcome::WaitsForNextHop => line.verdict = "waits_for_next_hop".into(),
        TracedOutcome::NotSent { reason } => {
            line.verdict = "not_sent".into();
            line.reason = Some(reason.into());
        }
    }
    line
}

fn outer_packet(TracedTunnel { kind, from, to }: TracedTunnel) -> OuterPacket {
    OuterPacket { kind: kind.into(), from, to }
}

fn arrived_packet(received: &TracedPacket) -> ArrivedPacket {
    let TracedPacket { from, to, flags, ttl, len, kind } = *received;
    let kind = match kind {
        PacketKind::Whole => "whole",
        PacketKind::FirstFragment => "first_fragment",
        PacketKind::LaterFragment => "later_fragment",
        PacketKind::IcmpError => "icmp_error",
    };
    ArrivedPacket { from, to, flags: letters(flags), ttl, len, kind: kind.into() }
}

/// TCP flags in the letters that tcpdump uses.
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
        TracedRole::Untracked => "by_hash",
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
