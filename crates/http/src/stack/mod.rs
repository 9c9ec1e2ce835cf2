//! Services that decide on a request's head, nested in this order: [`begin_traces`],
//! [`check_access`], [`refuse_misdirected`], [`answer_challenges`], [`find_route`],
//! [`limit_requests`], then [`Forwards`].
//!
//! The services are Tower services. A layer of your own takes an [`HttpRequest`] and returns a
//! [`Decision`]. Pass the layer to [`HttpServer::new`](crate::HttpServer::new) around [`usual`], or
//! between its services. [`Check`] turns a function into such a service, as convey does for its
//! own.

mod access;
mod challenges;
mod check;
mod limits;
mod misdirected;
mod routes;
mod traces;

pub use access::check_access;
pub use challenges::answer_challenges;
pub use check::Check;
pub use limits::limit_requests;
pub use misdirected::refuse_misdirected;
pub use routes::find_route;
pub use traces::begin_traces;

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, poll_fn, ready};
use std::task::{Context, Poll};

use tower_service::Service;

use crate::local_reply::LocalReply;
use crate::request::{Decision, HttpRequest};

/// Tower service that decides on requests. Services are nested.
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

/// Runs the stack on a request.
pub(crate) async fn decide(stack: &mut impl DecideRequest, request: HttpRequest) -> Decision {
    let Ok(()) = poll_fn(|cx| stack.poll_ready(cx)).await;
    let Ok(decision) = stack.call(request).await;
    decision
}

/// A check of convey's own.
pub type OwnCheck<S> = Check<S, fn(&mut HttpRequest) -> Result<(), LocalReply>>;

/// convey's own services, which decide by the configuration.
pub type UsualStack = OwnCheck<OwnCheck<OwnCheck<OwnCheck<OwnCheck<OwnCheck<Forwards>>>>>>;

/// Returns convey's own services.
pub fn usual() -> UsualStack {
    begin_traces(check_access(refuse_misdirected(answer_challenges(find_route(limit_requests(Forwards))))))
}

/// Last service: forwards the request to a server.
#[derive(Debug, Clone, Default)]
pub struct Forwards;

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
