//! Redirects: the URL that a client gets in place of a response.

use std::borrow::Cow;
use std::fmt;

use crate::head::{is_authority, split_port};
use crate::routes::host_name;
use crate::{PathRewrite, RequestHead, Template, Variable, Variables};

/// Redirect of a request. A part that is not set stays as in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Scheme; `None`: the client's.
    pub scheme: Option<UrlScheme>,
    /// Host without a port; `None`: the request's.
    pub host: Option<Template>,
    /// Port; `None`: the usual port of `scheme` if that is set, else the request's.
    pub port: Option<u16>,
    /// Path and query.
    pub path: RedirectPath,
    /// Status of the reply: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Scheme of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlScheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
}

/// Path of a redirect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RedirectPath {
    /// The request's path and query.
    #[default]
    Same,
    /// This path. The request's query follows, unless the text has a question mark.
    Whole(Template),
    /// The request's path with a change, and its query.
    Rewrite(PathRewrite),
}

impl UrlScheme {
    /// All schemes.
    pub const ALL: [UrlScheme; 2] = [UrlScheme::Http, UrlScheme::Https];

    /// Name in URLs.
    pub fn name(self) -> &'static str {
        match self {
            UrlScheme::Http => "http",
            UrlScheme::Https => "https",
        }
    }

    /// Port of URLs without one.
    pub fn port(self) -> u16 {
        match self {
            UrlScheme::Http => 80,
            UrlScheme::Https => 443,
        }
    }
}

/// The redirect to the request's own URL, with status 302.
impl Default for Redirect {
    fn default() -> Redirect {
        Redirect { scheme: None, host: None, port: None, path: RedirectPath::Same, status: 302 }
    }
}

impl Redirect {
    /// Statuses of redirects (RFC 9110, section 15.4).
    pub const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

    /// Returns the redirect to the same URL over HTTPS, with status 308.
    pub fn to_https() -> Redirect {
        Redirect { scheme: Some(UrlScheme::Https), status: 308, ..Redirect::default() }
    }

    /// Whether the redirect leads to the same URL over HTTPS, and changes nothing else.
    pub fn is_to_https(&self) -> bool {
        Redirect { status: 308, ..self.clone() } == Redirect::to_https()
    }

    /// Whether the URL has this variable.
    pub fn uses(&self, variable: &Variable) -> bool {
        let in_path = matches!(&self.path, RedirectPath::Whole(path) if path.uses(variable));
        in_path || self.host.as_ref().is_some_and(|host| host.uses(variable))
    }

    /// URL for the client, whose scheme is `scheme`. `None`: there is no host, because neither the
    /// redirect nor the request names one, or its variables make no valid host.
    pub fn location(
        &self,
        head: &RequestHead,
        scheme: UrlScheme,
        variables: &dyn Variables,
    ) -> Option<String> {
        let (own_host, own_port) = split_port(head.host());
        let to = self.scheme.unwrap_or(scheme);
        let host = match &self.host {
            Some(host) => Some(host.expand(variables)).filter(|host| is_host(host)).map(Cow::Owned),
            None => Some(own_host).filter(|host| !host.is_empty()).map(Cow::Borrowed),
        }?;
        let own_port = own_port.filter(|_| self.scheme.is_none());
        let port = self.port.map(|port| port.to_string().into_bytes()).or(own_port.map(<[u8]>::to_vec));
        let usual = to.port().to_string();
        let port = port.filter(|port| *port != usual.as_bytes());
        let target = self.target(head, variables);
        let mut location = format!("{}://", to.name()).into_bytes();
        location.extend_from_slice(&host);
        if let Some(port) = port {
            location.push(b':');
            location.extend_from_slice(&port);
        }
        location.extend_from_slice(&target);
        Some(encoded(&location))
    }

    /// Whether the redirect leads to the request's own URL, so that the client would repeat it for
    /// ever.
    pub fn loops(&self, head: &RequestHead, scheme: UrlScheme, variables: &dyn Variables) -> bool {
        if self.is_to_https() {
            return scheme == UrlScheme::Https;
        }
        let own = Redirect::default().location(head, scheme, variables);
        let to = self.location(head, scheme, variables);
        match (own, to) {
            (Some(own), Some(to)) => is_same_url(&own, &to),
            _ => false,
        }
    }

