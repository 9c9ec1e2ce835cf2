//! Lookup of a request's route.

use convey_http_core::{Malformed, RequestHead};
use convey_model::Redirect;
use convey_snapshot::HttpAction;

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Finds the route of each request. Replies to requests without a route, or with a redirect.
/// `inner` decides on the others.
pub fn find_route<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, find)
}

fn find(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let route = request.route_in_frontend().cloned();
    match route.as_ref().map(|route| &route.action) {
        None => Err(LocalReplyReason::NoRoute.into()),
        Some(HttpAction::Redirect(Redirect::Https)) => Err(match request.head().host() {
            // A redirect needs a host.
            b"" => LocalReplyReason::Malformed(Malformed::Host).into(),
            _ => to_https(request.head()),
        }),
        Some(HttpAction::Forward(_)) => {
            request.takes(route);
            Ok(())
        }
    }
}

/// Redirects to this location by HTTPS.
fn to_https(head: &RequestHead) -> LocalReply {
    let host = head.host();
    // The port of a host is the port of HTTP, so it is left out.
    let end = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host[colon..].contains(&b']') => colon,
        _ => host.len(),
    };
    let location = [b"https://", &host[..end], head.path_and_query()].concat();
    let mut answer = LocalReply::from(LocalReplyReason::Redirect);
    // Neither a host nor a target has bytes that are not allowed in a field.
    let _ = answer.set_field("Location", &String::from_utf8_lossy(&location));
    answer
}
