//! Routes of TLS connections: the server name (SNI) and the protocols (ALPN) in the ClientHello
//! select the backend. convey does not have to decrypt anything for that. If convey itself
//! terminates TLS, it takes name and protocols from its own handshake.
//!
//! convey peeks at the ClientHello, which stays in the socket's receive buffer. So a slow client
//! uses no memory of this process, and the server receives the bytes unchanged. The ClientHello has
//! a time limit, because a silent client would otherwise keep its connection slot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use rustix::net::{RecvFlags, recv};
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

use super::session::TcpSession;
use convey_access_log::LoggedHello;
use convey_client_hello::{ClientHello, HelloAlert, HelloFault, HelloVerdict, MAX_HELLO, parse};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pool, Snapshot, SniRoute, WorkerArc};
use convey_stream::{Leg, More, try_write};
use convey_tls::SessionFacts;
use convey_trace::ConnectionStep;

/// Time limit for the ClientHello after admission. It suffices for three losses of a segment in a
/// row.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for a client without a route to read the alert.
const LINGER: Duration = Duration::from_secs(1);

/// Server name of a ClientHello, and the route that it selected.
#[derive(Debug)]
pub(super) struct Routed {
    /// Server name (SNI) of the ClientHello, if it has one.
    sni: Option<Box<str>>,
    /// Selected route; `None` if no route matches, or a reload removed the routes.
    route: Option<Arc<SniRoute>>,
    /// Pool of the route, as of the selection.
    pool: WorkerArc<Pool>,
}

/// Reason why no valid ClientHello was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoHello {
    /// The client closed without sending a byte.
    Silent,
    Reset,
    /// The client closed before its ClientHello was complete.
    Cut,
    Malformed(HelloFault),
}

/// Reason why no route matches, which decides the answer to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteRejection {
    NotTls,
    /// The client speaks TLS, but no route matches. convey sends this alert.
    NoRoute(HelloAlert),
}

impl Routed {
    /// Pool of the route, as of the selection.
    pub(super) fn pool(&self) -> &WorkerArc<Pool> {
        &self.pool
    }

    /// Server name and name of the route, for the access log.
    pub(super) fn logged(&self) -> LoggedHello<'_> {
        LoggedHello { sni: self.sni.as_deref(), route: self.route.as_ref().map(|route| &*route.name) }
    }

    /// Adds 1 to a counter of the route, if a route was selected.
    pub(super) fn count(&self, core: usize, counter: Counter) {
        if let Some(route) = &self.route {
            route.live.traffic.add(core, counter, 1);
        }
    }
}

impl TcpSession {
    /// Selects a route by the ClientHello, if the frontend has routes. `early` holds the bytes that
    /// have been read from the client already.
    ///
    /// # Errors
    /// Reason of the end; `None` if the client has closed in order.
    pub(super) async fn choose_route(
        &mut self,
        client: &mut Leg,
        early: &[u8],
    ) -> Result<(), Option<Counter>> {
        if self.frontend.sni.is_none() {
            return Ok(());
        }
        // The future is boxed, so that connections without routes hold no memory for it.
        let hello = match Box::pin(self.hello_of(client, early)).await? {
            Ok(hello) => hello,
            Err(NoHello::Silent) => {
                client.close_in_order();
                return Err(None);
            }
            Err(NoHello::Reset) => return Err(Some(Counter::ClientReset)),
            Err(why) => {
                let (from, vip) = (self.client(), self.vip());
                debug!("{from} -> {vip}: not a ClientHello: {why:?}");
                if let NoHello::Malformed(fault) = why {
                    send_alert(client, fault.alert()).await;
                }
                return Err(Some(Counter::HelloInvalid));
            }
        };
        let context = self.context.clone();
        let alert = match self.go_by(hello, &context.snapshot()) {
            Ok(()) => return Ok(()),
            Err(RouteRejection::NotTls) => return Err(Some(Counter::NotTls)),
            Err(RouteRejection::NoRoute(alert)) => alert,
        };
        // The alert is plain text, so convey does not send it if it terminates TLS.
        if client.stream.facts().is_none() {
            send_alert(client, alert).await;
        }
        Err(Some(Counter::NoRoute))
    }

