//! Access lists for requests that trusted proxies send.

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Wraps `inner` in a service that refuses requests whose client the access lists deny.
///
/// convey checks the connections of direct clients before their first byte. The client behind a
/// trusted proxy is known only from the request, so a stack without this service admits every
/// client that a trusted proxy names.
pub fn check_access<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, check)
}

fn check(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let config = &request.frontend().config;
    let is_unchecked = config.is_http_proxy(request.peer().ip());
    match is_unchecked && !config.access.admits(request.client().ip()) {
        true => Err(LocalReplyReason::AccessDenied.into()),
        false => Ok(()),
    }
}
