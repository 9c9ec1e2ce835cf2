//! Client of a request behind trusted proxies, and the field that names it.

use convey_http_core::{FieldRules, NamedClient, RequestHead, is_same_for_cgi};
use convey_snapshot::Frontend;

/// Client that a trusted peer names.
pub(crate) fn named(head: &RequestHead, frontend: &Frontend, is_peer_trusted: bool) -> NamedClient {
    match frontend.config.http.as_ref().filter(|_| is_peer_trusted) {
        Some(http) => http.client_address.client_of(head, |ip| frontend.config.trusts_proxy(ip)),
        None => NamedClient::Missing,
    }
}

/// Changes to the request that keep its server from reading another client in the field in which
/// proxies name it.
pub(crate) fn protected(head: &RequestHead, frontend: &Frontend, is_peer_trusted: bool) -> FieldRules {
    let mut changes = FieldRules::of_requests();
    if let Some(name) = frontend.config.http.as_ref().and_then(|http| http.client_address.own_field()) {
        protect(head, name, is_peer_trusted, &mut changes);
    }
    changes
}

/// Removes the field with this name from a request of a peer that is no trusted proxy. From all
/// requests, removes its spellings with `_` for `-`, because servers behind CGI and the like do not
/// distinguish them.
fn protect(head: &RequestHead, name: &str, is_peer_trusted: bool, changes: &mut FieldRules) {
    let is_own = |other: &[u8]| is_peer_trusted && other.eq_ignore_ascii_case(name.as_bytes());
    let spellings = || head.fields().filter(|field| is_same_for_cgi(name.as_bytes(), field.name));
    if spellings().all(|field| is_own(field.name)) {
        return;
    }
    // The configuration has checked the name, and values are those of a valid head.
    let _ = changes.remove(name);
    for field in spellings().filter(|field| is_own(field.name)) {
        if let Ok(value) = std::str::from_utf8(field.value) {
            let _ = changes.add(name, value);
        }
    }
}