    fn target<'a>(&'a self, head: &'a RequestHead, variables: &dyn Variables) -> Cow<'a, [u8]> {
        let own = head.path_and_query();
        match &self.path {
            RedirectPath::Same => Cow::Borrowed(own),
            RedirectPath::Rewrite(rewrite) => rewrite.apply(own),
            RedirectPath::Whole(path) => {
                let mut path = path.expand(variables);
                if !path.starts_with(b"/") {
                    path.insert(0, b'/');
                }
                if !path.contains(&b'?') {
                    path.extend_from_slice(&own[head.path().len()..]);
                }
                Cow::Owned(path)
            }
        }
    }
}

/// Whether a text is a host without a port, and has no empty label before its end. Other texts, such
/// as `evil.example/.example.com`, could lead to a host that the operator does not expect.
fn is_host(text: &[u8]) -> bool {
    let is_name = text.split(|byte| *byte == b'.').next().is_some_and(|label| !label.is_empty());
    is_name
        && is_authority(text)
        && split_port(text).1.is_none()
        && !text.windows(2).any(|pair| pair == b"..")
}

/// Compares URLs; the case of hosts and a dot at their end make no difference.
fn is_same_url(a: &str, b: &str) -> bool {
    let split = |url: &str| {
        let begin = url.find("://").map_or(0, |at| at + 3);
        let end = url[begin..].find('/').map_or(url.len(), |at| begin + at);
        let (host, port) = split_port(&url.as_bytes()[begin..end]);
        (url[..begin].to_owned(), host_name(host), port.map(<[u8]>::to_vec), url[end..].to_owned())
    };
    split(a) == split(b)
}

/// Encodes bytes that are not allowed in URLs, such as spaces from the values of variables.
fn encoded(url: &[u8]) -> String {
    url.iter().fold(String::with_capacity(url.len()), |mut out, byte| {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => out += &format!("%{byte:02X}"),
            b'!'..=b'~' => out.push(char::from(*byte)),
            _ => out += &format!("%{byte:02X}"),
        }
        out
    })
}

