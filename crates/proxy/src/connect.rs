//! Connecting a client's session to a server.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use log::debug;
use rustix::io::Errno;
use tokio::time::{Instant, timeout_at};

use super::own_sockets::OwnSocket;
use super::proxy_header::{self, Origin};
use super::session::TcpSession;
use super::socket::{self, Leg};
use super::traced;
use convey_snapshot::stats::Counter;
use convey_tls::SpokenWithin;
use convey_trace::ConnectionStep;
use convey_upstream::{Attempts, Permit, PickContext, Unavailable};

/// What a connection to a server begins with.
pub(super) struct Opening<'a> {
    /// Where the client connected to.
    pub(super) local: Option<SocketAddr>,
    /// What its connection began with.
    pub(super) origin: &'a Origin,
    /// The client of the request, if trusted proxies name one.
    pub(super) named: Option<SocketAddr>,
    /// Whether the client has sent something already.
    pub(super) data_waits: bool,
    /// How long a server may take to accept.
    pub(super) within: Duration,
}

/// A server that has taken the client's connection.
pub(super) struct Connected {
    pub(super) leg: Leg,
    pub(super) permit: Permit,
    _own: Option<OwnSocket>,
}

impl TcpSession {
    /// A connected server, or why there is none. The client has not been sent a byte yet, so a server that does not answer
    /// is replaced by another.
    pub(super) async fn connect_to_server(&mut self, opening: Opening<'_>) -> Result<Connected, Counter> {
        let (mut attempts, mut pool) = (Attempts::default(), self.pool().clone());
        let mut attempt = 0;
        loop {
            attempt += 1;
            let next = attempts
                .next_in_turn(&self.downstream, &pool, self.timeouts.connect, || self.newest_pool())
                .await;
            let mut permit = next.map_err(end_of)?;
            let server = permit.server().config.addr_for(self.downstream.vip.port());
            let id = Some(permit.server().live.id);
            self.trace(id, ConnectionStep::Chosen { attempt });
            let began = Instant::now();
            if let Some(record) = &mut self.record {
                record.tries(&permit, server, began);
            }
            match self.connect(server, &permit, SpokenWithin::Bytes, &opening).await {
                Ok((leg, _own)) => {
                    let after = began.elapsed();
                    self.trace(id, ConnectionStep::Connected { after });
                    permit.connected(after);
                    if let Some(record) = &mut self.record {
                        record.connected();
                    }
                    return Ok(Connected { leg, permit, _own });
                }
                Err(error) => {
                    let PickContext { client, vip, .. } = self.downstream;
                    debug!(
                        "{client} -> {vip}: cannot connect to server {} ({server}): {error}",
                        permit.name()
                    );
                    self.trace(id, traced::connect_failed(&error));
                    attempts.failed(&permit, &error, &self.context.shared.failures);
                    // That may have taken as long as `timeouts.connect`: servers may have come and gone.
                    pool = self.newest_pool();
                }
            }
        }
    }

    /// A connection to the server of a permit, which has been sent the PROXY header that it expects, and has shaken hands if it speaks TLS.
    ///
    /// # Errors
    /// It cannot be connected to, is not who it should be, or was not ready in time.
    pub(super) async fn connect(
        &self,
        server: SocketAddr,
        permit: &Permit,
        within_tls: SpokenWithin,
        opening: &Opening<'_>,
    ) -> io::Result<(Leg, Option<OwnSocket>)> {
        let Opening { local, origin, named, data_waits, within } = opening;
        let (header, tls) = (permit.send_proxy(), permit.tls(within_tls)?);
        // A handshake begins with us.
        let data_waits = *data_waits || tls.is_some();
        let bytes_wait = data_waits || header.is_some();
        let until = Instant::now() + *within;
        let socket = socket::connect(server, bytes_wait, &self.context.shared.local_ports)?;
        let own = self.remember(&socket, server);
        let connected = timeout_at(until, socket::connected(socket)).await;
        let stream = connected.unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))?;
        if let Some(version) = header {
            let header = origin.header(version, self.downstream.client, *named, *local);
            proxy_header::send(&stream, &header, data_waits)?;
        }
        let mut leg = Leg::new(stream);
        if let Some(session) = tls {
            let shaken = timeout_at(until, leg.stream.begin_tls_with_server(session)).await;
            shaken.unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))?;
        }
        Ok((leg, own))
    }
}

/// Why a client's connection ends that gets no server.
fn end_of(unavailable: Unavailable) -> Counter {
    match unavailable {
        Unavailable::NoServer => Counter::NoServer,
        Unavailable::Full => Counter::QueueTimeout,
        Unavailable::NoLocalPort => Counter::NoLocalPort,
        Unavailable::Failed | Unavailable::NoResources => Counter::ConnectFailed,
    }
}
