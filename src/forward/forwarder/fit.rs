//! Whether the next hop takes a packet as it is.

use super::refuse::Stop;
use crate::forward::{Cut, Frame};
use crate::model::{DropReason, NextHop};
use crate::wire::Headers;

/// Whether the next hop takes the packet; what is done to one that is too long and may be cut. A super-frame is cut
/// into packets before it is sent, so what counts is how long those will be.
pub(super) fn fit(
    frame: &Frame<'_>,
    headers: &Headers,
    hop: &NextHop,
    is_nat: bool,
) -> Result<Option<Cut>, Stop> {
    let (mtu, header_len) = (hop.mtu as usize, headers.packet_len() - usize::from(headers.payload_len));
    let len = match frame.segment_size {
        Some(payload) => header_len + usize::from(payload),
        None => headers.packet_len(),
    };
    if len <= mtu {
        return Ok(None);
    }
    let is_super_segment = frame.segment_size.is_some() && headers.is_tcp();
    if headers.dont_fragment || is_super_segment && mtu <= header_len {
        return Err(Stop::TooBig { mtu: hop.mtu });
    }
    Ok(Some(match is_super_segment {
        // Each will have a header of its own.
        true => Cut::Segments((mtu - header_len) as u16),
        // A fragment that was let in by its lead has such a number already.
        false => Cut::Fragments { mtu: hop.mtu, renumber: is_nat && frame.lead.is_none() },
    }))
}

/// Whether the next hop takes an ICMP error, which is short and never cut.
pub(super) fn fit_error(headers: &Headers, hop: &NextHop) -> Result<(), Stop> {
    if headers.packet_len() > hop.mtu as usize { Err(Stop::Silent(DropReason::TooBig)) } else { Ok(()) }
}
