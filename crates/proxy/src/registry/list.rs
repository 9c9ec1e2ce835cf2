//! List of a worker's connections for operators, read in slices.

use std::net::SocketAddr;

use tokio::time::Instant;

use super::Registry;
use super::connection::{ConnectionFacts, OpenConnection};
use crate::relay::RelayEnd;
use convey_model::{
    FlowActivity, FlowFacts, FlowKind, FlowListing, FlowServer, ListedFlow, ListedFlowId, Protocol,
};

impl Registry {
    /// Adds one slice of the registry to a listing: `places` entries, beginning with index `from`.
    /// `worker` is the number of the worker. Returns the index of the next slice; `None` at the
    /// end.
    pub(crate) fn list(
        &self,
        (from, places): (usize, usize),
        worker: u16,
        now: Instant,
        listing: &mut FlowListing,
    ) -> Option<usize> {
        let open = &self.connections().entries;
        let end = open.capacity();
        let next = from.saturating_add(places).min(end);
        for entry in (from..next).filter_map(|place| open.get(place)) {
            listing.offer(&facts_of(entry, worker, &entry.facts()), || self.activity(entry, now));
        }
        (next < end).then_some(next)
    }

    /// Ends the connection with this id, and returns it. Returns `None` if the connection does not
    /// exist any more.
    pub(crate) fn kill(&self, id: ListedFlowId) -> Option<ListedFlow> {
        let place = usize::try_from(id.place).ok()?;
        let entry = self.connections().entries.get(place).filter(|entry| entry.serial == id.serial)?.clone();
        entry.end_by(RelayEnd::Killed);
        entry.wake();
        let facts = entry.facts();
        Some(ListedFlow::new(&facts_of(&entry, id.worker, &facts), FlowActivity::default()))
    }

    fn activity(&self, entry: &OpenConnection, now: Instant) -> FlowActivity {
        let [rx, tx] = entry.bytes();
        let moved = self.clock.instant(entry.moved());
        FlowActivity {
            age: Some(now.saturating_duration_since(entry.began)),
            idle: Some(now.saturating_duration_since(moved)),
            bytes_rx: Some(rx),
            bytes_tx: Some(tx),
        }
    }
}

fn facts_of<'a>(entry: &OpenConnection, worker: u16, facts: &'a ConnectionFacts) -> FlowFacts<'a> {
    let (frontend, client) = (&facts.frontend, entry.client(facts));
    let place = entry.place;
    let server = entry.server().find(facts);
    FlowFacts {
        id: ListedFlowId { kind: FlowKind::Connection, worker, place, serial: entry.serial },
        mode: frontend.config.mode,
        protocol: Protocol::Tcp,
        frontend: (frontend.live.id, &frontend.live.name),
        server: server.map(|(pool, server)| FlowServer {
            id: server.live.id,
            backend: &pool.live.name,
            name: &server.live.name,
            addr: server.config.addr_for(entry.vip.port()),
        }),
        client: plain(client),
        listen: entry.vip,
        snat: entry.server().seen_from().filter(|_| server.is_some()),
        state: if server.is_some() { "established" } else { "connecting" },
        is_over: false,
        is_offloaded: false,
    }
}

/// Converts an IPv4-mapped IPv6 address to the IPv4 address; returns other addresses unchanged.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
