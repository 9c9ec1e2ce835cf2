//! ACME HTTP-01 challenges: replies to a certificate authority that validates a name (RFC 8555,
//! section 8.3).

use super::OwnCheck;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::request::HttpRequest;

/// Wraps `inner` in a service that replies to requests for tokens while an order runs. All other
/// requests, also those for unknown tokens, pass to `inner`.
pub fn answer_challenges<S>(inner: S) -> OwnCheck<S> {
    OwnCheck::new(inner, answer)
}

fn answer(request: &mut HttpRequest) -> Result<(), LocalReply> {
    let challenges = request.frontend().challenges.as_ref();
    match challenges.and_then(|challenges| challenges.answer(request.head().path())) {
        Some(text) => {
            Err(LocalReply::from(LocalReplyReason::AcmeChallenge).with_body(text.as_bytes().to_vec()))
        }
        None => Ok(()),
    }
}
