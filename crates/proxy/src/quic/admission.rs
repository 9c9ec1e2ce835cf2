//! Letting a client in that comes over QUIC: the limits that it has, its handshake, and then whoever serves it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use quinn::{Connecting, Connection, ConnectionError, Incoming, ServerConfig, ZeroRttAccepted};
use tokio::time::timeout;

use super::crypto::QuicClientState;
use super::paths::ClientPaths;
use super::settings::{self, ConnectionSettings};
use super::unproven::UnprovenAddresses;
use crate::client_stream::{ClientStream, ServeStream};
use crate::contained::Contained;
use crate::context::WorkerContext;
use crate::handshake::HandshakeSlot;
use crate::session::{TcpSession, reason_of};
use convey_model::{Endpoint, HttpLimits};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Snapshot};
use convey_tls::{SessionFacts, TlsAcceptor};
use convey_trace::ConnectionStep;

/// A client's connection over QUIC. Dropped it is closed.
#[derive(Debug)]
pub struct QuicClient {
    /// The connection.
    pub connection: Connection,
    /// Its handshake, if that is still on its way: requests that come before its end may be repeated by anybody who has recorded them.
    pub handshake: Option<PendingHandshake>,
}

/// A handshake on its way.
pub struct PendingHandshake {
    /// Waits until it has ended, well or not.
    pub done: ZeroRttAccepted,
    /// How long it may take.
    pub within: Duration,
    /// Whether the client has proved already that it is at its address. Otherwise the end of the handshake proves it.
    pub is_address_proven: bool,
    _place: HandshakePlace,
}

/// A handshake that counts, until this is dropped.
struct HandshakePlace {
    is_proven: bool,
    _of_worker: Arc<()>,
    _of_source: Option<HandshakeSlot>,
}

/// Handshakes at once of a worker from which on clients have to prove where they are: senders can forge as many addresses as they like.
const MAX_UNPROVEN: usize = 256;

impl fmt::Debug for PendingHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandshake").field("within", &self.within).finish_non_exhaustive()
    }
}

/// Lets the clients of one worker in that come to one address.
pub(super) struct Admission {
    vip: SocketAddr,
    context: Arc<WorkerContext>,
    /// Each handshake of the worker at this address has a copy.
    handshakes: Arc<()>,
    /// What the last client got, which the next one gets too unless a reload has changed the frontend.
    last: Option<(Arc<TlsAcceptor>, HttpLimits, Arc<ConnectionSettings>)>,
    unproven: Arc<UnprovenAddresses>,
}

impl Admission {
    pub(super) fn new(
        vip: SocketAddr,
        context: Arc<WorkerContext>,
        unproven: Arc<UnprovenAddresses>,
    ) -> Admission {
        Admission { vip, context, handshakes: Arc::default(), last: None, unproven }
    }

    /// Counts something at the frontend of the address, and in all.
    pub(super) fn count(&self, counter: Counter) {
        count(&self.context, self.vip, counter);
    }

    /// Lets a client in, or refuses it. One that is refused comes over TCP, where it may wait.
    pub(super) fn take(&mut self, incoming: Incoming) {
        let context = self.context.clone();
        let snapshot = context.snapshot();
        let Some(frontend) = snapshot.listener(&Endpoint::udp(self.vip)) else {
            return incoming.refuse();
        };
        let Some((settings, http)) = self.settings(frontend).zip(context.shared.http.clone()) else {
            return incoming.refuse();
        };
        if context.shared.connections_left(&snapshot.totals) == 0 {
            self.count(Counter::DroppedNoResources);
            return incoming.refuse();
        }
        let arrived = self.unproven.take_arrived(incoming.remote_address());
        let place = match self.handshake_place(frontend, &incoming) {
            Ok(place) => place,
            // Only who is at that address can answer, and nothing is kept until it does (RFC 9000, section 8.1.2).
            Err(_) if incoming.may_retry() => return drop(incoming.retry()),
            Err(reason) => {
                self.count(reason);
                return incoming.refuse();
            }
        };
        let paths = ClientPaths::new();
        let Some(config) = self.config(&incoming, &settings, arrived, paths.clone()) else {
            return drop(incoming.retry());
        };
        let Some(mut session) = TcpSession::new(incoming.remote_address(), self.vip, &context, &snapshot)
        else {
            return incoming.refuse();
        };
        if let Err(reason) = admit(&mut session, &snapshot) {
            let is_dropped = session.is_dropped_for(reason);
            session.end(Some(reason));
            return if is_dropped { incoming.ignore() } else { incoming.refuse() };
        }
        match incoming.accept_with(config) {
            Ok(connecting) => {
                drop(tokio::spawn(Contained::new(serve(session, connecting, place, http, paths))));
            }
            Err(error) => {
                debug!("{}: no QUIC with {}: {error}", self.vip, session.downstream.client);
                session.end(Some(Counter::TlsHandshakeFailed));
            }
        }
    }

    /// Settings of one connection. `None`: its client has to prove its address first.
    fn config(
        &self,
        incoming: &Incoming,
        settings: &ConnectionSettings,
        arrived: u64,
        paths: Arc<ClientPaths>,
    ) -> Option<Arc<ServerConfig>> {
        let from = incoming.remote_address();
        let address = match incoming.remote_address_validated() {
            true => self.unproven.begin_proven(from),
            false => self.unproven.begin(from, arrived)?,
        };
        Some(settings.of_client(QuicClientState { address: Arc::new(address), paths }))
    }