    /// Returns the ClientHello; `None` if the client does not speak TLS. The outer error is a
    /// timeout, the inner error a missing or invalid ClientHello.
    async fn hello_of(
        &self,
        client: &Leg,
        early: &[u8],
    ) -> Result<Result<Option<ClientHello>, NoHello>, Counter> {
        if let Some(SessionFacts { server_name, protocol, .. }) = client.stream.facts() {
            // convey has terminated TLS, and has these facts from the handshake.
            let [name, protocol] =
                [&server_name, &protocol].map(|said| Some(&**said).filter(|said| !said.is_empty()));
            return Ok(Ok(Some(ClientHello::of(name, protocol.map(str::as_bytes)))));
        }
        let limit = self.frontend.config.limits.first_byte_timeout.filter(|_| early.is_empty());
        if let Some(limit) = limit {
            let first = timeout_at(self.entry.began() + limit, client.tcp().readable());
            // Ignores an error of the socket here, because the next read reports it.
            _ = first.await.map_err(|_| Counter::FirstByteTimeout)?;
        }
        timeout(HELLO_TIMEOUT, receive(client.tcp(), early)).await.map_err(|_| Counter::HelloTimeout)
    }

    /// Selects the route for a ClientHello in this snapshot. `hello` is `None` if the client does
    /// not speak TLS.
    fn go_by(&mut self, hello: Option<ClientHello>, snapshot: &Snapshot) -> Result<(), RouteRejection> {
        let newest = self.frontend_in(snapshot).clone();
        // A reload may have changed the frontend. If it is now in mode http, this connection keeps
        // the old version, because it did not begin as an HTTP connection.
        let frontend = if newest.config.mode.is_http() { self.frontend.shared().clone() } else { newest };
        let route = match (&frontend.sni, &hello) {
            (Some(routes), Some(hello)) => routes.route(hello.server_name.as_deref(), hello.alpn()),
            (Some(routes), None) => routes.default.as_ref(),
            (None, _) => None,
        };
        let pool = route.map_or(&frontend.pool, |route| &route.pool).clone();
        self.timeouts = snapshot.timeouts_with(&frontend, &pool).into();
        let (is_tls, sni) = (hello.is_some(), hello.and_then(|hello| hello.server_name));
        let no_way = match (&frontend.sni, route) {
            (Some(_), None) if !is_tls => Some(RouteRejection::NotTls),
            (Some(routes), None) if routes.has_name(sni.as_deref()) => {
                Some(RouteRejection::NoRoute(HelloAlert::NoApplicationProtocol))
            }
            (Some(_), None) => Some(RouteRejection::NoRoute(HelloAlert::UnrecognizedName)),
            _ => None,
        };
        let routed = Routed { sni, route: route.cloned(), pool: pool.into() };
        routed.count(self.context.core, Counter::Opened);
        if self.context.shared.trace.is_watched() {
            let (sni, route) = (routed.sni.clone(), routed.route.as_ref().map(|route| route.name.clone()));
            self.trace(None, ConnectionStep::Routed { sni, route });
        }
        self.routed = Some(Box::new(routed));
        no_way.map_or(Ok(()), Err)
    }

    /// Pool that serves the client: the pool of its route if there is one, otherwise the pool of
    /// the frontend.
    pub(super) fn pool(&self) -> &WorkerArc<Pool> {
        self.routed.as_ref().map_or(self.frontend.default_pool(), |routed| &routed.pool)
    }
}

/// Sends an alert to a client, and closes the connection in order. Reads and discards the remaining
/// bytes before the close, because unread bytes would cause a reset, and the client might lose the
/// alert.
async fn send_alert(client: &mut Leg, alert: HelloAlert) {
    if let Some(Ok(_)) = try_write(client.tcp(), &alert.record(), More::No) {
        client.close_in_order();
        let _ = timeout(LINGER, client.stream.discard_rest()).await;
    }
}

