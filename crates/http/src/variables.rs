//! Values of variables in header rules and redirects.

use std::sync::Arc;

use convey_access_log::LoggedTls;
use convey_http_core::{RequestHead, TlsFacts};
use convey_snapshot::Frontend;

/// Header in which trusted proxies name the id of a request.
const ID_FIELD: &str = "x-request-id";

/// Maximum length of an id of a trusted proxy, in bytes.
const MAX_ID: usize = 128;

/// Id for a request: that of a trusted proxy, or a random one. `None`: no header and no redirect of
/// the frontend has the id.
pub(crate) fn request_id(head: &RequestHead, frontend: &Frontend, is_peer_trusted: bool) -> Option<Arc<str>> {
    if !frontend.http.as_ref().is_some_and(|http| http.uses_request_ids) {
        return None;
    }
    let named = head.field(ID_FIELD).filter(|_| is_peer_trusted);
    let named = named.and_then(|id| std::str::from_utf8(id).ok());
    let is_id =
        |id: &&str| (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    match named.filter(is_id) {
        Some(named) => Some(named.into()),
        None => Some(format!("{:032x}", fastrand::u128(..)).into()),
    }
}

/// Values of a client's TLS connection.
pub(crate) fn tls_facts(tls: &LoggedTls) -> TlsFacts<'_> {
    TlsFacts {
        version: tls.version,
        cipher: &tls.cipher_suite,
        client: &tls.client_subject,
        sni: &tls.server_name,
    }
}
