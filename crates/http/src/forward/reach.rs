//! Ways to a server: an idle connection, a new one, or a stream of a shared one.

use std::time::Duration;

use convey_model::HttpVersion;
use convey_proxy::{NewConnection, ServerStream};
use convey_stream::PollClock;
use convey_tls::SpokenWithin;
use convey_upstream::{Attempts, Permit, ServerAnswer};
use log::debug;

use super::head::missing;
use super::{Forwarding, Unreached, answer_now};
use crate::ends::ServerEnd;
use crate::http2::{self, FoundStream, OpeningConnection};
use crate::idle::ServerPlace;
use convey_snapshot::stats::Counter;

/// Maximum idle time of a connection for a request that must not be repeated. The server may just
/// have closed a connection that was idle for longer.
const FRESH: Duration = Duration::from_secs(1);

impl Forwarding<'_, '_> {
    /// Takes an idle connection of HTTP/1 to the server of the permit; `None`: there is none, or the
    /// request must not use one.
    pub(super) fn kept_connection(
        &mut self,
        permit: &mut Permit,
        attempts: &Attempts,
    ) -> Option<Box<ServerStream>> {
        // After a failure, convey trusts no idle connection.
        if attempts.have_begun() || self.speaks_http2(permit) {
            return None;
        }
        let most = if self.may_go_twice() { Duration::MAX } else { FRESH };
        let kept = self.worker.idle.take(self.place(permit), most)?;
        permit.opened();
        self.record.connected(self.client, true);
        Some(kept)
    }

    /// Returns a connection to the server of the permit, and whether the connection is a reused
    /// one.
    ///
    /// # Errors
    /// Returns the reason why there is no connection.
    pub(super) async fn connection(
        &mut self,
        permit: &mut Permit,
        attempts: &mut Attempts,
    ) -> Result<(ServerEnd, bool), Unreached> {
        if let Some(kept) = self.kept_connection(permit, attempts) {
            return Ok((ServerEnd::Socket(kept), true));
        }
        let speaks_http2 = self.speaks_http2(permit);
        let began = PollClock::now();
        let opened = match speaks_http2 {
            // Boxed, so that the state of HTTP/2 is not a part of each HTTP/1.1 request.
            true => Box::pin(self.stream(permit)).await,
            // Boxed, because most requests reuse a connection.
            false => Box::pin(self.socket(permit)).await.map(|server| (server, true)),
        };
        match opened {
            Ok((server, is_new)) => {
                if is_new {
                    permit.connected(PollClock::now() - began);
                } else {
                    permit.opened();
                }
                self.record.connected(self.client, !is_new);
                Ok((server, false))
            }
            Err(Unreached::Failed(error)) => {
                let client = self.client.client();
                debug!("{client}: cannot connect to server {}: {error}", permit.name());
                self.record.connect_failed(self.client, &error);
                let ServerAnswer { took, now, .. } = answer_now(self.client, None, began);
                permit.failed_after(took, now);
                attempts.failed(permit, &error, self.client.failures());
                Err(Unreached::Failed(error))
            }
            Err(unreached) => {
                attempts.pass_over(permit);
                Err(unreached)
            }
        }
    }

    /// Opens a connection to the server of the permit. If the server chose HTTP/2 in the TLS
    /// handshake, also opens a stream on the connection.
    async fn socket(&mut self, permit: &Permit) -> Result<ServerEnd, Unreached> {
        let within = self.timeouts.connect;
        let mut server = self.open(permit, None).await?;
        if self.chose_http2(permit, &mut server).unwrap_or(false) {
            let connections = self.worker.http2.of(self.place(permit));
            let opening = OpeningConnection::new(connections, self.stream_client());
            return Ok(ServerEnd::Stream(
                Box::pin(http2::connect(opening, server, permit.name(), within)).await?,
            ));
        }
        Ok(ServerEnd::Socket(Box::new(server)))
    }

