//! Request of a stream between the end of its head and the decision on it.

use std::sync::Arc;

use convey_http_core::{HeadLimits, Malformed, RequestHead};
use convey_proxy::ClientStream;
use http::Request;

use super::heads;
use crate::local_reply::LocalReplyReason;
use crate::record::RequestRecord;

/// Request whose head has arrived, while convey waits for the end of the handshake, or for the first
/// data of a body. A drop before [`ArrivedRequest::take`] means that convey cuts the client's
/// connection: the record ends with the reason of the cut.
pub(crate) struct ArrivedRequest<'a, R: ArrivedHead> {
    /// Head and record; `None` once the record has ended or was taken.
    arrived: Option<(R, RequestRecord)>,
    client: &'a ClientStream,
    limits: HeadLimits,
}

/// Head of a request that has arrived.
pub(crate) trait ArrivedHead {
    /// Returns the head for the access log, which needs no framing. `None`: it is malformed.
    fn into_head(self, limits: &HeadLimits) -> Option<Arc<RequestHead>>;
}

impl ArrivedHead for Request<()> {
    fn into_head(self, limits: &HeadLimits) -> Option<Arc<RequestHead>> {
        heads::request_from(&self.into_parts().0, false, limits).ok().map(Arc::new)
    }
}

impl ArrivedHead for Result<Arc<RequestHead>, Malformed> {
    fn into_head(self, _: &HeadLimits) -> Option<Arc<RequestHead>> {
        self.ok()
    }
}

impl<'a, R: ArrivedHead> ArrivedRequest<'a, R> {
    /// Creates the guard of a request. `limits` are those of its head.
    pub(crate) fn new(
        client: &'a ClientStream,
        record: RequestRecord,
        head: R,
        limits: HeadLimits,
    ) -> ArrivedRequest<'a, R> {
        ArrivedRequest { arrived: Some((head, record)), client, limits }
    }

    /// The head.
    pub(crate) fn head(&mut self) -> &mut R {
        &mut self.arrived.as_mut().expect("the record ends with the guard").0
    }

    /// Returns the head and the record of the request, for the decision on it.
    pub(crate) fn take(mut self) -> (R, RequestRecord) {
        self.arrived.take().expect("the record ends with the guard")
    }

    /// Ends the record of a request that convey refuses and cannot reply to.
    pub(crate) fn refuse(mut self, reason: LocalReplyReason) {
        self.end(|record| record.refused(reason));
    }

    fn end(&mut self, note: impl FnOnce(&mut RequestRecord)) {
        let Some((head, mut record)) = self.arrived.take() else { return };
        note(&mut record);
        record.end_undecided(self.client, head.into_head(&self.limits).as_deref());
    }
}

impl<R: ArrivedHead> Drop for ArrivedRequest<'_, R> {
    fn drop(&mut self) {
        let client = self.client;
        self.end(|record| record.broke(client.cut_reason()));
    }
}
