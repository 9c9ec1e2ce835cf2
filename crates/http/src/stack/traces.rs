//! Traces that begin at this frontend.

use convey_http_core::TraceParent;

use super::OwnCheck;
use crate::local_reply::LocalReply;
use crate::request::HttpRequest;

/// Wraps `inner` in a service that starts a trace for each request without one, if the frontend is
/// configured so. Each request passes to `inner`, whose local replies, such as redirects, then have
/// the trace.
pub fn begin_traces<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, begin)
}

fn begin(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let begins = request.frontend().http.as_ref().is_some_and(|http| http.begin_traces);
    if begins && request.trace().is_none() {
        request.begin_trace(TraceParent::begin(fastrand::u128(..), fastrand::u64(..)));
    }
    Ok(())
}
