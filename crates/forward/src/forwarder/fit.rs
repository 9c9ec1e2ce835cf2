//! Check whether a packet fits the MTU of its next hop.

use super::path_mtu::{NARROW, longest_to};
use super::stop::Stop;
use crate::plan::Plan;
use crate::{Cut, Direction, Flow, Frame, View};
use convey_model::{DropReason, NextHop};
use convey_wire::{self as wire, Envelope, Headers, Kind, TcpFlags};

/// Limits for the length of packets on a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    /// Longest packet that is forwarded whole, in bytes.
    mtu: u32,
    /// Whether longer packets are cut even if their DF bit is set, because their sender does not
    /// learn the MTU of this path.
    is_secret: bool,
    /// Whether packets of several senders leave with one source address.
    is_nat: bool,
    /// Whether packets are encapsulated: routers do not cut encapsulated packets.
    has_tunnel: bool,
}

impl Path {
    /// Path of packets that begin a flow, or that belong to no flow.
    pub(super) fn to(hop: &NextHop, is_nat: bool) -> Path {
        Path { mtu: hop.mtu, is_secret: false, is_nat, has_tunnel: false }
    }

    /// Path through a tunnel, whose headers reduce the MTU.
    #[inline]
    pub(super) fn within(self, envelope: Option<&Envelope>) -> Path {
        let Some(Envelope { tunnel, .. }) = envelope else { return self };
        Path { mtu: self.mtu.saturating_sub(tunnel.overhead()), has_tunnel: true, ..self }
    }

    /// Path of packets of a flow. In passthrough, a narrow path to a client is hidden from the
    /// server, because a server uses one path MTU for all clients: see
    /// [`path_mtu`](super::path_mtu).
    #[inline]
    pub(super) fn of(
        flow: &Flow,
        direction: Direction,
        headers: &Headers,
        hop: &NextHop,
        plan: &Plan,
    ) -> Path {
        let is_nat = flow.view() == View::BothSides;
        if direction == Direction::ToServer || !is_nat {
            return Path::to(hop, is_nat);
        }
        let mtu = hop.mtu.min(longest_to(flow));
        // The MTU of a local link cannot be forged.
        let is_short = headers.is_v4() && mtu < plan.min_path_mtu.unwrap_or(NARROW).min(NARROW);
        Path { mtu, is_secret: mtu < hop.mtu || is_short, is_nat, has_tunnel: false }
    }
}

/// Checks whether the next hop takes the packet. Returns how to cut a packet that is too long and
/// may be cut; `None` if it can be forwarded whole. For a super-frame, checks the length of the
/// packets that the frame will be cut into.
pub(super) fn fit(frame: &Frame<'_>, headers: &Headers, path: Path) -> Result<Option<Cut>, Stop> {
    let (mtu, header_len) = (path.mtu as usize, headers.packet_len() - usize::from(headers.payload_len));
    if frame.sent_len(headers) <= mtu {
        // Neither the kernel nor an interface cuts super-frames within a tunnel.
        let size = frame.segment_size.filter(|_| path.has_tunnel);
        return Ok(size.map(|size| if headers.is_tcp() { Cut::Segments(size) } else { Cut::Datagrams(size) }));
    }
    let is_super_segment = frame.segment_size.is_some() && headers.is_tcp();
    let must_stay_whole = headers.dont_fragment && !(path.is_secret && wire::is_simple(frame.bytes, headers));
    if must_stay_whole || is_super_segment && mtu <= header_len {
        return Err(Stop::TooBig { mtu: path.mtu });
    }
    // Fragments get lost on the way to clients more often than segments do.
    let is_segment = path.is_secret && may_become_segments(headers) && mtu > header_len;
    // Each segment gets a new checksum, which would hide damaged bytes.
    if is_segment && !frame.is_intact(headers) {
        return Err(Stop::Silent(DropReason::BadChecksum));
    }
    Ok(Some(match is_super_segment || is_segment {
        // Each segment will have a header of its own.
        true => Cut::Segments((mtu - header_len) as u16),
        // A later fragment already gets the number of its first fragment.
        false => Cut::Fragments { mtu: path.mtu, renumber: path.is_nat && frame.first_fragment.is_none() },
    }))
}

/// Whether a TCP packet can be cut into shorter segments. SYN and RST must not be repeated, and the
/// urgent pointer is relative to the beginning of a segment.
fn may_become_segments(headers: &Headers) -> bool {
    let (flags, once) = (headers.flags.0, TcpFlags::SYN | TcpFlags::RST | TcpFlags::URG);
    headers.is_tcp() && headers.kind == Kind::Whole && flags & once == 0
}

/// Checks whether the next hop takes an ICMP error, which is short and never cut.
pub(super) fn fit_error(headers: &Headers, path: Path) -> Result<(), Stop> {
    if headers.packet_len() > path.mtu as usize { Err(Stop::Silent(DropReason::TooBig)) } else { Ok(()) }
}
