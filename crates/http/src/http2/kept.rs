//! A connection to a server that speaks HTTP/2, and the places of streams on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::servers::{self, StreamShare};
use crate::idle::ServerPlace;

/// Most streams at once on a connection; a server may allow less. With more, another connection is opened.
pub(super) const MAX_STREAMS: usize = 100;

/// What the library says of how many streams a server allows, until the server has said it.
pub(super) const UNTOLD: usize = usize::MAX - 1;

/// How long a connection without streams is kept.
const LIFETIME: Duration = Duration::from_secs(30);

/// A connection, among others of its server.
pub(super) struct KeptConnection {
    send: SendRequest<Bytes>,
    state: Arc<KeptState>,
    /// Since when there is no stream.
    unused: Option<Instant>,
}

/// What a connection, its streams and the task that moves its frames know of it.
pub(super) struct KeptState {
    server: ServerPlace,
    /// No other stream begins on it.
    is_over: AtomicBool,
    /// Streams that run.
    open: AtomicUsize,
    /// Streams so far.
    begun: AtomicUsize,
    /// Those that its end in order has refused.
    refused: AtomicUsize,
    /// Told when a stream is over.
    freed: Arc<Notify>,
}

/// A stream's place on a connection.
pub(super) struct StreamPlace {
    send: SendRequest<Bytes>,
    state: Arc<KeptState>,
    _share: StreamShare,
}

impl KeptConnection {
    pub(super) fn new(server: ServerPlace, send: SendRequest<Bytes>, freed: Arc<Notify>) -> KeptConnection {
        let [open, begun, refused] = [(); 3].map(|()| AtomicUsize::new(0));
        let state = KeptState { server, is_over: AtomicBool::new(false), open, begun, refused, freed };
        KeptConnection { send, state: Arc::new(state), unused: None }
    }

    pub(super) fn state(&self) -> &Arc<KeptState> {
        &self.state
    }

    /// Whether there is room for another stream.
    pub(super) fn has_room(&self) -> bool {
        let is_first = !self.state.is_over() && self.open() == 0;
        is_first || self.limit().is_some_and(|most| self.open() < most)
    }

    /// Most streams at once; `None`: it takes none, or none yet.
    pub(super) fn limit(&self) -> Option<usize> {
        let told = self.send.current_max_send_streams();
        (!self.state.is_over() && told != UNTOLD).then_some(told.min(MAX_STREAMS))
    }

    /// Another stream, which counts in this share. `most`: it is the last one if there are so many requests in all then.
    pub(super) fn another(&mut self, share: StreamShare, most: Option<usize>) -> StreamPlace {
        self.unused = None;
        self.state.open.fetch_add(1, Ordering::Relaxed);
        let begun = self.state.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if most.is_some_and(|most| begun >= most) {
            self.state.retire();
        }
        StreamPlace { send: self.send.clone(), state: self.state.clone(), _share: share }
    }

    /// Whether it is of use at this time.
    pub(super) fn stays(&mut self, now: Instant) -> bool {
        let is_unused = self.open() == 0;
        let since = *self.unused.get_or_insert(now);
        if !is_unused {
            self.unused = None;
        }
        !self.state.is_over() && (!is_unused || now - since < LIFETIME)
    }

    /// Streams that the server has served.
    pub(super) fn served(&self) -> usize {
        self.state.taken().saturating_sub(self.open())
    }

    fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }
}

impl KeptState {
    /// Has no other stream begin on this connection. Those that have begun go on.
    pub(super) fn retire(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Streams that the server has not refused.
    fn taken(&self) -> usize {
        self.begun.load(Ordering::Relaxed).saturating_sub(self.refused.load(Ordering::Relaxed))
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl StreamPlace {
    pub(super) fn send(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.send
    }

    pub(super) fn state(&self) -> &Arc<KeptState> {
        &self.state
    }

    /// The server has ended the connection in order, and refused this stream.
    pub(super) fn was_refused(&self) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
        self.state.retire();
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let open = self.state.open.fetch_sub(1, Ordering::Relaxed) - 1;
        // With the last stream it is certain how many the server has refused.
        if open == 0 && self.state.refused.load(Ordering::Relaxed) > 0 {
            servers::note_end(self.state.server, self.state.taken().max(1));
        }
        self.state.freed.notify_one();
    }
}
