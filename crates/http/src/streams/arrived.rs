//! Request of a stream between the end of its head and the decision on it.

use std::mem;

use convey_http_core::HeadLimits;
use convey_proxy::ClientStream;
use http::Request;

use super::heads;
use crate::local_reply::LocalReplyReason;
use crate::record::RequestRecord;

/// Request whose head has arrived, while convey waits for the end of the handshake, or for the first
/// data of a body. A drop before [`ArrivedRequest::take`] means that convey cuts the client's
/// connection: the record ends with the reason of the cut.
pub(crate) struct ArrivedRequest<'a> {
    pub(crate) request: Request<()>,
    /// `None` once the record has ended or was taken.
    record: Option<RequestRecord>,
    client: &'a ClientStream,
    limits: HeadLimits,
}

impl<'a> ArrivedRequest<'a> {
    /// Creates the guard of a request. `limits` are those of its head.
    pub(crate) fn new(
        client: &'a ClientStream,
        record: RequestRecord,
        request: Request<()>,
        limits: HeadLimits,
    ) -> ArrivedRequest<'a> {
        ArrivedRequest { request, record: Some(record), client, limits }
    }

    /// Returns the request and its record, for the decision on the request.
    pub(crate) fn take(mut self) -> (RequestRecord, Request<()>) {
        let record = self.record.take().expect("the record ends with the guard");
        (record, mem::take(&mut self.request))
    }

    /// Ends the record of a request that convey refuses and cannot reply to.
    pub(crate) fn refuse(mut self, reason: LocalReplyReason) {
        self.end(|record| record.refused(reason));
    }

    fn end(&mut self, note: impl FnOnce(&mut RequestRecord)) {
        let Some(mut record) = self.record.take() else { return };
        note(&mut record);
        let (parts, ()) = mem::take(&mut self.request).into_parts();
        // The log needs no framing, so the body does not matter.
        let head = heads::request_from(&parts, false, &self.limits).ok();
        record.end_undecided(self.client, head.as_ref());
    }
}

impl Drop for ArrivedRequest<'_> {
    fn drop(&mut self) {
        let client = self.client;
        self.end(|record| record.broke(client.cut_reason()));
    }
}
