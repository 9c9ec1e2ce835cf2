//! Session affinity by a cookie that convey sets. Pure.

use std::fmt;

/// Session affinity of a backend: a cookie names the server that gets the requests of its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityConfig {
    /// Name of the cookie.
    pub cookie: Box<str>,
    /// Attribute `Path`: the cookie is for requests whose path begins with it.
    pub path: Box<str>,
    /// Attribute `Domain`: the cookie is also for hosts below this one; `None`: only for the host
    /// of the request.
    pub domain: Option<Box<str>>,
    /// Attribute `Max-Age` in seconds; `None`: the cookie lasts until the browser ends.
    pub max_age: Option<u32>,
    /// Attribute `SameSite`.
    pub same_site: SameSite,
    /// Whether the cookie has the attribute `Secure`; `None`: if the client uses HTTPS.
    pub secure: Option<bool>,
    /// Whether the cookie has the attribute `HttpOnly`, so that no script of a page reads it.
    pub http_only: bool,
    /// Key of the server ids in the cookies. Nodes with the same key give a server the same id.
    pub key: AffinityKey,
}

impl AffinityConfig {
    /// Affinity by a cookie with this name and the default attributes, without a key.
    pub fn new(cookie: &str) -> AffinityConfig {
        AffinityConfig {
            cookie: cookie.into(),
            path: "/".into(),
            domain: None,
            max_age: None,
            same_site: SameSite::default(),
            secure: None,
            http_only: true,
            key: AffinityKey::default(),
        }
    }

    /// Whether the name begins with `__Host-`: browsers accept the cookie only with `Secure`, the
    /// path `/` and no domain.
    pub fn is_of_host(&self) -> bool {
        self.begins_with("__Host-")
    }

    /// Whether browsers accept a cookie with this name only with `Secure`.
    pub fn needs_secure(&self) -> bool {
        self.is_of_host() || self.begins_with("__Secure-")
    }

    /// Whether the name begins with this prefix. Browsers ignore the case.
    fn begins_with(&self, prefix: &str) -> bool {
        self.cookie.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    }
}

/// Requests of other sites that carry a cookie (attribute `SameSite`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Only requests that a user makes by following a link.
    #[default]
    Lax,
    /// None.
    Strict,
    /// All. Browsers accept this only together with `Secure`.
    None,
}

impl SameSite {
    /// All values, in the order of the reference.
    pub const ALL: [SameSite; 3] = [SameSite::Lax, SameSite::Strict, SameSite::None];

    /// Value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            SameSite::Lax => "lax",
            SameSite::Strict => "strict",
            SameSite::None => "none",
        }
    }

    /// Value of the attribute.
    pub fn attribute(self) -> &'static str {
        match self {
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
            SameSite::None => "None",
        }
    }
}

/// Key of the server ids in affinity cookies. Its debug form does not show the bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AffinityKey(Box<[u8]>);

impl AffinityKey {
    /// Creates a key from these bytes. Without bytes, everybody who knows the address of a server
    /// can compute its id.
    pub fn new(bytes: &[u8]) -> AffinityKey {
        AffinityKey(bytes.into())
    }

    /// The bytes of the key.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for AffinityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "AffinityKey(none)" } else { "AffinityKey(..)" })
    }
}
