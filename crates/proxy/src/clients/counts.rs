//! Connection counts by client and scope. Each of the first sixteen workers counts the connections
//! of its clients in a table of its own, so a new connection takes no lock that another worker uses;
//! further workers share these tables. The number of a client's connections is the sum over all
//! tables, which convey needs only if few are left. Connections at frontends with a limit are counted
//! in shards by client.

use std::array;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use convey_model::{ClientNetwork, Prefix, Protocol, fits, networks_of};
use foldhash::HashMap;
use foldhash::quality::RandomState;

/// Connection counts of all clients. A client has an entry while it has an open connection.
///
/// Clients choose their addresses, but not which entries collide: the hash has a random key, and
/// only open connections have entries.
#[derive(Debug, Default)]
pub(super) struct ClientCounts {
    /// Counts in the process and of local ports, by worker. Workers beyond these tables share them.
    workers: [Shard; WORKER_TABLES],
    /// Number of tables in use, which are the first ones.
    used: AtomicUsize,
    /// Counts at frontends with a limit, by client, so that workers rarely contend for a lock.
    frontends: [Shard; 16],
    hasher: RandomState,
}

const WORKER_TABLES: usize = 16;

// The alignment keeps different locks in different cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<CountTable>);

type CountTable = HashMap<CountKey, ClientUsage>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CountKey {
    of: ShareScope,
    client: Prefix,
}

/// Scope of a connection count. The numbers are the ids of frontends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ShareScope {
    Process(Protocol),
    /// Local ports towards the servers of a frontend.
    LocalPorts(u32),
    Frontend(u32),
}

/// Scopes that count a connection in the table of its worker.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct WorkerScopes {
    /// Protocol, if the connection counts in the process.
    pub(super) process: Option<Protocol>,
    /// Id of the frontend towards whose servers the connection needs a local port.
    pub(super) local_port: Option<u32>,
}

/// Connection counts of one client in one scope.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ClientUsage {
    /// Number of connections and UDP sessions.
    pub(super) all: u32,
    /// Number of UDP sessions among `all` that are questions. A session is a question until its
    /// client sends again after an answer; any new session may evict a question.
    pub(super) questions: u32,
}

impl ClientCounts {
    /// Begins to use the table of this worker.
    pub(super) fn register(&self, worker: usize) {
        self.used.fetch_max((worker + 1).min(WORKER_TABLES), Ordering::Relaxed);
    }

    /// Counts a connection of this client in the table of its worker, without a check.
    pub(super) fn add(&self, worker: usize, client: Prefix, scopes: WorkerScopes, is_question: bool) {
        add_to(&mut self.table_of_worker(worker), client, scopes, is_question);
    }

