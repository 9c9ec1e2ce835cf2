//! State of mode http that the requests of one worker share.

use std::fmt;
use std::sync::Arc;

use crate::budgets::RetryBudgets;
use crate::compress::EncoderMemory;
use crate::files::FileCache;
use crate::held_responses::HeldResponses;
use crate::http2::Http2Servers;
use crate::idle::IdlePool;
use crate::time_limit::CoarseClock;

/// State of mode http that the requests of one worker share. Each worker has its own state, so its
/// requests do not wait for locks. But any thread may drive an exchange that uses the state.
///
/// A guard that releases a resource when it is dropped holds an `Arc` to one field, not to the
/// whole state.
#[derive(Default)]
pub(crate) struct HttpWorker {
    pub(crate) clock: Arc<CoarseClock>,
    /// Idle HTTP/1.1 connections to servers.
    pub(crate) idle: IdlePool,
    /// HTTP/2 connections to servers.
    pub(crate) http2: Arc<Http2Servers>,
    /// Retry budgets of backends.
    pub(crate) budgets: RetryBudgets,
    /// Memory budget for responses that wait for their clients.
    pub(crate) held: Arc<HeldResponses>,
    /// Memory budget for encoders.
    pub(crate) encoders: Arc<EncoderMemory>,
    /// Cached files.
    pub(crate) files: FileCache,
}

impl HttpWorker {
    /// Updates the clock, and releases what was not used for too long. Call it once a second.
    pub(crate) fn each_second(&self) {
        self.clock.update();
        self.idle.sweep();
        self.http2.sweep();
        self.files.sweep();
    }
}

impl fmt::Debug for HttpWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpWorker").finish_non_exhaustive()
    }
}
