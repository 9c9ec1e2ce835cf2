//! Check of the limits for requests: the length of the body that the head announces, and the rate
//! of the source.

use convey_http_core::{BodyFraming, Malformed};

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Value of `Retry-After` in seconds. Limits are whole numbers of requests a second, so a source
/// that waits one second may send its next request.
const RETRY_AFTER: &str = "1";

/// Wraps `inner` in a service that refuses requests with a body above the limit, and requests of
/// sources above their rate. The limit for bodies is that of the
/// route, or else of the frontend. The rates are those of the frontend, and of the route from [`find_route`](super::find_route).
pub fn limit_requests<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, limit)
}

fn limit(request: &mut HttpRequest) -> Result<(), LocalReply> {
    match () {
        () if is_too_long(request) => Err(LocalReplyReason::Malformed(Malformed::BodyTooLong).into()),
        () if !is_within_rate(request) => Err(slow_down()),
        () => Ok(()),
    }
}

/// Whether the request announces a body above the limit. A chunked body announces no length, so the
/// result is false.
fn is_too_long(request: &HttpRequest) -> bool {
    let most = request.max_body();
    matches!((request.head().framing(), most), (BodyFraming::Length(length), Some(most)) if length > most)
}

/// Charges the request to the quotas of its source. Returns whether the request is within the
/// quotas. A refused request is not charged.
fn is_within_rate(request: &HttpRequest) -> bool {
    let (client, now) = (request.client().ip(), request.came());
    let of_frontend = request.frontend().http.as_ref().and_then(|http| http.limit.as_ref());
    let of_route = request.route().and_then(|route| route.limit.as_ref());
    if of_frontend.or(of_route).is_none() || has_no_limit(request) {
        return true;
    }
    if of_route.is_some_and(|limit| !limit.take(client, now)) {
        return false;
    }
    let is_within = of_frontend.is_none_or(|limit| limit.take(client, now));
    if let Some(limit) = of_route.filter(|_| !is_within) {
        limit.refund_token(client);
    }
    is_within
}

/// Whether no limit applies: the request is from a trusted client, or it is a trusted proxy's own.
/// Requests whose client a proxy names by something else than an address share the quota of the
/// proxy's address.
fn has_no_limit(request: &HttpRequest) -> bool {
    request.frontend().config.trusts_client(request.client().ip()) || request.is_of_proxy()
}

fn slow_down() -> LocalReply {
    let mut answer = LocalReply::from(LocalReplyReason::RateLimit);
    // The field is not reserved, so this cannot fail.
    let _ = answer.set_field("Retry-After", RETRY_AFTER);
    answer
}
