//! The service that finds a request's route.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use convey_http_core::RequestHead;
use convey_model::Redirect;
use convey_snapshot::HttpAction;
use futures_util::future::Either;
use tower_service::Service;

use crate::answer::{AnswerReason, OwnAnswer};
use crate::request::{Decision, HttpRequest};

/// Finds the route of each request, and answers those that have none, or that are sent elsewhere.
#[derive(Debug, Clone, Default)]
pub struct FindRoute<S> {
    inner: S,
}

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
