//! Acceptor of QUIC clients: admission, handshake, and service of their requests.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use quinn::{Connecting, Connection, ConnectionError, Incoming, ZeroRttAccepted};
use tokio::time::timeout;

use super::crypto::QuicClientState;
use super::paths::ClientPaths;
use super::settings::{self, ConnectionSettings};
use super::unproven::{ClientAddress, UnprovenAddresses};
use crate::client_stream::{ClientStream, ServeStream};
use crate::client_task::{ClientTask, ServingFuture};
use crate::contained::Contained;
use crate::context::WorkerContext;
use crate::handshake::HandshakeSlot;
use crate::session::{TcpSession, reason_of};
use convey_model::{Endpoint, HttpLimits};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use convey_tls::{SessionFacts, TlsAcceptor};
use convey_trace::ConnectionStep;

/// QUIC connection of a client. The drop closes the connection.
#[derive(Debug)]
pub struct QuicClient {
    /// Connection of the QUIC library.
    pub connection: Connection,
    /// Handshake, if it is not complete yet. Requests that arrive before the end of the handshake
    /// are early data, which an attacker may replay.
    pub handshake: Option<PendingHandshake>,
}

/// Handshake of a client that is not complete yet.
pub struct PendingHandshake {
    /// Future that waits for the end of the handshake, whether it succeeds or fails.
    pub done: ZeroRttAccepted,
    /// Time limit of the handshake.
    pub within: Duration,
    /// Whether the client has validated its address already. Otherwise the end of the handshake
    /// validates the address.
    pub is_address_proven: bool,
    _place: HandshakePlace,
}

/// Guard that counts a handshake of the worker and of its source until it is dropped.
pub(crate) struct HandshakePlace {
    is_proven: bool,
    _of_worker: Arc<()>,
    _of_source: Option<HandshakeSlot>,
}

/// Upper bound of the unfinished handshakes of one worker at one address. Beyond this bound, a new
/// client must validate its address before the handshake, because the address may be forged.
const MAX_UNPROVEN: usize = 256;

impl fmt::Debug for PendingHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandshake").field("within", &self.within).finish_non_exhaustive()
    }
}

/// Acceptor of the QUIC clients of one worker at one listen address.
pub(crate) struct QuicAcceptor {
    pub(crate) vip: SocketAddr,
    pub(crate) context: Arc<WorkerContext>,
    /// Token whose reference count, minus one, is the number of unfinished handshakes at this
    /// address.
    handshakes: Arc<()>,
    /// Settings of the last client. The next client reuses them unless a reload has changed the
    /// frontend.
    last: Option<(Arc<TlsAcceptor>, HttpLimits, Arc<ConnectionSettings>)>,
    pub(crate) unproven: Arc<UnprovenAddresses>,
}

/// Client that has passed all checks before the handshake.
pub(crate) struct AdmittedQuic {
    pub(crate) session: Box<TcpSession>,
    pub(crate) settings: Arc<ConnectionSettings>,
    pub(crate) address: ClientAddress,
    pub(crate) paths: Arc<ClientPaths>,
    pub(crate) place: HandshakePlace,
    pub(crate) http: Arc<dyn ServeStream>,
}

/// How convey refuses a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuicRefusal {
    /// Refuse the connection. The client may fall back to TCP, where it can wait.
    Refuse,
    /// Send a Retry packet: the client must validate its address first, and convey keeps no state
    /// until then (RFC 9000, section 8.1.2).
    Retry,
    /// Ignore the packet: send no answer.
    Ignore,
}

impl QuicRefusal {
    fn answer(self, incoming: Incoming) {
        match self {
            QuicRefusal::Refuse => incoming.refuse(),
            QuicRefusal::Retry => drop(incoming.retry()),
            QuicRefusal::Ignore => incoming.ignore(),
        }
    }
}

impl QuicAcceptor {
    pub(super) fn new(
        vip: SocketAddr,
        context: Arc<WorkerContext>,
        unproven: Arc<UnprovenAddresses>,
    ) -> QuicAcceptor {
        QuicAcceptor { vip, context, handshakes: Arc::default(), last: None, unproven }
    }

    /// Adds 1 to a counter of the frontend, and to the same counter of all traffic.
    pub(crate) fn count(&self, counter: Counter) {
        count(&self.context, self.vip, counter);
    }

    /// Accepts or refuses a new client.
    pub(super) fn take(&mut self, incoming: Incoming) {
        match self.admit(&incoming) {
            Ok(admitted) => self.accept(incoming, admitted),
            Err(refusal) => refusal.answer(incoming),
        }
    }

    fn accept(&self, incoming: Incoming, admitted: AdmittedQuic) {
        let AdmittedQuic { mut session, settings, address, paths, place, http } = admitted;
        let config = settings.of_client(QuicClientState { address: Arc::new(address), paths: paths.clone() });
        match incoming.accept_with(config) {
            Ok(connecting) => {
                let admitted = Box::pin(admit(session, connecting, place, http, paths));
                drop(tokio::spawn(Contained::new(ClientTask::Admission(admitted))));
            }
            Err(error) => {
                debug!("{}: QUIC handshake with {} failed: {error}", self.vip, session.client());
                session.end(Some(Counter::TlsHandshakeFailed));
            }
        }
    }

