//! The service that has traces begin.

use std::convert::Infallible;
use std::task::{Context, Poll};

use convey_http_core::TraceParent;
use tower_service::Service;

use crate::request::{Decision, HttpRequest};

/// Has traces begin where a frontend wants them to.
#[derive(Debug, Clone, Default)]
pub struct Traces<S> {
    inner: S,
}

impl<S> Traces<S> {
    /// Has `inner` decide on requests, each of which may be a part of a trace then.
    pub fn new(inner: S) -> Traces<S> {
        Traces { inner }
    }
}

impl<S> Service<HttpRequest> for Traces<S>
where
    S: Service<HttpRequest, Response = Decision, Error = Infallible>,
{
    type Response = Decision;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: HttpRequest) -> S::Future {
        let begins = request.frontend().http.as_ref().is_some_and(|http| http.begin_traces);
        if begins && request.trace().is_none() {
            request.begin_trace(TraceParent::begin(fastrand::u128(..), fastrand::u64(..)));
        }
        self.inner.call(request)
    }
}
