//! HTTP/3 connection of a client: its streams, each with one request, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use convey_model::HttpLimits;
use convey_proxy::{ClientStream, PendingHandshake, QuicClient, StreamEnd};
use convey_snapshot::stats::Counter;
use h3::error::Code;
use h3::server::RequestResolver;
use log::debug;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::quic::{QuicConnection, StreamNotes, number};
use super::stream::{self, HandshakeState};
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::connection::{HEAD_ROOM, StreamCounts};
use crate::streams::serving::{self, ENDING, StreamConnection};

/// Time between two checks of a connection in use: of the moved bytes, and of the client's address.
const LOOKS: Duration = Duration::from_secs(1);

/// Bounds of the time between the two GOAWAY frames, in which the first one reaches the client.
const GRACE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Serves a client until its connection is over.
pub(crate) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    quic: QuicClient,
    server: &WorkerServer<S>,
) -> StreamEnd {
    let QuicClient { connection, handshake } = quic;
    let mut bytes = CountedBytes { client, connection, counted: (0, 0) };
    let end = serve_streams(client, handshake, server, &mut bytes).await;
    bytes.count();
    end
}

async fn serve_streams<S: DecideRequest>(
    client: &ClientStream,
    handshake: Option<PendingHandshake>,
    server: &WorkerServer<S>,
    bytes: &mut CountedBytes<'_>,
) -> StreamEnd {
    let is_refusing = Arc::<AtomicBool>::default();
    let limits = client.newest().config.http_limits();
    let (library, notes) = match begin(&limits, &bytes.connection, is_refusing.clone()).await {
        Ok(begun) => begun,
        Err(reason) => return StreamEnd::Early(reason),
    };
    let (established, is_over) = watch::channel(handshake.is_none());
    let is_address_proven = handshake.as_ref().is_none_or(|handshake| handshake.is_address_proven);
    let handshaking = pin!(shake_hands(handshake, &established));
    let mut looks = interval(LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let connection = Http3 {
        library,
        notes,
        end: EndPhase::None,
        is_refusing,
        handshake: HandshakeState { is_over, is_address_proven },
        handshaking,
        looks,
        bytes,
    };
    let counts = StreamCounts::new(client.is_trusted_proxy(&client.newest()), None);
    let end = serving::serve(client, connection, counts, |(resolver, notes, handshake)| {
        stream::serve(client, server.clone(), resolver, notes, handshake)
    });
    end.await
}

/// HTTP/3 connection of the library.
type Library = h3::server::Connection<QuicConnection, Bytes>;

/// Begins HTTP/3 on a QUIC connection. Returns the HTTP/3 connection, and the notes on its streams.
/// An error is the reason for the end of the connection.
async fn begin(
    limits: &HttpLimits,
    connection: &quinn::Connection,
    is_refusing: Arc<AtomicBool>,
) -> Result<(Library, mpsc::UnboundedReceiver<StreamNotes>), Counter> {
    let max_head = limits.head.bytes as u64 + u64::from(HEAD_ROOM);
    let (over_quic, notes) = QuicConnection::new(connection.clone(), max_head, is_refusing);
    let mut builder = h3::server::builder();
    builder.max_field_section_size(max_head).send_grease(false).enable_extended_connect(true);
    match timeout(limits.head_timeout, builder.build(over_quic)).await {
        Ok(Ok(library)) => Ok((library, notes)),
        Ok(Err(_)) => Err(Counter::ClientReset),
        Err(_) => Err(Counter::FirstByteTimeout),
    }
}

/// HTTP/3 connection of the library, with the notes on its streams, and its handshake.
struct Http3<'a, 'b, H> {
    library: Library,
    notes: mpsc::UnboundedReceiver<StreamNotes>,
    end: EndPhase,
    /// Whether the transport rejects further streams: set by the last GOAWAY.
    is_refusing: Arc<AtomicBool>,
    handshake: HandshakeState,
    /// Future of the handshake. It returns false if the handshake does not end in time.
    handshaking: Pin<&'a mut H>,
    looks: Interval,
    bytes: &'a mut CountedBytes<'b>,
}

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

impl<H: Future<Output = bool> + Send> StreamConnection for Http3<'_, '_, H> {
    type Stream = (RequestResolver<QuicConnection, Bytes>, StreamNotes, HandshakeState);

    const IDLE_END: Duration = ENDING;

    async fn accept(&mut self, is_idle: bool) -> Result<Self::Stream, StreamEnd> {
        loop {
            let is_established = *self.handshake.is_over.borrow();
            tokio::select! {
                biased;
                accepted = self.library.accept() => {
                    let accepted = accepted.inspect_err(|error| {
                        debug!("HTTP/3 connection with {} ended: {error}", self.bytes.client.client());
                    });
                    let resolver = accepted.ok().flatten().ok_or(StreamEnd::Closed)?;
                    let notes = self.notes.try_recv().map_err(|_| StreamEnd::Closed)?;
                    self.bytes.note_address()?;
                    return Ok((resolver, notes, self.handshake.clone()));
                }
                false = &mut self.handshaking, if !is_established => {
                    return Err(StreamEnd::Early(Counter::TlsHandshakeTimeout));
                }
                _ = self.looks.tick(), if !is_idle => {
                    self.bytes.count();
                    self.bytes.note_address()?;
                }
            }
        }
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
pub(crate) fn close(connection: &quinn::Connection, end: StreamEnd) {
    let said = if end == StreamEnd::Closed { Code::H3_NO_ERROR } else { Code::H3_REQUEST_CANCELLED };
    connection.close(number(said.value()), b"");
}

/// Waits until the handshake is over, and notifies the streams by `established`. Returns false if
/// the handshake does not end in time.
async fn shake_hands(handshake: Option<PendingHandshake>, established: &watch::Sender<bool>) -> bool {
    let Some(handshake) = handshake else { return true };
    let within = handshake.within;
    let is_over = timeout(within, handshake.done).await.is_ok();
    if is_over {
        established.send_replace(true);
    }
    is_over
}

/// Counts the bytes that a QUIC connection has received and sent, as whole UDP datagrams.
struct CountedBytes<'a> {
    client: &'a ClientStream,
    connection: quinn::Connection,
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
