//! Entries of the flow cache: lookup, addition and removal for a flow.

use super::routes::{EntryRoute, FlowRoutes};
use crate::forwarder::begin::UNRESOLVED;
use crate::forwarder::owners;
use crate::{CachedActivity, CachedRoute, Direction, Flow, FlowCache};
use convey_model::{FlowKey, Timestamp};

/// Activity of a flow's entries, by [`Direction`]; `None` for an entry that has seen no packet.
pub(super) type ActivityByDirection = [Option<CachedActivity>; 2];

/// Source of the numbers in a flow's new entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// The old entry, or the flow's record if that entry has seen no packet.
    OfCache,
    /// The process that had the flow before. An entry that has taken over the numbers of packets
    /// stays: its numbers are newer.
    Restored,
}

/// Makes the cache forward a flow's packets with these numbers, and accept packets of its server
/// only from one interface. The tunnel must be known. The server's entry is written first, because
/// the client's packets cause answers.
pub(super) fn put_as(cache: &mut dyn FlowCache, flow: &Flow, routes: &FlowRoutes, numbers: Numbers) {
    let seen = if flow.is_cached() { lookup(cache, flow) } else { ActivityByDirection::default() };
    put_seen(cache, flow, routes, numbers, seen);
}

/// Like [`put_as`], after a lookup of the old entries.
pub(super) fn put_seen(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    routes: &FlowRoutes,
    numbers: Numbers,
    seen: ActivityByDirection,
) {
    debug_assert!(routes.has_tunnel(flow), "{flow:?} would go without its tunnel");
    for (direction, key) in keys(flow).rev() {
        let entry_route = routes.entry_route(flow, direction);
        put_one(cache, flow, (direction, &key), entry_route, (numbers, seen[direction as usize]));
    }
}

/// Makes the cache accept packets of a flow's server only from this interface, after a worker has
/// received one there at `now`. `seen` is the activity of the entry for these packets.
pub(super) fn accept_server_from(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    interface: u32,
    seen: Option<CachedActivity>,
    now: Timestamp,
) {
    let entry_route = EntryRoute { from: Some(interface), envelope: None, arrived_at: Some(now) };
    put_one(cache, flow, (Direction::ToClient, &flow.server()), entry_route, (Numbers::OfCache, seen));
}

/// Like [`put_seen`], for packets in one direction.
fn put_one(
    cache: &mut dyn FlowCache,
    flow: &Flow,
    (direction, key): (Direction, &FlowKey),
    EntryRoute { from, envelope, arrived_at }: EntryRoute,
    (numbers, seen): (Numbers, Option<CachedActivity>),
) {
    let mut rewrite = flow.rewrite(direction);
    if direction == Direction::ToClient && from.is_none() {
        // No route leads to the server, so a worker checks the interface of packets in its name.
        rewrite.next_hop = UNRESOLVED;
    }
    // An entry that is still opening has seen less of the handshake than this worker.
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
    let (owners, is_new, last) = (owners(flow), !flow.is_cached(), arrived_at.or(seen.map(|seen| seen.at)));
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

/// Stops the cache from forwarding packets of a flow.
pub(super) fn remove(cache: &mut dyn FlowCache, flow: &Flow) {
    keys(flow).for_each(|(_, key)| cache.remove(&key, owners(flow)));
}

/// Keys of the flow's packets that pass convey.
pub(super) fn keys(flow: &Flow) -> impl DoubleEndedIterator<Item = (Direction, FlowKey)> + Clone + use<> {
    let (client, server) = (flow.client(), flow.server());
    flow.view().directions().iter().map(move |&direction| match direction {
        Direction::ToServer => (direction, client),
        Direction::ToClient => (direction, server),
    })
}
