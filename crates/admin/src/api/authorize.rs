//! Authorization at the statistics address. A request with the configured token may change things
//! and see clients.
//!
//! A web page of another site cannot use the token, whatever host name the page uses for this
//! address. A browser does not send the header `Authorization` by itself. Before a page may send
//! the header to another site, the browser sends a preflight request, which convey does not answer.
//!
//! A request without a token must use a host name of this machine. Otherwise, another site could
//! let its own name resolve to this address, and its pages could read answers (DNS rebinding).

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use convey_control::{EventKind, EventLevel};
use log::warn;

use super::super::Requester;
use super::super::hosts::is_this_machine;
use super::{ApiContext, Failure};

/// Middleware that refuses requests with a wrong token, and requests without a token whose host
/// name may belong to another site. It passes all other requests on; a request with the right token
/// gets the right to change things. Other authentication schemes are ignored, because they are for
/// a proxy between client and convey.
pub(crate) async fn authorize(
    State(context): State<Arc<ApiContext>>,
    mut request: Request,
    next: Next,
) -> Response {
    let sent = request.headers().get(AUTHORIZATION).cloned();
    let token = context.source.loads.token();
    let who = request.extensions_mut().get_mut::<Requester>();
    if let (Some(sent), Some(token)) = (sent.as_ref().and_then(bearer), token)
        && let Some(Requester { name, address: Some(address), may_change }) = who
    {
        match check(&context, *address, token.matches(sent)) {
            Ok(()) => (*name, *may_change) = (format!("token from {address}"), true),
            Err(failure) => return failure.into_response(),
        }
    }
    if who.is_some_and(|who| !who.may_change)
        && let Some(host) = wrong_host(&request)
    {
        return Failure::WrongHost(host).into_response();
    }
    next.run(request).await
}

/// Checks that the requester may change things, and watch clients' packets.
pub(super) fn may_change(context: &ApiContext, who: &Requester) -> Result<(), Failure> {
    match who.may_change {
        true => Ok(()),
        false if context.source.loads.token().is_some() => Err(Failure::NeedsToken),
        false => Err(Failure::Forbidden),
    }
}

/// Checks that the requester may see clients' addresses. Requesters who may change things may see
/// them; if no token is configured, all requesters on this host may see them.
pub(super) fn may_see_clients(context: &ApiContext, who: &Requester) -> Result<(), Failure> {
    let is_here = who.address.is_some_and(|address| address.is_loopback());
    match may_change(context, who) {
        Err(Failure::Forbidden) if is_here => Ok(()),
        Err(Failure::Forbidden) => Err(Failure::ClientsForbidden),
        other => other,
    }
}

/// Host name of a request, if the name does not belong to this machine; otherwise `None`. Browsers
/// always send a host name.
fn wrong_host(request: &Request) -> Option<String> {
    let header =
        request.headers().get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let target = request.uri().authority().map(ToString::to_string);
    header.into_iter().chain(target).find(|host| !is_this_machine(host))
}

fn check(context: &ApiContext, from: IpAddr, is_right: bool) -> Result<(), Failure> {
    // The right token is always accepted: wrong tokens of another client at the same address must
    // not lock an operator out.
    if is_right {
        return Ok(());
    }
    let now = (context.source.now)();
    let mut wrong_tokens = context.wrong_tokens.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(time) = wrong_tokens.refuses(from, now) {
        return Err(Failure::TooManyTokens(time));
    }
    if let Some(suppressed) = wrong_tokens.take(from, now) {
        let line = format!("a wrong token from {from} at the statistics address{suppressed}");
        warn!("{line}");
        context.source.events.record(EventKind::Operator, EventLevel::Warn, now, &line);
    }
    Err(Failure::WrongToken)
}

/// Credentials after the word `Bearer` in any case (RFC 9110, section 11.1).
fn bearer(header: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = header.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_follows_the_name_of_the_scheme_in_any_case() {
        let token = |header| bearer(&HeaderValue::from_static(header)).map(<[u8]>::to_vec);
        assert_eq!(token("Bearer a.b"), Some(b"a.b".to_vec()));
        assert_eq!(token("bearer  a"), Some(b"a".to_vec()));
        assert_eq!([token("Basic abcdefg"), token("Bear"), token("")], [None, None, None]);
    }
}
