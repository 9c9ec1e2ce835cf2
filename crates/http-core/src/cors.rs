//! Cross-origin resource sharing: which pages of other origins may read responses (Fetch Standard,
//! section 3.2).

use std::fmt;

use crate::{FieldRules, HttpMethod, RequestHead};

/// Rules for requests of pages of other origins. The server's own `Access-Control-*` fields are
/// replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsRules {
    /// Origins that may read responses.
    pub origins: Vec<OriginPattern>,
    /// Methods that a preflight request allows.
    pub methods: Vec<String>,
    /// Headers of requests that a preflight request allows; empty: those that it asks for.
    pub headers: Vec<String>,
    /// Headers of responses that pages may read, beside the usual ones.
    pub expose: Vec<String>,
    /// Whether requests may have cookies and other credentials.
    pub credentials: bool,
    /// Time for which a browser may remember the response to a preflight request, in seconds.
    pub max_age: u32,
}

/// Origins that may read responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OriginPattern {
    /// Every origin.
    Any,
    /// This origin, such as `https://app.example.com`.
    Exact(Box<str>),
    /// Origins whose host is below this suffix: the text up to `://`, and the suffix with its dot.
    Below(Box<str>, Box<str>),
}

impl OriginPattern {
    /// Parses `*`, an origin, or an origin whose host begins with `*.`; `None`: it is none of them.
    pub fn parse(text: &str) -> Option<OriginPattern> {
        if text == "*" {
            return Some(OriginPattern::Any);
        }
        let (scheme, host) = text.split_once("://")?;
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase());
        let name = host.strip_prefix('*').unwrap_or(host);
        let is_of_host =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]_".contains(&byte);
        let is_glob = name.len() < host.len();
        if !is_scheme || name.is_empty() || !name.bytes().all(is_of_host) || is_glob && !name.starts_with('.')
        {
            return None;
        }
        Some(match is_glob {
            true => OriginPattern::Below(format!("{scheme}://").into(), name.into()),
            false => OriginPattern::Exact(text.into()),
        })
    }

    fn matches(&self, origin: &str) -> bool {
        match self {
            OriginPattern::Any => true,
            OriginPattern::Exact(exact) => origin.eq_ignore_ascii_case(exact),
            OriginPattern::Below(scheme, suffix) => {
                let origin = origin.to_ascii_lowercase();
                let host = origin.strip_prefix(&**scheme).and_then(|host| host.strip_suffix(&**suffix));
                // Browsers send nothing else, but others might take `https://a.example?.b.example`
                // for an origin below `b.example`.
                let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                host.is_some_and(|label| !label.is_empty() && label.bytes().all(is_of_host))
            }
        }
    }
}

impl CorsRules {
    /// Methods that are allowed by default.
    pub const METHODS: [&str; 3] = ["GET", "HEAD", "POST"];

    /// Whether a request is a preflight request, which [`CorsRules::preflight`] answers.
    pub fn is_preflight(head: &RequestHead) -> bool {
        preflight_method(head).is_some()
    }

    /// Fields of convey's response to a preflight request (status 204). `None`: the request is no
    /// preflight request. If its origin is not allowed, the fields allow nothing.
    pub fn preflight(&self, head: &RequestHead) -> Option<FieldRules> {
        preflight_method(head)?;
        let mut fields = self.response(head, &FieldRules::default());
        if self.allowed(head).is_some() {
            set(&mut fields, "Access-Control-Allow-Methods", &self.methods.join(", "));
            let asked = head
                .field("access-control-request-headers")
                .and_then(|asked| std::str::from_utf8(asked).ok());
            let headers = match self.headers.is_empty() {
                true => asked.unwrap_or_default().to_owned(),
                false => self.headers.join(", "),
            };
            if !headers.is_empty() {
                set(&mut fields, "Access-Control-Allow-Headers", &headers);
            }
            set(&mut fields, "Access-Control-Max-Age", &self.max_age.to_string());
        }
        Some(fields)
    }

