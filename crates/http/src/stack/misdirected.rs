//! Check that the client's TLS handshake was for the host of its request.

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Wraps `inner` in a service that refuses requests whose host has a certificate of its own, other
/// than the certificate for the client's SNI (RFC 9110, section 7.4).
///
/// Trusted proxies may send requests for all hosts on one connection. Clients without SNI, and
/// clients that got the default certificate because no certificate matches their SNI, may request
/// any host.
pub fn refuse_misdirected<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, check)
}

fn check(request: &mut HttpRequest) -> Result<(), LocalReply> {
    match is_misdirected(request).unwrap_or(false) && !request.is_peer_trusted() {
        true => Err(LocalReplyReason::Misdirected.into()),
        false => Ok(()),
    }
}

fn is_misdirected(request: &HttpRequest) -> Option<bool> {
    let (acceptor, server_name) = (request.frontend().tls.as_ref()?, request.server_name()?);
    let host = std::str::from_utf8(request.head().host_without_port()).ok()?;
    Some(acceptor.is_misdirected(server_name, host))
}
