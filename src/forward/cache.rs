//! What may forward the packets of a flow in the forwarder's place: the kernel's flow cache.

use std::fmt;

use super::{Direction, Parties};
use crate::model::{FlowKey, Rewrite, Timestamp};

/// Forwards packets by their key, without asking. Everything that decides stays with the forwarder: it says which
/// packets, and they are those that change nothing of their flow. What the cache cannot do, or has no room for, comes
/// to the forwarder as before; so nothing here can fail.
pub trait FlowCache: fmt::Debug + Send {
    /// Packets with this key are to be forwarded so, from the next [`FlowCache::flush`] on at the latest.
    fn put(&mut self, key: &FlowKey, route: &CachedRoute);

    /// Packets with this key are no longer to be forwarded, from the next [`FlowCache::flush`] on at the latest.
    fn remove(&mut self, key: &FlowKey);

    /// What was seen of packets with this key since they were put in; `None` if there were none.
    fn seen(&mut self, key: &FlowKey) -> Option<Seen>;

    /// Carries out what is still to be done.
    fn flush(&mut self);
}

/// How a cache is to forward packets that have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedRoute {
    /// What they become, and where they go.
    pub rewrite: Rewrite,
    /// Which way that is.
    pub direction: Direction,
    /// Who they are counted for.
    pub flow: Parties,
    /// What the cache has seen of them before, if they only go another way from now on.
    pub seen: Option<Seen>,
}

/// What a cache has seen of packets that have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// When the last one came.
    pub at: Timestamp,
    /// The last acknowledgement number of TCP; `None` if none came.
    pub ack: Option<u32>,
}
