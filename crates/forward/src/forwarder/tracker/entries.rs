//! Entries of the flow cache: how those of a flow are looked up, put in and removed.

use super::routes::{FlowRoutes, Way};
use crate::forwarder::begin::UNRESOLVED;
use crate::forwarder::owners;
use crate::{CachedActivity, CachedRoute, Direction, Flow, FlowCache};
use convey_model::{FlowKey, Timestamp};

/// Entries of a flow that have seen packets, by [`Direction`].
pub(super) type ActivityByDirection = [Option<CachedActivity>; 2];

/// Where the numbers of a flow's new entries come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// From the old entry; from the flow's record where that has seen no packet.
    OfCache,
    /// From the process that had the flow before. An entry that has taken up the numbers of packets
    /// stays: they are newer.
    Restored,
}

/// Has the cache forward a flow's packets with these numbers, those of its server from one
/// interface alone. Its tunnel is known. The server's packets go first: the client's make it
/// answer.
pub(super) fn put_as(cache: &mut dyn FlowCache, flow: &Flow, routes: &FlowRoutes, numbers: Numbers) {
    let seen = if flow.is_cached() { lookup(cache, flow) } else { ActivityByDirection::default() };
    put_seen(cache, flow, routes, numbers, seen);
}

/// Like [`put_as`], after a lookup of the entries that are replaced.
pub(super) fn put_seen(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    routes: &FlowRoutes,
    numbers: Numbers,
    seen: ActivityByDirection,
) {
    debug_assert!(routes.has_tunnel(flow), "{flow:?} would go without its tunnel");
    for (direction, key) in keys(flow).rev() {
        let way = routes.way(flow, direction);
        put_one(cache, flow, (direction, &key), way, (numbers, seen[direction as usize]));
    }
}

/// Has the cache take packets of a flow's server from this interface alone, where a worker has met
/// one at `now`. `seen` is the entry of these packets.
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
    let (owners, is_new, last) = (owners(flow), !flow.is_cached(), came.or(seen.map(|seen| seen.at)));
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

/// Looks up the entries of a flow.
pub(super) fn lookup(cache: &mut dyn FlowCache, flow: &Flow) -> ActivityByDirection {
    let mut seen = ActivityByDirection::default();
    keys(flow).for_each(|(direction, key)| seen[direction as usize] = cache.seen(&key));
    seen
}

/// Has the cache forward packets of a flow no longer.
pub(super) fn remove(cache: &mut dyn FlowCache, flow: &Flow) {
    keys(flow).for_each(|(_, key)| cache.remove(&key, owners(flow)));
}

/// The keys of a flow's packets that pass us.
pub(super) fn keys(flow: &Flow) -> impl DoubleEndedIterator<Item = (Direction, FlowKey)> + Clone + use<> {
    let (client, server) = (flow.client(), flow.server());
    flow.view().directions().iter().map(move |&direction| match direction {
        Direction::ToServer => (direction, client),
        Direction::ToClient => (direction, server),
    })
}
