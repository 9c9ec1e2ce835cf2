//! Connection counts of clients. They give each client a share, so that no client takes all
//! connections of the process or of a frontend.

mod share_queue;

pub(crate) use share_queue::Waiting;

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convey_model::{ALWAYS_FITS, ClientNetwork, Prefix, Protocol, client_of, fits, networks_of};
use convey_snapshot::Frontend;
use foldhash::HashMap;
use foldhash::quality::RandomState;
use share_queue::ShareQueue;

use crate::quota::ClientShortage;

/// Connection counts of all clients. A client has an entry while it has an open connection.
#[derive(Debug, Default)]
pub struct Clients {
    /// Shards, so that workers rarely contend for a lock.
    shards: [Mutex<HashMap<ShareKey, ClientUsage>>; 16],
    hasher: RandomState,
    /// Number of servers and files that streams hold, except the first one of each client
    /// connection.
    held_resources: AtomicU64,
    /// Queue of TCP connections that are beyond their client's share of a frontend.
    beyond: Arc<ShareQueue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ShareKey {
    of: ShareScope,
    client: Prefix,
}

/// Scope of a connection count. The numbers are the ids of frontends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ShareScope {
    Process(Protocol),
    /// Local ports towards the servers of a frontend.
    LocalPorts(u32),
    Frontend(u32),
}

/// Resources that are left for further TCP connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    /// Number of further connections that the process can have.
    pub(super) connections: u64,
    /// Number of free local ports for connections to the servers of the frontend.
    pub(super) local_ports: u64,
}

/// Connection counts of one client in one scope.
#[derive(Debug, Default, Clone, Copy)]
struct ClientUsage {
    /// Number of connections and UDP sessions.
    all: u32,
    /// Number of UDP sessions among `all` that are questions. A session is a question until its
    /// client sends again after an answer; any new session may evict a question.
    questions: u32,
}

/// Guard that counts a connection or UDP session of a client until it is dropped. A new UDP session
/// is counted as a question.
#[derive(Debug, Default)]
pub(super) struct Counted {
    process: Option<Count>,
    local_ports: Option<Count>,
    frontend: Option<Count>,
}

#[derive(Debug)]
struct Count {
    all: Arc<Clients>,
    /// Key of the client. The connection also counts in the networks that contain the client.
    key: ShareKey,
    is_question: bool,
}

impl Clients {
    /// Number of servers and files that streams hold, except the first one of each client
    /// connection.
    pub(super) fn held_resources(&self) -> u64 {
        self.held_resources.load(Ordering::Relaxed)
    }

