//! HTTP/3 connection of a client: its streams, each with one request, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use convey_model::HttpLimits;
use convey_proxy::{ClientStream, PendingHandshake, QuicClient, StreamEnd};
use convey_snapshot::stats::Counter;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h3::error::Code;
use h3::server::RequestResolver;
use log::debug;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::quic::{QuicConnection, StreamNotes, number};
use super::stream::{self, HandshakeState};
use crate::local_reply::ANSWER_TIME;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::connection::{ENDING, HEAD_ROOM, ResetVerdict, StreamCounts, end_streams, until_true};

/// Time between two checks of a connection in use: of the moved bytes, and of the client's address.
const LOOKS: Duration = Duration::from_secs(1);

/// Bounds of the time between the two GOAWAY frames. The first one reaches the client meanwhile.
const GRACE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Serves a client until its connection is over.
pub(crate) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    quic: QuicClient,
    server: &WorkerServer<S>,
) -> StreamEnd {
    let QuicClient { connection, handshake } = quic;
    let mut bytes = CountedBytes { client, connection: connection.clone(), counted: (0, 0) };
    let end = serve_streams(client, connection, handshake, server, &mut bytes).await;
    bytes.count();
    end
}

/// HTTP/3 connection of the library, with the notes on its streams.
struct Http3 {
    library: h3::server::Connection<QuicConnection, Bytes>,
    notes: mpsc::UnboundedReceiver<StreamNotes>,
    /// Whether the transport rejects further streams: set by the last GOAWAY.
    is_ending: Arc<AtomicBool>,
    /// Time of the last GOAWAY, once the end of the connection has begun.
    last_goaway: Option<Instant>,
}

