//! `kind` of a health check, and the keys of HTTP and gRPC checks.

use std::ops::RangeInclusive;

use crate::keys::{keys, place, unreported};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use crate::values::{
    body_pattern, boolean, choice, grpc_service, header_name, header_value, http_host, http_path,
    status_range,
};
use convey_model::{BodyPattern, GrpcCheck, HttpCheck, ProbeKind, TlsCheck};

/// `kind` and the keys for HTTP and gRPC in the reference.
pub(super) const DOCS: &[Docs] =
    &[Docs::Part(KIND_DOCS), Docs::Part(HttpKeys::DOCS), Docs::Part(GrpcKeys::DOCS)];

/// `kind` in the reference.
const KIND_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "kind",
    kind: r##"`"tcp"`, `"http"`, `"https"`, `"grpc"`, `"udp"` or `"none"`"##,
    default: r##"`"tcp"`; `"udp"` if only UDP frontends use the backend"##,
    sample: r##"#kind = "tcp""##,
    example: "'none'",
    ..KeyDoc::USUAL
})];

/// `headers` in the reference.
const HEADER_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "headers",
    kind: r##"table of further headers, HTTP, HTTPS and gRPC: `{ X-Check = "convey" }`. Headers of the connection are not allowed, such as `Expect` or `Upgrade`"##,
    default: "none",
    sample: r##"#headers = { X-Check = "convey" }       # example; http, https, grpc: further headers"##,
    example: "",
    ..KeyDoc::USUAL
})];

/// `tls_skip_verify` in the reference.
const TLS_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "tls_skip_verify",
    kind: "HTTPS: `true` takes any certificate",
    default: "`false`",
    sample: r##"
#tls_skip_verify = false                # https: true accepts any certificate. false: only one for `host`, by an authority that
                                        # this host trusts
"##,
    example: "true",
    ..KeyDoc::USUAL
})];

keys! {
    /// The keys for HTTP with plain values.
    struct HttpKeys => HttpCheck, from (_unused: (), default);

    key "path" => path: String {
        read: http_path,
        kind: "HTTP, HTTPS: a path that begins with `/`",
        default: r##"`"/"`"##,
        sample: r##"#path = "/"                             # http, https: the path of the request"##,
        example: "'/up'",
    };

    key "host" => host: String {
        read: http_host,
        unset: "none",
        kind: "HTTP, HTTPS, gRPC: the `Host` of the request (`:authority` in HTTP/2). HTTPS: the name that the certificate is for",
        default: "the server's address",
        sample: r##"#host = "app.internal"                  # example; http, https, grpc: the Host of the request; default: the server's address"##,
        example: "'app.internal'",
    };

    also headers = default.headers; {
        // The health check reports changes of headers without their values, which may be secrets.
        changes: unreported,
        docs: HEADER_DOCS,
    };

    list "expected_status" => expected_status: RangeInclusive<u16> {
        read: status_range,
        unset: "none",
        kind: r##"HTTP, HTTPS: a status from 100 to 599, a range, or several: `[200, "301-302"]`"##,
        default: r##"`"200-399"`"##,
        sample: r##"#expected_status = "200-399"            # http, https: a status, a range, or several: [200, "301-302"]"##,
        example: "204",
    };

    key "expected_body" => expected_body: BodyPattern {
        read: body_pattern,
        unset: "none",
        kind: "HTTP, HTTPS: a [regular expression](https://docs.rs/regex/latest/regex/#syntax) that matches within the first 64 KiB of the body",
        default: "any body",
        sample: r##"
#expected_body = "^OK"                  # example; http, https: a regular expression that the body has to match. By default
                                        # any body passes
"##,
        example: r##""^OK""##,
    };

    also tls = default.tls; {
        changes: unreported,
        docs: TLS_DOCS,
    };
}

keys! {
    /// The keys for gRPC alone.
    struct GrpcKeys => GrpcCheck, from (http: ParsedHttp, default);

    key "service" => service: String {
        read: grpc_service,
        kind: "gRPC: the name of the service that the check asks about, at most 255 bytes",
        default: "the server as a whole",
        sample: r##"#service = "shop.Cart"                  # example; grpc: the service to ask about; by default the server as a whole"##,
        example: "'shop.Cart'",
    };

    // These keys are those of HTTP.
    also host = http.keys.host.map(|host| host.value).or(default.host), headers = http.headers; {
        changes: unreported,
        docs: &[],
    };
}

