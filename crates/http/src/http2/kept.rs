//! Connection to an HTTP/2 server, and the places of streams on it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use convey_model::Prefix;
use h2::client::SendRequest;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::placement;
use super::receive::ReceiveQueue;
use super::resets::StreamResets;
use super::send_window::SendWindow;
use super::servers::StreamShare;
use super::uploads::{Upload, UploadProgress, Uploads};

/// Maximum number of concurrent streams on a connection; a server may allow fewer. For further
/// streams, convey opens another connection.
pub(super) const MAX_STREAMS: usize = 100;

/// Maximum number of requests on a connection. Each request can cause an error, and after too many
/// errors, the library ends a connection with the streams of all clients.
pub(super) const MAX_REQUESTS: usize = 16_384;

/// Stream limit that the library returns until the server's SETTINGS arrive.
pub(super) const UNTOLD: usize = usize::MAX - 1;

/// Time for which a connection without streams is kept.
const LIFETIME: Duration = Duration::from_secs(30);

/// Connection to an HTTP/2 server, which requests of many clients share.
pub(super) struct KeptConnection {
    send: SendRequest<Bytes>,
    state: Arc<KeptState>,
    /// Time since which the connection has no stream.
    unused: Option<Instant>,
    /// Whether the last check found too little send window for an upload, although no upload was
    /// open.
    has_no_window: bool,
}

/// State that a connection shares with its streams and the task that moves its frames.
pub(super) struct KeptState {
    /// Whether the connection accepts no further streams.
    is_over: AtomicBool,
    /// Number of open streams.
    open: AtomicUsize,
    /// Number of streams opened so far.
    begun: AtomicUsize,
    /// Streams that the server refused when it ended the connection gracefully.
    refused: AtomicUsize,
    resets: StreamResets,
    window: Arc<SendWindow>,
    uploads: Mutex<Uploads>,
    /// Queue of the streams that have received data.
    receive_queue: Arc<ReceiveQueue>,
    /// Notified when a stream has ended.
    freed: Arc<Notify>,
}

/// A stream's place on a connection.
pub(super) struct StreamPlace {
    send: SendRequest<Bytes>,
    state: Arc<KeptState>,
    upload: Option<OpenUpload>,
    share: StreamShare,
}

/// A request with a body on a connection, until its response is over.
pub(super) struct OpenUpload {
    state: Arc<KeptState>,
    client: Prefix,
    progress: UploadProgress,
}

impl KeptConnection {
    /// Creates a connection without streams. `window` counts its bytes.
    pub(super) fn new(
        send: SendRequest<Bytes>,
        window: Arc<SendWindow>,
        receive_queue: Arc<ReceiveQueue>,
        freed: Arc<Notify>,
    ) -> KeptConnection {
        let [open, begun, refused] = [(); 3].map(|()| AtomicUsize::new(0));
        let (is_over, uploads, resets) = Default::default();
        let state =
            KeptState { is_over, open, begun, refused, resets, window, uploads, receive_queue, freed };
        KeptConnection { send, state: Arc::new(state), unused: None, has_no_window: false }
    }

    pub(super) fn state(&self) -> &Arc<KeptState> {
        &self.state
    }

    /// Whether there is room for another stream.
    pub(super) fn has_room(&self) -> bool {
        let is_first = !self.state.is_over() && self.open() == 0;
        is_first || self.limit().is_some_and(|most| self.open() < most)
    }

    /// Maximum number of concurrent streams. `None`: the connection accepts no further streams, or
    /// the server's SETTINGS have not arrived.
    pub(super) fn limit(&self) -> Option<usize> {
        let told = self.send.current_max_send_streams();
        (!self.state.is_over() && told != UNTOLD).then_some(told.min(MAX_STREAMS))
    }

