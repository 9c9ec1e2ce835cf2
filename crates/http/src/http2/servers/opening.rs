//! Opens an HTTP/2 connection to a server, and moves its frames.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use convey_proxy::{Contained, ServerStream};
use h2::client::{Builder, SendRequest};
use log::debug;
use tokio::time::{sleep, timeout};

use super::{OpeningConnection, StreamClient};
use crate::held_responses::MAX_HELD;
use crate::http2::frame_filter::FieldFilter;
use crate::http2::io::Connection;
use crate::http2::kept::{KeptConnection, KeptState, MAX_REQUESTS, MAX_STREAMS, StreamPlace, UNTOLD};
use crate::http2::library::broken;
use crate::http2::outgoing::OutgoingStream;
use crate::http2::receive::{DATA_FRAME_BUDGET, ReceiveQueue};
use crate::http2::send_window::{SendWindow, WindowMeter};
use crate::http2::{RESET_STREAMS, RESET_TIME};

/// Receive window of a stream in bytes: maximum number of bytes of a response that wait in convey.
const STREAM_WINDOW: u32 = MAX_HELD as u32;

/// Receive window of a connection in bytes: the windows of all its streams together. Streams of
/// many clients share a connection, and a slow reader must not block the others.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS as u32;

/// Maximum number of bytes that a stream buffers for the server.
const SEND_BUFFER: usize = 64 * 1024;

/// Maximum size of a response's head in the library. The library counts the bytes of the head, and
/// 32 more for each field. The frontend's limits apply as well.
const MAX_HEAD: u32 = 128 * 1024;

/// Maximum number of stream errors on a connection before the library ends the connection. No
/// connection reaches it, because each request causes at most one error.
const MAX_ERRORS: usize = 2 * MAX_REQUESTS;

/// Begins HTTP/2 on a new connection to the server with this name. Returns a stream on the
/// connection, and shares the connection with other requests.
///
/// # Errors
/// The HTTP/2 handshake fails, or takes longer than `within`.
pub(crate) async fn connect(
    mut opening: OpeningConnection,
    stream: ServerStream,
    name: String,
    within: Duration,
) -> io::Result<Box<OutgoingStream>> {
    let filter = FieldFilter::new(MAX_HEAD as usize);
    let (window, queue) = (Arc::<SendWindow>::default(), ReceiveQueue::new(STREAM_WINDOW as usize));
    let io = Connection::new(stream, filter, queue.clone());
    let io = WindowMeter::new(io, window.clone());
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(UNTOLD)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEAD)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .reset_stream_duration(RESET_TIME)
        .max_local_error_reset_streams(Some(MAX_ERRORS));
    let (send, connection) = timeout(within, builder.handshake(io)).await?.map_err(broken)?;
    let (at, share) = (opening.at.clone(), opening.share.take());
    let share = share.unwrap_or_else(|| at.share(StreamClient::default()));
    let (kept, first) = at.with(|connections| {
        connections.name = name;
        let mut kept = KeptConnection::new(send.clone(), window, queue, connections.changed.clone());
        let (state, first) = (kept.state().clone(), kept.another(share, None));
        connections.kept.push(kept);
        (state, first)
    });
    tokio::spawn(Contained::new(run(connection, (opening, send), kept, within)));
    begin(first).await
}

/// Moves the frames of a connection until it is over. The connection counts as opened once the
/// server's SETTINGS have arrived. If they do not arrive within `within`, the connection gets no
/// further streams.
async fn run(
    connection: impl Future<Output = Result<(), h2::Error>> + Send + 'static,
    opening: (OpeningConnection, SendRequest<Bytes>),
    kept: Arc<KeptState>,
    within: Duration,
) {
    let (mut connection, mut opening, mut time) = (pin!(connection), Some(opening), pin!(sleep(within)));
    let ended = poll_fn(|cx| {
        let polled = kept.receive_queue().poll(|| connection.as_mut().poll(cx));
        drop(opening.take_if(|(_, send)| send.current_max_send_streams() != UNTOLD));
        if opening.is_some() && time.as_mut().poll(cx).is_ready() {
            kept.retire();
            opening = None;
        }
        polled
    });
    if let Err(error) = ended.await {
        debug!("an HTTP/2 connection to a server ended: {error}");
    }
    kept.retire();
}

/// Waits until the connection lets a stream begin.
pub(super) async fn begin(mut place: StreamPlace) -> io::Result<Box<OutgoingStream>> {
    poll_fn(|cx| place.send().poll_ready(cx)).await.map_err(broken)?;
    Ok(Box::new(OutgoingStream::new(place)))
}
