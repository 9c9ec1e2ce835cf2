//! Entries of the flow cache: how those of a flow are looked up, put in and removed.

use super::ahead::progress_of;
use super::begin::UNRESOLVED;
use super::tunnels::Tunnels;
use crate::{CachedActivity, CachedRoute, Direction, Flow, FlowCache};
use convey_model::{FlowKey, NextHops, Timestamp};
use convey_wire::Envelope;

/// Entries of a flow that have seen packets, by [`Direction`].
pub(super) type ActivityByDirection = [Option<CachedActivity>; 2];

/// What decides on the ways of flows.
#[derive(Clone, Copy)]
pub(super) struct Ways<'a> {
    pub(super) network: &'a NextHops,
    pub(super) tunnels: &'a Tunnels,
}

/// How packets of a flow that go one way come in, if they have to come in there, and the tunnel that they go through.
struct Way {
    from: Option<u32>,
    envelope: Option<Envelope>,
    /// When one came in there that a worker forwards.
    came: Option<Timestamp>,
}

impl Ways<'_> {
    fn of(self, flow: &Flow, direction: Direction) -> Way {
        match direction {
            Direction::ToServer => Way { from: None, envelope: self.tunnels.envelope(flow), came: None },
            Direction::ToClient => Way { from: self.server_side(flow), envelope: None, came: None },
        }
    }

    /// The interface that packets of a flow's server come in by: the one that packets to it go out by.
    /// `None` while no route leads to the server.
    fn server_side(self, flow: &Flow) -> Option<u32> {
        let hop = self.network.get(flow.next_hop(Direction::ToServer)).map(|hop| hop.interface);
        hop.or_else(|| Some(self.network.hop_from(flow.server().dst.ip(), flow.server().src.ip())?.interface))
    }
}

/// How far a flow's sides are where its entries are put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// As far as the entry says; where it has seen no packet, as the flow knows.
    OfCache,
    /// As another process has told of the flow. An entry that has taken up the numbers of packets stays: they are newer.
    Restored,
}

/// Has the cache forward a flow's packets with these numbers, those of its server from one interface
/// alone. Its tunnel is known. The server's packets go first: the client's make it answer.
pub(super) fn put_as(cache: &mut dyn FlowCache, flow: &Flow, ways: Ways<'_>, numbers: Numbers) {
    let seen = if flow.is_cached() { lookup(cache, flow) } else { ActivityByDirection::default() };
    put_seen(cache, flow, ways, numbers, seen);
}

/// Like [`put_as`], after a lookup of the entries that are replaced.
pub(super) fn put_seen(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    ways: Ways<'_>,
    numbers: Numbers,
    seen: ActivityByDirection,
) {
    debug_assert!(ways.tunnels.know(flow), "{flow:?} would go without its tunnel");
    for (direction, key) in keys(flow).rev() {
        let way = ways.of(flow, direction);
        put_one(cache, flow, (direction, &key), way, (numbers, seen[direction as usize]));
    }
}

/// Has the cache take packets of a flow's server from this interface alone, where a worker has met one at `now`. `seen` is
/// the entry of these packets.
pub(super) fn accept_server_from(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    interface: u32,
    seen: Option<CachedActivity>,
    now: Timestamp,
) {
    let way = Way { from: Some(interface), envelope: None, came: Some(now) };
    put_one(cache, flow, (Direction::ToClient, &flow.server()), way, (Numbers::OfCache, seen));
}

/// Like [`put_seen`], for the packets that go one way.
fn put_one(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    (direction, key): (Direction, &FlowKey),
    Way { from, envelope, came }: Way,
    (numbers, seen): (Numbers, Option<CachedActivity>),
) {
    let mut rewrite = flow.rewrite(direction);
    if direction == Direction::ToClient && from.is_none() {
        // No route leads to the server: a worker judges packets in its name by their interfaces.
        rewrite.next_hop = UNRESOLVED;
    }
    // The cache has seen less of a handshake than this worker.
    let seen = seen.filter(|seen| !seen.is_opening);
    let known = flow.progress(direction);
    let progress = match (numbers, seen.and_then(|seen| seen.progress)) {
        (Numbers::Restored, Some(_)) => return,
        (Numbers::OfCache, Some(seen)) => seen,
        (_, None) => known,
    };
    let is_unknown = match numbers {
        Numbers::Restored => true,
        _ if flow.state().is_udp() || !flow.is_cached() => false,
        _ => seen.map_or_else(|| cache.is_restored(key), |seen| seen.progress.is_none()),
    };
    let is_restored = is_unknown && !flow.state().is_udp();
    let view = flow.view();
    let opening = (flow.state().is_handshake() && seen.is_none()).then_some(view);
    let (owners, is_new, last) = (super::owners(flow), !flow.is_cached(), came.or(seen.map(|seen| seen.at)));
    let route = CachedRoute {
        rewrite,
        envelope,
        direction,
        view,
        from,
        owners,
        is_new,
        last,
        progress,
        opening,
        is_restored,
    };
    cache.put(key, &route);
}

/// Takes the numbers of a flow from the cache; `is_ahead` where a worker may know later ones.
pub(super) fn catch_up(cache: &mut dyn FlowCache, flow: &mut Flow, is_ahead: bool) {
    let [client, server] = progress_of(flow, is_ahead, lookup(cache, flow));
    flow.catch_up(client, server);
}

/// Looks up the entries of a flow.
pub(super) fn lookup(cache: &mut dyn FlowCache, flow: &Flow) -> ActivityByDirection {
    let mut seen = ActivityByDirection::default();
    keys(flow).for_each(|(direction, key)| seen[direction as usize] = cache.seen(&key));
    seen
}

/// Has the cache forward packets of a flow no longer.
pub(super) fn remove(cache: &mut dyn FlowCache, flow: &Flow) {
    keys(flow).for_each(|(_, key)| cache.remove(&key, super::owners(flow)));
}

/// The keys of a flow's packets that pass us.
pub(super) fn keys(flow: &Flow) -> impl DoubleEndedIterator<Item = (Direction, FlowKey)> + Clone + use<> {
    let (client, server) = (flow.client(), flow.server());
    flow.view().directions().iter().map(move |&direction| match direction {
        Direction::ToServer => (direction, client),
        Direction::ToClient => (direction, server),
    })
}