/// Waits for a complete ClientHello; returns `None` if the bytes are not TLS. The bytes stay in the
/// socket's receive buffer.
async fn receive(stream: &TcpStream, early: &[u8]) -> Result<Option<ClientHello>, NoHello> {
    let mut verdict = parse(early);
    loop {
        match verdict {
            HelloVerdict::NeedMore => {}
            HelloVerdict::NotTls => return Ok(None),
            HelloVerdict::Hello(hello) => return Ok(Some(hello)),
            HelloVerdict::Malformed(fault) => return Err(NoHello::Malformed(fault)),
        }
        let ready = stream.ready(Interest::READABLE).await.map_err(|_| NoHello::Reset)?;
        verdict = peek(stream, early, ready)?;
    }
}

/// Peeks at the bytes that have arrived, and parses them. If more bytes are needed, clears the
/// readiness of the socket, so that it becomes readable again with the next bytes.
fn peek(stream: &TcpStream, early: &[u8], ready: Ready) -> Result<HelloVerdict, NoHello> {
    let mut buffer = [0; MAX_HELLO];
    let start = early.len().min(MAX_HELLO);
    buffer[..start].copy_from_slice(&early[..start]);
    let (mut verdict, mut end) = (HelloVerdict::NeedMore, start);
    let looked = stream.try_io(Interest::READABLE, || {
        let (n, _) = recv(stream, &mut buffer[start..], RecvFlags::PEEK)?;
        end += n;
        verdict = parse(&buffer[..end]);
        match verdict {
            HelloVerdict::NeedMore => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    });
    match looked {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(NoHello::Reset),
        // The client has closed: no further bytes will arrive.
        Err(_) if ready.is_read_closed() => match stream.take_error() {
            Ok(None) if end == 0 => Err(NoHello::Silent),
            Ok(None) => Err(NoHello::Cut),
            Ok(Some(_)) | Err(_) => Err(NoHello::Reset),
        },
        Ok(()) | Err(_) => Ok(verdict),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A ClientHello for the server name `a.example`.
    const HELLO: &[u8] =
        b"\x16\x03\x01\x00\x45\x01\x00\x00\x41\x03\x0377777777777777777777777777777777\0\0\x02\x13\x01\x01\0\
        \0\x16\0\0\0\x0e\0\x0c\0\0\x09a.example\0\x17\0\0";

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_hello_byte_by_byte_is_seen_and_stays_where_it_is() {
        for early in [0, 1, 40, HELLO.len()] {
            let (mut client, mut stream) = pair().await;
            let received = tokio::spawn(async move { (receive(&stream, &HELLO[..early]).await, stream) });
            for byte in &HELLO[early..] {
                client.write_all(&[*byte]).await.unwrap();
            }
            let hello;
            (hello, stream) = received.await.unwrap();
            assert_eq!(hello.unwrap().unwrap().server_name.as_deref(), Some("a.example"));
            drop(client);
            let mut unread = Vec::new();
            stream.read_to_end(&mut unread).await.unwrap();
            assert_eq!(unread, &HELLO[early..]);
        }
    }

    #[tokio::test]
    async fn without_a_whole_hello_there_is_a_reason() {
        for (bytes, why) in [
            (&b""[..], Err(NoHello::Silent)),
            (&HELLO[..9], Err(NoHello::Cut)),
            (b"GET / HTTP/1.1\r\n", Ok(None)),
            (b"\x16\x03\x01\0\0", Err(NoHello::Malformed(HelloFault::EmptyRecord))),
        ] {
            let (mut client, stream) = pair().await;
            client.write_all(bytes).await.unwrap();
            drop(client);
            assert_eq!(receive(&stream, b"").await, why);
        }
        for bytes in [b"", &HELLO[..9]] {
            let (mut client, stream) = pair().await;
            client.write_all(bytes).await.unwrap();
            client.set_zero_linger().unwrap();
            drop(client);
            assert_eq!(receive(&stream, b"").await, Err(NoHello::Reset));
        }
    }
}
