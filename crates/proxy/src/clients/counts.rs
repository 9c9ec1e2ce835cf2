//! Connection counts by client and scope, in shards. All counts of one client are in one shard, so
//! a connection is checked and counted under one lock.

use std::hash::BuildHasher;
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
    /// Shards, so that workers rarely contend for a lock.
    shards: [Shard; 16],
    hasher: RandomState,
}

// The alignment keeps locks of different shards in different cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<ShareTable>);

type ShareTable = HashMap<ShareKey, ClientUsage>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ShareKey {
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

/// Scopes in which a connection counts. The numbers are the ids of frontends: after a reload, the
/// frontend may differ from the one whose servers need the local port.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct CountedScopes {
    pub(super) process: Option<Protocol>,
    pub(super) local_port: Option<u32>,
    pub(super) frontend: Option<u32>,
    /// Whether the connection is a UDP session that any new session may evict.
    pub(super) is_question: bool,
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
    /// Counts a connection of this client in the scopes. Returns the scopes in which it is counted:
    /// all, or all but the frontend if the client has no room there. Returns `None` if the client
    /// has no room in another scope.
    ///
    /// `has_room` returns whether a client with this usage of a scope may have another connection;
    /// `limits_networks` returns whether the scope also limits the networks around the client.
    pub(super) fn add(
        &self,
        client: Prefix,
        scopes: CountedScopes,
        has_room: impl Fn(ShareScope, ClientUsage) -> bool,
        limits_networks: impl Fn(ShareScope) -> bool,
    ) -> Option<CountedScopes> {
        // No lock covers this check and the counts of the networks: concurrent connections of one
        // network may exceed its share slightly.
        let scopes = scopes.narrowed(|scope| {
            !limits_networks(scope) || self.usages_around(scope, client).all(|usage| has_room(scope, usage))
        })?;
        if scopes.are_none() {
            return Some(scopes);
        }
        let mut table = self.table_of(client);
        let scopes = scopes.narrowed(|scope| has_room(scope, usage_in(&table, scope, client)))?;
        add_to(&mut table, client, scopes);
        drop(table);
        for ClientNetwork { network, .. } in networks_of(client).skip(1) {
            add_to(&mut self.table_of(network), network, scopes);
        }
        Some(scopes)
    }

    /// Removes a connection of this client from the scopes.
    pub(super) fn remove(&self, client: Prefix, scopes: CountedScopes) {
        for ClientNetwork { network, .. } in networks_of(client) {
            let mut table = self.table_of(network);
            for of in scopes.iter() {
                let key = ShareKey { of, client: network };
                match table.get_mut(&key) {
                    Some(held) if held.all > 1 => held.remove(scopes.is_question),
                    _ => drop(table.remove(&key)),
                }
            }
        }
    }

    /// Turns a question of this client into a stream.
    pub(super) fn become_stream(&self, client: Prefix, scopes: CountedScopes) {
        for ClientNetwork { network, .. } in networks_of(client) {
            let mut table = self.table_of(network);
            for of in scopes.iter() {
                if let Some(held) = table.get_mut(&ShareKey { of, client: network }) {
                    held.questions -= 1;
                }
            }
        }
    }

    /// Usage of a client or network.
    pub(super) fn usage(&self, scope: ShareScope, client: Prefix) -> ClientUsage {
        usage_in(&self.table_of(client), scope, client)
    }

    /// Usage of each network that contains the client. A network's number of connections is divided
    /// by the number of shares that the network has.
    pub(super) fn usages_around(
        &self,
        scope: ShareScope,
        client: Prefix,
    ) -> impl Iterator<Item = ClientUsage> {
        networks_of(client).skip(1).map(move |ClientNetwork { network, shares }| {
            let ClientUsage { all, questions } = self.usage(scope, network);
            ClientUsage { all: all / shares, questions }
        })
    }

    /// Whether no client has an open connection.
    #[cfg(test)]
    pub(super) fn are_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().unwrap().is_empty())
    }

    /// Table with all counts of a client or network.
    fn table_of(&self, client: Prefix) -> MutexGuard<'_, ShareTable> {
        let shard = &self.shards[self.hasher.hash_one(client) as usize % self.shards.len()];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add_to(table: &mut ShareTable, client: Prefix, scopes: CountedScopes) {
    for of in scopes.iter() {
        table.entry(ShareKey { of, client }).or_default().add(scopes.is_question);
    }
}

fn usage_in(table: &ShareTable, of: ShareScope, client: Prefix) -> ClientUsage {
    table.get(&ShareKey { of, client }).copied().unwrap_or_default()
}

impl CountedScopes {
    /// Whether the connection counts nowhere.
    pub(super) fn are_none(self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the scopes for which `may` returns true. Returns `None` if one of the others is not
    /// the frontend.
    fn narrowed(mut self, may: impl Fn(ShareScope) -> bool) -> Option<CountedScopes> {
        let has_all = CountedScopes { frontend: None, ..self }.iter().all(&may);
        self.frontend = self.frontend.filter(|id| has_all && may(ShareScope::Frontend(*id)));
        has_all.then_some(self)
    }

    fn iter(self) -> impl Iterator<Item = ShareScope> {
        let process = self.process.map(ShareScope::Process);
        let local_port = self.local_port.map(ShareScope::LocalPorts);
        [process, local_port, self.frontend.map(ShareScope::Frontend)].into_iter().flatten()
    }
}

impl ClientUsage {
    fn add(&mut self, is_question: bool) {
        self.all += 1;
        self.questions += u32::from(is_question);
    }

    fn remove(&mut self, is_question: bool) {
        self.all -= 1;
        self.questions -= u32::from(is_question);
    }

    /// Whether another connection of this client fits; `left` is the number of connections that are
    /// free for all clients. The questions of other clients count as free, because this client can
    /// evict them. The client's own questions are subtracted from `left`.
    pub(super) fn fits(self, left: u64) -> bool {
        fits(self.all, left.saturating_sub(self.questions.into()))
    }
}
