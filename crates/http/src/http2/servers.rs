//! HTTP/2 connections to servers. Each worker has its own connections, and each connection has many
//! streams.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

mod opening;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convey_model::{Prefix, ServerAddr};
use convey_pacing::LogLimit;
use log::info;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::keep_alive_limit::KeepAliveLimit;
use super::kept::{KeptConnection, MAX_STREAMS, StreamPlace};
use super::outgoing::OutgoingStream;
use super::placement::{self, ConnectionState, Placement};
use super::resets;
use super::stream_shares::StreamShares;
use super::uploads::Upload;
use crate::idle::ServerPlace;
use opening::begin;

pub(crate) use opening::connect;

/// Maximum number of connections to one server that accept streams. If all of them are full,
/// further requests wait in convey: the library would send them to the server even after their
/// clients have left.
const MAX_CONNECTIONS: usize = 32;

/// Minimum time between two log lines about the reset streams of a server.
const RESET_LOG_PERIOD: Duration = Duration::from_secs(60);

/// HTTP/2 connections of a worker to its servers.
#[derive(Default)]
pub(crate) struct Http2Servers {
    // No share, place or opening connection is dropped while the lock is held: that takes it, too.
    servers: Mutex<HashMap<ServerPlace, Connections>>,
}

/// Shared HTTP/2 connections to one server.
#[derive(Default)]
struct Connections {
    /// Name of the server in log lines.
    name: String,
    kept: Vec<KeptConnection>,
    /// Number of connections that are being opened, until the server's SETTINGS arrive.
    opening: usize,
    /// Estimated number of requests that the server accepts on a connection.
    limit: Option<KeepAliveLimit>,
    /// Requests that wait for a connection, or for a stream on one.
    waiting: usize,
    /// Notified when no request waits any more.
    unawaited: Arc<Notify>,
    /// Wakes waiting requests: all when a connection was opened or has failed, one when a stream
    /// has ended.
    changed: Arc<Notify>,
    /// Streams, by client.
    shares: StreamShares,
    reset_log: ResetLog,
}

/// Limit of log lines about reset streams.
struct ResetLog(LogLimit<Instant>);

impl Default for ResetLog {
    fn default() -> ResetLog {
        ResetLog(LogLimit::once_in(RESET_LOG_PERIOD))
    }
}

/// Result of the search for a stream.
enum Found {
    Place(StreamPlace),
    /// No connection has a free stream; the caller may open another one.
    Nothing(OpeningConnection),
    /// The request has to wait: all connections are full, or a connection that is being opened may
    /// have a free stream.
    Wait(Waiting),
    /// The client already uses its share of the streams. The `Notify` is notified when a stream of
    /// the share may be free.
    BeyondShare(Arc<Notify>),
}

/// Outcome of [`take`] for a request.
pub(crate) enum FoundStream {
    Stream(Box<OutgoingStream>),
    /// No connection has room: the caller opens one.
    Nothing(OpeningConnection),
    /// All connections have their maximum of streams, and no other connection may be opened.
    Full,
    /// The client already uses its share of the streams.
    BeyondShare,
    /// The client has left meanwhile.
    ClientLeft,
}

/// Connection that is being opened. When this is dropped, the requests that wait for the connection
/// wake up.
pub(crate) struct OpeningConnection {
    at: ServerConnections,
    /// Share of the stream that the connection is opened for.
    share: Option<StreamShare>,
}

/// A server, and the connections of a worker to it.
#[derive(Clone)]
pub(crate) struct ServerConnections {
    servers: Arc<Http2Servers>,
    server: ServerPlace,
}

/// Client of a stream to a server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamClient {
    /// Client against whose share the stream counts; `None`: no share applies.
    pub(crate) sharing: Option<Prefix>,
    /// The request's body; `None` if the request has none.
    pub(crate) upload: Option<Upload>,
}

/// One stream of a client's share of the streams to a server. The drop releases it.
pub(super) struct StreamShare {
    at: ServerConnections,
    client: StreamClient,
}

/// Request that waits until a connection has been opened, or a stream has ended.
struct Waiting {
    at: ServerConnections,
    changed: Arc<Notify>,
}

impl Http2Servers {
    /// Connections to this server.
    pub(crate) fn of(self: &Arc<Http2Servers>, server: ServerPlace) -> ServerConnections {
        ServerConnections { servers: self.clone(), server }
    }

