//! Connection counts of clients. They give each client a share, so that no client takes all
//! connections of the process or of a frontend.

mod counts;
mod share_queue;

pub(crate) use share_queue::Waiting;

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convey_model::{ALWAYS_FITS, Prefix, Protocol, client_of};
use convey_snapshot::Frontend;
use counts::{ClientCounts, ClientUsage, ShareScope, WorkerScopes};
use share_queue::ShareQueue;

use crate::places::{SparePlaces, TakenPlaces};
use crate::quota::ClientShortage;

/// Connection counts of all clients.
#[derive(Debug, Default)]
pub struct Clients {
    counts: ClientCounts,
    /// Places that workers have taken.
    places: TakenPlaces,
    held_resources: HeldResources,
    /// Queue of TCP connections that are beyond their client's share of a frontend.
    beyond: Arc<ShareQueue>,
}

/// Number of servers and files that streams hold, except the first one of each client connection.
/// Each of the first sixteen workers counts apart from the others.
#[derive(Debug, Default)]
struct HeldResources([HeldOfWorker; 16]);

// The alignment keeps the counts of different workers in different cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct HeldOfWorker(AtomicU64);

/// Connection counts of all clients, as one worker refers to them. Guards of connections hold a
/// reference, so its count is not shared with other workers.
#[derive(Debug, Clone)]
pub(super) struct WorkerClients(Arc<WorkerShare>);

/// Part of one worker in the counts.
// The alignment keeps the reference count and the places apart from memory of other workers.
#[derive(Debug)]
#[repr(align(128))]
struct WorkerShare {
    clients: Arc<Clients>,
    /// Number of the worker in the process.
    worker: usize,
    places: SparePlaces,
}

/// Resources that are left for further connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    /// Number of further connections that the process can have; a lower bound if `is_ample`.
    pub(super) connections: u64,
    /// Number of free local ports for connections to the servers of the frontend.
    pub(super) local_ports: u64,
    /// Whether so much is left that each client may have another connection, even if one client
    /// has all open connections. Then nothing has to be counted first.
    pub(super) is_ample: bool,
}

/// Guard that counts a connection or UDP session of a client until it is dropped. A new UDP session
/// is counted as a question.
#[derive(Debug, Default)]
pub(super) struct Counted(Option<Count>);

#[derive(Debug)]
struct Count {
    clients: WorkerClients,
    /// The connection also counts in the networks that contain the client.
    client: Prefix,
    scopes: WorkerScopes,
    /// Id of the frontend that counts the connection, if it has a limit.
    frontend: Option<u32>,
    is_question: bool,
}

impl Clients {
    /// Number of servers and files that streams hold, except the first one of each client
    /// connection.
    pub(super) fn held_resources(&self) -> u64 {
        self.held_resources.0.iter().map(|of_worker| of_worker.0.load(Ordering::Relaxed)).sum()
    }

