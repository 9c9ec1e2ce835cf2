//! Connects a client's session to a server, with retries.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use super::own_sockets::OwnSocket;
use super::session::TcpSession;
use super::traced;
use convey_model::ServerAddr;
use convey_snapshot::stats::Counter;
use convey_stream::{Leg, PollClock};
use convey_trace::ConnectionStep;
use convey_upstream::{Attempts, Opening, Permit, Unavailable};
use log::debug;
use tokio::time::Sleep;

/// Established connection to a server, with its permit.
pub(super) struct Connected {
    pub(super) leg: Leg,
    pub(super) permit: Permit,
    _own: Option<OwnSocket>,
}

impl TcpSession {
    /// Connects to a server, and retries with other servers after failures. The client has not
    /// received a byte yet, so it does not notice a retry. `timer` limits each attempt.
    ///
    /// # Errors
    /// Reason why no server is available.
    pub(super) async fn connect_to_server(
        &mut self,
        opening: Opening<'_>,
        mut timer: Pin<&mut Sleep>,
    ) -> Result<Connected, Counter> {
        let (mut attempts, mut pool) = (Attempts::default(), self.pool().clone());
        let mut attempt = 0;
        loop {
            attempt += 1;
            let next = attempts
                .next_in_turn(&self.downstream(), &pool, self.timeouts.connect(), || self.newest_pool())
                .await;
            let mut permit = next.map_err(end_of)?;
            let server = permit.server().config.addr_for(self.vip().port());
            let id = Some(permit.server().live.id);
            self.trace(id, ConnectionStep::Chosen { attempt });
            let began = PollClock::now();
            if let Some(record) = &mut self.record {
                record.tries(&permit, server, began);
            }
            match self.connect(server, &permit, &opening, timer.as_mut()).await {
                Ok((leg, _own)) => {
                    let after = PollClock::now() - began;
                    self.trace(id, ConnectionStep::Connected { after });
                    permit.connected(after);
                    if let Some(record) = &mut self.record {
                        record.connected();
                    }
                    return Ok(Connected { leg, permit, _own });
                }
                Err(error) => {
                    let (client, vip) = (self.client(), self.vip());
                    debug!(
                        "{client} -> {vip}: cannot connect to server {} ({}): {error}",
                        permit.name(),
                        ServerAddr(server)
                    );
                    self.trace(id, traced::connect_failed(&error));
                    attempts.failed(&permit, &error, &self.context.shared.failures);
                    // The attempt may have taken up to `timeouts.connect`, and a reload may have
                    // changed the servers meanwhile.
                    pool = self.newest_pool();
                }
            }
        }
    }

    /// Connects to the server of a permit, and records the socket in `OwnSockets` to detect loops.
    ///
    /// # Errors
    /// See [`Permit::connect`].
    pub(super) async fn connect(
        &self,
        server: SocketAddr,
        permit: &Permit,
        opening: &Opening<'_>,
        timer: Pin<&mut Sleep>,
    ) -> io::Result<(Leg, Option<OwnSocket>)> {
        let begun = |socket: &_| self.record_own_socket(socket, server);
        let connected = permit.connect(server, opening, timer, begun).await;
        connected.inspect_err(|error| {
            self.context.shared.lines.log_source_error(self.frontend_id(), permit, error);
        })
    }
}

/// Counter for the end of a connection that no server could take.
fn end_of(unavailable: Unavailable) -> Counter {
    match unavailable {
        Unavailable::NoServer => Counter::NoServer,
        Unavailable::Full => Counter::QueueTimeout,
        Unavailable::NoLocalPort => Counter::NoLocalPort,
        Unavailable::Failed | Unavailable::NoResources => Counter::ConnectFailed,
    }
}