    /// Rules for the response to a request: they replace the server's `Access-Control-*` fields.
    /// `later` follows them, and can change all but `Vary: Origin`, without which a cache would
    /// send the response for one origin to pages of another.
    pub fn response(&self, head: &RequestHead, later: &FieldRules) -> FieldRules {
        let mut vary = FieldRules::default();
        // The field is valid, so this cannot fail.
        let _ = vary.add("Vary", "Origin");
        self.access_fields(head).then(later).then(&vary)
    }

    fn access_fields(&self, head: &RequestHead) -> FieldRules {
        let mut fields = FieldRules::default();
        for name in [
            "Access-Control-Allow-Origin",
            "Access-Control-Allow-Credentials",
            "Access-Control-Expose-Headers",
        ] {
            // The names are valid, so this cannot fail.
            let _ = fields.remove(name);
        }
        if let Some(origin) = self.allowed(head) {
            let is_for_all = !self.credentials && self.origins.contains(&OriginPattern::Any);
            set(&mut fields, "Access-Control-Allow-Origin", if is_for_all { "*" } else { origin });
            if self.credentials {
                set(&mut fields, "Access-Control-Allow-Credentials", "true");
            }
            if !self.expose.is_empty() {
                set(&mut fields, "Access-Control-Expose-Headers", &self.expose.join(", "));
            }
        }
        fields
    }

    /// Origin of a request, if it is allowed.
    fn allowed<'a>(&self, head: &'a RequestHead) -> Option<&'a str> {
        let origin = origin_of(head)?;
        self.origins.iter().any(|pattern| pattern.matches(origin)).then_some(origin)
    }
}

/// Method that a preflight request asks for; `None`: the request is no preflight request.
pub(crate) fn preflight_method(head: &RequestHead) -> Option<&[u8]> {
    let is_preflight = head.method() == HttpMethod::Options && origin_of(head).is_some();
    head.field("access-control-request-method").filter(|_| is_preflight)
}

/// Origin of the page that sends a request; `None` without an origin, or with several.
fn origin_of(head: &RequestHead) -> Option<&str> {
    let mut origins = head.values("origin");
    // A browser sends one origin. Of several, the server might take another one than convey.
    let origin = origins.next().filter(|_| origins.next().is_none())?;
    std::str::from_utf8(origin).ok().filter(|origin| !origin.is_empty())
}

/// Sets a field. Values come from valid heads or from the configuration, so this does not fail.
fn set(fields: &mut FieldRules, name: &str, value: &str) {
    let _ = fields.set(name, value);
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginPattern::Any => f.write_str("*"),
            OriginPattern::Exact(origin) => f.write_str(origin),
            OriginPattern::Below(scheme, suffix) => write!(f, "{scheme}*{suffix}"),
        }
    }
}

