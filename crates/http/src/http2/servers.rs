//! Connections to servers that speak HTTP/2. Each thread has its own, and each of them many streams.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use convey_proxy::ServerStream;
use h2::client::{Builder, SendRequest};
use log::debug;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

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

/// Most connections to one server that take streams. Once all have as many as they may, further requests wait here: what the library has
/// got reaches the server, even if the client no longer waits.
const MAX_CONNECTIONS: usize = 32;

/// For how long it is remembered how many requests a server takes on a connection: it may be told otherwise.
const MEMORY: Duration = Duration::from_secs(300);

/// What the library says of how many streams a server allows, until the server has said it.
const UNTOLD: usize = usize::MAX - 1;

/// A server, by its number and where it is.
type ServerPlace = (u32, SocketAddr);

thread_local! {
    static SERVERS: RefCell<HashMap<ServerPlace, Connections>> = RefCell::default();
}

/// Those to one server.
#[derive(Default)]
struct Connections {
    kept: Vec<Kept>,
    /// Those that are being opened, until their server has said how many streams it allows.
    opening: usize,
    /// How many requests the server takes on a connection before it ends it in order, and when that was seen. No further ones begin there:
    /// it would refuse them.
    takes: Option<(usize, Instant)>,
    /// Requests that wait for one of these, or for room.
    waiting: usize,
    /// Wakes them: all when a connection has been opened, one when a stream is over.
    changed: Arc<Notify>,
}

/// What there is for a request.
enum Found {
    Place(StreamPlace),
    /// There may be another connection.
    Nothing(OpeningConnection),
    /// One is being opened that may have room, or all are full.
    Wait(Waiting),
}

/// What a request gets.
pub(crate) enum FoundStream {
    Stream(Box<OutgoingStream>),
    /// No connection has room: the caller opens one.
    Nothing(OpeningConnection),
    /// All have as many streams as they may, and no other may be opened.
    Full,
    /// The client has left meanwhile.
    ClientLeft,
}

/// A connection that is being opened. Dropped, those that wait for it look again.
pub(crate) struct OpeningConnection(ServerPlace);

/// A request that waits until a connection has been opened, or a stream is over.
struct Waiting {
    server: ServerPlace,
    changed: Arc<Notify>,
}

/// A connection, among others of its server.
struct Kept {
    send: SendRequest<Bytes>,
    /// Each stream has a share of it.
    streams: Arc<Streams>,
    /// Told when a stream is over.
    freed: Arc<Notify>,
    /// No other stream begins on it.
    is_over: Arc<AtomicBool>,
    /// Since when there is no stream.
    unused: Option<Instant>,
}

/// A stream's place on a connection.
pub(super) struct StreamPlace {
    server: ServerPlace,
    send: SendRequest<Bytes>,
    is_over: Arc<AtomicBool>,
    streams: Arc<Streams>,
    freed: Arc<Notify>,
}

/// The streams of one connection so far.
#[derive(Default)]
struct Streams {
    begun: AtomicUsize,
    /// Those that its end in order has refused.
    refused: AtomicUsize,
}

/// A stream on a connection to this server. Waits so long for one that is being opened, or for room, but for room only until the client has
/// `left`.
///
/// # Errors
/// None has been opened in time.
pub(crate) async fn take(
    server: ServerPlace,
    within: Duration,
    left: impl Future<Output = ()>,
) -> io::Result<FoundStream> {
    let (until, mut left) = (Instant::now() + within, pin!(left));
    loop {
        let found = SERVERS.with_borrow_mut(|servers| servers.entry(server).or_default().find(server));
        match found {
            Found::Place(place) => {
                let is_over = place.is_over.clone();
                if let Ok(stream) = begin(place).await {
                    return Ok(FoundStream::Stream(stream));
                }
                is_over.store(true, Ordering::Relaxed);
            }
            Found::Nothing(opening) => return Ok(FoundStream::Nothing(opening)),
            Found::Wait(waiting) => tokio::select! {
                biased;
                changed = timeout_at(until, waiting.changed.notified()) => match changed {
                    Ok(()) => {}
                    Err(_) if waiting.is_for_room() => return Ok(FoundStream::Full),
                    Err(late) => return Err(late.into()),
                },
                () = &mut left, if waiting.is_for_room() => return Ok(FoundStream::ClientLeft),
            },
        }
    }
}

/// A stream on this new connection to the server. Others find it from now on.
///
/// # Errors
/// The server does not speak HTTP/2.
pub(crate) async fn connect(
    opening: OpeningConnection,
    stream: ServerStream,
    within: Duration,
) -> io::Result<Box<OutgoingStream>> {
    let io = Connection::new(stream, BytesMut::new());
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(UNTOLD)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEAD);
    let (send, connection) = timeout(within, builder.handshake(io)).await?.map_err(broken)?;
    let (server, is_over) = (opening.0, Arc::new(AtomicBool::new(false)));
    tokio::spawn(run(connection, (opening, send.clone()), is_over.clone(), within));
    let place =
        SERVERS.with_borrow_mut(|servers| servers.entry(server).or_default().keep(server, send, is_over));
    begin(place).await
}