/// Reads `kind` and the keys for HTTP and gRPC. Returns the kind and its place, if the file has it.
pub(super) fn kind(
    table: &mut TomlTable<'_>,
    default: ProbeKind,
    report: &Report<'_>,
) -> (ProbeKind, Option<Place>) {
    let found = table.optional("kind", choice(&KindName::ALL, KindName::text));
    let is_wrong = found.is_none() && table.has("kind");
    let (http, grpc) = (ParsedHttp::read(table, report), GrpcKeys::read(table));
    let name = found.as_ref().map_or(KindName::of(&default), |found| found.value);
    if !is_wrong {
        http.misplaced(name, report);
        grpc.misplaced(name, report);
    }
    let kind = match name {
        KindName::Tcp => ProbeKind::Tcp,
        KindName::Http => ProbeKind::Http(http.check(false)),
        KindName::Https => ProbeKind::Http(http.check(true)),
        KindName::Grpc => ProbeKind::Grpc(grpc.model(http, GrpcCheck::default())),
        KindName::Udp => ProbeKind::Udp,
        KindName::None => ProbeKind::None,
    };
    (kind, found.map(|found| found.place))
}

/// Checks `via`: only a health check over TCP can go through the VIP.
pub(super) fn check_via(place: &Place, kind: &ProbeKind, report: &Report<'_>) {
    if matches!(kind, ProbeKind::Udp | ProbeKind::None) {
        let message = format!(
            "\"vip\" is for kind = \"tcp\", \"http\", \"https\" or \"grpc\"; the kind is {:?}",
            kind.name()
        );
        report.error(place, message);
    }
}

/// Allowed values of `kind`.
#[derive(Clone, Copy)]
enum KindName {
    Tcp,
    Http,
    Https,
    Grpc,
    Udp,
    None,
}

impl KindName {
    const ALL: [KindName; 6] =
        [KindName::Tcp, KindName::Http, KindName::Https, KindName::Grpc, KindName::Udp, KindName::None];

    fn of(kind: &ProbeKind) -> KindName {
        match kind {
            ProbeKind::None => KindName::None,
            ProbeKind::Tcp => KindName::Tcp,
            ProbeKind::Udp => KindName::Udp,
            ProbeKind::Http(HttpCheck { tls: None, .. }) => KindName::Http,
            ProbeKind::Http(HttpCheck { tls: Some(_), .. }) => KindName::Https,
            ProbeKind::Grpc(_) => KindName::Grpc,
        }
    }

    fn text(self) -> &'static str {
        match self {
            KindName::Tcp => "tcp",
            KindName::Http => "http",
            KindName::Https => "https",
            KindName::Grpc => "grpc",
            KindName::Udp => "udp",
            KindName::None => "none",
        }
    }
}

/// Parsed keys of HTTP checks, with their places.
struct ParsedHttp {
    keys: HttpKeys,
    headers: Vec<(String, String)>,
    headers_at: Option<Place>,
    tls_skip_verify: Option<Placed<bool>>,
}

impl ParsedHttp {
    fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedHttp {
        let keys = HttpKeys::read(table);
        let has_headers = table.has("headers");
        let headers = table.table("headers");
        let headers_at = has_headers.then(|| headers.place.clone());
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
        ParsedHttp { keys, headers: named, headers_at, tls_skip_verify }
    }

    /// Reports keys that have no effect with this kind of health check.
    fn misplaced(&self, kind: KindName, report: &Report<'_>) {
        let HttpKeys { path, host, expected_status, expected_body } = &self.keys;
        let responses = [place(path.as_ref()), place(expected_status.first()), place(expected_body.as_ref())];
        let requests = [place(host.as_ref()), self.headers_at.as_ref()];
        let (has_responses, has_requests) = match kind {
            KindName::Http | KindName::Https => (true, true),
            KindName::Grpc => (false, true),
            KindName::Tcp | KindName::Udp | KindName::None => (false, false),
        };
        let wrong = responses.into_iter().flatten().filter(|_| !has_responses);
        let wrong = wrong.chain(requests.into_iter().flatten().filter(|_| !has_requests));
        wrong.for_each(|place| is_for(place, KindName::Http, kind, report));
        if let Some(skip) = self.tls_skip_verify.as_ref().filter(|_| !matches!(kind, KindName::Https)) {
            is_for(&skip.place, KindName::Https, kind, report);
        }
    }

    fn check(self, is_tls: bool) -> HttpCheck {
        let skip_verify = self.tls_skip_verify.is_some_and(|skip| skip.value);
        let tls = is_tls.then_some(TlsCheck { skip_verify });
        self.keys.model((), HttpCheck { headers: self.headers, tls, ..HttpCheck::default() })
    }
}

impl GrpcKeys {
    /// Reports keys that have no effect with this kind of health check.
    fn misplaced(&self, kind: KindName, report: &Report<'_>) {
        if let Some(place) = place(self.service.as_ref()).filter(|_| !matches!(kind, KindName::Grpc)) {
            is_for(place, KindName::Grpc, kind, report);
        }
    }
}

/// Reports a key of a health check of another kind.
fn is_for(place: &Place, right: KindName, kind: KindName, report: &Report<'_>) {
    report.error(place, format!("is for kind = {:?}; the kind is {:?}", right.text(), kind.text()));
}