impl fmt::Display for CorsRules {
    /// Formats as `for https://a.example, with credentials`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origins: Vec<String> = self.origins.iter().map(ToString::to_string).collect();
        write!(f, "for {}", origins.join(", "))?;
        if self.credentials { f.write_str(", with credentials") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(origins: &[&str]) -> CorsRules {
        CorsRules {
            origins: origins.iter().map(|origin| OriginPattern::parse(origin).unwrap()).collect(),
            methods: vec!["GET".into(), "PUT".into()],
            headers: Vec::new(),
            expose: vec!["X-Total".into()],
            credentials: false,
            max_age: 600,
        }
    }

    fn head(method: &str, fields: &str) -> RequestHead {
        RequestHead::of_text(&format!("{method} / HTTP/1.1\r\nHost: api\r\n{fields}\r\n")).unwrap()
    }

    fn text(rules: &FieldRules) -> Vec<String> {
        let shown = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        rules.added().map(|(name, value)| format!("{}: {}", shown(name), shown(value))).collect()
    }

    #[test]
    fn page_of_an_allowed_origin_may_read_responses() {
        let cases = [
            ("https://app.example.com", true),
            ("HTTPS://APP.example.com", true),
            ("https://a.b.example.org", true),
            ("https://example.org", false),
            ("http://a.example.org", false),
            ("https://evil.com/.example.org", false),
            ("https://evil.com:1.example.org", false),
            ("https://app.example.com.evil.com", false),
            ("https://evil.com?.example.org", false),
            ("https://evil.com#.example.org", false),
            ("https://evil.com\\.example.org", false),
            ("https://evil.com%.example.org", false),
            ("https://a.example.org\r\nOrigin: https://a.example.org", false),
            ("null", false),
        ];
        let rules = rules(&["https://app.example.com", "https://*.example.org"]);
        for (origin, is_allowed) in cases {
            let request = head("GET", &format!("Origin: {origin}\r\n"));
            let fields = text(&rules.response(&request, &FieldRules::default()));
            let allows = fields.iter().any(|field| field.starts_with("Access-Control-Allow-Origin:"));
            assert_eq!(allows, is_allowed, "{origin}: {fields:?}");
            assert_eq!(fields.contains(&"Access-Control-Expose-Headers: X-Total".to_owned()), is_allowed);
            assert!(fields.contains(&"Vary: Origin".to_owned()));
        }
        let without_origin = rules.response(&head("GET", ""), &FieldRules::default());
        assert_eq!(text(&without_origin), ["Vary: Origin"]);
    }

    #[test]
    fn later_rules_can_change_all_but_the_vary_of_cors() {
        let request = head("GET", "Origin: https://a\r\n");
        let mut later = FieldRules::default();
        later.remove("vary").unwrap();
        later.remove("Access-Control-Expose-Headers").unwrap();
        let fields = text(&rules(&["https://a"]).response(&request, &later));
        assert_eq!(fields, ["Access-Control-Allow-Origin: https://a", "Vary: Origin"]);
        let mut later = FieldRules::default();
        later.set("Vary", "Cookie").unwrap();
        let fields = text(&rules(&["https://b"]).response(&request, &later));
        assert_eq!(fields, ["Vary: Cookie", "Vary: Origin"]);
    }

    #[test]
    fn every_origin_gets_a_star_unless_there_are_credentials() {
        let request = head("GET", "Origin: https://a\r\n");
        let (all, none) = (rules(&["*"]), FieldRules::default());
        assert!(text(&all.response(&request, &none)).contains(&"Access-Control-Allow-Origin: *".to_owned()));
        let with = CorsRules { credentials: true, ..all };
        let fields = text(&with.response(&request, &none));
        assert!(fields.contains(&"Access-Control-Allow-Origin: https://a".to_owned()), "{fields:?}");
        assert!(fields.contains(&"Access-Control-Allow-Credentials: true".to_owned()));
    }

    #[test]
    fn preflight_request_learns_methods_and_headers() {
        let rules = rules(&["https://a"]);
        let asked = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a, x-b\r\n";
        let of =
            |method: &str, fields: &str| rules.preflight(&head(method, fields)).map(|fields| text(&fields));
        let allowed = of("OPTIONS", &format!("Origin: https://a\r\n{asked}")).unwrap();
        for field in [
            "Access-Control-Allow-Origin: https://a",
            "Access-Control-Allow-Methods: GET, PUT",
            "Access-Control-Allow-Headers: x-a, x-b",
            "Access-Control-Max-Age: 600",
        ] {
            assert!(allowed.contains(&field.to_owned()), "{allowed:?}");
        }
        assert_eq!(of("OPTIONS", &format!("Origin: https://b\r\n{asked}")).unwrap(), ["Vary: Origin"]);
        assert_eq!(of("OPTIONS", "Origin: https://a\r\n"), None, "a request of its own");
        assert_eq!(of("GET", &format!("Origin: https://a\r\n{asked}")), None);
        assert_eq!(of("OPTIONS", asked), None);
    }

    #[test]
    fn origin_is_a_scheme_and_a_host() {
        for wrong in [
            "",
            "a.example",
            "https://",
            "https://a/",
            "https://a b",
            "https://*",
            "https://*a",
            "HTTPS://a",
            "https://a*",
        ] {
            assert_eq!(OriginPattern::parse(wrong), None, "{wrong}");
        }
        for origin in
            ["*", "https://a", "http://[::1]:8080", "https://*.a.example:8443", "capacitor://localhost"]
        {
            assert_eq!(OriginPattern::parse(origin).unwrap().to_string(), origin);
        }
    }
}
