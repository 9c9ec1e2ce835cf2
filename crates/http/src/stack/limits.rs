//! Check of the limits for requests: the length of the body that the head announces, the rate of the
//! source, and the rates of all clients together.

use convey_http_core::{BodyFraming, Malformed};

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Value of `Retry-After` in seconds. Limits are whole numbers of requests a second, so a source
/// that waits one second may send its next request.
const RETRY_AFTER: &str = "1";

/// Wraps `inner` in a service that refuses requests with a body above the limit, requests of sources
/// above their rate, and requests above the rates of all clients. The route from
/// [`find_route`](super::find_route) has a limit for bodies, or else its frontend. Both have rates,
/// and the route's backend has a rate of all clients.
pub fn limit_requests<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, limit)
}

fn limit(request: &mut HttpRequest) -> Result<(), LocalReply> {
    if is_too_long(request) {
        return Err(LocalReplyReason::Malformed(Malformed::BodyTooLong).into());
    }
    if !is_within_rate(request) {
        return Err(retry_later(LocalReplyReason::RateLimit));
    }
    let above = take_of_totals(request);
    if above.is_some() {
        refund_rate(request);
    }
    above.map_or(Ok(()), |reason| Err(retry_later(reason)))
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

/// Takes back what [`is_within_rate`] has charged, because another limit refuses the request.
fn refund_rate(request: &HttpRequest) {
    let of_frontend = request.frontend().http.as_ref().and_then(|http| http.limit.as_ref());
    let of_route = request.route().and_then(|route| route.limit.as_ref());
    if !has_no_limit(request) {
        let client = request.client().ip();
        of_frontend.into_iter().chain(of_route).for_each(|limit| limit.refund_token(client));
    }
}

/// Counts the request against the limits of all clients: those of the route, the frontend and the
/// backend. Returns the reason of the first limit that is used up; then nothing is counted.
fn take_of_totals(request: &HttpRequest) -> Option<LocalReplyReason> {
    let (route, pool) = request.way()?;
    let frontend = request.frontend();
    let of_frontend = frontend.config.http.as_ref().and_then(|http| http.total);
    of_frontend.or(route.total).or(pool.config.total)?;
    let limits = [
        (route.total, &route.live.requests, LocalReplyReason::TotalRateLimit),
        (of_frontend, &frontend.live.requests, LocalReplyReason::TotalRateLimit),
        (pool.config.total, &pool.live.requests, LocalReplyReason::BackendRateLimit),
    ];
    let limits = || limits.iter().filter_map(|(rate, counted, reason)| Some(((*rate)?, counted, *reason)));
    let (core, now) = (request.core(), request.came());
    // Usually this finds a limit that is used up, so that nothing has to be refunded.
    if let Some((_, _, reason)) = limits().find(|(rate, counted, _)| !counted.has_room(*rate, core, now)) {
        return Some(reason);
    }
    for (before, (rate, counted, reason)) in limits().enumerate() {
        if !counted.take(rate, core, now) {
            limits().take(before).for_each(|(_, counted, _)| counted.refund());
            return Some(reason);
        }
    }
    None
}

fn retry_later(reason: LocalReplyReason) -> LocalReply {
    let mut answer = LocalReply::from(reason);
    // The field is not reserved, so this cannot fail.
    let _ = answer.set_field("Retry-After", RETRY_AFTER);
    answer
}
