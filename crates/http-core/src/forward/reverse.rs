//! URLs and cookies in responses of servers, translated back for clients of a route that rewrites
//! paths or the host. nginx calls this `proxy_redirect`, Apache `ProxyPassReverse`.

mod cookie;
mod paths;
mod refresh;
#[cfg(test)]
mod tests;
mod url;

use std::borrow::Cow;
use std::net::SocketAddr;

use super::PathRewrite;
use crate::UrlScheme;

pub(super) use paths::PathMap;
use url::UrlOrigins;

/// Fields of responses that a route translates if it rewrites its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReversedFields {
    /// `Location`, `Content-Location` and `Refresh`.
    pub locations: bool,
    /// `Path` and `Domain` of `Set-Cookie`.
    pub cookies: bool,
}

/// Translation of the responses of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReverseRewrite {
    fields: ReversedFields,
    paths: PathMap,
    changes_host: bool,
}

/// Translation of one response: the rules of its route, and the hosts on both sides.
#[derive(Debug, Clone, Copy)]
pub struct ResponseReversal<'a> {
    /// Translation of the route.
    pub rules: &'a ReverseRewrite,
    /// Host that the client sent, perhaps with a port.
    pub client_host: &'a [u8],
    /// Scheme that the client uses.
    pub client_scheme: UrlScheme,
    /// Host that the server got, perhaps with a port.
    pub server_host: &'a [u8],
    /// Address of the server.
    pub server: SocketAddr,
    /// Scheme that convey uses with the server.
    pub server_scheme: UrlScheme,
}

impl Default for ReversedFields {
    fn default() -> ReversedFields {
        ReversedFields { locations: true, cookies: false }
    }
}

impl ReverseRewrite {
    /// Returns the translation for a route with this rewrite of paths. `changes_host`: whether
    /// servers get another host than the client sent. `None`: there is nothing to translate.
    pub fn new(
        fields: ReversedFields,
        path: Option<&PathRewrite>,
        changes_host: bool,
    ) -> Option<ReverseRewrite> {
        let is_needed = (path.is_some() || changes_host) && (fields.locations || fields.cookies);
        let paths = || path.map_or(PathMap::Same, PathRewrite::reversed);
        is_needed.then(|| ReverseRewrite { fields, paths: paths(), changes_host })
    }
}

impl ResponseReversal<'_> {
    /// Returns the value of a field for the client. `None`: the value stays as it is.
    pub(super) fn apply(&self, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let ReversedFields { locations, cookies } = self.rules.fields;
        match name.len() {
            8 if locations && is("location") => self.url(value),
            16 if locations && is("content-location") => self.url(value),
            7 if locations && is("refresh") => self.refresh(value),
            10 if cookies && is("set-cookie") => {
                let hosts = self.rules.changes_host.then_some((self.server_host, self.client_host));
                cookie::reversed(value, &self.rules.paths, hosts)
            }
            _ => None,
        }
    }

    /// Translates a `Refresh` such as `5; url=/a`.
    fn refresh(&self, value: &[u8]) -> Option<Vec<u8>> {
        let place = refresh::url_in(value)?;
        let url = self.url(&value[place.clone()])?;
        Some([&value[..place.start], &url, &value[place.end..]].concat())
    }

    /// Translates a URL or an absolute path.
    fn url(&self, url: &[u8]) -> Option<Vec<u8>> {
        let origins = UrlOrigins {
            client: (self.client_scheme, self.client_host),
            server: (self.server_scheme, self.server_host),
            addr: self.server,
            changes_host: self.rules.changes_host,
        };
        url::reversed(url, &self.rules.paths, &origins)
    }
}

/// Value of a server's field for the client.
pub(super) fn reversed<'a>(
    reversal: Option<&ResponseReversal<'_>>,
    name: &[u8],
    value: &'a [u8],
) -> Cow<'a, [u8]> {
    let changed = reversal.and_then(|reversal| reversal.apply(name, value));
    changed.map_or(Cow::Borrowed(value), Cow::Owned)
}
