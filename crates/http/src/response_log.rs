//! Facts about a response that the access log needs.

use std::sync::Arc;

use convey_access_log::{LoggedResponse, WantedOfResponse};
use convey_http_core::OutgoingResponse;

/// Facts about the response of one request for its line of the access log.
#[derive(Debug, Default)]
pub(crate) enum ResponseLog {
    /// The request has no line, or its format needs nothing of the response.
    #[default]
    Unwanted,
    /// The client has got no response yet.
    Wanted(Arc<WantedOfResponse>),
    /// Facts about the response that the client gets.
    Kept(Box<LoggedResponse>),
}

impl ResponseLog {
    /// Keeps the facts about a final response that is sent to the client. `head_len` is the number
    /// of bytes of the head among the counted bytes of the response.
    #[inline]
    pub(crate) fn note(&mut self, response: &OutgoingResponse<'_>, head_len: usize) {
        if let ResponseLog::Wanted(wanted) = self {
            let kept = LoggedResponse::keep(wanted.clone(), response.fields(), head_len as u64);
            *self = ResponseLog::Kept(Box::new(kept));
        }
    }

    /// Takes the facts. `None`: nothing is needed, or the client got no response.
    pub(crate) fn take(&mut self) -> Option<Box<LoggedResponse>> {
        match std::mem::take(self) {
            ResponseLog::Kept(response) => Some(response),
            ResponseLog::Unwanted | ResponseLog::Wanted(_) => None,
        }
    }
}
