//! A connection to a server that speaks HTTP/2, and the places of streams on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use convey_model::Prefix;
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
    /// Streams whose body waits for the flow control of the server.
    stalled: AtomicUsize,
    /// Number of open streams with a body, by client.
    uploads: Mutex<HashMap<Prefix, usize>>,
    /// Told when a stream is over.
    freed: Arc<Notify>,
}

/// A stream's place on a connection.
pub(super) struct StreamPlace {
    send: SendRequest<Bytes>,
    state: Arc<KeptState>,
    share: StreamShare,
    is_stalled: bool,
}

impl KeptConnection {
    pub(super) fn new(server: ServerPlace, send: SendRequest<Bytes>, freed: Arc<Notify>) -> KeptConnection {
        let [open, begun, refused, stalled] = [(); 4].map(|()| AtomicUsize::new(0));
        let (is_over, uploads) = (AtomicBool::new(false), Mutex::default());
        let state = KeptState { server, is_over, open, begun, refused, stalled, uploads, freed };
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
        if let Some(client) = share.upload_of() {
            *self.state.uploads().entry(client).or_default() += 1;
        }
        StreamPlace { send: self.send.clone(), state: self.state.clone(), share, is_stalled: false }
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

    /// Whether a body waits for the flow control of the server, and a client of the network has one
    /// on its way.
    pub(super) fn is_stalled_by(&self, network: &Prefix) -> bool {
        self.state.is_stalled() && self.state.has_upload_of(network)
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

    /// Whether the body of a stream waits for the flow control of the server, so that others on this
    /// connection may have to wait for the same window.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed) > 0
    }

    /// Whether a client of the network has an open stream with a body.
    pub(super) fn has_upload_of(&self, network: &Prefix) -> bool {
        self.uploads().keys().any(|client| network.contains(client.first()))
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<Prefix, usize>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Notes whether the body waits for the flow control of the server.
    pub(super) fn note_stalled(&mut self, is_stalled: bool) {
        match (std::mem::replace(&mut self.is_stalled, is_stalled), is_stalled) {
            (false, true) => _ = self.state.stalled.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.state.stalled.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// The server has ended the connection in order, and refused this stream.
    pub(super) fn was_refused(&self) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
        self.state.retire();
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.note_stalled(false);
        if let Some(client) = self.share.upload_of() {
            let mut uploads = self.state.uploads();
            if let Some(open) = uploads.get_mut(&client) {
                *open -= 1;
            }
            uploads.retain(|_, open| *open > 0);
        }
        let open = self.state.open.fetch_sub(1, Ordering::Relaxed) - 1;
        // With the last stream it is certain how many the server has refused.
        if open == 0 && self.state.refused.load(Ordering::Relaxed) > 0 {
            servers::note_end(self.state.server, self.state.taken().max(1));
        }
        self.state.freed.notify_one();
    }
}