/// Moves the frames of a connection until it is over. It has been opened once the server has said how many streams it allows. One that
/// does not in time gets no further streams.
async fn run(
    connection: impl Future<Output = Result<(), h2::Error>> + Send + 'static,
    opening: (OpeningConnection, SendRequest<Bytes>),
    is_over: Arc<AtomicBool>,
    within: Duration,
) {
    let (mut connection, mut opening, mut time) = (pin!(connection), Some(opening), pin!(sleep(within)));
    let ended = poll_fn(|cx| {
        let polled = connection.as_mut().poll(cx);
        drop(opening.take_if(|(_, send)| send.current_max_send_streams() != UNTOLD));
        if opening.is_some() && time.as_mut().poll(cx).is_ready() {
            is_over.store(true, Ordering::Relaxed);
            opening = None;
        }
        polled
    });
    if let Err(error) = ended.await {
        debug!("a connection to a server over HTTP/2 is over: {error}");
    }
    is_over.store(true, Ordering::Relaxed);
}

/// Closes connections that are over or have had no stream for long. To be called once a second.
pub(crate) fn sweep() {
    let now = Instant::now();
    SERVERS.with_borrow_mut(|servers| {
        servers.retain(|_, connections| {
            connections.kept.retain_mut(|one| one.stays(now));
            connections.takes.take_if(|(_, seen)| now - *seen >= MEMORY);
            !connections.kept.is_empty() || connections.opening + connections.waiting > 0
        });
    });
}

/// Waits until the connection lets a stream begin.
async fn begin(mut place: StreamPlace) -> io::Result<Box<OutgoingStream>> {
    poll_fn(|cx| place.send.poll_ready(cx)).await.map_err(broken)?;
    Ok(Box::new(OutgoingStream::new(place)))
}

impl StreamPlace {
    pub(super) fn send(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.send
    }

    /// Has no other stream begin on this connection. Those that have begun go on.
    pub(super) fn retire(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The server has ended the connection in order, and refused this stream.
    pub(super) fn was_refused(&self) {
        let refused = self.streams.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let taken = self.streams.begun.load(Ordering::Relaxed).saturating_sub(refused).max(1);
        SERVERS.with_borrow_mut(|servers| {
            servers.entry(self.server).or_default().takes = Some((taken, Instant::now()));
        });
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.freed.notify_one();
    }
}

impl Connections {
    /// What there is for a request to this server.
    fn find(&mut self, server: ServerPlace) -> Found {
        let most = self.takes.map(|(most, _)| most);
        if let Some(place) = self.kept.iter_mut().find_map(|kept| kept.place(server, most)) {
            return Found::Place(place);
        }
        // Who opens a connection has a stream of it, too.
        if self.opening * MAX_STREAMS > self.opening + self.waiting {
            return self.wait(server);
        }
        let opened = self.kept.iter().filter(|kept| kept.limit().is_some()).count();
        if opened + self.opening < MAX_CONNECTIONS {
            self.opening += 1;
            return Found::Nothing(OpeningConnection(server));
        }
        self.wait(server)
    }

    /// Has others find a new connection. The first stream on it.
    fn keep(
        &mut self,
        server: ServerPlace,
        send: SendRequest<Bytes>,
        is_over: Arc<AtomicBool>,
    ) -> StreamPlace {
        let freed = self.changed.clone();
        let mut kept = Kept { send, streams: Arc::default(), freed, is_over, unused: None };
        let first = kept.another(server, None);
        self.kept.push(kept);
        first
    }

    fn wait(&mut self, server: ServerPlace) -> Found {
        self.waiting += 1;
        Found::Wait(Waiting { server, changed: self.changed.clone() })
    }
}

impl Drop for OpeningConnection {
    fn drop(&mut self) {
        let _ = SERVERS.try_with(|servers| {
            if let Some(connections) = servers.borrow_mut().get_mut(&self.0) {
                connections.opening -= 1;
                connections.changed.notify_waiters();
            }
        });
    }
}

impl Waiting {
    /// Whether no connection is being opened.
    fn is_for_room(&self) -> bool {
        SERVERS.with_borrow(|servers| {
            servers.get(&self.server).is_none_or(|connections| connections.opening == 0)
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = SERVERS.try_with(|servers| {
            if let Some(connections) = servers.borrow_mut().get_mut(&self.server) {
                connections.waiting -= 1;
            }
        });
    }
}

impl Kept {
    /// Room for another stream, if there is. `most`: so many requests in all.
    fn place(&mut self, server: ServerPlace, most: Option<usize>) -> Option<StreamPlace> {
        let is_first = !self.is_over.load(Ordering::Relaxed) && self.open() == 0;
        let has_room = self.limit().is_some_and(|most| self.open() < most);
        (is_first || has_room).then(|| self.another(server, most))
    }

    /// Most streams at once; `None`: it takes none, or none yet.
    fn limit(&self) -> Option<usize> {
        let told = self.send.current_max_send_streams();
        let takes_streams = !self.is_over.load(Ordering::Relaxed) && told != UNTOLD;
        takes_streams.then_some(told.min(MAX_STREAMS))
    }

    /// Another stream, the last one if there are as many as may be then.
    fn another(&mut self, server: ServerPlace, most: Option<usize>) -> StreamPlace {
        self.unused = None;
        let begun = self.streams.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if most.is_some_and(|most| begun >= most) {
            self.is_over.store(true, Ordering::Relaxed);
        }
        StreamPlace {
            server,
            send: self.send.clone(),
            is_over: self.is_over.clone(),
            streams: self.streams.clone(),
            freed: self.freed.clone(),
        }
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
