//! Who may change things at the statistics address: whoever sends the token.
//!
//! A browser sends no such header by itself, and asks before it sends one to another site, which nobody here answers. So no page
//! of another site can use a token that it does not know, under whatever name it reaches this address.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use log::warn;

use super::super::Requester;
use super::super::wrong_tokens::Blame;
use super::{ApiContext, Failure};
use crate::control::{EventKind, EventLevel};

/// Answers whoever sends a wrong token; lets everybody else ask, and change things with the right one. Other schemes are those of
/// a proxy on the way.
pub(in crate::admin) async fn authorize(
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
    next.run(request).await
}

fn check(context: &ApiContext, from: IpAddr, is_right: bool) -> Result<(), Failure> {
    let now = (context.source.now)();
    let mut wrong_tokens = context.wrong_tokens.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(time) = wrong_tokens.refuses(from, now) {
        return Err(Failure::TooManyTokens(time));
    }
    if is_right {
        return Ok(());
    }
    if let Blame::Told { untold } = wrong_tokens.take(from, now) {
        let line = format!(
            "a wrong token from {from} at the statistics address ({untold} more since the last line)"
        );
        warn!("{line}");
        context.source.events.record(EventKind::Operator, EventLevel::Warn, now, &line);
    }
    Err(Failure::WrongToken)
}

/// What follows the word `Bearer`, in whatever case (RFC 9110, section 11.1).
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
