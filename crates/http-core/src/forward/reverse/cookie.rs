//! Cookies of a server as cookies for a client.

use std::net::IpAddr;

use super::paths::PathMap;
use crate::routes::host_name;

/// Begin of the names of cookies that belong to one host.
const HOST_PREFIX: &[u8] = b"__Host-";

/// Translates the attributes `Path` and `Domain` of a `Set-Cookie`. `hosts` are the hosts of the
/// server and of the client, if they differ. `None`: the field stays as it is, for example because
/// browsers require the path `/` and no domain of a cookie whose name begins with `__Host-`.
pub(super) fn reversed(value: &[u8], paths: &PathMap, hosts: Option<(&[u8], &[u8])>) -> Option<Vec<u8>> {
    let mut parts = value.split(|byte| *byte == b';');
    let pair = parts.next()?;
    let prefix = pair.trim_ascii_start().get(..HOST_PREFIX.len());
    if prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(HOST_PREFIX)) {
        return None;
    }
    let mut out = pair.to_vec();
    let mut has_changed = false;
    for part in parts {
        let (name, attribute) = split_attribute(part);
        let changed = match name {
            name if name.eq_ignore_ascii_case(b"path") => paths.cookie_path(attribute).map(Some),
            name if name.eq_ignore_ascii_case(b"domain") => {
                hosts.and_then(|(server, client)| client_domain(attribute, server, client))
            }
            _ => None,
        };
        has_changed |= changed.is_some();
        match changed {
            None => out.extend([b";", part].concat()),
            Some(Some(attribute)) => out.extend([b"; ", name, b"=", &attribute].concat()),
            Some(None) => {}
        }
    }
    has_changed.then_some(out)
}

fn split_attribute(part: &[u8]) -> (&[u8], &[u8]) {
    let equals = part.iter().position(|byte| *byte == b'=').unwrap_or(part.len());
    (part[..equals].trim_ascii(), part.get(equals + 1..).unwrap_or_default().trim_ascii())
}

/// The client's domain for a cookie of the server's domain. `None`: the domain stays, because it
/// does not belong to the server, or the client belongs to it, too. `Some(None)`: the cookie needs
/// no domain, because the client's host is an address.
fn client_domain(domain: &[u8], server: &[u8], client: &[u8]) -> Option<Option<Vec<u8>>> {
    let domain = domain.strip_prefix(b".").unwrap_or(domain).to_ascii_lowercase();
    let (server, client) = (host_name(server), host_name(client));
    let is_within = |host: &[u8]| {
        let rest = host.strip_suffix(&domain[..]);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(b"."))
    };
    if domain.is_empty() || client.is_empty() || !is_within(&server) || is_within(&client) {
        return None;
    }
    let text = std::str::from_utf8(&client).unwrap_or_default();
    let is_address = text.starts_with('[') || text.parse::<IpAddr>().is_ok();
    Some((!is_address).then(|| client.to_vec()))
}
