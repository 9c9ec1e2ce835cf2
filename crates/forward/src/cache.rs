//! The kernel's flow cache, which may forward the packets of a flow in the forwarder's place.

use std::fmt;

use super::tcp_sequence::WINDOW;
use super::{Direction, FlowOwners, View};
use convey_model::{FlowKey, Rewrite, Timestamp};
use convey_wire::Envelope;

/// Forwards packets by their key, without asking. Everything that decides stays with the forwarder: it says which
/// packets, and they are those that change nothing of their flow, and what answers its SYN, completes its handshake or
/// finishes one side, which the cache tells of. Packets that the cache cannot forward, or has no room for, come to the
/// forwarder as before; so nothing here can fail.
pub trait FlowCache: fmt::Debug + Send {
    /// Packets with this key are to be forwarded so, from the next [`FlowCache::flush`] on at the
    /// latest. Removals that wait are carried out now: from then on [`FlowCache::seen`] returns
    /// nothing of a flow that had the key before. An entry whose next hop is not there keeps its
    /// numbers, and leaves packets to the forwarder.
    fn put(&mut self, key: &FlowKey, route: &CachedRoute);

    /// Packets with this key are no longer to be forwarded, from the next [`FlowCache::flush`] on at the latest. To be called once
    /// for each key that was put in as new, with the same owners.
    fn remove(&mut self, key: &FlowKey, owners: FlowOwners);

    /// The packets that were seen with this key since it was put in; `None` if there were none.
    fn seen(&mut self, key: &FlowKey) -> Option<CachedActivity>;

    /// The sender of packets with this key has got so far. Their entry, if there is one, goes on from there; the rest of it stays. To be
    /// called after [`FlowCache::flush`], or after it for other keys.
    fn advance(&mut self, key: &FlowKey, progress: Progress);

    /// Whether an entry with this key still has the mark of [`CachedRoute::is_restored`].
    fn is_restored(&mut self, key: &FlowKey) -> bool;

    /// Carries out what is still to be done.
    fn flush(&mut self);
}

/// How a cache is to forward packets that have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedRoute {
    /// What they become, and where they go.
    pub rewrite: Rewrite,
    /// The tunnel that they go through. The cache leaves to us what [`Envelope::follows_from_headers`] says is beyond it, and
    /// super-frames in such tunnels.
    pub envelope: Option<Envelope>,
    /// Which way that is.
    pub direction: Direction,
    /// Whose packets pass.
    pub view: View,
    /// The interface that a server's packets have to come in by: anybody can send in its name. `None` for
    /// packets of clients, and where the cache leaves a server's packets to the forwarder.
    pub from: Option<u32>,
    /// The frontend and server that they are counted for.
    pub owners: FlowOwners,
    /// Whether the key is not in yet; else this replaces what is there.
    pub is_new: bool,
    /// When the last one came that the cache has seen, if they only go another way from now on. Where a
    /// worker forwards a packet that came in elsewhere, the time of that packet.
    pub last: Option<Timestamp>,
    /// How far their sender has got, if it is TCP.
    pub progress: Progress,
    /// Of the connection only the SYN is known. Then the cache forwards its answer, and a segment of the client that fits
    /// it and so completes the handshake; or any that follows the SYN, where the server's do not pass.
    pub opening: Option<View>,
    /// TCP: another process had the flow, and may have forwarded more since it told of this progress. Then the cache takes up the
    /// numbers of the flow's packets: those of a server's, and of a client's that agree with them. In DSR, which sees no server's,
    /// those of two packets in a row that agree.
    pub is_restored: bool,
}

/// The packets of one key that a cache has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedActivity {
    /// When the last one came.
    pub at: Timestamp,
    /// The lower 16 bits of the interface that they have to come in by.
    pub from: Option<u16>,
    /// How far their sender has got, if it is TCP; `None` while the numbers of a flow that another process had are not taken up.
    pub progress: Option<Progress>,
    /// Whether the handshake was not complete by then.
    pub is_opening: bool,
    /// Whether it has finished: a FIN was among them.
    pub is_finished: bool,
}

/// How far one side of a TCP connection has got. Segments that are not near change nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// What comes after the last byte that it has sent.
    pub sent: u32,
    /// What it expects next.
    pub acked: u32,
}

impl Progress {
    /// Whether a number has passed a multiple of 512 KiB since.
    #[inline]
    pub(crate) fn is_stride_behind(self, other: Progress) -> bool {
        ((self.sent ^ other.sent) | (self.acked ^ other.acked)) >> 19 != 0
    }

    /// Numbers of a worker that are ahead of these, by no more than [`WINDOW`]; these where they are not.
    pub(crate) fn or_ahead(self, known: Progress) -> Progress {
        let later =
            |number: u32, known: u32| if known.wrapping_sub(number) <= WINDOW { known } else { number };
        let acked = if known.acked == 0 { self.acked } else { later(self.acked, known.acked) };
        Progress { sent: later(self.sent, known.sent), acked }
    }

    /// As far as either says. Neither is 2 GiB behind the other.
    pub(crate) fn furthest(self, other: Progress) -> Progress {
        let later = |one: u32, other: u32| if one.wrapping_sub(other) as i32 > 0 { one } else { other };
        Progress { sent: later(self.sent, other.sent), acked: later(self.acked, other.acked) }
    }
}