    pub(super) fn add_held_resource(&self) {
        self.held_resources.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_held_resource(&self) {
        self.held_resources.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a new connection or UDP session of a client. Returns `None` if the client has used up
    /// its share. `left` is the number of further connections that the process may have.
    ///
    /// The questions of other clients count as free, because a new session may evict them.
    /// Otherwise forged datagrams could use up the share of every client.
    pub(super) fn count(self: &Arc<Self>, client: IpAddr, frontend: &Frontend, left: u64) -> Option<Counted> {
        let mut counted = self.count_in_process(client, frontend, left)?;
        self.count_at(frontend, client, &mut counted).then_some(counted)
    }

    /// Counts a new TCP connection, which can wait until its client has room at the frontend.
    /// Returns `None` if the connection must be refused. The second value is the connection's place
    /// in the queue if the connection has to wait; the caller must then call
    /// [`Clients::count_waiting`] later.
    pub(super) fn count_or_wait(
        self: &Arc<Self>,
        client: IpAddr,
        frontend: &Frontend,
        left: Left,
    ) -> Option<(Counted, Option<Waiting>)> {
        let mut counted = self.count_in_process(client, frontend, left.connections)?;
        let (id, of) = (frontend.live.id, client_of(client));
        if !frontend.config.trusts(client) {
            let key = ShareKey { of: ShareScope::LocalPorts(id), client: of };
            counted.local_ports = Some(self.try_add(key, frontend, |held| held.fits(left.local_ports))?);
        }
        if !self.beyond.has(id, of) && self.count_at(frontend, client, &mut counted) {
            return Some((counted, None));
        }
        // `max_connections_per_client` is a hard limit: connections beyond it are refused and do
        // not wait.
        if frontend.config.max_connections_per_client.is_some() {
            return None;
        }
        let has = || self.has_at(id, of);
        Some((counted, Some(self.beyond.enter(id, of, left.connections, has)?)))
    }

    /// Counts a waiting connection at the frontend, if the connection is the first of its client in
    /// the queue and the client has room. Returns whether the connection is counted.
    ///
    /// If the client has no room, wakes the connection that is next in the queue. Once the
    /// connection is served, the caller must call [`Clients::call_next`].
    pub(super) fn count_waiting(
        self: &Arc<Self>,
        frontend: &Frontend,
        client: IpAddr,
        counted: &mut Counted,
        waiting: &mut Waiting,
    ) -> bool {
        let (id, of) = (frontend.live.id, client_of(client));
        waiting.move_to(id, || self.has_at(id, of));
        if !waiting.is_first() {
            return false;
        }
        if !self.count_at(frontend, client, counted) {
            self.call_next(frontend, client);
            return false;
        }
        waiting.go_on(|| self.has_at(id, of));
        if counted.frontend.is_none() {
            waiting.call_behind(); // it has no share: neither have the others of its client
        }
        true
    }

    /// Wakes the next waiting connection of a frontend, if that connection's client has room there.
    /// Call this function when the frontend has more room, or when the number of connections of
    /// `client` has changed.
    pub(super) fn call_next(&self, frontend: &Frontend, client: IpAddr) {
        let (id, of) = (frontend.live.id, client_of(client));
        let may = |all| has_room(frontend, ClientUsage { all, questions: 0 });
        self.beyond.call_next(id, of, |client| self.has_at(id, client), may);
    }

    /// Returns the number of a client's connections, and the limit that another connection would
    /// exceed. The number is the client's connections at the frontend if the frontend has a limit,
    /// otherwise in the whole process. This function only reads the counts.
    pub(super) fn quota(
        &self,
        client: IpAddr,
        frontend: &Frontend,
        left: Left,
    ) -> (u32, Option<ClientShortage>) {
        let (config, client, id) = (&frontend.config, client_of(client), frontend.live.id);
        let has = |of| self.usage(&ShareKey { of, client });
        let fits = |of, may: &dyn Fn(ClientUsage) -> bool| {
            self.usages(ShareKey { of, client }).all(|(_, usage)| may(usage))
        };
        let (process, at) = (ShareScope::Process(config.protocol), ShareScope::Frontend(id));
        let is_limited = (config.max_connections_per_client, config.max_connections) != (None, None);
        let open = has(if is_limited { at } else { process }).all;
        let has_room_at = match config.max_connections_per_client {
            Some(_) => has_room(frontend, has(at)),
            None => fits(at, &|usage| has_room(frontend, usage)),
        };
        let shortages = [
            (fits(process, &|usage| usage.fits(left.connections)), ClientShortage::Process),
            (
                fits(ShareScope::LocalPorts(id), &|usage| usage.fits(left.local_ports)),
                ClientShortage::LocalPorts,
            ),
            (has_room_at, ClientShortage::Frontend),
        ];
        let shortage = shortages.into_iter().find(|(has_room, _)| !has_room);
        (open, shortage.map(|(_, shortage)| shortage).filter(|_| !config.trusts(client.first())))
    }

    fn usage(&self, key: &ShareKey) -> ClientUsage {
        self.shard(key).get(key).copied().unwrap_or_default()
    }

    /// Usage of a client, and of each network that contains the client. A network's number of
    /// connections is divided by the number of shares that the network has.
    fn usages(&self, key: ShareKey) -> impl Iterator<Item = (ShareKey, ClientUsage)> {
        networks_of(key.client).map(move |ClientNetwork { network, shares }| {
            let key = ShareKey { client: network, ..key };
            let ClientUsage { all, questions } = self.usage(&key);
            (key, ClientUsage { all: all / shares, questions })
        })
    }

    /// Number of connections of a client at a frontend. If a network that contains the client has
    /// more connections per share, returns that number.
    fn has_at(&self, frontend: u32, client: Prefix) -> u32 {
        let key = ShareKey { of: ShareScope::Frontend(frontend), client };
        self.usages(key).map(|(_, usage)| usage.all).max().unwrap_or_default()
    }

    /// Counts a connection in the client's share of the process only. Returns `None` if the client
    /// has used up this share. Trusted HTTP proxies are not counted.
    pub(super) fn count_in_process(
        self: &Arc<Self>,
        client: IpAddr,
        frontend: &Frontend,
        left: u64,
    ) -> Option<Counted> {
        if frontend.config.is_http_proxy(client) {
            return Some(Counted::default());
        }
        self.count_proxy(client, frontend, left)
    }

    /// Counts a connection in the share of its peer in the process, until the PROXY header names
    /// the client. Returns `None` if the peer has used up this share. Unlike
    /// `Clients::count_in_process`, also counts trusted HTTP proxies.
    pub(super) fn count_proxy(
        self: &Arc<Self>,
        client: IpAddr,
        frontend: &Frontend,
        left: u64,
    ) -> Option<Counted> {
        if frontend.config.trusts_client(client) {
            return Some(Counted::default());
        }
        let key = ShareKey { of: ShareScope::Process(frontend.config.protocol), client: client_of(client) };
        let process = self.try_add(key, frontend, |held| held.fits(left))?;
        Some(Counted { process: Some(process), ..Counted::default() })
    }

    /// Also counts a connection at a frontend, if the frontend has a limit. Returns `false` if the
    /// client has no room there.
    pub(super) fn count_at(
        self: &Arc<Self>,
        frontend: &Frontend,
        client: IpAddr,
        counted: &mut Counted,
    ) -> bool {
        let config = &frontend.config;
        let limit = (config.max_connections_per_client, config.max_connections);
        if limit == (None, None) || frontend.config.trusts(client) {
            return true;
        }
        let key = ShareKey { of: ShareScope::Frontend(frontend.live.id), client: client_of(client) };
        counted.frontend = self.try_add(key, frontend, |held| has_room(frontend, held));
        counted.frontend.is_some()
    }

    /// Whether any connection waits for its client's share.
    pub(super) fn some_wait(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Whether a client has so many questions that a new session of this client must evict one of
    /// the questions.
    pub(super) fn has_many_questions(&self, client: IpAddr) -> bool {
        let key = ShareKey { of: ShareScope::Process(Protocol::Udp), client: client_of(client) };
        self.shard(&key).get(&key).is_some_and(|held| held.questions >= ALWAYS_FITS)
    }

    fn try_add(
        self: &Arc<Self>,
        key: ShareKey,
        frontend: &Frontend,
        may: impl Fn(ClientUsage) -> bool,
    ) -> Option<Count> {
        let is_question = frontend.config.protocol == Protocol::Udp;
        // `max_connections_per_client` limits a single client, not the networks around it.
        let is_own_limit =
            matches!(key.of, ShareScope::Frontend(_)) && frontend.config.max_connections_per_client.is_some();
        // No lock covers this check and the count below: concurrent connections of one network may
        // exceed its share slightly.
        if !is_own_limit && !self.usages(key).skip(1).all(|(_, usage)| may(usage)) {
            return None;
        }
        let mut shard = self.shard(&key);
        let held = shard.get(&key).copied().unwrap_or_default();
        if !may(held) {
            return None;
        }
        shard.entry(key).or_default().add(is_question);
        drop(shard);
        for ClientNetwork { network, .. } in networks_of(key.client).skip(1) {
            let key = ShareKey { client: network, ..key };
            self.shard(&key).entry(key).or_default().add(is_question);
        }
        Some(Count { all: self.clone(), key, is_question })
    }

    fn shard(&self, key: &ShareKey) -> MutexGuard<'_, HashMap<ShareKey, ClientUsage>> {
        let shard = &self.shards[self.hasher.hash_one(key) as usize % self.shards.len()];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientUsage {
    fn add(&mut self, is_question: bool) {
        self.all += 1;
        self.questions += u32::from(is_question);
    }

    /// Whether another connection of this client fits; `left` is the number of connections that are
    /// free for all clients. The questions of other clients count as free, because this client can
    /// evict them. The client's own questions are subtracted from `left`.
    fn fits(self, left: u64) -> bool {
        fits(self.all, left.saturating_sub(self.questions.into()))
    }
}

impl Counted {
    /// Turns a question into a stream, which new sessions of other clients cannot evict.
    pub(super) fn become_stream(&mut self) {
        self.process.iter_mut().chain(&mut self.frontend).for_each(Count::become_stream);
    }
}

impl Count {
    fn become_stream(&mut self) {
        if !std::mem::take(&mut self.is_question) {
            return;
        }
        for key in self.keys() {
            if let Some(held) = self.all.shard(&key).get_mut(&key) {
                held.questions -= 1;
            }
        }
    }

    /// Keys of the client and of the networks around it.
    fn keys(&self) -> impl Iterator<Item = ShareKey> + use<> {
        let key = self.key;
        networks_of(key.client).map(move |at| ShareKey { client: at.network, ..key })
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        for key in self.keys() {
            let mut shard = self.all.shard(&key);
            match shard.get_mut(&key) {
                Some(held) if held.all > 1 => {
                    held.all -= 1;
                    held.questions -= u32::from(self.is_question);
                }
                _ => drop(shard.remove(&key)),
            }
        }
    }
}

/// Whether a client with this usage of a frontend may have another connection there.
fn has_room(frontend: &Frontend, held: ClientUsage) -> bool {
    if let Some(most) = frontend.config.max_connections_per_client {
        return held.all < most;
    }
    let lasting = frontend.live.slots.open().saturating_sub(frontend.live.questions.open());
    let left = frontend.config.max_connections.unwrap_or(u32::MAX).saturating_sub(lasting);
    held.fits(left.into())
}

#[cfg(test)]
mod tests;
