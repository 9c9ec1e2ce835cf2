//! `kind` of a health check, and its keys for HTTP.

use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use crate::values::{
    body_pattern, boolean, choice, header_name, header_value, http_host, http_path, status_range,
};
use convey_model::{BodyPattern, HttpCheck, ProbeKind, TlsCheck};

/// `kind` and the keys for HTTP in the reference.
pub(super) const DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "kind",
        kind: r##"`"tcp"`, `"http"`, `"https"`, `"udp"` or `"none"`"##,
        default: r##"`"tcp"`; `"udp"` if only UDP frontends use the backend"##,
        sample: r##"#kind = "tcp""##,
        example: "'none'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "path",
        kind: "HTTP, HTTPS: a path that begins with `/`",
        default: r##"`"/"`"##,
        sample: r##"#path = "/"                             # http, https: the path of the request"##,
        example: "'/up'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "host",
        kind: "HTTP, HTTPS: the `Host` of the request. HTTPS: the name that the certificate is for",
        default: "the server's address",
        sample: r##"#host = "app.internal"                  # example; http, https: the Host of the request; by default the server's address"##,
        example: "'app.internal'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "headers",
        kind: r##"table of further headers, HTTP and HTTPS: `{ X-Check = "convey" }`. Headers of the connection are not allowed, such as `Expect` or `Upgrade`"##,
        default: "none",
        sample: r##"#headers = { X-Check = "convey" }       # example; http, https: further headers"##,
        example: "",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "expected_status",
        kind: r##"HTTP, HTTPS: a status from 100 to 599, a range, or several: `[200, "301-302"]`"##,
        default: r##"`"200-399"`"##,
        sample: r##"#expected_status = "200-399"            # http, https: a status, a range, or several: [200, "301-302"]"##,
        example: "204",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "expected_body",
        kind: "HTTP, HTTPS: a [regular expression](https://docs.rs/regex/latest/regex/#syntax) that matches within the first 64 KiB of the body",
        default: "any body",
        sample: r##"
#expected_body = "^OK"                  # example; http, https: a regular expression that the body has to match. By default
                                        # any body passes
"##,
        example: r##""^OK""##,
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "tls_skip_verify",
        kind: "HTTPS: `true` takes any certificate",
        default: "`false`",
        sample: r##"
#tls_skip_verify = false                # https: true accepts any certificate. false: only one for `host`, by an authority that
                                        # this host trusts
"##,
        example: "true",
        ..KeyDoc::USUAL
    }),
];

/// Reads `kind` and the keys for HTTP.
pub(super) fn kind(table: &mut TomlTable<'_>, default: ProbeKind, report: &Report<'_>) -> ProbeKind {
    let found = table.optional("kind", choice(&KindName::ALL, KindName::text));
    let is_wrong = found.is_none() && table.has("kind");
    let http = HttpKeys::read(table, report);
    let name = found.map_or(KindName::of(&default), |found| found.value);
    if !is_wrong {
        http.misplaced(name.text(), report);
    }
    match name {
        KindName::Tcp => ProbeKind::Tcp,
        KindName::Http => ProbeKind::Http(http.check(false)),
        KindName::Https => ProbeKind::Http(http.check(true)),
        KindName::Udp => ProbeKind::Udp,
        KindName::None => ProbeKind::None,
    }
}

/// Checks `via`: only a health check that begins with a SYN can go through the VIP.
pub(super) fn check_via(place: &Place, kind: &ProbeKind, report: &Report<'_>) {
    if matches!(kind, ProbeKind::Udp | ProbeKind::None) {
        let message =
            format!("\"vip\" is for kind = \"tcp\", \"http\" or \"https\"; the kind is {:?}", kind.name());
        report.error(place, message);
    }
}

/// Allowed values of `kind`.
#[derive(Clone, Copy)]
enum KindName {
    Tcp,
    Http,
    Https,
    Udp,
    None,
}

impl KindName {
    const ALL: [KindName; 5] =
        [KindName::Tcp, KindName::Http, KindName::Https, KindName::Udp, KindName::None];

    fn of(kind: &ProbeKind) -> KindName {
        match kind {
            ProbeKind::None => KindName::None,
            ProbeKind::Tcp => KindName::Tcp,
            ProbeKind::Udp => KindName::Udp,
            ProbeKind::Http(HttpCheck { tls: None, .. }) => KindName::Http,
            ProbeKind::Http(HttpCheck { tls: Some(_), .. }) => KindName::Https,
        }
    }

    fn text(self) -> &'static str {
        match self {
            KindName::Tcp => "tcp",
            KindName::Http => "http",
            KindName::Https => "https",
            KindName::Udp => "udp",
            KindName::None => "none",
        }
    }
}

/// Keys for HTTP only.
struct HttpKeys {
    path: Option<Placed<String>>,
    host: Option<Placed<String>>,
    headers: Vec<(String, String)>,
    expected_status: Vec<Placed<std::ops::RangeInclusive<u16>>>,
    expected_body: Option<Placed<BodyPattern>>,
    tls_skip_verify: Option<Placed<bool>>,
    /// Places of the keys that are set.
    places: Vec<Place>,
}

impl HttpKeys {
    fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> HttpKeys {
        let path = table.optional("path", http_path);
        let host = table.optional("host", http_host);
        let expected_status = table.any_number("expected_status", status_range);
        let expected_body = table.optional("expected_body", body_pattern);
        let mut places: Vec<Place> = path.iter().chain(&host).map(|found| found.place.clone()).collect();
        places.extend(expected_status.first().map(|found| found.place.clone()));
        places.extend(expected_body.iter().map(|found| found.place.clone()));
        let has_headers = table.has("headers");
        let headers = table.table("headers");
        places.extend(has_headers.then(|| headers.place.clone()));
        let mut named: Vec<(String, String)> = Vec::new();
        for (name, value) in headers.values(header_value) {
            let twin = named.iter().find(|(other, _)| other.eq_ignore_ascii_case(&name.value));
            let twin = twin.map(|(other, _)| format!("duplicates the header {other}; keep one of them"));
            match header_name(&name.value).and(twin.map_or(Ok(()), Err)) {
                Ok(()) => named.extend(value.map(|value| (name.value, value.value))),
                Err(message) => report.error(&name.place, message),
            }
        }
        let tls_skip_verify = table.optional("tls_skip_verify", boolean);
        HttpKeys { path, host, headers: named, expected_status, expected_body, tls_skip_verify, places }
    }

    /// Reports keys that a health check of this kind does not have.
    fn misplaced(&self, kind: &str, report: &Report<'_>) {
        let wrong = |place: &Place, right: &str| {
            report.error(place, format!("is for kind = {right:?}; the kind is {kind:?}"));
        };
        if !matches!(kind, "http" | "https") {
            self.places.iter().for_each(|place| wrong(place, "http"));
        }
        if let Some(skip) = self.tls_skip_verify.as_ref().filter(|_| kind != "https") {
            wrong(&skip.place, "https");
        }
    }

    fn check(self, is_tls: bool) -> HttpCheck {
        let default = HttpCheck::default();
        let skip_verify = self.tls_skip_verify.is_some_and(|skip| skip.value);
        let statuses: Vec<_> = self.expected_status.into_iter().map(|found| found.value).collect();
        HttpCheck {
            path: self.path.map_or(default.path, |found| found.value),
            host: self.host.map(|found| found.value),
            headers: self.headers,
            expected_status: if statuses.is_empty() { default.expected_status } else { statuses },
            expected_body: self.expected_body.map(|found| found.value),
            tls: is_tls.then_some(TlsCheck { skip_verify }),
        }
    }
}
