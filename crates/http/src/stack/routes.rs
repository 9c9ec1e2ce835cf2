//! Lookup of a request's route.

use convey_http_core::{Malformed, Redirect};
use convey_model::FixedReply;
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
    let Some(route) = request.route_in_frontend().cloned() else {
        return Err(LocalReplyReason::NoRoute.into());
    };
    if !route.limits.access.admits(request.client().ip()) {
        return Err(LocalReplyReason::AccessDenied.into());
    }
    if let Some(fields) = route.cors.as_ref().and_then(|cors| cors.preflight(request.head())) {
        return Err(LocalReply::preflight(fields));
    }
    match &route.action {
        HttpAction::Redirect(to) => Err(redirect(request, to)),
        HttpAction::Respond(reply) => Err(fixed(reply)),
        HttpAction::Forward(_) | HttpAction::Split(_) => {
            request.takes(route);
            Ok(())
        }
    }
}

fn redirect(request: &HttpRequest, to: &Redirect) -> LocalReply {
    let facts = request.facts();
    match to.location(facts.head, facts.scheme, &facts) {
        // A redirect needs a host.
        None => LocalReplyReason::Malformed(Malformed::Host).into(),
        Some(location) => LocalReply::redirect(to.status, &location),
    }
}

fn fixed(reply: &FixedReply) -> LocalReply {
    LocalReply::fixed(reply.status, reply.body.clone(), reply.fields.clone())
}