    /// Closes connections that are over or have had no stream for long. Call this once a second.
    pub(crate) fn sweep(&self) {
        let (now, mut gone) = (Instant::now(), Vec::new());
        let mut servers = self.lock();
        servers.retain(|_, connections| {
            gone.extend(connections.kept.extract_if(.., |one| !one.stays(now)));
            connections.limit.take_if(|limit| limit.is_stale(now));
            let is_in_use = connections.opening + connections.waiting > 0 || !connections.shares.is_empty();
            is_in_use || !connections.kept.is_empty()
        });
        drop(servers);
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServerPlace, Connections>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds a stream on a connection to this server, or lets the caller open a connection. The stream
/// counts against the client's share, if the client has one. Waits at most `within` for a
/// connection that is being opened, for room, or for the client's share. The wait also ends when the
/// client has left (`left`).
///
/// # Errors
/// The connection that is being opened was not ready in time.
pub(crate) async fn take(
    server: &ServerConnections,
    client: StreamClient,
    within: Duration,
    left: impl Future<Output = ()>,
) -> io::Result<FoundStream> {
    let (until, mut left) = (Instant::now() + within, pin!(left));
    let mut woken = None::<Arc<Notify>>;
    loop {
        match server.find(client) {
            Found::Place(place) => {
                let state = place.state().clone();
                if let Ok(stream) = begin(place).await {
                    return Ok(FoundStream::Stream(stream));
                }
                state.retire();
            }
            Found::Nothing(opening) => {
                // An upload may not need the room that it was woken for. Another request gets the
                // room.
                woken.iter().for_each(|next| next.notify_one());
                return Ok(FoundStream::Nothing(opening));
            }
            Found::BeyondShare(changed) => {
                // This request must not use the room that it was woken for. Another client gets the
                // room.
                woken.take().iter().for_each(|next| next.notify_one());
                tokio::select! {
                    biased;
                    () = changed.notified() => {}
                    () = sleep_until(until) => return Ok(FoundStream::BeyondShare),
                    () = &mut left => return Ok(FoundStream::ClientLeft),
                }
            }
            Found::Wait(waiting) => tokio::select! {
                biased;
                changed = timeout_at(until, waiting.changed.notified()) => match changed {
                    Ok(()) => woken = Some(waiting.changed.clone()),
                    Err(_) if waiting.is_for_room() => return Ok(FoundStream::Full),
                    Err(late) => return Err(late.into()),
                },
                () = &mut left => return Ok(FoundStream::ClientLeft),
            },
        }
    }
}

impl Connections {
    /// Finds a place for a request of this client to this server.
    fn find(&mut self, at: &ServerConnections, client: StreamClient) -> Found {
        self.retire_after_resets(at.server);
        self.limit.take_if(|limit| self.kept.iter().any(|kept| kept.served() > limit.requests));
        if let Some(sharing) = client.sharing
            && !self.shares.has_room(sharing, || most_streams(&self.kept))
        {
            return Found::BeyondShare(self.shares.waiting(sharing));
        }
        match (self.position(client.upload.as_ref()), client.sharing) {
            (Placement::On(place), _) => return self.found(place, at, client),
            (Placement::Beyond, Some(sharing)) => return Found::BeyondShare(self.shares.waiting(sharing)),
            (Placement::Beyond | Placement::Another, _) => {}
        }
        // The request that opens a connection also uses one of its streams.
        let together = client.upload.map_or(MAX_STREAMS, |upload| placement::together(&upload));
        if self.opening * together > self.opening + self.waiting {
            return self.wait(at);
        }
        let opened = self.kept.iter().filter(|kept| kept.limit().is_some()).count();
        if opened + self.opening < MAX_CONNECTIONS {
            self.opening += 1;
            let share = Some(self.share(at, client));
            return Found::Nothing(OpeningConnection { at: at.clone(), share });
        }
        // No further connection may be opened, so the upload uses any connection with room.
        let place = |upload| self.with_states(|states| placement::place_anywhere(&upload, states));
        match client.upload.and_then(place) {
            Some(place) => self.found(place, at, client),
            None => self.wait(at),
        }
    }

    /// Retires connections on which too many streams were reset.
    fn retire_after_resets(&mut self, server: ServerPlace) {
        let (name, addr, limit) = (&self.name, ServerAddr(server.addr), &mut self.reset_log.0);
        resets::retire(&self.kept, |kept| {
            let Some(more) = limit.admit(Instant::now()) else { return };
            let resets = kept.state().resets();
            info!("server {name} ({addr}): an HTTP/2 connection takes no further requests: {resets}{more}");
        });
    }

    /// Returns a place on the connection with this index.
    fn found(&mut self, place: usize, at: &ServerConnections, client: StreamClient) -> Found {
        let most = self.limit.filter(KeepAliveLimit::is_believed).map(|limit| limit.requests);
        let share = self.share(at, client);
        Found::Place(self.kept[place].another(share, most))
    }

    /// Chooses the connection for a request. Requests without a body use the first one with room.
    fn position(&self, upload: Option<&Upload>) -> Placement {
        match upload {
            Some(upload) => self.with_states(|states| placement::place(upload, states)),
            None => {
                let first = self.kept.iter().position(KeptConnection::has_room);
                first.map_or(Placement::Another, Placement::On)
            }
        }
    }

    fn with_states<T>(&self, choose: impl FnOnce(&[ConnectionState<'_>]) -> T) -> T {
        let uploads: Vec<_> = self.kept.iter().map(|kept| kept.state().uploads()).collect();
        let states = self.kept.iter().zip(&uploads).map(|(kept, uploads)| ConnectionState {
            has_room: kept.has_room(),
            window: kept.state().window(uploads),
            uploads,
        });
        choose(&states.collect::<Vec<_>>())
    }

    /// Counts a stream of this client.
    fn share(&mut self, at: &ServerConnections, client: StreamClient) -> StreamShare {
        self.shares.add(client.sharing);
        StreamShare { at: at.clone(), client }
    }

    fn wait(&mut self, at: &ServerConnections) -> Found {
        self.waiting += 1;
        Found::Wait(Waiting { at: at.clone(), changed: self.changed.clone() })
    }
}

impl ServerConnections {
    /// Finds a place for a request of this client.
    fn find(&self, client: StreamClient) -> Found {
        self.with(|connections| connections.find(self, client))
    }

    /// Counts a stream of this client.
    fn share(&self, client: StreamClient) -> StreamShare {
        self.with(|connections| connections.share(self, client))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Connections) -> T) -> T {
        act(self.servers.lock().entry(self.server).or_default())
    }

    /// Calls `act` with the connections to this server. Returns `None` if the worker has neither a
    /// connection to the server nor a request for it.
    fn with_existing<T>(&self, act: impl FnOnce(&mut Connections) -> T) -> Option<T> {
        self.servers.lock().get_mut(&self.server).map(act)
    }
}

impl OpeningConnection {
    /// Notes that a connection to this server is being opened, regardless of existing connections.
    pub(crate) fn new(at: ServerConnections, client: StreamClient) -> OpeningConnection {
        let share = at.with(|connections| {
            connections.opening += 1;
            connections.share(&at, client)
        });
        OpeningConnection { at, share: Some(share) }
    }

    /// Waits until no other request waits for a connection to the server.
    pub(crate) async fn unawaited(&self) {
        while let Some(unawaited) = self.at.with_existing(|connections| connections.unawaited.clone()) {
            let none_waits = unawaited.notified();
            if self.at.with_existing(|connections| connections.waiting).is_none_or(|waiting| waiting == 0) {
                return;
            }
            none_waits.await;
        }
    }
}

impl Drop for OpeningConnection {
    fn drop(&mut self) {
        let changed = self.at.with_existing(|connections| {
            connections.opening -= 1;
            connections.changed.clone()
        });
        changed.iter().for_each(|changed| changed.notify_waiters());
    }
}

impl StreamShare {
    /// Returns the share of a stream that no worker counts.
    #[cfg(feature = "test-util")]
    pub(super) fn uncounted(server: ServerPlace) -> StreamShare {
        let at = Arc::<Http2Servers>::default().of(server);
        StreamShare { at, client: StreamClient::default() }
    }

    /// Notes that the server of this stream has ended a connection gracefully after this number of
    /// requests.
    pub(super) fn note_end(&self, requests: usize) {
        self.at.with_existing(|connections| {
            connections.limit = Some(KeepAliveLimit::after_end(connections.limit, requests, Instant::now()));
        });
    }

    /// The request's body; `None` if the request has none.
    pub(super) fn upload(&self) -> Option<Upload> {
        self.client.upload
    }
}

impl Drop for StreamShare {
    fn drop(&mut self) {
        self.at.with_existing(|connections| connections.shares.release(self.client.sharing));
    }
}

impl Waiting {
    /// Whether no connection is being opened, so that the request waits for room.
    fn is_for_room(&self) -> bool {
        self.at.with_existing(|connections| connections.opening).is_none_or(|opening| opening == 0)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let unawaited = self.at.with_existing(|connections| {
            connections.waiting -= 1;
            (connections.waiting == 0).then(|| connections.unawaited.clone())
        });
        unawaited.flatten().iter().for_each(|unawaited| unawaited.notify_waiters());
    }
}

/// Maximum number of streams that a worker may have to a server. Each connection that the worker
/// has not opened yet counts with the lowest limit of the open connections.
fn most_streams(kept: &[KeptConnection]) -> u64 {
    let (mut opened, mut streams, mut least) = (0, 0, None);
    for limit in kept.iter().filter_map(KeptConnection::limit) {
        (opened, streams) = (opened + 1, streams + limit);
        least = Some(least.map_or(limit, |least: usize| least.min(limit)));
    }
    let unopened = MAX_CONNECTIONS.saturating_sub(opened) * least.unwrap_or(MAX_STREAMS);
    (streams + unopened) as u64
}