    /// Settings of new connections.
    fn settings(&mut self, frontend: &Frontend) -> Option<Arc<ConnectionSettings>> {
        let (acceptor, limits) = (frontend.tls.as_ref()?, frontend.config.http_limits());
        if let Some((of, with, settings)) = &self.last
            && Arc::ptr_eq(of, acceptor)
            && *with == limits
        {
            return Some(settings.clone());
        }
        let settings = Arc::new(settings::of_connections(acceptor, &limits)?);
        self.last = Some((acceptor.clone(), limits, settings.clone()));
        Some(settings)
    }

    /// Whether a client may come in that has not proved where it is. Forged ones take nothing that is counted by address, and no more than an
    /// eighth of the frontend's connections.
    fn has_room_for_unproven(&self, frontend: &Frontend) -> bool {
        let config = &frontend.config;
        if frontend.sources.is_some() || config.max_connections_per_client.is_some() {
            return false;
        }
        let workers = self.context.shared.columns.len().max(1);
        let eighth = config.max_connections.map_or(usize::MAX, |most| most as usize / 8 / workers);
        // One is our own.
        Arc::strong_count(&self.handshakes) <= MAX_UNPROVEN.min(eighth)
    }

    /// One of the handshakes at once of the worker, and of its source. Half of a source's are for clients that have proved where they are.
    fn handshake_place(&self, frontend: &Frontend, incoming: &Incoming) -> Result<HandshakePlace, Counter> {
        let is_proven = incoming.remote_address_validated();
        if !is_proven && !self.has_room_for_unproven(frontend) {
            return Err(Counter::TlsHandshakeLimit);
        }
        let most = frontend.config.tls.as_ref().map_or(0, |tls| tls.max_handshakes_per_source);
        let most = if is_proven { most } else { most.div_ceil(2) };
        let client = incoming.remote_address().ip();
        let of_source = HandshakeSlot::of_client(&self.context, frontend, client, most)?;
        Ok(HandshakePlace { is_proven, _of_worker: self.handshakes.clone(), _of_source: of_source })
    }
}

/// Counts something at the frontend of this address, and in all.
pub(super) fn count(context: &WorkerContext, vip: SocketAddr, counter: Counter) {
    let snapshot = context.snapshot();
    if let Some(frontend) = snapshot.listener(&Endpoint::udp(vip)) {
        frontend.live.traffic.add(context.core, counter, 1);
    }
    snapshot.totals.add(context.core, counter, 1);
}

/// Whether a client may come in now.
fn admit(session: &mut TcpSession, snapshot: &Snapshot) -> Result<(), Counter> {
    session.admit_without_header(snapshot)?;
    if session.is_beyond_share() || !session.try_take_slot() {
        return Err(Counter::RefusedFull);
    }
    Ok(())
}

/// Serves a client from its handshake to the end of its connection.
async fn serve(
    mut session: TcpSession,
    connecting: Connecting,
    place: HandshakePlace,
    http: Arc<dyn ServeStream>,
    paths: Arc<ClientPaths>,
) {
    let denied = session.watched.over();
    let shaken = tokio::select! {
        biased;
        shaken = shake_hands(&session, connecting, place) => shaken,
        end = denied => Err(reason_of(end).unwrap_or(Counter::Cut)),
    };
    match shaken {
        Ok(client) => {
            session.has_shaken_hands(facts_of(&client.connection));
            let local =
                client.connection.local_ip().map(|ip| SocketAddr::new(ip, session.downstream.vip.port()));
            http.serve_quic(ClientStream::over_quic(session, local, paths), client).await;
        }
        Err(reason) => session.end(Some(reason)),
    }
}

/// Shakes hands; with early data only until it is clear for whom.
async fn shake_hands(
    session: &TcpSession,
    mut connecting: Connecting,
    place: HandshakePlace,
) -> Result<QuicClient, Counter> {
    let Some(tls) = session.frontend.config.tls.clone() else { return Err(Counter::TlsHandshakeFailed) };
    let within = tls.handshake_timeout;
    let shaken = timeout(within, async {
        if !tls.early_data {
            let connection = connecting.await?;
            return Ok(QuicClient { connection, handshake: None });
        }
        connecting.handshake_data().await?;
        match connecting.into_0rtt() {
            Ok((connection, done)) => {
                let is_address_proven = place.is_proven;
                let handshake = Some(PendingHandshake { done, within, is_address_proven, _place: place });
                Ok(QuicClient { connection, handshake })
            }
            Err(connecting) => Ok(QuicClient { connection: connecting.await?, handshake: None }),
        }
    });
    let shaken: Result<QuicClient, ConnectionError> =
        shaken.await.map_err(|_| Counter::TlsHandshakeTimeout)?;
    shaken.map_err(|error| {
        let (vip, client) = (session.downstream.vip, session.downstream.client);
        debug!("{vip}: no QUIC with {client}: {error}");
        match error {
            ConnectionError::TimedOut => Counter::TlsHandshakeTimeout,
            ConnectionError::Reset | ConnectionError::ApplicationClosed(_) => Counter::ClientReset,
            _ => {
                session.trace(None, ConnectionStep::HandshakeFailed { reason: "no agreement over QUIC" });
                Counter::TlsHandshakeFailed
            }
        }
    })
}

fn facts_of(connection: &Connection) -> SessionFacts {
    let facts = connection.handshake_data().and_then(|data| data.downcast().ok());
    facts.map(|facts| *facts).unwrap_or_default()
}
