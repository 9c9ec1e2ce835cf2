//! Request in progress, which is counted and logged even if convey cuts its connection.

use std::sync::Arc;
use std::time::Duration;

use convey_http_core::RequestHead;
use convey_proxy::ClientStream;
use convey_stream::PollClock;

use crate::hooks::Hooks;
use crate::record::RequestRecord;

/// Record of a request, with its hooks, its client and its head. A drop before
/// [`OpenRequest::end`] means that convey cuts the client's connection: the record ends with the
/// reason of the cut.
pub(crate) struct OpenRequest<'a> {
    pub(crate) record: RequestRecord,
    /// Own code that follows the request, from the decision on it.
    pub(crate) hooks: Hooks,
    client: &'a ClientStream,
    /// `None`: the head has not arrived completely, or is malformed.
    head: Option<Arc<RequestHead>>,
    is_over: bool,
}

impl<'a> OpenRequest<'a> {
    pub(crate) fn new(
        record: RequestRecord,
        client: &'a ClientStream,
        head: Option<Arc<RequestHead>>,
    ) -> OpenRequest<'a> {
        let response_log = record.response_log(client);
        let hooks = Hooks::with_log(response_log);
        OpenRequest { record, hooks, client, head, is_over: false }
    }

    /// Client of the request.
    pub(crate) fn client(&self) -> &'a ClientStream {
        self.client
    }

    /// Head of the request; `None` if it has not arrived completely, or is malformed.
    pub(crate) fn head(&self) -> Option<&RequestHead> {
        self.head.as_deref()
    }

    /// Ends the record: counts the request, logs it if it is selected, and reports its end to its
    /// hooks.
    pub(crate) fn end(mut self) {
        let took = self.end_record();
        self.hooks.end(|| self.record.summary(took));
    }

    /// Counts and logs the request. Returns how long it took.
    fn end_record(&mut self) -> Duration {
        self.is_over = true;
        let took = PollClock::now() - self.record.began;
        self.record.has_response(self.hooks.response_log.take());
        self.record.end(self.client, self.head.as_deref(), took);
        took
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.record.broke(self.client.cut_reason());
            let took = self.end_record();
            self.hooks.end_in_drop(|| self.record.summary(took));
        }
    }
}
