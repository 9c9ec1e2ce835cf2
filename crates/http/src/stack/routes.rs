//! Lookup of a request's route.

use convey_http_core::{Malformed, RequestHead};
use convey_model::Redirect;
use convey_snapshot::HttpAction;

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Wraps `inner` in a service that finds the route of each request. The service replies to a
/// request that has no route, or whose route is a redirect.
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

/// Returns a redirect to the same host and target by HTTPS.
fn to_https(head: &RequestHead) -> LocalReply {
    let host = head.host();
    // The port in the host is the port for HTTP, so it is left out.
    let end = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host[colon..].contains(&b']') => colon,
        _ => host.len(),
    };
    let location = [b"https://", &host[..end], head.path_and_query()].concat();
    let mut answer = LocalReply::from(LocalReplyReason::Redirect);
    // A host and a target have only bytes that are allowed in a field, so this cannot fail.
    let _ = answer.set_field("Location", &String::from_utf8_lossy(&location));
    answer
}