    /// Upper bound of the number of places in use ([`WorkerClients::take_place`]).
    pub(super) fn taken_places(&self) -> u64 {
        self.places.count()
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
        let has = |of| self.counts.usage(of, client);
        let fits = |of, may: &dyn Fn(ClientUsage) -> bool| {
            may(has(of)) && self.counts.usages_around(of, client).all(may)
        };
        let (process, at) = (ShareScope::Process(config.protocol), ShareScope::Frontend(id));
        let open = has(if is_limited(frontend) { at } else { process }).all;
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

    /// Number of connections of a client at a frontend. If a network that contains the client has
    /// more connections per share, returns that number.
    fn has_at(&self, frontend: u32, client: Prefix) -> u32 {
        let scope = ShareScope::Frontend(frontend);
        let around = self.counts.usages_around(scope, client).map(|usage| usage.all);
        around.max().unwrap_or_default().max(self.counts.usage(scope, client).all)
    }

    /// Whether any connection waits for its client's share.
    pub(super) fn some_wait(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Whether a client has so many questions that a new session of this client must evict one of
    /// the questions.
    pub(super) fn has_many_questions(&self, client: IpAddr) -> bool {
        let usage = self.counts.usage(ShareScope::Process(Protocol::Udp), client_of(client));
        usage.questions >= ALWAYS_FITS
    }
}

impl WorkerClients {
    /// Refers to the counts for the worker with this number. The process may have `most`
    /// connections.
    pub(super) fn new(clients: Arc<Clients>, worker: usize, most: u64) -> WorkerClients {
        clients.counts.register(worker);
        WorkerClients(Arc::new(WorkerShare { clients, worker, places: SparePlaces::of_process(most) }))
    }

    pub(super) fn add_held_resource(&self) {
        self.held_by_worker().fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_held_resource(&self) {
        self.held_by_worker().fetch_sub(1, Ordering::Relaxed);
    }

    fn held_by_worker(&self) -> &AtomicU64 {
        let all = &self.held_resources.0;
        &all[self.0.worker % all.len()].0
    }

    /// Takes a place for a connection, a UDP session, a held resource, or a request that counts in
    /// the share of its client.
    pub(super) fn take_place(&self) {
        self.0.places.take(&self.places);
    }

    /// Returns a place.
    pub(super) fn put_place(&self) {
        self.0.places.put(&self.places);
    }

    /// Counts a new connection or UDP session of a client. Returns `None` if the client has used up
    /// its share.
    ///
    /// The questions of other clients count as free, because a new session may evict them.
    /// Otherwise forged datagrams could use up the share of every client.
    pub(super) fn count(&self, client: IpAddr, frontend: &Frontend, left: Left) -> Option<Counted> {
        let mut counted = self.count_in_process(client, frontend, left)?;
        self.count_at(frontend, client, &mut counted).then_some(counted)
    }

    /// Counts a new TCP connection, which can wait until its client has room at the frontend.
    /// Returns `None` if the connection must be refused. The second value is the connection's place
    /// in the queue if the connection has to wait; the caller must then call
    /// [`WorkerClients::count_waiting`] later. `room` returns how many further connections the
    /// process can have, of which `left` may be a lower bound.
    pub(super) fn count_or_wait(
        &self,
        client: IpAddr,
        frontend: &Frontend,
        left: Left,
        room: impl FnOnce() -> u64,
    ) -> Option<(Counted, Option<Waiting>)> {
        let (id, of) = (frontend.live.id, client_of(client));
        let local_port = (!frontend.config.trusts(client)).then_some(id);
        let scopes = WorkerScopes { local_port, ..in_process(frontend, client) };
        let mut counted = self.add(client, frontend, scopes, left)?;
        if !self.beyond.has(id, of) && self.count_at(frontend, client, &mut counted) {
            return Some((counted, None));
        }
        // `max_connections_per_client` is a hard limit: connections beyond it are refused and do
        // not wait.
        if frontend.config.max_connections_per_client.is_some() {
            return None;
        }
        let has = || self.has_at(id, of);
        Some((counted, Some(self.beyond.enter(id, of, room(), has)?)))
    }

    /// Counts a waiting connection at the frontend, if the connection is the first of its client in
    /// the queue and the client has room. Returns whether the connection is counted.
    ///
    /// If the client has no room, wakes the connection that is next in the queue. Once the
    /// connection is served, the caller must call [`Clients::call_next`].
    pub(super) fn count_waiting(
        &self,
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
        if !counted.is_at_frontend() {
            waiting.call_behind(); // it has no share: neither have the others of its client
        }
        true
    }

    /// Counts a connection in the client's share of the process only. Returns `None` if the client
    /// has used up this share. Trusted HTTP proxies are not counted.
    pub(super) fn count_in_process(
        &self,
        client: IpAddr,
        frontend: &Frontend,
        left: Left,
    ) -> Option<Counted> {
        self.add(client, frontend, in_process(frontend, client), left)
    }

    /// Counts a connection in the share of its peer in the process, until the PROXY header names
    /// the client. Returns `None` if the peer has used up this share. Unlike
    /// `WorkerClients::count_in_process`, also counts trusted HTTP proxies.
    pub(super) fn count_proxy(&self, client: IpAddr, frontend: &Frontend, left: Left) -> Option<Counted> {
        let is_counted = !frontend.config.trusts_client(client);
        let process = is_counted.then_some(frontend.config.protocol);
        self.add(client, frontend, WorkerScopes { process, local_port: None }, left)
    }

    /// Also counts a connection at a frontend, if the frontend has a limit. Returns `false` if the
    /// client has no room there.
    fn count_at(&self, frontend: &Frontend, client: IpAddr, counted: &mut Counted) -> bool {
        let config = &frontend.config;
        if !is_limited(frontend) || config.trusts(client) {
            return true;
        }
        let (id, client) = (frontend.live.id, client_of(client));
        let is_question = config.protocol == Protocol::Udp;
        // `max_connections_per_client` limits a single client, not the networks around it.
        let limits_networks = config.max_connections_per_client.is_none();
        let has_room = |usage| has_room(frontend, usage);
        let is_counted = self.counts.add_at(id, client, (is_question, limits_networks), has_room);
        if is_counted {
            let count = counted.0.get_or_insert_with(|| self.count_of(client, is_question));
            if let Some(before) = count.frontend.replace(id) {
                self.counts.remove_at(before, client, is_question);
            }
        }
        is_counted
    }

    /// Counts a connection in these scopes. Returns `None` if the client has no room in one of
    /// them.
    fn add(&self, client: IpAddr, frontend: &Frontend, scopes: WorkerScopes, left: Left) -> Option<Counted> {
        if scopes.are_none() {
            return Some(Counted::default());
        }
        let (client, is_question) = (client_of(client), frontend.config.protocol == Protocol::Udp);
        let fits = |scope, usage: ClientUsage| match scope {
            ShareScope::LocalPorts(_) => usage.fits(left.local_ports),
            _ => usage.fits(left.connections),
        };
        if left.is_ample {
            self.counts.add(self.0.worker, client, scopes, is_question);
        } else if !self.counts.add_checked(self.0.worker, client, (scopes, is_question), fits) {
            return None;
        }
        let mut count = self.count_of(client, is_question);
        count.scopes = scopes;
        Some(Counted(Some(count)))
    }

    /// Guard that counts a connection in no scope.
    fn count_of(&self, client: Prefix, is_question: bool) -> Count {
        let scopes = WorkerScopes::default();
        Count { clients: self.clone(), client, scopes, frontend: None, is_question }
    }
}

/// Scope of the process, unless the limits of clients do not apply to this address.
fn in_process(frontend: &Frontend, client: IpAddr) -> WorkerScopes {
    let process = (!frontend.config.trusts(client)).then_some(frontend.config.protocol);
    WorkerScopes { process, local_port: None }
}

/// Whether the frontend has a limit of connections.
fn is_limited(frontend: &Frontend) -> bool {
    (frontend.config.max_connections_per_client, frontend.config.max_connections) != (None, None)
}

impl Deref for WorkerClients {
    type Target = Clients;

    fn deref(&self) -> &Clients {
        &self.0.clients
    }
}

impl Counted {
    /// Turns a question into a stream, which new sessions of other clients cannot evict.
    pub(super) fn become_stream(&mut self) {
        let Some(count) = self.0.as_mut().filter(|count| count.is_question) else { return };
        count.is_question = false;
        let (clients, client) = (&count.clients, count.client);
        clients.counts.become_stream(clients.0.worker, client, count.scopes);
        if let Some(frontend) = count.frontend {
            clients.counts.become_stream_at(frontend, client);
        }
    }

    fn is_at_frontend(&self) -> bool {
        self.0.as_ref().is_some_and(|count| count.frontend.is_some())
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let Count { clients, client, scopes, frontend, is_question } = self;
        if !scopes.are_none() {
            clients.counts.remove(clients.0.worker, *client, *scopes, *is_question);
        }
        if let Some(frontend) = frontend {
            clients.counts.remove_at(*frontend, *client, *is_question);
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
