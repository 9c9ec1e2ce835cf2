//! Interface to the kernel's flow cache, which forwards packets of open flows without the
//! forwarder.

use std::fmt;

use super::tcp_sequence::WINDOW;
use super::{Direction, FlowOwners, View};
use convey_model::{FlowKey, Rewrite, Timestamp};
use convey_wire::Envelope;

/// Flow cache: forwards packets by their key, without the forwarder. The forwarder decides which
/// flows have entries. Most packets that the cache forwards do not change the state of their flow.
/// The cache also forwards SYN-ACKs, segments that complete a handshake, and FINs, and reports
/// these segments to the forwarder. Packets without a usable entry still reach the forwarder, so no
/// method returns an error.
pub trait FlowCache: fmt::Debug + Send {
    /// Adds or replaces the entry for packets with this key; takes effect at the next
    /// [`FlowCache::flush`] at the latest. Pending removals are carried out first, so
    /// [`FlowCache::seen`] returns no activity of an earlier flow with this key. An entry without a
    /// resolved next hop keeps its sequence numbers, and leaves packets to the forwarder.
    fn put(&mut self, key: &FlowKey, route: &CachedRoute);

    /// Removes the entry for packets with this key; takes effect at the next [`FlowCache::flush`]
    /// at the latest. Call it once for each key that was added as new, with the same owners.
    fn remove(&mut self, key: &FlowKey, owners: FlowOwners);

    /// Activity of the entry with this key since the entry was written; `None` if the entry has
    /// seen no packet.
    fn seen(&mut self, key: &FlowKey) -> Option<CachedActivity>;

    /// Writes the progress of a sender into the entry with this key, if there is one, and leaves
    /// the rest of the entry as it is. Call it after [`FlowCache::flush`]; only calls for other
    /// keys may come in between.
    fn advance(&mut self, key: &FlowKey, progress: Progress);

    /// Whether [`CachedRoute::is_restored`] is still set in the entry with this key.
    fn is_restored(&mut self, key: &FlowKey) -> bool;

    /// Carries out pending changes.
    fn flush(&mut self);
}

/// How the cache forwards packets with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedRoute {
    /// Changes to the packet headers, and the next hop.
    pub rewrite: Rewrite,
    /// Tunnel of the packets; `None`: the packets are not encapsulated. The cache leaves some
    /// packets to the forwarder: those that [`Envelope::follows_from_headers`] excludes, and
    /// super-frames if the tunnel needs a checksum.
    pub envelope: Option<Envelope>,
    /// Direction of the packets.
    pub direction: Direction,
    /// Whether convey sees the packets of both sides or of the client alone.
    pub view: View,
    /// Interface on which packets of a server have to arrive, since any host can send in the
    /// server's name. `None` for packets of clients, and where the cache leaves a server's packets
    /// to the forwarder.
    pub from: Option<u32>,
    /// Frontend and server whose counters include these packets.
    pub owners: FlowOwners,
    /// Whether the key has no entry yet; otherwise this route replaces the entry.
    pub is_new: bool,
    /// Time of the last packet with this key; `None`: no packet is known. If the route replaces an
    /// entry, this is the last packet that the old entry has forwarded, or the packet from another
    /// interface that a worker has just forwarded.
    pub last: Option<Timestamp>,
    /// TCP: progress of the sender.
    pub progress: Progress,
    /// `Some` while only the SYN of the connection is known; the value is the connection's view.
    /// The cache then forwards the SYN-ACK, and the client's segment that fits the SYN-ACK and
    /// completes the handshake. Where the server's packets do not pass, the cache forwards any
    /// segment that follows the SYN.
    pub opening: Option<View>,
    /// TCP: whether another process had the flow. That process may have forwarded more packets
    /// since it reported this progress. The cache takes over the numbers of the server's next
    /// packet, and of a client's packet that agrees with the server's numbers. In DSR, where the
    /// server's packets do not pass, the cache takes over the numbers of two successive packets
    /// that agree.
    pub is_restored: bool,
}

/// Activity of one cache entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedActivity {
    /// Time of the last packet.
    pub at: Timestamp,
    /// Lower 16 bits of the index of the interface on which the packets of a server have to arrive;
    /// `None` for packets of clients.
    pub from: Option<u16>,
    /// TCP: progress of the sender. `None` if another process had the flow before, and the cache
    /// has not taken over the numbers of its packets yet.
    pub progress: Option<Progress>,
    /// Whether the handshake was not complete at the time of the last packet.
    pub is_opening: bool,
    /// Whether the sender has finished: the cache has forwarded its FIN.
    pub is_finished: bool,
}

/// Progress of one side of a TCP connection. Segments with numbers that are far off do not change
/// the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Sequence number after the last byte that the side has sent.
    pub sent: u32,
    /// Next sequence number that the side expects.
    pub acked: u32,
}

impl Progress {
    /// Whether a number of `other` has crossed a multiple of 512 KiB since this progress.
    #[inline]
    pub(crate) fn is_stride_behind(self, other: Progress) -> bool {
        ((self.sent ^ other.sent) | (self.acked ^ other.acked)) >> 19 != 0
    }

    /// Merges the progress in the cache with the progress `known` to a worker. Each number of the
    /// worker is used if it is ahead by at most [`WINDOW`].
    pub(crate) fn or_ahead(self, known: Progress) -> Progress {
        let later =
            |number: u32, known: u32| if known.wrapping_sub(number) <= WINDOW { known } else { number };
        let acked = if known.acked == 0 { self.acked } else { later(self.acked, known.acked) };
        Progress { sent: later(self.sent, known.sent), acked }
    }

    /// Progress with the later value of each number. The numbers must be less than 2 GiB apart.
    pub(crate) fn furthest(self, other: Progress) -> Progress {
        let later = |one: u32, other: u32| if one.wrapping_sub(other) as i32 > 0 { one } else { other };
        Progress { sent: later(self.sent, other.sent), acked: later(self.acked, other.acked) }
    }
}
