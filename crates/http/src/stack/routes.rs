//! Lookup of a request's route.

use convey_http_core::{Malformed, Redirect};
use convey_model::{FixedReply, Maintenance};
use convey_snapshot::HttpAction;

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Wraps `inner` in a service that finds the route of each request. The service replies to a
/// request that has no route, whose route is a redirect, or for which an operator has set a
/// maintenance.
pub fn find_route<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, find)
}

fn find(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let Some(route) = request.route_in_frontend().cloned() else {
        return Err(without_route(request));
    };
    if !route.limits.access.admits(request.client().ip()) {
        return Err(LocalReplyReason::AccessDenied.into());
    }
    if let Some(fields) = route.cors.as_ref().and_then(|cors| cors.preflight(request.head())) {
        return Err(LocalReply::preflight(fields));
    }
    if let Some(reply) = maintained(request, route.maintenance.as_deref()).or_else(|| of_frontend(request)) {
        return Err(reply);
    }
    match &route.action {
        HttpAction::Redirect(to) => Err(redirect(request, to)),
        HttpAction::Respond(reply) => Err(fixed(reply)),
        HttpAction::Forward(_) | HttpAction::Split(_) => {
            request.takes(route);
            let of_backend = request.way().and_then(|(_, pool)| pool.config.maintenance.as_deref());
            maintained(request, of_backend).map_or(Ok(()), Err)
        }
    }
}

/// Reply to a request that matches no route. Pages of other origins may read it by the rules of the
/// frontend, so their preflight requests are answered, too.
fn without_route(request: &HttpRequest) -> LocalReply {
    let cors = request.frontend().http.as_ref().and_then(|http| http.cors.as_ref());
    match cors.and_then(|cors| cors.preflight(request.head())) {
        Some(fields) => LocalReply::preflight(fields),
        None => of_frontend(request).unwrap_or_else(|| LocalReplyReason::NoRoute.into()),
    }
}

/// Reply to a request during a maintenance of its frontend.
fn of_frontend(request: &HttpRequest) -> Option<LocalReply> {
    let http = request.frontend().http.as_ref()?;
    maintained(request, http.maintenance.as_deref())
}

/// Reply to a request during a maintenance, unless its client is allowed.
fn maintained(request: &HttpRequest, maintenance: Option<&Maintenance>) -> Option<LocalReply> {
    let maintenance = maintenance.filter(|maintenance| maintenance.applies_to(request.client().ip()))?;
    Some(LocalReply::maintenance(maintenance))
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
