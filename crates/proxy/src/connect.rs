//! Connecting a client's session to a server.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::net::SocketAddr;

use log::debug;
use rustix::io::Errno;
use tokio::time::{Instant, timeout};

use super::own_sockets::OwnSocket;
use super::session::Session;
use super::socket::{self, Leg};
use super::upstream::{Attempts, Downstream, Permit, Unavailable};
use convey_snapshot::stats::Counter;

/// A server that has taken the client's connection.
pub(super) struct Connected {
    pub(super) leg: Leg,
    pub(super) permit: Permit,
    _own: Option<OwnSocket>,
}

impl Session {
    /// A connected server, or why there is none. The client has not been sent a byte yet, so a server that does not answer
    /// is replaced by another. `data_waits`: the client has sent something already.
    pub(super) async fn connect_to_server(&self, data_waits: bool) -> Result<Connected, Counter> {
        let (mut attempts, mut pool) = (Attempts::default(), self.frontend.pool.clone());
        loop {
            let next = attempts
                .next_in_turn(&self.downstream, &pool, self.timeouts.connect, || self.newest_pool())
                .await;
            let mut permit = next.map_err(end_of)?;
            let server = permit.server().config.addr_for(self.downstream.vip.port());
            let began = Instant::now();
            match self.connect(server, data_waits).await {
                Ok((leg, _own)) => {
                    permit.connected(began.elapsed());
                    return Ok(Connected { leg, permit, _own });
                }
                Err(error) => {
                    let Downstream { client, vip, .. } = self.downstream;
                    debug!(
                        "{client} -> {vip}: cannot connect to server {} ({server}): {error}",
                        permit.name()
                    );
                    attempts.failed(&permit, &error, &self.context.shared.failures);
                    // That may have taken as long as `timeouts.connect`: servers may have come and gone.
                    pool = self.newest_pool();
                }
            }
        }
    }

    async fn connect(&self, server: SocketAddr, data_waits: bool) -> io::Result<(Leg, Option<OwnSocket>)> {
        let socket = socket::connect(server, data_waits, &self.context.shared.local_ports)?;
        let own = self.remember(&socket, server);
        let connected = timeout(self.timeouts.connect, socket::connected(socket)).await;
        let stream = connected.unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))?;
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
