//! Where a worker counts its flows, found by the numbers that flows carry.

use std::sync::Arc;

use crate::forward::{End, Ended, Parties};
use crate::snapshot::{FrontendLive, PoolLive, ServerLive, Snapshot};
use crate::stats::{Counter, Traffic};

/// What counts the flows of each server and frontend. What a reload took away stays: its flows go on.
pub(super) struct Ledger {
    core: usize,
    generation: Option<u64>,
    totals: Option<Arc<Traffic>>,
    servers: Vec<Option<(Arc<ServerLive>, Arc<PoolLive>)>>,
    frontends: Vec<Option<Arc<FrontendLive>>>,
}

impl Ledger {
    /// An empty one, for the counters of this core.
    pub(super) fn new(core: usize) -> Ledger {
        Ledger { core, generation: None, totals: None, servers: Vec::new(), frontends: Vec::new() }
    }

    /// Takes in what is new in a snapshot.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        if self.generation == Some(snapshot.generation) {
            return;
        }
        self.generation = Some(snapshot.generation);
        self.totals = Some(snapshot.totals.clone());
        for pool in &snapshot.pools {
            for server in &pool.servers {
                put(&mut self.servers, server.live.id, (server.live.clone(), pool.live.clone()));
            }
        }
        for frontend in &snapshot.frontends {
            put(&mut self.frontends, frontend.live.id, frontend.live.clone());
        }
    }

    /// Adds to a counter of everybody a flow belongs to.
    pub(super) fn count(&self, flow: Parties, counter: Counter, n: u64) {
        if let Some(totals) = &self.totals {
            totals.add(self.core, counter, n);
        }
        if let Some(Some(frontend)) = self.frontends.get(flow.frontend as usize) {
            frontend.traffic.add(self.core, counter, n);
        }
        if let Some(Some((server, pool))) = self.servers.get(flow.server as usize) {
            server.traffic.add(self.core, counter, n);
            pool.traffic.add(self.core, counter, n);
        }
    }

    /// A flow is over: counts it, and frees its slots.
    pub(super) fn ended(&self, Ended { flow, how }: Ended) {
        self.count(flow, Counter::Closed, 1);
        match how {
            End::Own => {}
            End::ServerGone => self.count(flow, Counter::ServerGone, 1),
            End::Cut => self.count(flow, Counter::Cut, 1),
        }
        if let Some(Some(frontend)) = self.frontends.get(flow.frontend as usize) {
            frontend.slots.release();
        }
        if let Some(Some((server, _))) = self.servers.get(flow.server as usize) {
            server.slots.release();
        }
    }
}

fn put<T>(list: &mut Vec<Option<T>>, id: u32, value: T) {
    let id = id as usize;
    if list.len() <= id {
        list.resize_with(id + 1, || None);
    }
    list[id] = Some(value);
}
