//! Request in progress, which is counted and logged even if convey cuts its connection.

use std::sync::Arc;

use convey_http_core::RequestHead;
use convey_proxy::ClientStream;

use crate::record::RequestRecord;

/// Record of a request, with its client and its head. A drop before [`OpenRequest::end`] means that
/// convey cuts the client's connection: the record ends with the reason of the cut.
pub(crate) struct OpenRequest<'a> {
    pub(crate) record: RequestRecord,
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
        OpenRequest { record, client, head, is_over: false }
    }

    /// Client of the request.
    pub(crate) fn client(&self) -> &'a ClientStream {
        self.client
    }

    /// Head of the request; `None` if it has not arrived completely, or is malformed.
    pub(crate) fn head(&self) -> Option<&RequestHead> {
        self.head.as_deref()
    }

    /// Ends the record: counts the request, and logs it if it is selected.
    pub(crate) fn end(mut self) {
        self.end_record();
    }

    fn end_record(&mut self) {
        self.is_over = true;
        self.record.end(self.client, self.head.as_deref());
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.record.broke(self.client.cut_reason());
            self.end_record();
        }
    }
}
