//! Connections to servers that speak HTTP/2. Each thread has its own, and each of them many streams.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use convey_proxy::ServerStream;
use h2::client::{Builder, SendRequest};
use log::debug;
use tokio::time::{Instant, timeout};

use super::body::broken;
use super::io::Connection;
use super::outgoing::OutgoingStream;

/// Most streams at once on a connection; a server may allow less. With more, another connection is opened.
const MAX_STREAMS: usize = 100;

/// How long a connection without streams is kept.
const LIFETIME: Duration = Duration::from_secs(30);

/// How much of a response a stream may bring before it is taken.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Most bytes that a stream keeps on their way out.
const SEND_BUFFER: usize = 64 * 1024;

/// Most bytes of a response's head.
const MAX_HEAD: u32 = 64 * 1024;

thread_local! {
    static KEPT: RefCell<HashMap<(u32, SocketAddr), Vec<Kept>>> = RefCell::default();
}

/// A connection, among others of its server.
struct Kept {
    send: SendRequest<Bytes>,
    /// Each stream has a share of it.
    streams: Arc<()>,
    /// No other stream begins on it.
    is_over: Arc<AtomicBool>,
    /// Since when there is no stream.
    unused: Option<Instant>,
}

/// A stream's place on a connection.
pub(super) struct StreamPlace {
    send: SendRequest<Bytes>,
    is_over: Arc<AtomicBool>,
    _stream: Arc<()>,
}

/// A stream on a connection that is open to this server, if one has room.
pub(crate) async fn take(server: (u32, SocketAddr)) -> Option<OutgoingStream> {
    let place = KEPT.with_borrow_mut(|kept| kept.get_mut(&server)?.iter_mut().find_map(Kept::place))?;
    begin(place).await.ok()
}

/// A stream on this new connection to the server. Others find it from now on.
///
/// # Errors
/// The server does not speak HTTP/2.
pub(crate) async fn connect(
    server: (u32, SocketAddr),
    stream: ServerStream,
    within: Duration,
) -> io::Result<OutgoingStream> {
    let io = Connection::new(stream, BytesMut::new());
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEAD);
    let (send, connection) = timeout(within, builder.handshake(io)).await?.map_err(broken)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let tell = is_over.clone();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!("a connection to a server over HTTP/2 is over: {error}");
        }
        tell.store(true, Ordering::Relaxed);
    });
    let mut kept = Kept { send, streams: Arc::default(), is_over, unused: None };
    let place = kept.place().ok_or(io::ErrorKind::ConnectionReset)?;
    KEPT.with_borrow_mut(|all| all.entry(server).or_default().push(kept));
    begin(place).await
}

/// Closes connections that are over or have had no stream for long. To be called once a second.
pub(crate) fn sweep() {
    let now = Instant::now();
    KEPT.with_borrow_mut(|kept| {
        kept.retain(|_, of_server| {
            of_server.retain_mut(|one| one.stays(now));
            !of_server.is_empty()
        });
    });
}

/// Waits until the connection lets a stream begin.
async fn begin(mut place: StreamPlace) -> io::Result<OutgoingStream> {
    poll_fn(|cx| place.send.poll_ready(cx)).await.map_err(broken)?;
    Ok(OutgoingStream::new(place))
}

impl StreamPlace {
    pub(super) fn send(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.send
    }

    /// Has no other stream begin on this connection. Those that have begun go on.
    pub(super) fn retire(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Kept {
    /// Room for another stream, if there is.
    fn place(&mut self) -> Option<StreamPlace> {
        let most = MAX_STREAMS.min(self.send.current_max_send_streams());
        if self.is_over.load(Ordering::Relaxed) || self.open() >= most {
            return None;
        }
        self.unused = None;
        Some(StreamPlace {
            send: self.send.clone(),
            is_over: self.is_over.clone(),
            _stream: self.streams.clone(),
        })
    }

    fn open(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
    }

    fn stays(&mut self, now: Instant) -> bool {
        let is_unused = self.open() == 0;
        let since = *self.unused.get_or_insert(now);
        if !is_unused {
            self.unused = None;
        }
        !self.is_over.load(Ordering::Relaxed) && (!is_unused || now - since < LIFETIME)
    }
}
