//! Whether the next hop takes a packet as it is.

use super::path_mtu::{NARROW, longest_to};
use super::stop::Stop;
use crate::plan::Plan;
use crate::{Cut, Direction, Flow, Frame, View};
use convey_model::{DropReason, NextHop};
use convey_wire::{self as wire, Envelope, Headers, Kind, TcpFlags};

/// How long packets may be on a way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    /// Longest that goes on whole, in bytes.
    mtu: u32,
    /// Whether what is longer is cut, even if it says that it must not be: its sender is not told
    /// of this path.
    is_secret: bool,
    /// Whether packets of several senders go on as one's.
    is_nat: bool,
    /// Whether they go within others, which nobody cuts for us.
    has_tunnel: bool,
}

impl Path {
    /// Of packets that begin a flow, or go by themselves.
    pub(super) fn to(hop: &NextHop, is_nat: bool) -> Path {
        Path { mtu: hop.mtu, is_secret: false, is_nat, has_tunnel: false }
    }

    /// The same through a tunnel, whose headers take room.
    #[inline]
    pub(super) fn within(self, envelope: Option<&Envelope>) -> Path {
        let Some(Envelope { tunnel, .. }) = envelope else { return self };
        Path { mtu: self.mtu.saturating_sub(tunnel.overhead()), has_tunnel: true, ..self }
    }

    /// Of packets of a flow. In passthrough servers know one path to all clients: see
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
        // Of our own links nobody can lie.
        let is_short = headers.is_v4() && mtu < plan.min_path_mtu.unwrap_or(NARROW).min(NARROW);
        Path { mtu, is_secret: mtu < hop.mtu || is_short, is_nat, has_tunnel: false }
    }
}

/// Whether the next hop takes the packet; what is done to one that is too long and may be cut. A
/// super-frame is cut into packets before it is sent, so what counts is how long those will be.
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
    // Each segment gets a checksum of its own, which would be right over damaged bytes.
    if is_segment && !frame.is_intact(headers) {
        return Err(Stop::Silent(DropReason::BadChecksum));
    }
    Ok(Some(match is_super_segment || is_segment {
        // Each will have a header of its own.
        true => Cut::Segments((mtu - header_len) as u16),
        // A fragment that follows its first has such a number already.
        false => Cut::Fragments { mtu: path.mtu, renumber: path.is_nat && frame.first_fragment.is_none() },
    }))
}

/// Whether a packet is one of TCP that can be cut into shorter ones. Where urgent data ends is told
/// from where a segment begins, and what begins or resets a connection is said once.
fn may_become_segments(headers: &Headers) -> bool {
    let (flags, once) = (headers.flags.0, TcpFlags::SYN | TcpFlags::RST | TcpFlags::URG);
    headers.is_tcp() && headers.kind == Kind::Whole && flags & once == 0
}

/// Whether the next hop takes an ICMP error, which is short and never cut.
pub(super) fn fit_error(headers: &Headers, path: Path) -> Result<(), Stop> {
    if headers.packet_len() > path.mtu as usize { Err(Stop::Silent(DropReason::TooBig)) } else { Ok(()) }
}
