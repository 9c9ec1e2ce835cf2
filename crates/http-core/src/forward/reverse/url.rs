//! URLs of a server as URLs of a client.

use std::net::SocketAddr;

use super::paths::{ClientPath, PathMap};
use crate::UrlScheme;
use crate::head::split_port;

/// Schemes and hosts by which the client and the server name the same content.
pub(super) struct UrlOrigins<'a> {
    pub(super) client: (UrlScheme, &'a [u8]),
    pub(super) server: (UrlScheme, &'a [u8]),
    /// Address of the server.
    pub(super) addr: SocketAddr,
    /// Whether the server gets another host than the client sent.
    pub(super) changes_host: bool,
}

/// A URL with a host.
struct AbsoluteUrl<'a> {
    /// `None`: the URL begins with `//`.
    scheme: Option<UrlScheme>,
    authority: &'a [u8],
    /// Path, query and fragment.
    rest: &'a [u8],
    /// Length of the URL before `rest`.
    before_rest: usize,
}

/// Translates a URL, or an absolute path, for the client. `None`: it stays as it is, because it has
/// another host, is relative to the client's path, or is the same for both sides.
pub(super) fn reversed(url: &[u8], paths: &PathMap, origins: &UrlOrigins<'_>) -> Option<Vec<u8>> {
    let Some(absolute) = AbsoluteUrl::parse(url) else {
        let is_path = url.starts_with(b"/") && !begins_with_host(url);
        let path = is_path.then(|| other(paths.client_path(url))).flatten();
        return path.filter(|path| !begins_with_host(path));
    };
    let AbsoluteUrl { rest, before_rest, .. } = absolute;
    if !origins.changes_host && origins.is_server_host(&absolute) {
        let path = other(paths.client_path(rest))?;
        return Some([&url[..before_rest], &path].concat());
    }
    if !origins.is_server_host(&absolute) && !origins.is_server_addr(&absolute) {
        return None;
    }
    let path = match paths.client_path(rest) {
        ClientPath::Other(path) | ClientPath::Same(path) => path,
        ClientPath::Unreachable => return None,
    };
    // The scheme is part of the redirect if neither side uses it, as in a redirect to HTTPS.
    match absolute.scheme.filter(|scheme| ![origins.client.0, origins.server.0].contains(scheme)) {
        Some(scheme) => {
            let (host, _) = split_port(origins.client.1);
            let begin = [scheme.name().as_bytes(), b"://", host].concat();
            (!host.is_empty()).then(|| [begin, path].concat())
        }
        None if begins_with_host(&path) => {
            let (scheme, host) = origins.client;
            let begin = [scheme.name().as_bytes(), b"://", host].concat();
            (!host.is_empty()).then(|| [begin, path].concat())
        }
        None => Some(path),
    }
}

impl<'a> AbsoluteUrl<'a> {
    fn parse(url: &'a [u8]) -> Option<AbsoluteUrl<'a>> {
        let of = |scheme: UrlScheme| {
            let len = scheme.name().len() + 1;
            let name = url.get(..len)?.strip_suffix(b":")?;
            name.eq_ignore_ascii_case(scheme.name().as_bytes()).then_some((Some(scheme), &url[len..]))
        };
        let (scheme, rest) = UrlScheme::ALL.into_iter().find_map(of).unwrap_or((None, url));
        let rest = rest.strip_prefix(b"//")?;
        let end = rest.iter().position(|byte| b"/?#\\".contains(byte)).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        Some(AbsoluteUrl { scheme, authority, rest, before_rest: url.len() - rest.len() })
    }
}

impl UrlOrigins<'_> {
    /// Whether the host of a URL is the host that the server got.
    fn is_server_host(&self, url: &AbsoluteUrl<'_>) -> bool {
        let scheme = url.scheme.unwrap_or(self.server.0);
        let (name, port) = split_port(url.authority);
        let (host, own_port) = split_port(self.server.1);
        let is_usual = |port: Option<&[u8]>, scheme: UrlScheme| port_of(port, scheme) == scheme.port();
        let has_port = port_of(port, scheme) == port_of(own_port, self.server.0)
            || is_usual(port, scheme) && is_usual(own_port, self.server.0);
        !host.is_empty() && name.eq_ignore_ascii_case(host) && has_port
    }

    /// Whether the host of a URL is the server's address.
    fn is_server_addr(&self, url: &AbsoluteUrl<'_>) -> bool {
        let scheme = url.scheme.unwrap_or(self.server.0);
        let (name, port) = split_port(url.authority);
        let name = name.strip_prefix(b"[").and_then(|name| name.strip_suffix(b"]")).unwrap_or(name);
        let ip = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        ip == Some(self.addr.ip()) && port_of(port, scheme) == self.addr.port()
    }
}

/// Port of a URL with this scheme; 0 for an invalid one.
fn port_of(port: Option<&[u8]>, scheme: UrlScheme) -> u16 {
    let parsed = |port: &[u8]| std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
    port.map_or(scheme.port(), |port| parsed(port).unwrap_or(0))
}

fn other(path: ClientPath) -> Option<Vec<u8>> {
    match path {
        ClientPath::Other(path) => Some(path),
        ClientPath::Same(_) | ClientPath::Unreachable => None,
    }
}

/// Whether browsers read the beginning of this path as a host. They remove tabs and line ends from
/// URLs.
fn begins_with_host(path: &[u8]) -> bool {
    let mut kept = path.iter().filter(|byte| !b"\t\r\n".contains(byte));
    kept.next() == Some(&b'/') && matches!(kept.next(), Some(b'/' | b'\\'))
}
