//! HTTP/3 connection of a client: its streams, each with one request, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use convey_model::HttpLimits;
use convey_proxy::{ClientStream, PendingHandshake, QuicClient, StreamEnd};
use convey_snapshot::stats::Counter;
use h3::error::Code;
use h3::server::RequestResolver;
use log::debug;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::quic::{NotesQueue, QuicConnection, StreamNotes, number};
use super::stream::{self, HandshakeState};
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::connection::{HEAD_ROOM, StreamCounts};
use crate::streams::serving::{self, ENDING, StreamConnection};

/// Time between two checks of a connection in use: of the moved bytes, and of the client's address.
const LOOKS: Duration = Duration::from_secs(1);

/// Bounds of the time between the two GOAWAY frames, in which the first one reaches the client.
const GRACE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Serves a client until its connection has ended.
pub(crate) fn serve<S: DecideRequest>(
    client: ClientStream,
    quic: QuicClient,
    server: Arc<WorkerServer<S>>,
) -> impl Future<Output = ()> + Send {
    let connection = quic.connection.clone();
    // The beginning needs more memory than the service, so it is a box, which is dropped then.
    let begun = Box::pin(begin(*client.newest().config.http_limits(), quic));
    async move {
        let end = tokio::select! {
            biased;
            reason = client.over() => StreamEnd::Reset(reason),
            end = serve_streams(&client, &connection, &server, begun) => end,
        };
        close(&connection, end);
        client.end_quic(end);
    }
}

async fn serve_streams<S: DecideRequest>(
    client: &ClientStream,
    connection: &quinn::Connection,
    server: &Arc<WorkerServer<S>>,
    begun: Pin<Box<impl Future<Output = Result<Begun, Counter>>>>,
) -> StreamEnd {
    let mut bytes = CountedBytes { client, connection, counted: (0, 0) };
    let begun = match begun.await {
        Ok(begun) => begun,
        Err(reason) => {
            bytes.count();
            return StreamEnd::Early(reason);
        }
    };
    let counts = StreamCounts::new(client.is_trusted_proxy(&client.newest()), None);
    let streams = serving::serve(client, Http3::new(begun, &mut bytes), counts, |accepted| {
        let (resolver, notes, handshake) = accepted;
        stream::serve(client, server.clone(), resolver, notes, handshake)
    });
    let end = streams.await;
    bytes.count();
    end
}

/// HTTP/3 connection of the library.
type Library = h3::server::Connection<QuicConnection, Bytes>;

/// HTTP/3 connection that has begun.
struct Begun {
    library: Library,
    notes: NotesQueue,
    is_refusing: Arc<AtomicBool>,
    handshake: HandshakeState,
    handshaking: Option<Handshaking>,
}

/// Begins HTTP/3 on a QUIC connection. An error is the reason for the end of the connection.
async fn begin(limits: HttpLimits, quic: QuicClient) -> Result<Begun, Counter> {
    let QuicClient { connection, handshake } = quic;
    let max_head = limits.head.bytes as u64 + u64::from(HEAD_ROOM);
    let is_refusing = Arc::<AtomicBool>::default();
    let (over_quic, notes) = QuicConnection::new(connection, max_head, is_refusing.clone());
    let mut builder = h3::server::builder();
    builder.max_field_section_size(max_head).send_grease(false).enable_extended_connect(true);
    let library = match timeout(limits.head_timeout, builder.build(over_quic)).await {
        Ok(Ok(library)) => library,
        Ok(Err(_)) => return Err(Counter::ClientReset),
        Err(_) => return Err(Counter::FirstByteTimeout),
    };
    let is_address_proven = handshake.as_ref().is_none_or(|handshake| handshake.is_address_proven);
    let (handshaking, is_over) = handshake.map(shake_hands).unzip();
    let handshake = HandshakeState { is_over, is_address_proven };
    Ok(Begun { library, notes, is_refusing, handshake, handshaking })
}

/// HTTP/3 connection of the library, with the notes on its streams, and its handshake.
struct Http3<'a, 'b> {
    library: Library,
    notes: NotesQueue,
    end: EndPhase,
    /// Whether the transport rejects further streams: set by the last GOAWAY.
    is_refusing: Arc<AtomicBool>,
    handshake: HandshakeState,
    /// Future of the handshake; `None` once it is over. It returns false if the handshake does not
    /// end in time.
    handshaking: Option<Handshaking>,
    looks: Interval,
    bytes: &'a mut CountedBytes<'b>,
}

type Handshaking = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Progress of the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndPhase {
    None,
    /// The end has begun before the first stream, so GOAWAY is not sent yet. convey sends it after
    /// the first stream, or at this time.
    Unannounced(Instant),
    /// The client has got the first GOAWAY. The last one follows at this time.
    Announced(Instant),
    /// The client has got the last GOAWAY.
    Refusing,
}

