//! Time limits of a request on its way to a server.

use std::time::Duration;

use convey_model::Timeouts;
use convey_proxy::ClientStream;
use convey_snapshot::{HttpRoute, Pool};
use tokio::time::Instant;

use crate::request::HttpRequest;

/// Time limits of one request. Each request in flight keeps them, so they are only those that it
/// needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimeouts {
    /// Time limit for one attempt to connect, and for the wait for a slot.
    pub(super) connect: Duration,
    /// Time without a byte in either direction.
    pub(super) idle: Duration,
    /// Time limit for the head of the response.
    pub(super) response: Duration,
    /// Maximum time in which the client reads nothing of the response, at most `idle`.
    pub(super) send: Duration,
    /// Time at which the request has to be over; `None`: it may take any time.
    pub(super) deadline: Option<Instant>,
}

impl RequestTimeouts {
    /// Returns the time limits of a request on this route to this pool.
    pub(crate) fn of(
        client: &ClientStream,
        request: &HttpRequest,
        (route, pool): (&HttpRoute, &Pool),
    ) -> RequestTimeouts {
        let timeouts = client.timeouts_with(request.frontend(), pool).with(&route.limits.timeouts);
        RequestTimeouts::new(&timeouts, request.deadline(timeouts.request))
    }

    pub(super) fn new(timeouts: &Timeouts, deadline: Option<Instant>) -> RequestTimeouts {
        let Timeouts { connect, idle, response, send, .. } = *timeouts;
        RequestTimeouts { connect, idle, response, send: send.min(idle), deadline }
    }
}