impl fmt::Display for Redirect {
    /// Formats as `https`, or as the URL with dots for the parts of the request, with the status
    /// (`https://www.example.com/...`, status 301).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Redirect::to_https() {
            return f.write_str("https");
        }
        if let Some(scheme) = self.scheme {
            write!(f, "{}:", scheme.name())?;
        }
        f.write_str("//")?;
        match &self.host {
            Some(host) => write!(f, "{host}")?,
            None => f.write_str("{host}")?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        match &self.path {
            RedirectPath::Same => f.write_str("{target}")?,
            RedirectPath::Whole(path) => write!(f, "{path}")?,
            RedirectPath::Rewrite(rewrite) => write!(f, "{rewrite}")?,
        }
        write!(f, " ({})", self.status)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::{HeadLimits, HeadReader, PathPattern, PathPrefix, PathView};

    struct OfHead<'a>(&'a RequestHead);

    impl Variables for OfHead<'_> {
        fn value(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
            match variable {
                Variable::Path => Some(self.0.path().into()),
                Variable::Header(name) => self.0.field(name).map(Cow::Borrowed),
                _ => None,
            }
        }
    }

    fn head(host: &str, target: &str) -> RequestHead {
        let text = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX-A: a b\"<é\r\n\r\n");
        HeadReader::default().request(&mut BytesMut::from(&*text), &HeadLimits::default()).unwrap().unwrap()
    }

    fn text(text: &str) -> Option<Template> {
        Some(Template::parse(text).unwrap())
    }

    #[test]
    fn location_has_the_parts_of_the_redirect_and_of_the_request() {
        let whole = |path: &str| RedirectPath::Whole(Template::parse(path).unwrap());
        let prefix = PathPattern::Prefix(PathPrefix::parse("/old").unwrap());
        let rewrite = RedirectPath::Rewrite(PathRewrite::new(&prefix, PathView::Normalized, "/new").unwrap());
        let none = Redirect::default;
        let cases = [
            (Redirect::to_https(), "a.example:8080", "/x?y", "https://a.example/x?y"),
            (Redirect::to_https(), "[::1]:80", "/", "https://[::1]/"),
            (Redirect { port: Some(8443), ..Redirect::to_https() }, "a", "/", "https://a:8443/"),
            (Redirect { port: Some(443), ..Redirect::to_https() }, "a:1", "/", "https://a/"),
            (Redirect { host: text("www.b"), ..none() }, "b:8080", "/x?y", "http://www.b:8080/x?y"),
            (Redirect { path: whole("/z"), ..none() }, "a", "/x?y", "http://a/z?y"),
            (Redirect { path: whole("/z?q=1"), ..none() }, "a", "/x?y", "http://a/z?q=1"),
            (Redirect { path: whole("{path}/z?"), ..none() }, "a", "/x?y", "http://a/x/z?"),
            (Redirect { path: whole("/{header:X-A}"), ..none() }, "a", "/", "http://a/a%20b%22%3C%C3%A9"),
            (Redirect { path: rewrite, ..none() }, "a", "/old/x?y", "http://a/new/x?y"),
        ];
        for (redirect, host, target, expected) in cases {
            let head = head(host, target);
            let location = redirect.location(&head, UrlScheme::Http, &OfHead(&head));
            assert_eq!(location.as_deref(), Some(expected), "{redirect}");
        }
        let head = head("", "/");
        assert_eq!(none().location(&head, UrlScheme::Http, &OfHead(&head)), None);
    }

    #[test]
    fn host_of_a_redirect_is_valid_whatever_the_request_has() {
        let cases = [
            ("{header:X-A}.example.com", "a", Some("a.example.com")),
            ("{header:X-A}", "a-1_b.example.", Some("a-1_b.example.")),
            ("{header:X-A}", "192.0.2.1", Some("192.0.2.1")),
            ("{header:X-A}", "[2001:db8::1]", Some("[2001:db8::1]")),
            ("{header:X-A}.example.com", "evil.example/", None),
            ("{header:X-A}.example.com", "evil.example?", None),
            ("{header:X-A}.example.com", "evil.example#", None),
            ("{header:X-A}.example.com", r"evil.example\", None),
            ("{header:X-A}.example.com", "evil.example:80/", None),
            ("www.{header:X-A}", "a@evil.example", None),
            ("{header:X-A}", "a:80", None),
            ("{header:X-A}", "[::1]:80", None),
            ("{header:X-A}", "[::1", None),
            ("{header:X-A}.example.com", "a b", None),
            ("{header:X-A}.example.com", "%65vil", None),
            ("{header:X-A}.example.com", "a.", None),
            ("{header:X-A}.example.com", "", None),
            ("{header:X-A}", "", None),
        ];
        for (host, value, expected) in cases {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-A: {value}\r\n\r\n");
            let mut request = BytesMut::from(&*request);
            let head = HeadReader::default().request(&mut request, &HeadLimits::default()).unwrap().unwrap();
            let redirect = Redirect { host: text(host), ..Redirect::default() };
            let location = redirect.location(&head, UrlScheme::Http, &OfHead(&head));
            assert_eq!(location, expected.map(|host| format!("http://{host}/")), "{host} {value}");
        }
    }

    #[test]
    fn redirect_to_the_own_url_is_a_loop() {
        let none = Redirect::default;
        let www = Redirect { host: text("www.a"), ..none() };
        let with_scheme = Redirect { scheme: Some(UrlScheme::Https), ..www.clone() };
        let cases = [
            (&www, "a", UrlScheme::Http, false),
            (&www, "WWW.a.", UrlScheme::Http, true),
            (&www, "www.a:81", UrlScheme::Http, true),
            (&with_scheme, "www.a", UrlScheme::Http, false),
            (&with_scheme, "www.a", UrlScheme::Https, true),
            (&with_scheme, "www.a:443", UrlScheme::Https, true),
            (&with_scheme, "www.a:8443", UrlScheme::Https, false),
            (&Redirect::to_https(), "a", UrlScheme::Http, false),
            (&Redirect::to_https(), "a:8443", UrlScheme::Https, true),
        ];
        for (redirect, host, scheme, expected) in cases {
            let head = head(host, "/x?y");
            assert_eq!(
                redirect.loops(&head, scheme, &OfHead(&head)),
                expected,
                "{redirect} {host} {scheme:?}"
            );
        }
    }
}
