//! List of a worker's connections for operators, read in slices.

use std::net::SocketAddr;
use std::task::Waker;

use tokio::time::Instant;

use super::Registry;
use super::connection::OpenConnection;
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
        for place in from..next {
            if let Some(entry) = open.get(place) {
                listing.offer(&facts(place, worker, entry), || activity(entry, now));
            }
        }
        (next < end).then_some(next)
    }

    /// Ends the connection with this id, and returns it. Returns `None` if the connection does not
    /// exist any more.
    pub(crate) fn kill(&self, id: ListedFlowId) -> Option<ListedFlow> {
        let (killed, waker) = {
            let open = &mut self.connections().entries;
            let place = usize::try_from(id.place).ok()?;
            let entry = open.get_mut(place).filter(|entry| entry.serial == id.serial)?;
            entry.end.get_or_insert(RelayEnd::Killed);
            let killed = ListedFlow::new(&facts(place, id.worker, entry), FlowActivity::default());
            (killed, entry.waker.take())
        };
        waker.into_iter().for_each(Waker::wake);
        Some(killed)
    }
}

fn facts(place: usize, worker: u16, entry: &OpenConnection) -> FlowFacts<'_> {
    let (frontend, name) = &entry.frontend;
    let server = entry.server.as_ref();
    FlowFacts {
        id: ListedFlowId { kind: FlowKind::Connection, worker, place: place as u32, serial: entry.serial },
        mode: entry.mode,
        protocol: Protocol::Tcp,
        frontend: (*frontend, name),
        server: server.map(|server| {
            let (backend, name) = &server.names;
            FlowServer { id: server.id, backend, name, addr: server.addr }
        }),
        client: plain(entry.client),
        listen: entry.vip,
        snat: server.and_then(|server| server.seen_from),
        state: if server.is_some() { "established" } else { "connecting" },
        is_over: false,
        is_offloaded: false,
    }
}

/// Converts an IPv4-mapped IPv6 address to the IPv4 address; returns other addresses unchanged.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn activity(entry: &OpenConnection, now: Instant) -> FlowActivity {
    let [rx, tx] = entry.bytes;
    FlowActivity {
        age: Some(now.saturating_duration_since(entry.began)),
        idle: Some(now.saturating_duration_since(entry.moved)),
        bytes_rx: Some(rx),
        bytes_tx: Some(tx),
    }
}