    /// Returns the place of another stream, which counts against this share. The connection accepts
    /// no further streams once it has had `most` requests in total.
    pub(super) fn another(&mut self, share: StreamShare, most: Option<usize>) -> StreamPlace {
        self.unused = None;
        self.state.open.fetch_add(1, Ordering::Relaxed);
        let begun = self.state.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if begun >= most.map_or(MAX_REQUESTS, |most| most.min(MAX_REQUESTS)) {
            self.state.retire();
        }
        let upload = share.upload().map(|upload| OpenUpload::new(self.state.clone(), &upload));
        StreamPlace { send: self.send.clone(), state: self.state.clone(), upload, share }
    }

    /// Whether to keep the connection: it has streams, or it accepts further streams and has had
    /// none for less than `LIFETIME`.
    pub(super) fn stays(&mut self, now: Instant) -> bool {
        let is_unused = self.is_unused();
        let since = *self.unused.get_or_insert(now);
        if !is_unused {
            self.unused = None;
        }
        // Some servers return no window for the bodies of streams that were reset. Such a
        // connection is of no use for uploads.
        let had_no_window = std::mem::replace(&mut self.has_no_window, self.state.is_used_up());
        if had_no_window && self.has_no_window {
            self.state.retire();
        }
        !is_unused || (!self.is_retired() && now - since < LIFETIME)
    }

    /// Whether the connection accepts no further streams.
    pub(super) fn is_retired(&self) -> bool {
        self.state.is_over()
    }

    /// Whether the connection has no open stream.
    pub(super) fn is_unused(&self) -> bool {
        self.open() == 0
    }

    /// Number of streams that the server has served.
    pub(super) fn served(&self) -> usize {
        self.state.taken().saturating_sub(self.open())
    }

    fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }
}

impl KeptState {
    /// Returns the queue of the streams that have received data.
    pub(super) fn receive_queue(&self) -> &Arc<ReceiveQueue> {
        &self.receive_queue
    }

    /// Stops new streams on this connection. Open streams continue.
    pub(super) fn retire(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Reset streams of the connection.
    pub(super) fn resets(&self) -> &StreamResets {
        &self.resets
    }

    /// Open uploads.
    pub(super) fn uploads(&self) -> MutexGuard<'_, Uploads> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of body bytes that the server accepts now, with these open uploads.
    pub(super) fn window(&self, uploads: &Uploads) -> u64 {
        uploads.window(&self.window)
    }

    #[cfg(test)]
    pub(super) fn send_window(&self) -> &SendWindow {
        &self.window
    }

    /// Whether the send window is too small for an upload, although no upload is open.
    fn is_used_up(&self) -> bool {
        let uploads = self.uploads();
        uploads.is_empty() && self.window(&uploads) < placement::MUCH
    }

    /// Number of streams that the server has not refused.
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

    /// Takes the upload; `None` if the request has no body.
    pub(super) fn take_upload(&mut self) -> Option<OpenUpload> {
        self.upload.take()
    }

    /// Notes that the server has refused this stream, because it gracefully ends the connection.
    pub(super) fn was_refused(&self) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
        self.state.retire();
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.upload = None;
        let open = self.state.open.fetch_sub(1, Ordering::Relaxed) - 1;
        // Once the last stream is over, the number of refused streams is final.
        if open == 0 && self.state.refused.load(Ordering::Relaxed) > 0 {
            self.share.note_end(self.state.taken().max(1));
        }
        self.state.freed.notify_one();
    }
}

impl OpenUpload {
    fn new(state: Arc<KeptState>, upload: &Upload) -> OpenUpload {
        let (client, progress) = (upload.client, UploadProgress::new(upload));
        state.uploads().begin(client, progress);
        OpenUpload { state, client, progress }
    }

    /// Notes that `bytes` of the body were sent; `is_last`: the body is complete.
    pub(super) fn has_sent(&mut self, bytes: usize, is_last: bool) {
        self.state.uploads().advance(self.client, &mut self.progress, bytes as u64, is_last);
    }
}

impl Drop for OpenUpload {
    fn drop(&mut self) {
        self.state.uploads().end(self.client, self.progress, &self.state.window);
    }
}
