//! Service made of a function.

use std::convert::Infallible;
use std::fmt::{self, Debug};
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use tower_service::Service;

use crate::local_reply::LocalReply;
use crate::request::{Decision, HttpRequest};

/// A check of your own: a function that replies to a request, or lets it pass. It may also attach
/// code that follows the request ([`HttpRequest::follow`]).
#[derive(Clone)]
pub struct Check<S, F> {
    inner: S,
    check: F,
}

impl<S, F> Check<S, F>
where
    F: FnMut(&mut HttpRequest) -> Result<(), LocalReply>,
{
    /// Returns a service in which `inner` decides on the requests that pass `check`. `check` may
    /// change a request, or reply to it.
    pub fn new(inner: S, check: F) -> Check<S, F> {
        Check { inner, check }
    }
}

impl<S, F> Service<HttpRequest> for Check<S, F>
where
    S: Service<HttpRequest, Response = Decision, Error = Infallible>,
    F: FnMut(&mut HttpRequest) -> Result<(), LocalReply>,
{
    type Response = Decision;
    type Error = Infallible;
    type Future = Either<Ready<Result<Decision, Infallible>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: HttpRequest) -> Self::Future {
        match (self.check)(&mut request) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(reply) => Either::Left(ready(Ok(Decision::Answer { reply, request }))),
        }
    }
}

impl<S: Debug, F> Debug for Check<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("inner", &self.inner).finish_non_exhaustive()
    }
}
