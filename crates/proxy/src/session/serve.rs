//! Service of a client connection in its own task. In mode proxy: admission, connect to a server,
//! relay.

use std::future::poll_fn;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until};

use super::{TcpSession, reason_of};
use crate::client_stream::ClientStream;
use crate::client_task::ClientTask;
use crate::connect::Connected;
use crate::contained::Contained;
use crate::proxy_header::ReceivedHeader;
use crate::registry::{ConnectionServer, SeenFrom};
use crate::relay::{Patience, RelayEnd, relay, with_buffer};
use convey_snapshot::stats::Counter;
use convey_stream::{ByteStream, Leg, PollClock};
use convey_tls::SpokenWithin;
use convey_upstream::{Opening, Permit};

/// Maximum number of bytes that are read from a client before it has a server. It is small because
/// convey holds these bytes while the connection waits for a server.
const MAX_EARLY: usize = 4096;

impl TcpSession {
    /// Serves the client in a new task until the connection ends. Each mode has its own type of
    /// task, so a relayed connection needs no memory for mode http.
    pub(crate) fn spawn(self: Box<Self>, client: Leg) {
        match self.context.http.clone().filter(|_| self.frontend.config.mode.is_http()) {
            Some(http) if self.is_admitted() => {
                let (client, bytes) = ClientStream::admitted(self, client, ReceivedHeader::default());
                drop(tokio::spawn(Contained::new(http.serve(client, bytes))));
            }
            Some(http) => {
                let admitted = Box::pin(ClientStream::admit(self, client, http));
                drop(tokio::spawn(Contained::new(ClientTask::Admission(admitted))));
            }
            None => drop(tokio::spawn(Contained::new(self.serve_bytes(client)))),
        }
    }

    /// Whether nothing of [`TcpSession::complete_admission`] is left to do for a connection that
    /// has just passed its first checks.
    fn is_admitted(&self) -> bool {
        !self.awaits_header
            && !self.is_beyond_share()
            && self.slot.is_some()
            && self.entry.end().is_none()
            && self.frontend.config.tls.is_none()
    }

    /// Admits the client, connects to a server and relays bytes until the connection ends.
    async fn serve_bytes(mut self: Box<Self>, mut client: Leg) {
        // A reload may deny the client while it waits.
        let denied = self.entry.over();
        // One timer for the whole connection: first for the connect, then for the relay.
        let mut timer = pin!(sleep_until(PollClock::now() + self.timeouts.connect()));
        let opened = tokio::select! {
            biased;
            opened = self.open(&mut client, timer.as_mut()) => opened,
            end = denied => Err(reason_of(end)),
        };
        let (early, mut server) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.refuse(&client, reason),
        };
        let end = self.relay((&mut client, &mut server), early, timer).await;
        self.entry.close_socket();
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
    async fn open(
        &mut self,
        client: &mut Leg,
        timer: Pin<&mut Sleep>,
    ) -> Result<(Vec<u8>, Connected), Option<Counter>> {
        // The futures of rare phases are boxed, so that other connections hold no memory for them.
        let ReceivedHeader { origin, mut early } = match self.is_admitted() {
            true => ReceivedHeader::default(),
            false => Box::pin(self.complete_admission(client)).await?,
        };
        if self.frontend.sni.is_some() {
            Box::pin(self.choose_route(client, &early)).await?;
        }
        if early.is_empty() {
            early = self.wait_for_first_bytes(&mut client.stream).await?;
        }
        let context = self.context.clone();
        let opening = Opening {
            client: self.client(),
            local: self.local_address(client.tcp()),
            origin: Some(&origin),
            named: None,
            data_waits: !early.is_empty(),
            // More bytes than were read follow.
            is_upload: early.len() >= MAX_EARLY,
            keeps_nagle: true,
            ports: &context.shared.local_ports,
            within: self.timeouts.connect(),
            within_tls: SpokenWithin::Bytes,
        };
        let server = self.connect_to_server(opening, timer).await?;
        Ok((early, server))
    }

    /// Waits for the first bytes of the client, if the configuration limits this time
    /// (`first_byte_timeout`). So a server does not have to wait for a silent client.
    ///
    /// Returns the bytes that have arrived, at most `MAX_EARLY`.
    async fn wait_for_first_bytes(&self, client: &mut ByteStream) -> Result<Vec<u8>, Counter> {
        let limit = self.frontend.config.limits.first_byte_timeout;
        let mut late = limit.map(|limit| Box::pin(sleep_until(self.entry.began() + limit)));
        poll_fn(|cx| match (poll_early(client, cx), &mut late) {
            (Poll::Ready(read), _) => Poll::Ready(read),
            (Poll::Pending, Some(late)) => late.as_mut().poll(cx).map(|()| Err(Counter::FirstByteTimeout)),
            (Poll::Pending, None) => Poll::Ready(Ok(Vec::new())),
        })
        .await
    }

    /// Relays bytes until the connection ends, and returns the reason. Reports to the permit that
    /// the server has answered.
    async fn relay(
        &self,
        (client, server): (&mut Leg, &mut Connected),
        early: Vec<u8>,
        timer: Pin<&mut Sleep>,
    ) -> RelayEnd {
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
        let timeouts = self.timeouts;
        let patience = Patience { idle: timeouts.idle(), unanswered: timeouts.tcp_user_timeout() };
        self.entry.set_server(&ConnectionServer {
            frontend: &self.frontend,
            pool: permit.pool(),
            index: permit.index(),
            seen_from: SeenFrom::Socket(leg.tcp().as_raw_fd()),
            is_only: true,
        });
        if let Some(end) = self.entry.end() {
            return end;
        }
        let streams = (&mut client.stream, &mut leg.stream);
        let end = tokio::select! {
            biased;
            end = relay(streams, early, &self.context.relay, (patience, timer), count) => end,
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

/// Reads the bytes that have arrived, at most [`MAX_EARLY`].
fn poll_early(client: &mut ByteStream, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, Counter>> {
    with_buffer(|buffer| {
        let buffer = &mut buffer[..MAX_EARLY];
        client.poll_read(cx, buffer).map(|read| match read {
            Ok(n) => Ok(buffer[..n].to_vec()),
            Err(_) => Err(Counter::ClientReset),
        })
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::context::tests::context;
    use convey_snapshot::fixture;

    #[tokio::test]
    async fn task_of_a_relayed_connection_takes_1700_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let vip = listener.local_addr().unwrap();
        let (client, _) = tokio::join!(TcpStream::connect(vip), listener.accept());
        let (pool, client) = (fixture::pool("web", Vec::new()), client.unwrap());
        let frontend = fixture::frontend("web", &[&vip.to_string()], &pool);
        let context = context(fixture::snapshot(vec![frontend], vec![pool]));
        let snapshot = context.snapshot();
        let session = TcpSession::new(client.local_addr().unwrap(), vip, &context, &snapshot).unwrap();
        let task = session.serve_bytes(Leg::new(client));
        assert!(size_of_val(&task) <= 1_700, "{}", size_of_val(&task));
    }
}