async fn serve_streams<S: DecideRequest>(
    client: &ClientStream,
    connection: quinn::Connection,
    handshake: Option<PendingHandshake>,
    server: &WorkerServer<S>,
    bytes: &mut CountedBytes<'_>,
) -> StreamEnd {
    let newest = || client.newest().config.http_limits();
    let mut http3 = match Http3::begin(&newest(), &connection).await {
        Ok(http3) => http3,
        Err(reason) => return StreamEnd::Early(reason),
    };
    let (established, is_established) = watch::channel(handshake.is_none());
    let is_address_proven = handshake.as_ref().is_none_or(|handshake| handshake.is_address_proven);
    let mut handshaking = pin!(shake_hands(handshake, &established));
    let mut looks = interval(LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counts = StreamCounts::new(client.is_trusted_proxy(&client.newest()));
    let mut streams = FuturesUnordered::new();
    // Time at which a connection without streams ends.
    let mut until = Instant::now() + newest().keep_alive;
    loop {
        let last_goaway = http3.last_goaway;
        tokio::select! {
            biased;
            Some(ended) = streams.next(), if !streams.is_empty() => {
                until = Instant::now() + if http3.has_farewell() { ANSWER_TIME } else { newest().keep_alive };
                counts.reset += u64::from(ended == stream::StreamOutcome::Reset);
                http3.end_for_resets(counts.verdict(), &connection).await;
            }
            accepted = http3.accept(client) => {
                let Some((resolver, notes)) = accepted else { break };
                if let Err(reason) = client.note_address(connection.remote_address()) {
                    return ends_early(client, reason);
                }
                counts.begun += 1;
                let handshake = HandshakeState { is_over: is_established.clone(), is_address_proven };
                streams.push(stream::serve(client, server.clone(), resolver, notes, handshake));
                // If the frontend is gone, the connection ends after the requests that are already
                // on their way.
                let is_last = counts.begun >= u64::from(newest().requests) || !client.is_served();
                http3.note_stream(&connection, counts.begun, is_last).await;
            }
            false = &mut handshaking, if !*is_established.borrow() => {
                return ends_early(client, Counter::TlsHandshakeTimeout);
            }
            () = until_true(|| client.is_draining()), if !http3.has_farewell() => {
                until = Instant::now() + ANSWER_TIME;
                http3.announce_end(&connection, counts.begun > 0).await;
            }
            () = until_some(last_goaway), if !http3.is_ending() => http3.refuse_streams().await,
            _ = looks.tick(), if !streams.is_empty() => {
                bytes.count();
                if let Err(reason) = client.note_address(connection.remote_address()) {
                    return ends_early(client, reason);
                }
            }
            () = sleep_until(until), if streams.is_empty() => {
                // The client has not reacted to GOAWAY: convey closes the connection.
                if http3.has_farewell() {
                    break;
                }
                until = Instant::now() + ENDING;
                http3.announce_end(&connection, counts.begun > 0).await;
            }
        }
    }
    // The streams notice that the connection is over, and log it.
    end_streams(client, streams).await;
    StreamEnd::Closed
}

/// Returns the early end of a connection for this reason, which its requests log, too.
fn ends_early(client: &ClientStream, reason: Counter) -> StreamEnd {
    client.note_early_end(reason);
    StreamEnd::Early(reason)
}

impl Http3 {
    /// Begins HTTP/3 on a QUIC connection. An error is the reason for the connection's end.
    async fn begin(limits: &HttpLimits, connection: &quinn::Connection) -> Result<Http3, Counter> {
        let max_head = limits.head.bytes as u64 + u64::from(HEAD_ROOM);
        let is_ending = Arc::<AtomicBool>::default();
        let (over_quic, notes) = QuicConnection::new(connection.clone(), max_head, is_ending.clone());
        let mut builder = h3::server::builder();
        builder.max_field_section_size(max_head).send_grease(false).enable_extended_connect(true);
        match timeout(limits.head_timeout, builder.build(over_quic)).await {
            Ok(Ok(library)) => Ok(Http3 { library, notes, is_ending, last_goaway: None }),
            Ok(Err(_)) => Err(Counter::ClientReset),
            Err(_) => Err(Counter::FirstByteTimeout),
        }
    }

    /// Returns the next stream that the client opens; `None`: the connection accepts no further
    /// streams.
    async fn accept(
        &mut self,
        client: &ClientStream,
    ) -> Option<(RequestResolver<QuicConnection, Bytes>, StreamNotes)> {
        match self.library.accept().await {
            Ok(resolver) => resolver.zip(self.notes.try_recv().ok()),
            Err(error) => {
                debug!("HTTP/3 connection with {} ended: {error}", client.client());
                None
            }
        }
    }

    /// Ends the connection if the client resets too many streams.
    async fn end_for_resets(&mut self, verdict: ResetVerdict, connection: &quinn::Connection) {
        match verdict {
            ResetVerdict::EndInOrder if !self.is_ending() => self.refuse_streams().await,
            ResetVerdict::EndAtOnce => connection.close(number(Code::H3_EXCESSIVE_LOAD.value()), b""),
            ResetVerdict::EndInOrder | ResetVerdict::Fine => {}
        }
    }

    /// Whether the connection accepts no further streams.
    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Whether the end of the connection has begun.
    fn has_farewell(&self) -> bool {
        self.last_goaway.is_some()
    }

    /// Begins the end of the connection: sends a GOAWAY with the greatest stream id, so that the
    /// client opens no further streams. convey accepts the streams that are on their way.
    ///
    /// The library cannot send this GOAWAY before the client's first stream. If `has_streams` is
    /// false, call this function again after that stream.
    async fn announce_end(&mut self, connection: &quinn::Connection, has_streams: bool) {
        let (least, most) = GRACE;
        let grace = if has_streams { (3 * connection.rtt()).clamp(least, most) } else { most };
        self.last_goaway = Some(Instant::now() + grace);
        if has_streams {
            let _ = timeout(ENDING, self.library.shutdown(usize::MAX)).await;
        }
    }

    /// Begins the end of the connection after its stream number `begun`, if it is the last one.
    async fn note_stream(&mut self, connection: &quinn::Connection, begun: u64, is_last: bool) {
        // An end that began before the first stream could not be announced then.
        let is_unannounced = begun == 1 && self.has_farewell();
        if is_unannounced || is_last && !self.has_farewell() {
            self.announce_end(connection, true).await;
        }
    }

    /// Sends the last GOAWAY, and accepts no further streams.
    async fn refuse_streams(&mut self) {
        self.last_goaway.get_or_insert_with(Instant::now);
        self.is_ending.store(true, Ordering::Relaxed);
        // GOAWAY names the first stream that convey does not accept (RFC 9114, section 5.2). It
        // follows the last accepted stream.
        let _ = timeout(ENDING, self.library.shutdown(1)).await;
    }
}

/// Waits until this time. Without a time, it never returns.
async fn until_some(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
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
}
