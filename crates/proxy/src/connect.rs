//! Connecting a client's session to a server.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use log::debug;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::own_sockets::OwnSocket;
use super::proxy_header::{self, Origin};
use super::session::TcpSession;
use super::socket::{self, Leg};
use super::traced;
use super::upstream::{Attempts, Downstream, Permit, Unavailable};
use convey_model::ProxyVersion;
use convey_snapshot::stats::Counter;
use convey_trace::ConnectionStep;

/// What a connection to a server begins with.
pub(super) struct Opening<'a> {
    /// The connection that the client came by.
    pub(super) client: &'a TcpStream,
    /// What that began with.
    pub(super) origin: &'a Origin,
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
        let (mut attempts, mut pool) = (Attempts::default(), self.frontend.pool.clone());
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
            if let Some(tally) = &mut self.tally {
                tally.tries(&permit, server, began);
            }
            match self.connect(server, permit.send_proxy(), &opening).await {
                Ok((leg, _own)) => {
                    let after = began.elapsed();
                    self.trace(id, ConnectionStep::Connected { after });
                    permit.connected(after);
                    if let Some(tally) = &mut self.tally {
                        tally.connected();
                    }
                    return Ok(Connected { leg, permit, _own });
                }
                Err(error) => {
                    let Downstream { client, vip, .. } = self.downstream;
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

    pub(super) async fn connect(
        &self,
        server: SocketAddr,
        header: Option<ProxyVersion>,
        opening: &Opening<'_>,
    ) -> io::Result<(Leg, Option<OwnSocket>)> {
        let Opening { client, origin, data_waits, within } = opening;
        let bytes_wait = *data_waits || header.is_some();
        let socket = socket::connect(server, bytes_wait, &self.context.shared.local_ports)?;
        let own = self.remember(&socket, server);
        let connected = timeout(*within, socket::connected(socket)).await;
        let stream = connected.unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))?;
        if let Some(version) = header {
            let header = origin.header(version, self.downstream.client, client);
            proxy_header::send(&stream, &header, *data_waits)?;
        }
        Ok((Leg::new(stream), own))
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
