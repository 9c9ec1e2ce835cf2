//! Client of a request behind trusted proxies, and the field that names it.

use convey_http_core::{FieldRules, NamedClient, RequestHead};
use convey_snapshot::Frontend;

/// Returns the client that a trusted peer names, and the changes to the request that keep its
/// server from reading another client in the same field.
pub(crate) fn read(
    head: &RequestHead,
    frontend: &Frontend,
    is_peer_trusted: bool,
) -> (NamedClient, FieldRules) {
    let mut changes = FieldRules::of_requests();
    let Some(http) = &frontend.config.http else { return (NamedClient::Missing, changes) };
    if let Some(name) = http.client_address.own_field() {
        protect(head, name, is_peer_trusted, &mut changes);
    }
    let named = match is_peer_trusted {
        true => http.client_address.client_of(head, |ip| frontend.config.trusts_proxy(ip)),
        false => NamedClient::Missing,
    };
    (named, changes)
}

/// Removes the field with this name from a request of a peer that is no trusted proxy. From all
/// requests, removes its spellings with `_` for `-`, because servers behind CGI and the like do not
/// distinguish them.
fn protect(head: &RequestHead, name: &str, is_peer_trusted: bool, changes: &mut FieldRules) {
    let is_spelling = |other: &[u8]| {
        let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        other.len() == name.len() && other.iter().map(plain).eq(name.as_bytes().iter().map(plain))
    };
    let is_own = |other: &[u8]| is_peer_trusted && other.eq_ignore_ascii_case(name.as_bytes());
    let spellings = || head.fields().filter(|field| is_spelling(field.name));
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