impl<'a, 'b> Http3<'a, 'b> {
    fn new(begun: Begun, bytes: &'a mut CountedBytes<'b>) -> Http3<'a, 'b> {
        let Begun { library, notes, is_refusing, handshake, handshaking } = begun;
        let mut looks = interval(LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Http3 { library, notes, end: EndPhase::None, is_refusing, handshake, handshaking, looks, bytes }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>, is_idle: bool) -> Poll<Result<Accepted, StreamEnd>> {
        if let Poll::Ready(accepted) = pin!(self.library.accept()).poll(cx) {
            let accepted = accepted.inspect_err(|error| {
                debug!("HTTP/3 connection with {} ended: {error}", self.bytes.client.client());
            });
            let resolver = accepted.ok().flatten().ok_or(StreamEnd::Closed)?;
            let notes = self.notes.take().ok_or(StreamEnd::Closed)?;
            self.bytes.note_address()?;
            return Poll::Ready(Ok((resolver, notes, self.handshake.clone())));
        }
        if let Some(handshaking) = &mut self.handshaking
            && let Poll::Ready(is_over) = handshaking.as_mut().poll(cx)
        {
            self.handshaking = None;
            if !is_over {
                return Poll::Ready(Err(StreamEnd::Early(Counter::TlsHandshakeTimeout)));
            }
        }
        if is_idle {
            return Poll::Pending;
        }
        loop {
            ready!(self.looks.poll_tick(cx));
            self.bytes.count();
            self.bytes.note_address()?;
        }
    }
}

/// Stream of a client that the library has accepted.
type Accepted = (RequestResolver<QuicConnection, Bytes>, StreamNotes, HandshakeState);

impl StreamConnection for Http3<'_, '_> {
    type Stream = Accepted;

    const IDLE_END: Duration = ENDING;

    async fn accept(&mut self, is_idle: bool) -> Result<Accepted, StreamEnd> {
        poll_fn(|cx| self.poll_accept(cx, is_idle)).await
    }

    /// Sends a GOAWAY with the greatest stream id. The library cannot do so before the client's
    /// first stream.
    async fn announce_end(&mut self, begun: u64) {
        let (least, most) = GRACE;
        let now = Instant::now();
        self.end = match self.end {
            EndPhase::None if begun == 0 => EndPhase::Unannounced(now + most),
            EndPhase::None | EndPhase::Unannounced(_) if begun > 0 => {
                let grace = (3 * self.bytes.connection.rtt()).clamp(least, most);
                EndPhase::Announced(now + grace)
            }
            _ => return,
        };
        if begun > 0 {
            let _ = timeout(ENDING, self.library.shutdown(usize::MAX)).await;
        }
    }

    fn refuses_at(&self) -> Option<Instant> {
        match self.end {
            EndPhase::None | EndPhase::Refusing => None,
            EndPhase::Unannounced(at) | EndPhase::Announced(at) => Some(at),
        }
    }

    /// Sends the last GOAWAY, and accepts no further streams.
    async fn refuse_streams(&mut self) {
        if self.end == EndPhase::Refusing {
            return;
        }
        self.end = EndPhase::Refusing;
        self.is_refusing.store(true, Ordering::Relaxed);
        // GOAWAY names the first stream that convey does not accept (RFC 9114, section 5.2). It
        // follows the last accepted stream.
        let _ = timeout(ENDING, self.library.shutdown(1)).await;
    }

    fn abort(&mut self) {
        self.bytes.connection.close(number(Code::H3_EXCESSIVE_LOAD.value()), b"");
    }
}

/// Closes a QUIC connection with the error code for this end.
fn close(connection: &quinn::Connection, end: StreamEnd) {
    let said = if end == StreamEnd::Closed { Code::H3_NO_ERROR } else { Code::H3_REQUEST_CANCELLED };
    connection.close(number(said.value()), b"");
}

/// Returns the future that waits until the handshake is over, and the receiver by which it notifies
/// the streams. The future returns false if the handshake does not end in time.
fn shake_hands(handshake: PendingHandshake) -> (Handshaking, watch::Receiver<bool>) {
    let (established, is_over) = watch::channel(false);
    let handshaking = Box::pin(async move {
        let within = handshake.within;
        let is_over = timeout(within, handshake.done).await.is_ok();
        if is_over {
            established.send_replace(true);
        }
        is_over
    });
    (handshaking, is_over)
}

/// Counts the bytes that a QUIC connection has received and sent, as whole UDP datagrams.
struct CountedBytes<'a> {
    client: &'a ClientStream,
    connection: &'a quinn::Connection,
    counted: (u64, u64),
}

impl CountedBytes<'_> {
    fn count(&mut self) {
        let stats = self.connection.stats();
        let (rx, tx) = (stats.udp_rx.bytes, stats.udp_tx.bytes);
        self.client.count_bytes(rx - self.counted.0, tx - self.counted.1);
        self.counted = (rx, tx);
    }

    /// Notes the client's present address. Returns an error, the reason for the end of the
    /// connection, if the address is denied.
    fn note_address(&self) -> Result<(), StreamEnd> {
        self.client.note_address(self.connection.remote_address()).map_err(StreamEnd::Early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::UsualStack;

    /// Size of the future that `begin` returns.
    fn size_of_future<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn idle_http3_connection_takes_two_kilobytes_beside_its_libraries() {
        type Parts = (ClientStream, QuicClient, Arc<WorkerServer<UsualStack>>);
        let size = size_of_future(|(client, quic, server): Parts| serve(client, quic, server));
        assert!(size <= 2048, "{size}");
    }
}