    /// Counts a connection of this client in the table of its worker, if the client and the networks
    /// around it have room in all scopes. Returns whether it is counted. `has_room` returns whether
    /// a client with this usage of a scope may have another connection.
    ///
    /// All tables stay locked meanwhile, so the check is exact: no other worker counts a connection
    /// between the check and the count.
    pub(super) fn add_checked(
        &self,
        worker: usize,
        client: Prefix,
        (scopes, is_question): (WorkerScopes, bool),
        has_room: impl Fn(ShareScope, ClientUsage) -> bool,
    ) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        let mut tables: [_; WORKER_TABLES] =
            array::from_fn(|worker| (worker < used).then(|| self.workers[worker].lock()));
        let has_room_in = |scope| {
            networks_of(client).all(|ClientNetwork { network, shares }| {
                let usage = sum(tables.iter().flatten().map(|table| usage_in(table, scope, network)));
                has_room(scope, usage.of_share(shares))
            })
        };
        let has_room = scopes.iter().all(has_room_in);
        if let Some(table) = tables[worker % WORKER_TABLES].as_mut().filter(|_| has_room) {
            add_to(table, client, scopes, is_question);
        }
        has_room
    }

    /// Removes a connection of this client from the table of its worker.
    pub(super) fn remove(&self, worker: usize, client: Prefix, scopes: WorkerScopes, is_question: bool) {
        let mut table = self.table_of_worker(worker);
        for ClientNetwork { network, .. } in networks_of(client) {
            scopes.iter().for_each(|of| remove_from(&mut table, of, network, is_question));
        }
    }

    /// Turns a question of this client into a stream, in the table of its worker.
    pub(super) fn become_stream(&self, worker: usize, client: Prefix, scopes: WorkerScopes) {
        let mut table = self.table_of_worker(worker);
        for ClientNetwork { network, .. } in networks_of(client) {
            scopes.iter().for_each(|of| become_stream_in(&mut table, of, network));
        }
    }

    /// Counts a connection of this client at a frontend with a limit, if the client has room there,
    /// and with `limits_networks` also the networks around it. Returns whether it is counted.
    pub(super) fn add_at(
        &self,
        frontend: u32,
        client: Prefix,
        (is_question, limits_networks): (bool, bool),
        has_room: impl Fn(ClientUsage) -> bool,
    ) -> bool {
        let of = ShareScope::Frontend(frontend);
        // No lock covers this check and the count below: concurrent connections of one network may
        // exceed its share slightly.
        if limits_networks && !self.usages_around(of, client).all(&has_room) {
            return false;
        }
        let mut table = self.table_of_client(client);
        if !has_room(usage_in(&table, of, client)) {
            return false;
        }
        table.entry(CountKey { of, client }).or_default().add(is_question);
        drop(table);
        for ClientNetwork { network, .. } in networks_of(client).skip(1) {
            let key = CountKey { of, client: network };
            self.table_of_client(network).entry(key).or_default().add(is_question);
        }
        true
    }

    /// Removes a connection of this client from a frontend with a limit.
    pub(super) fn remove_at(&self, frontend: u32, client: Prefix, is_question: bool) {
        for ClientNetwork { network, .. } in networks_of(client) {
            let of = ShareScope::Frontend(frontend);
            remove_from(&mut self.table_of_client(network), of, network, is_question);
        }
    }

    /// Turns a question of this client into a stream, at a frontend with a limit.
    pub(super) fn become_stream_at(&self, frontend: u32, client: Prefix) {
        for ClientNetwork { network, .. } in networks_of(client) {
            become_stream_in(&mut self.table_of_client(network), ShareScope::Frontend(frontend), network);
        }
    }

    /// Usage of a client or network.
    pub(super) fn usage(&self, scope: ShareScope, client: Prefix) -> ClientUsage {
        match scope {
            ShareScope::Frontend(_) => usage_in(&self.table_of_client(client), scope, client),
            _ => {
                let tables = &self.workers[..self.used.load(Ordering::Relaxed)];
                sum(tables.iter().map(|table| usage_in(&table.lock(), scope, client)))
            }
        }
    }

    /// Usage of each network that contains the client. A network's number of connections is divided
    /// by the number of shares that the network has.
    pub(super) fn usages_around(
        &self,
        scope: ShareScope,
        client: Prefix,
    ) -> impl Iterator<Item = ClientUsage> {
        let around = networks_of(client).skip(1);
        around.map(move |ClientNetwork { network, shares }| self.usage(scope, network).of_share(shares))
    }

    /// Whether no client has an open connection.
    #[cfg(test)]
    pub(super) fn are_empty(&self) -> bool {
        self.workers.iter().chain(&self.frontends).all(|table| table.lock().is_empty())
    }

    fn table_of_worker(&self, worker: usize) -> MutexGuard<'_, CountTable> {
        self.workers[worker % WORKER_TABLES].lock()
    }

    fn table_of_client(&self, client: Prefix) -> MutexGuard<'_, CountTable> {
        self.frontends[self.hasher.hash_one(client) as usize % self.frontends.len()].lock()
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, CountTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add_to(table: &mut CountTable, client: Prefix, scopes: WorkerScopes, is_question: bool) {
    for ClientNetwork { network, .. } in networks_of(client) {
        for of in scopes.iter() {
            table.entry(CountKey { of, client: network }).or_default().add(is_question);
        }
    }
}

fn remove_from(table: &mut CountTable, of: ShareScope, client: Prefix, is_question: bool) {
    let key = CountKey { of, client };
    match table.get_mut(&key) {
        Some(held) if held.all > 1 => {
            held.all -= 1;
            held.questions -= u32::from(is_question);
        }
        _ => drop(table.remove(&key)),
    }
}

fn become_stream_in(table: &mut CountTable, of: ShareScope, client: Prefix) {
    if let Some(held) = table.get_mut(&CountKey { of, client }) {
        held.questions -= 1;
    }
}

fn usage_in(table: &CountTable, of: ShareScope, client: Prefix) -> ClientUsage {
    table.get(&CountKey { of, client }).copied().unwrap_or_default()
}

fn sum(usages: impl Iterator<Item = ClientUsage>) -> ClientUsage {
    usages.fold(ClientUsage::default(), |sum, usage| ClientUsage {
        all: sum.all + usage.all,
        questions: sum.questions + usage.questions,
    })
}

impl WorkerScopes {
    /// Whether the connection counts in no scope.
    pub(super) fn are_none(self) -> bool {
        self.process.is_none() && self.local_port.is_none()
    }

    fn iter(self) -> impl Iterator<Item = ShareScope> {
        let process = self.process.map(ShareScope::Process);
        process.into_iter().chain(self.local_port.map(ShareScope::LocalPorts))
    }
}

impl ClientUsage {
    fn add(&mut self, is_question: bool) {
        self.all += 1;
        self.questions += u32::from(is_question);
    }

    /// Connections of a network, for each of the shares that the network has.
    fn of_share(self, shares: u32) -> ClientUsage {
        ClientUsage { all: self.all / shares, ..self }
    }

    /// Whether another connection of this client fits; `left` is the number of connections that are
    /// free for all clients. The questions of other clients count as free, because this client can
    /// evict them. The client's own questions are subtracted from `left`.
    pub(super) fn fits(self, left: u64) -> bool {
        fits(self.all, left.saturating_sub(self.questions.into()))
    }
}
