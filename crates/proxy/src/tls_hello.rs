//! Routes of TLS connections: the server name and the protocols in the ClientHello select the
//! backend. convey decrypts nothing for that. For a client with a TLS session of convey's own, it
//! takes both from the handshake.
//!
//! convey peeks at the hello in the socket's receive buffer: a slow client takes no memory of this
//! process, and the server gets the bytes unchanged. The hello has a time limit, because a silent
//! client would keep its connection slot.

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
use convey_snapshot::{Pool, Snapshot, SniRoute};
use convey_stream::{Leg, More, try_write};
use convey_tls::SessionFacts;
use convey_trace::ConnectionStep;
use convey_upstream::PickContext;

/// Time limit for a hello after admission: three lost segments in a row, one after the other.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a client without a route has to read the alert.
const LINGER: Duration = Duration::from_secs(1);

/// Server name of a client, and its route.
#[derive(Debug)]
pub(super) struct Routed {
    /// Server name of the hello.
    sni: Option<Box<str>>,
    /// Route; `None` if no route matches, or a reload removed the routes.
    route: Option<Arc<SniRoute>>,
    /// Backend as of the choice.
    pool: Arc<Pool>,
}

/// Reason why there is no hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoHello {
    /// The client closed without a byte.
    Silent,
    Reset,
    /// The client closed within its hello.
    Cut,
    Malformed(HelloFault),
}

/// Reason why no route matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteRejection {
    NotTls,
    /// The client speaks TLS, and gets this alert.
    NoRoute(HelloAlert),
}

impl Routed {
    /// Backend of the route.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Server name and route, for the access log.
    pub(super) fn logged(&self) -> LoggedHello {
        LoggedHello { sni: self.sni.clone(), route: self.route.as_ref().map(|route| route.name.clone()) }
    }

    /// Adds to a counter of the route.
    pub(super) fn count(&self, core: usize, counter: Counter) {
        if let Some(route) = &self.route {
            route.live.traffic.add(core, counter, 1);
        }
    }
}

impl TcpSession {
    /// Chooses a route by the client's hello, if the frontend has routes. `early` holds the bytes
    /// that have been read already.
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
        // A box, so that connections without routes hold no memory for it.
        let hello = match Box::pin(self.hello_of(client, early)).await? {
            Ok(hello) => hello,
            Err(NoHello::Silent) => {
                client.close_in_order();
                return Err(None);
            }
            Err(NoHello::Reset) => return Err(Some(Counter::ClientReset)),
            Err(why) => {
                let PickContext { client: from, vip, .. } = self.downstream;
                debug!("{from} -> {vip}: not a ClientHello: {why:?}");
                if let NoHello::Malformed(fault) = why {
                    tell(client, fault.alert()).await;
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
        // Within convey's own TLS session the alert would have to be encrypted.
        if client.stream.facts().is_none() {
            tell(client, alert).await;
        }
        Err(Some(Counter::NoRoute))
    }

    /// Returns the client's hello; `None` if the client does not speak TLS.
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
            let first = timeout_at(self.downstream.began + limit, client.tcp().readable());
            // The next read reports an error again.
            _ = first.await.map_err(|_| Counter::FirstByteTimeout)?;
        }
        timeout(HELLO_TIMEOUT, receive(client.tcp(), early)).await.map_err(|_| Counter::HelloTimeout)
    }

    /// Selects the route of this snapshot for a hello; `hello` is `None` if the client does not
    /// speak TLS.
    fn go_by(&mut self, hello: Option<ClientHello>, snapshot: &Snapshot) -> Result<(), RouteRejection> {
        let newest = self.frontend_in(snapshot).clone();
        // A reload may have removed the routes. In mode http a connection has to be served as HTTP
        // from its beginning, so the old frontend is used.
        let frontend = if newest.config.mode.is_http() { self.frontend.clone() } else { newest };
        let route = match (&frontend.sni, &hello) {
            (Some(routes), Some(hello)) => routes.route(hello.server_name.as_deref(), hello.alpn()),
            (Some(routes), None) => routes.default.as_ref(),
            (None, _) => None,
        };
        let pool = route.map_or(&frontend.pool, |route| &route.pool).clone();
        self.timeouts = snapshot.timeouts_with(&frontend, &pool);
        let (is_tls, sni) = (hello.is_some(), hello.and_then(|hello| hello.server_name));
        let no_way = match (&frontend.sni, route) {
            (Some(_), None) if !is_tls => Some(RouteRejection::NotTls),
            (Some(routes), None) if routes.has_name(sni.as_deref()) => {
                Some(RouteRejection::NoRoute(HelloAlert::NoApplicationProtocol))
            }
            (Some(_), None) => Some(RouteRejection::NoRoute(HelloAlert::UnrecognizedName)),
            _ => None,
        };
        let routed = Routed { sni, route: route.cloned(), pool };
        routed.count(self.downstream.core, Counter::Opened);
        if self.context.shared.trace.is_watched() {
            let LoggedHello { sni, route } = routed.logged();
            self.trace(None, ConnectionStep::Routed { sni, route });
        }
        self.routed = Some(Box::new(routed));
        no_way.map_or(Ok(()), Err)
    }

    /// Backend that serves the client, as of the choice.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        self.routed.as_ref().map_or(&self.frontend.pool, |routed| &routed.pool)
    }
}

/// Sends an alert to a client, and closes the connection in order. Reads the remaining bytes first,
/// because unread bytes would reset the connection before the client has read the alert.
async fn tell(client: &mut Leg, alert: HelloAlert) {
    if let Some(Ok(_)) = try_write(client.tcp(), &alert.record(), More::No) {
        client.close_in_order();
        let _ = timeout(LINGER, client.stream.discard_rest()).await;
    }
}

/// Waits for a complete hello; `None` if the bytes are not TLS. They stay in the socket.
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
        verdict = look(stream, early, ready)?;
    }
}

/// Parses the bytes that have arrived. If more are needed, the socket becomes readable again with
/// the next bytes.
fn look(stream: &TcpStream, early: &[u8], ready: Ready) -> Result<HelloVerdict, NoHello> {
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

    /// A hello for the name `a.example`.
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
