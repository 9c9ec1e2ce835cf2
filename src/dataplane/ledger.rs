//! Where a worker counts its flows, found by the numbers that flows carry.

use std::collections::HashSet;
use std::sync::Arc;

use crate::forward::{End, Ended, Parties};
use crate::model::{ConnectFailures, Protocol, ServerKey};
use crate::snapshot::{FrontendLive, Pool, PoolLive, ServerLive, Snapshot};
use crate::stats::{Counter, Traffic};

/// What counts the flows of each server and frontend. What a reload took away stays while flows of it go on.
pub(super) struct Ledger {
    core: usize,
    generation: Option<u64>,
    totals: Option<Arc<Traffic>>,
    servers: Vec<Option<(Arc<ServerLive>, Arc<PoolLive>)>>,
    frontends: Vec<Option<(Arc<FrontendLive>, Protocol)>>,
}

impl Ledger {
    /// An empty one, for the counters of this core.
    pub(super) fn new(core: usize) -> Ledger {
        Ledger { core, generation: None, totals: None, servers: Vec::new(), frontends: Vec::new() }
    }

    /// Takes in what is new in a snapshot, and forgets what it does not know and nobody has a flow of.
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
            put(&mut self.frontends, frontend.live.id, (frontend.live.clone(), frontend.config.protocol));
        }
        let frontends: HashSet<u32> = snapshot.frontends.iter().map(|frontend| frontend.live.id).collect();
        forget(&mut self.frontends, |(frontend, _)| {
            !frontends.contains(&frontend.id) && frontend.slots.open() == 0
        });
        forget(&mut self.servers, |(server, _)| {
            !snapshot.servers.contains_key(&server.id) && server.slots.open() == 0
        });
    }

    /// Adds to a counter of everybody a flow belongs to.
    pub(super) fn count(&self, flow: Parties, counter: Counter, n: u64) {
        if let Some(totals) = &self.totals {
            totals.add(self.core, counter, n);
        }
        if let Some(Some((frontend, _))) = self.frontends.get(flow.frontend as usize) {
            frontend.traffic.add(self.core, counter, n);
        }
        if let Some(Some((server, pool))) = self.servers.get(flow.server as usize) {
            server.traffic.add(self.core, counter, n);
            pool.traffic.add(self.core, counter, n);
        }
    }

    /// The same of what the flow cache has forwarded.
    pub(super) fn count_cached(&self, flow: Parties, counter: Counter, n: u64) {
        self.count(flow, counter, n);
        let frontend = self.frontends.get(flow.frontend as usize);
        if let (Counter::PacketsTx, Some(Some((_, Protocol::Udp)))) = (counter, frontend) {
            self.answered(flow);
        }
    }

    /// A server has sent a datagram, or answered a SYN: the row of refusals is over.
    pub(super) fn answered(&self, flow: Parties) {
        if let Some(Some((server, _))) = self.servers.get(flow.server as usize) {
            server.connect_succeeded();
        }
    }

    /// A server has refused a client's SYN, or datagram, which is UDP's failed connect. Returns what health is to know of
    /// it. The forwarder has seen to it that nobody else has said so: a reset has the numbers of its SYN, and an ICMP error
    /// came from where the server is.
    pub(super) fn refused(&self, flow: Parties, snapshot: &Snapshot) -> Option<ConnectFailures> {
        let Some(Some((server, pool))) = self.servers.get(flow.server as usize) else { return None };
        for traffic in [&server.traffic, &pool.traffic] {
            traffic.add(self.core, Counter::ConnectFailures, 1);
        }
        let in_a_row = server.connect_failed(server.row())?;
        let config = &snapshot.servers.get(&flow.server)?.config;
        let is_its = |pool: &&Arc<Pool>| pool.servers.iter().any(|server| server.live.id == flow.server);
        let backend = &snapshot.pools.iter().find(is_its)?.config;
        let frontend = self.frontends.get(flow.frontend as usize);
        let is_udp = matches!(frontend, Some(Some((_, Protocol::Udp))));
        if backend.failure_limit().is_none_or(|limit| in_a_row < limit) {
            return None;
        }
        let (backend, name) = (backend.name.clone(), config.name.clone());
        let server = ServerKey { backend, server: name, addr: config.addr };
        let what = if is_udp { "clients' datagrams are refused" } else { "clients are refused" };
        Some(ConnectFailures { server, in_a_row, error: what.to_owned(), is_forgeable: false })
    }

    /// A flow is over: counts it, and frees its slots.
    pub(super) fn ended(&self, Ended { flow, how }: Ended) {
        self.count(flow, Counter::Closed, 1);
        match how {
            End::Own | End::Left => {}
            End::Silent => self.count(flow, Counter::IdleTimeout, 1),
            End::ServerGone => self.count(flow, Counter::ServerGone, 1),
            End::Cut => self.count(flow, Counter::Cut, 1),
        }
        if let Some(Some((frontend, _))) = self.frontends.get(flow.frontend as usize) {
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

fn forget<T>(list: &mut Vec<Option<T>>, is_over: impl Fn(&T) -> bool) {
    for entry in &mut *list {
        entry.take_if(|value| is_over(value));
    }
    let rest = list.iter().rev().take_while(|entry| entry.is_none()).count();
    list.truncate(list.len() - rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::fixture;

    #[test]
    fn what_a_reload_took_away_is_counted_until_its_last_flow_ends_and_then_forgotten() {
        let pool = fixture::pool("web", vec![(fixture::server("s", "10.0.0.1:80"), fixture::up())]);
        let frontend = fixture::frontend("www", &["192.0.2.1:80"], &pool);
        let server = pool.servers[0].live.clone();
        let before =
            Snapshot { generation: 1, ..fixture::snapshot(vec![frontend.clone()], vec![pool.clone()]) };
        let without = |generation| Snapshot { generation, ..fixture::snapshot(vec![], vec![]) };
        let (flow, mut ledger) = (Parties { server: server.id, frontend: frontend.live.id }, Ledger::new(0));
        ledger.follow(&before);
        assert!(frontend.live.slots.try_take(None) && server.slots.try_take(None));
        ledger.follow(&without(2));
        ledger.count(flow, Counter::PacketsRx, 1);
        ledger.ended(Ended { flow, how: End::Own });
        let counted = [Counter::PacketsRx, Counter::Closed]
            .map(|c| (frontend.live.traffic.sum(c), server.traffic.sum(c)));
        assert_eq!(counted, [(1, 1); 2]);
        assert_eq!((frontend.live.slots.open(), server.slots.open()), (0, 0));

        ledger.follow(&without(3));
        drop((before, pool));
        assert_eq!((Arc::strong_count(&frontend), Arc::strong_count(&frontend.live)), (1, 1));
        assert!(ledger.servers.is_empty() && ledger.frontends.is_empty());
        ledger.count(flow, Counter::PacketsRx, 1);
    }
}
