//! Service of a client connection in its own task. In mode proxy: admission, connect to a server,
//! relay.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::time::sleep_until;

use super::{TcpSession, reason_of};
use crate::client_stream::ClientStream;
use crate::connect::Connected;
use crate::contained::Contained;
use crate::proxy_header::ReceivedHeader;
use crate::registry::ConnectionServer;
use crate::relay::{Patience, RelayEnd, relay};
use convey_snapshot::stats::Counter;
use convey_stream::{ByteStream, Leg};
use convey_tls::SpokenWithin;
use convey_upstream::{Opening, Permit};

/// Maximum number of bytes that are read from a client before it has a server. It is small because
/// convey holds these bytes while the connection waits for a server.
const MAX_EARLY: usize = 4096;

impl TcpSession {
    /// Serves the client in a new task until the connection ends. Each mode has its own type of
    /// task, so a relayed connection needs no memory for mode http.
    pub(crate) fn spawn(self, client: Leg) {
        match self.context.http.clone().filter(|_| self.frontend.config.mode.is_http()) {
            Some(http) => drop(tokio::spawn(Contained::new(ClientStream::serve(self, client, http)))),
            None => drop(tokio::spawn(Contained::new(self.serve_bytes(client)))),
        }
    }

    /// Admits the client, connects to a server and relays bytes until the connection ends.
    async fn serve_bytes(mut self, mut client: Leg) {
        // A reload may deny the client while it waits.
        let denied = self.entry.over();
        let opened = tokio::select! {
            biased;
            opened = self.open(&mut client) => opened,
            end = denied => Err(reason_of(end)),
        };
        let (early, mut server) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.refuse(&client, reason),
        };
        let end = self.relay(&mut client, &mut server, early).await;
        if end == RelayEnd::Closed {
            client.close_in_order();
            server.leg.close_in_order();
        }
        if end == RelayEnd::ServerReset {
            server.permit.reset(&self.context.shared.failures);
        }
        self.end(reason_of(end));
    }

    /// Admits the client and connects to a server. Returns the bytes that have been read from the
    /// client already, and the connection.
    ///
    /// # Errors
    /// Reason of the end; `None` if the client has closed in order.
    async fn open(&mut self, client: &mut Leg) -> Result<(Vec<u8>, Connected), Option<Counter>> {
        let ReceivedHeader { origin, mut early } = self.complete_admission(client).await?;
        self.choose_route(client, &early).await?;
        if early.is_empty() {
            early = self.wait_for_first_bytes(&mut client.stream).await?;
        }
        let opening = Opening {
            client: self.downstream.client,
            local: self.local_address(client.tcp()),
            origin: &origin,
            named: None,
            data_waits: !early.is_empty(),
            // More bytes than were read follow.
            is_upload: early.len() >= MAX_EARLY,
            within: self.timeouts.connect,
            within_tls: SpokenWithin::Bytes,
        };
        let server = self.connect_to_server(opening).await?;
        Ok((early, server))
    }

    /// Waits for the first bytes of the client, if the configuration limits this time
    /// (`first_byte_timeout`). So a server does not have to wait for a silent client.
    ///
    /// Returns the bytes that have arrived, at most `MAX_EARLY`.
    async fn wait_for_first_bytes(&self, client: &mut ByteStream) -> Result<Vec<u8>, Counter> {
        let limit = self.frontend.config.limits.first_byte_timeout;
        let mut late = pin!(limit.map(|limit| sleep_until(self.downstream.began + limit)));
        poll_fn(|cx| {
            let mut buffer = [0; MAX_EARLY];
            match (client.poll_read(cx, &mut buffer), late.as_mut().as_pin_mut()) {
                (Poll::Ready(Ok(n)), _) => Poll::Ready(Ok(buffer[..n].to_vec())),
                (Poll::Ready(Err(_)), _) => Poll::Ready(Err(Counter::ClientReset)),
                (Poll::Pending, Some(late)) => late.poll(cx).map(|()| Err(Counter::FirstByteTimeout)),
                (Poll::Pending, None) => Poll::Ready(Ok(Vec::new())),
            }
        })
        .await
    }

    /// Relays bytes until the connection ends, and returns the reason. Reports to the permit that
    /// the server has answered.
    async fn relay(&self, client: &mut Leg, server: &mut Connected, early: Vec<u8>) -> RelayEnd {
        let Connected { leg, permit, .. } = server;
        let mut is_silent = true;
        let count = |rx, tx| {
            is_silent &= rx + tx == 0;
            if tx > 0 {
                permit.answered();
            }
            if let Some(record) = &self.record {
                record.count(rx, tx);
            }
            self.entry.count(rx, tx);
            for (counter, n) in [(Counter::BytesRx, rx), (Counter::BytesTx, tx)] {
                if n > 0 {
                    self.count(counter, n);
                    permit.count(counter, n);
                }
            }
        };
        let patience = Patience { idle: self.timeouts.idle, unanswered: self.timeouts.tcp_user_timeout };
        self.entry.set_server(&ConnectionServer {
            frontend: &self.frontend,
            pool: permit.pool(),
            index: permit.index(),
            seen_from: leg.tcp().local_addr().ok(),
            is_only: true,
        });
        if let Some(end) = self.entry.end() {
            return end;
        }
        let streams = (&mut client.stream, &mut leg.stream);
        let end = tokio::select! {
            biased;
            end = relay(streams, early, &self.context.relay, patience, count) => end,
            end = self.until_ended(permit) => end,
        };
        // A connection without bytes proves nothing about the server: health checks of other load
        // balancers connect and close.
        if end == RelayEnd::Closed && !is_silent {
            permit.answered();
        }
        end
    }

    /// Waits until convey must end the connection: the server goes down, a reload denies the
    /// client, or an operator ends the connection.
    async fn until_ended(&self, permit: &Permit) -> RelayEnd {
        // The server may have gone down before the connection was registered with it. convey
        // publishes a snapshot before the registry ends connections, so the newest snapshot shows
        // this.
        if permit.ends_when_down() && permit.is_down_in(&self.context.snapshot()) {
            return RelayEnd::ServerGone;
        }
        self.entry.over().await
    }
}