    /// Returns a stream to the server of the permit, and whether the connection of the stream is
    /// new.
    async fn stream(&mut self, permit: &Permit) -> Result<(ServerEnd, bool), Unreached> {
        let within = self.timeouts.connect;
        let (connections, client) = (self.worker.http2.of(self.place(permit)), self.stream_client());
        let left = self.end.left(missing(self.request, self.received));
        // After a failure, too, the request uses a shared connection: `take` returns no ended
        // connection, and new connections for refused streams would increase the server's load.
        let (stream, is_new) = match http2::take(&connections, client, within, left).await? {
            FoundStream::Stream(stream) => (stream, false),
            FoundStream::Nothing(opening) => {
                let mut server = self.open(permit, Some(&opening)).await?;
                if !self.chose_http2(permit, &mut server).unwrap_or(true) {
                    return Ok((ServerEnd::Socket(Box::new(server)), true));
                }
                (http2::connect(opening, server, permit.name(), within).await?, true)
            }
            FoundStream::Full => return Err(Unreached::Full),
            FoundStream::BeyondShare => {
                self.client.count(Counter::DroppedClientLimit, 1);
                return Err(Unreached::Full);
            }
            FoundStream::ClientLeft => return Err(Unreached::ClientLeft),
        };
        Ok((ServerEnd::Stream(stream), is_new))
    }

    /// Opens a connection to the server of the permit. A client that leaves ends this, unless other
    /// requests wait for a shared connection (`opening`).
    async fn open(
        &mut self,
        permit: &Permit,
        opening: Option<&OpeningConnection>,
    ) -> Result<ServerStream, Unreached> {
        let opened = self.client.connect(permit, self.new_connection(permit));
        let left = self.end.left(missing(self.request, self.received));
        let left = async {
            left.await;
            if let Some(opening) = opening {
                opening.unawaited().await;
            }
        };
        tokio::select! {
            biased;
            opened = opened => Ok(opened?),
            () = left => Err(Unreached::ClientLeft),
        }
    }

    /// Properties of a new connection to the server of the permit.
    fn new_connection(&self, permit: &Permit) -> NewConnection {
        NewConnection {
            named: self.request.named(),
            is_upload: !self.request.head().framing().is_empty(),
            within: self.timeouts.connect,
            within_tls: self.within_tls(permit),
        }
    }

    /// Whether the server of the permit gets requests over HTTP/2.
    fn speaks_http2(&self, permit: &Permit) -> bool {
        match permit.http_version() {
            HttpVersion::H1 => false,
            HttpVersion::H2 => true,
            // Upgrades are of HTTP/1.1.
            HttpVersion::Auto if self.request.head().upgrade().is_some() => false,
            // The server's last choice applies; the server may choose anew with each connection.
            HttpVersion::Auto if permit.has_tls() => permit.server().live.speaks_http2(),
            HttpVersion::Auto => self.end.is_stream(),
        }
    }

    /// HTTP versions that convey offers a server in the TLS handshake.
    fn within_tls(&self, permit: &Permit) -> SpokenWithin {
        match permit.http_version() {
            HttpVersion::H1 => SpokenWithin::Http1,
            HttpVersion::H2 => SpokenWithin::Http2,
            HttpVersion::Auto if self.request.head().upgrade().is_some() => SpokenWithin::Http1,
            HttpVersion::Auto => SpokenWithin::Http,
        }
    }

    /// Whether the server chose HTTP/2; `None` if it had no choice.
    fn chose_http2(&self, permit: &Permit, server: &mut ServerStream) -> Option<bool> {
        let has_choice = self.within_tls(permit) == SpokenWithin::Http && permit.has_tls();
        has_choice.then(|| {
            let is_http2 = server.stream().protocol() == Some(b"h2");
            permit.server().live.note_http2(is_http2);
            is_http2
        })
    }

    fn may_go_twice(&self) -> bool {
        self.request.head().method().is_idempotent()
    }

    pub(super) fn place(&self, permit: &Permit) -> ServerPlace {
        let addr = self.client.address_of(permit);
        ServerPlace {
            id: permit.server().live.id,
            addr,
            source: permit.source_to(addr),
            tls: permit.tls_id(),
        }
    }
}