    /// Registers the address of a client. Until the client has validated the address, convey limits
    /// the bytes that it sends to this address. `arrived` is the number of bytes of the client's
    /// first packets.
    ///
    /// # Errors
    /// There are too many unfinished handshakes: the client must validate its address first.
    pub(crate) fn limited_address(
        &self,
        incoming: &Incoming,
        arrived: u64,
    ) -> Result<ClientAddress, QuicRefusal> {
        let from = incoming.remote_address();
        match incoming.remote_address_validated() {
            true => Ok(self.unproven.begin_proven(from)),
            false => self.unproven.begin(from, arrived).ok_or(QuicRefusal::Retry),
        }
    }

    /// Returns the settings of new connections; `None` if the frontend does not serve QUIC.
    pub(crate) fn settings(&mut self, frontend: &Frontend) -> Option<Arc<ConnectionSettings>> {
        let (acceptor, limits) = (frontend.tls.as_ref()?, frontend.config.http_limits());
        if let Some((of, with, settings)) = &self.last
            && Arc::ptr_eq(of, acceptor)
            && with == limits
        {
            return Some(settings.clone());
        }
        let settings = Arc::new(settings::of_connections(acceptor, limits)?);
        self.last = Some((acceptor.clone(), *limits, settings.clone()));
        Some(settings)
    }

    /// Whether the worker may accept a client that has not validated its address, which may be
    /// forged. Returns `false` if the frontend has limits for sources or clients. Otherwise, such
    /// clients may use at most an eighth of the frontend's connections.
    fn has_room_for_unproven(&self, frontend: &Frontend) -> bool {
        let config = &frontend.config;
        if frontend.sources.is_some() || config.max_connections_per_client.is_some() {
            return false;
        }
        let workers = self.context.shared.columns.len().max(1);
        let eighth = config.max_connections.map_or(usize::MAX, |most| most as usize / 8 / workers);
        // The acceptor itself holds one of the references.
        Arc::strong_count(&self.handshakes) <= MAX_UNPROVEN.min(eighth)
    }

    /// Counts a new handshake of the worker and of the client's source. Half of a source's
    /// handshakes are reserved for clients that have validated their addresses.
    ///
    /// # Errors
    /// There are too many unfinished handshakes. The client must validate its address first; a
    /// client that has already done so is refused.
    pub(crate) fn handshake_place(
        &self,
        frontend: &Frontend,
        incoming: &Incoming,
    ) -> Result<HandshakePlace, QuicRefusal> {
        self.try_handshake_place(frontend, incoming).map_err(|reason| {
            if incoming.may_retry() {
                return QuicRefusal::Retry;
            }
            self.count(reason);
            QuicRefusal::Refuse
        })
    }

    fn try_handshake_place(
        &self,
        frontend: &Frontend,
        incoming: &Incoming,
    ) -> Result<HandshakePlace, Counter> {
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

/// Adds 1 to a counter of the frontend of this address, and to the same counter of all traffic.
pub(super) fn count(context: &WorkerContext, vip: SocketAddr, counter: Counter) {
    let snapshot = context.snapshot();
    if let Some(frontend) = snapshot.listener(&Endpoint::udp(vip)) {
        frontend.live.traffic.add(context.core, counter, 1);
    }
    snapshot.totals.add(context.core, counter, 1);
}

/// Performs the handshake with a client, and returns the future that serves the client.
async fn admit(
    session: Box<TcpSession>,
    connecting: Connecting,
    place: HandshakePlace,
    http: Arc<dyn ServeStream>,
    paths: Arc<ClientPaths>,
) -> Option<ServingFuture> {
    let (client, quic) = shake_hands(session, connecting, place, paths).await?;
    Some(http.serve_quic(client, quic))
}

/// Performs the handshake with a client. If it fails, ends the session and returns `None`.
async fn shake_hands(
    mut session: Box<TcpSession>,
    connecting: Connecting,
    place: HandshakePlace,
    paths: Arc<ClientPaths>,
) -> Option<(ClientStream, QuicClient)> {
    let denied = session.entry.over();
    let shaken = tokio::select! {
        biased;
        shaken = perform_handshake(&session, connecting, place) => shaken,
        end = denied => Err(reason_of(end).unwrap_or(Counter::Cut)),
    };
    match shaken {
        Ok(client) => {
            session.note_handshake(facts_of(&client.connection));
            let local = client.connection.local_ip().map(|ip| SocketAddr::new(ip, session.vip().port()));
            Some((ClientStream::over_quic(session, local, paths), client))
        }
        Err(reason) => {
            session.end(Some(reason));
            None
        }
    }
}

/// Performs the handshake. If the frontend allows early data, returns as soon as the client's
/// server name and protocol are known, with the rest of the handshake in `QuicClient::handshake`.
async fn perform_handshake(
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
        let (vip, client) = (session.vip(), session.client());
        debug!("{vip}: QUIC handshake with {client} failed: {error}");
        match error {
            ConnectionError::TimedOut => Counter::TlsHandshakeTimeout,
            ConnectionError::Reset | ConnectionError::ApplicationClosed(_) => Counter::ClientReset,
            _ => {
                session.trace(None, ConnectionStep::HandshakeFailed { reason: "the QUIC handshake failed" });
                Counter::TlsHandshakeFailed
            }
        }
    })
}

fn facts_of(connection: &Connection) -> SessionFacts {
    let facts = connection.handshake_data().and_then(|data| data.downcast().ok());
    facts.map(|facts| *facts).unwrap_or_default()
}
