//! The services that decide on a request's head, one in the other: [`FindRoute`], [`Traces`], then [`Forwards`].
//!
//! They are Tower services. A layer of your own has [`HttpRequest`] in and a [`Decision`] out, and is given to
//! [`HttpServer::new`](crate::HttpServer::new) around [`usual`], or between its services. [`Check`] makes one of a function.

use std::convert::Infallible;
use std::fmt::{self, Debug};
use std::future::{Ready, poll_fn, ready};
use std::task::{Context, Poll};

use convey_http_core::{RequestHead, TraceParent};
use convey_model::Redirect;
use convey_snapshot::HttpAction;
use futures_util::future::Either;
use tower_service::Service;

use crate::answer::{AnswerReason, OwnAnswer};
use crate::request::{Decision, HttpRequest};

/// What decides on requests: Tower services, each in the one before.
pub trait DecideRequest:
    Service<HttpRequest, Response = Decision, Error = Infallible, Future: Send>
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<S> DecideRequest for S where
    S: Service<HttpRequest, Response = Decision, Error = Infallible, Future: Send>
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// Has the stack decide on a request.
pub(crate) async fn decide(stack: &mut impl DecideRequest, request: HttpRequest) -> Decision {
    let Ok(()) = poll_fn(|cx| stack.poll_ready(cx)).await;
    let Ok(decision) = stack.call(request).await;
    decision
}

/// What convey itself decides by: the routes of the configuration.
pub fn usual() -> FindRoute<Traces<Forwards>> {
    FindRoute::new(Traces::new(Forwards))
}

/// Finds the route of each request, and answers those that have none, or that are sent elsewhere.
#[derive(Debug, Clone, Default)]
pub struct FindRoute<S> {
    inner: S,
}

/// Has traces begin where a frontend wants them to.
#[derive(Debug, Clone, Default)]
pub struct Traces<S> {
    inner: S,
}

/// A check of your own: a function that answers a request, or lets it pass.
#[derive(Clone)]
pub struct Check<S, F> {
    inner: S,
    check: F,
}

/// The last service: a server gets the request.
#[derive(Debug, Clone, Default)]
pub struct Forwards;

impl<S> FindRoute<S> {
    /// Has `inner` decide on requests that have a route to a backend.
    pub fn new(inner: S) -> FindRoute<S> {
        FindRoute { inner }
    }
}

impl<S> Service<HttpRequest> for FindRoute<S>
where
    S: Service<HttpRequest, Response = Decision, Error = Infallible>,
{
    type Response = Decision;
    type Error = Infallible;
    type Future = Either<Ready<Result<Decision, Infallible>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: HttpRequest) -> Self::Future {
        let http = request.frontend().http.as_ref();
        let route = http.and_then(|http| http.route(request.head().host(), request.head().path())).cloned();
        let answer = match route.as_ref().map(|route| &route.action) {
            None => AnswerReason::NoRoute.into(),
            Some(HttpAction::Redirect(Redirect::Https)) => to_https(request.head()),
            Some(HttpAction::Forward(_)) => {
                request.takes(route);
                return Either::Right(self.inner.call(request));
            }
        };
        Either::Left(ready(Ok(Decision::Answer(answer))))
    }
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

impl<S, F> Check<S, F>
where
    F: FnMut(&mut HttpRequest) -> Result<(), OwnAnswer>,
{
    /// Has `inner` decide on requests that pass `check`, which may change them; the others get its answer.
    pub fn new(inner: S, check: F) -> Check<S, F> {
        Check { inner, check }
    }
}

impl<S, F> Service<HttpRequest> for Check<S, F>
where
    S: Service<HttpRequest, Response = Decision, Error = Infallible>,
    F: FnMut(&mut HttpRequest) -> Result<(), OwnAnswer>,
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
            Err(answer) => Either::Left(ready(Ok(Decision::Answer(answer)))),
        }
    }
}

impl<S: Debug, F> Debug for Check<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Service<HttpRequest> for Forwards {
    type Response = Decision;
    type Error = Infallible;
    type Future = Ready<Result<Decision, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        ready(Ok(Decision::Forward(request)))
    }
}

/// The same place by HTTPS.
fn to_https(head: &RequestHead) -> OwnAnswer {
    let host = head.host();
    // Of a host with a port the port is that of HTTP.
    let end = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host[colon..].contains(&b']') => colon,
        _ => host.len(),
    };
    let location = [b"https://", &host[..end], head.path_and_query()].concat();
    let mut answer = OwnAnswer::from(AnswerReason::Redirect);
    // Neither a host nor a target has bytes that a field cannot have.
    let _ = answer.set_field("Location", &String::from_utf8_lossy(&location));
    answer
}
