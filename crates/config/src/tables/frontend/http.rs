//! Settings for requests of a frontend in mode `http`.

mod changes;
mod describe;

use toml::de::DeValue;

pub(super) use self::changes::changes;
pub(super) use self::describe::{describe, route_row};

use super::compression::ParsedCompression;
use super::limits::ParsedRate;
use super::retry::ParsedRetry;
use super::routes::{self, ParsedRedirect, ParsedRoute};
use super::{cors, error_pages, headers, http_limits};
use crate::diff::{change, or};
use crate::file::value;
use crate::keys::{OnlyIn, keys};
use crate::problem::{Place, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use crate::tables::{table_in, total_rate};
use crate::values::{boolean, not_allowed};
use convey_http_core::{ClientAddress, CompressionRules, CorsRules, PathPattern, PathView, Redirect};
use convey_model::{ErrorPages, HeaderRules, HttpConfig, HttpLimits, SniRouteConfig};

/// Keys of a frontend for mode http in the reference.
pub(super) const DOCS: &[Docs] = HttpKeys::DOCS;

/// `redirect` in the reference.
const REDIRECT_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "redirect",
    only_in: Some(OnlyIn::Http),
    kind: r##"`"https"`, or a table as of a route, http: convey redirects requests without a route, to HTTPS with status 308. In place of `backend`"##,
    default: "none",
    sample: r##"#redirect = "https"                     # example; convey redirects requests without a route to HTTPS. Or backend = "web" for
                                        # such requests. With neither they get a 404"##,
    example: "'https'",
    ..KeyDoc::USUAL
})];

/// `error_pages` in the reference.
const PAGE_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "error_pages",
    only_in: Some(OnlyIn::Http),
    kind: r##"table of statuses and files, http: `{ 503 = "503.html" }`. 64 KiB each; 400, 403, 404, 405, 408, 412, 413, 416, 417, 429, 431, 500, 502, 503, 504 or 505. See [Pages of your own](../guides/http.md#pages-of-your-own)"##,
    default: "none",
    sample: r##"#error_pages = {}                       # such as { 503 = "503.html" }: files in place of the line of text in convey's own
                                        # responses"##,
    example: "",
    ..KeyDoc::USUAL
})];

/// `compression` in the reference.
const COMPRESSION_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "compression",
    only_in: Some(OnlyIn::Http),
    kind: "`true` or a table, http: answers are compressed. See [Compress answers](../guides/compression.md)",
    default: "`false`",
    sample: "",
    example: "true",
    ..KeyDoc::USUAL
})];

/// Parsed settings for requests, with their places.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedHttp {
    pub(crate) keys: HttpKeys,
    /// Places of all keys that have an effect only in mode http.
    pub(crate) places: Vec<Place>,
    /// Place of `routes`, if it is set.
    pub(crate) routes_at: Option<Place>,
    pub(crate) routes: Vec<ParsedRoute>,
    pub(crate) redirect: Option<ParsedRedirect>,
    headers: HeaderRules,
    limits: HttpLimits,
    error_pages: ErrorPages,
    compression: Option<ParsedCompression>,
    cors: Option<CorsRules>,
    pub(super) retry: Option<ParsedRetry>,
}

keys! {
    /// The keys of a frontend for mode http with one value each.
    pub(crate) struct HttpKeys => HttpConfig, from (_unused: (), default);

    also routes = default.routes,
        maintenance = None,
        default_maintenance = None; {
        changes: |old, new| changes::routes(&old.routes, &new.routes),
        docs: &[],
    };

    also redirect = default.redirect; {
        changes: |old, new| {
            let shown = |redirect: &Option<Redirect>| or(redirect.as_ref(), "none");
            change("redirect", shown(&old.redirect), shown(&new.redirect))
        },
        docs: REDIRECT_DOCS,
    };

    key "normalize" => path_view: PathView {
        read: path_view,
        shown: |view| (*view == PathView::Normalized).to_string(),
        only_in: Http,
        kind: "`false`, http: routes distinguish `//` from `/`, and an encoded slash (`%2F`, `%5C`) from a slash. Servers get the path as it was sent in any case",
        default: "`true`",
        sample: r##"#normalize = true                       # false: in routes // differs from /, and an encoded slash (%2F) from a slash. Servers
                                        # get the original path in any case"##,
        example: "false",
    };

    key "forwarded" => forwarded: bool {
        read: boolean,
        only_in: Http,
        describe: |http, _| (if http.forwarded { ", sends Forwarded" } else { "" }).to_owned(),
        kind: "`true`, http: servers also get `Forwarded` (RFC 7239). They always get `X-Forwarded-For`, `-Proto` and `-Host`",
        default: "`false`",
        sample: r##"#forwarded = false                      # true: servers also get the header Forwarded (RFC 7239), beside X-Forwarded-For,
                                        # -Proto and -Host. convey removes these headers from requests, unless the client is
                                        # in trusted_proxies"##,
        example: "true",
    };

    key "client_address" => client_address: ClientAddress {
        read: client_address,
        only_in: Http,
        kind: r##"`"x-forwarded-for"`, `"forwarded"`, `"header:NAME"` or `"connection"`, http: where `trusted_proxies` name the client of a request. `"header:CF-Connecting-IP"` is a header with one address. With `"connection"`, the client is the peer of the connection or the client in its PROXY header. See [HTTP](../guides/http.md#behind-another-proxy)"##,
        default: r#"`"x-forwarded-for"`"#,
        sample: r##"#client_address = "x-forwarded-for"     # where trusted_proxies name the client of a request: also "forwarded" (RFC 7239), a
                                        # header with one address such as "header:CF-Connecting-IP", or "connection": the
                                        # connection's own client
"##,
        example: "'forwarded'",
    };

    key "begin_traces" => begin_traces: bool {
        read: boolean,
        only_in: Http,
        describe: |http, _| {
            let traces = if http.begin_traces { ", begins traces" } else { "" };
            let paths = if http.path_view == PathView::AsSent { ", matches paths as sent" } else { "" };
            format!("{traces}{paths}")
        },
        kind: "`true`, http: a request without a valid `traceparent` (W3C Trace Context) gets one, so that a trace begins here. convey passes on a valid one",
        default: "`false`",
        sample: "#begin_traces = false                   # true: a request without the header traceparent begins a trace (W3C Trace Context)",
        example: "true",
    };

    also headers = default.headers; {
        changes: |old, new| changes::headers("", &old.headers, &new.headers),
        describe: |http, _| describe::headers(&http.headers),
        docs: &[table_in(OnlyIn::Http, "headers", "table, http", "see below")],
    };

    also rate = default.rate; {
        changes: |old, new| changes::rate("limits.", old.rate, new.rate),
        docs: &[],
    };

    also total = default.total; {
        changes: |old, new| total_rate::changes("limits.", old.total, new.total),
        docs: &[],
    };

    also limits = default.limits; {
        changes: |old, new| http_limits::changes(&old.limits, &new.limits),
        describe: |http, _| http_limits::describe(&http.limits),
        docs: &[table_in(OnlyIn::Http, "http", "table, http", "see below")],
    };

    also error_pages = default.error_pages; {
        changes: |old, new| changes::pages(&old.error_pages, &new.error_pages),
        describe: |http, _| describe::pages(&http.error_pages),
        docs: PAGE_DOCS,
    };

    also compression = default.compression; {
        changes: |old, new| {
            let shown = |rules: &Option<CompressionRules>| or(rules.as_ref().map(ToString::to_string), "off");
            change("compression", shown(&old.compression), shown(&new.compression))
        },
        describe: |http, _| {
            http.compression.as_ref().map_or(String::new(), |rules| format!("; compression: {rules}"))
        },
        docs: COMPRESSION_DOCS,
    };

    also cors = default.cors; {
        changes: |old, new| changes::cors("cors", &old.cors, &new.cors),
        describe: |http, _| http.cors.as_ref().map_or(String::new(), |rules| format!("; CORS {rules}")),
        docs: &[table_in(OnlyIn::Http, "cors", "table, http", "see below")],
    };

    also retry = default.retry; {
        changes: |old, new| changes::retry("retry", &old.retry, &new.retry),
        describe: |http, _| http.retry.as_ref().map_or(String::new(), |rules| format!("; retry: {rules}")),
        docs: &[table_in(OnlyIn::Http, "retry", "table, http", "see below")],
    };
}

impl ParsedHttp {
    /// Reads the keys from the table of a frontend.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedHttp {
        let places = table.places_of(DOCS, OnlyIn::Http);
        let routes_at = table.place_of("routes");
        let routes = table.list("routes").into_iter().map(|route| ParsedRoute::read(route, report));
        ParsedHttp {
            places,
            routes_at,
            routes: routes.collect(),
            redirect: ParsedRedirect::read(table, report),
            keys: HttpKeys::read(table),
            headers: headers::read(table.table("headers"), report),
            limits: http_limits::read(table.table("http")),
            error_pages: error_pages::read(table.table("error_pages"), report),
            compression: ParsedCompression::read(table, report),
            cors: cors::read(table, report),
            retry: ParsedRetry::read(table, report),
        }
    }

    /// Whether trusted proxies name the clients of requests.
    pub(super) fn has_named_clients(&self) -> bool {
        self.keys.client_address.as_ref().is_none_or(|chosen| chosen.value.is_named_by_proxies())
    }

    /// Whether a route limits the request rate of each source.
    pub(super) fn limits_sources(&self) -> bool {
        self.routes.iter().any(ParsedRoute::limits_sources)
    }

    /// Routes for TLS connections in proxy mode, sorted by name.
    pub(super) fn sni_routes(&self) -> Vec<SniRouteConfig> {
        let mut routes: Vec<SniRouteConfig> =
            self.routes.iter().flat_map(ParsedRoute::sni_routes).map(|(_, route)| route).collect();
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        routes
    }

    /// Model of the settings. `rates` are the request limits of the frontend.
    pub(super) fn model(&self, rates: &ParsedRate) -> HttpConfig {
        let compression = self.compression.as_ref().and_then(ParsedCompression::of_frontend);
        let has_rules = compression.is_some();
        let view = value(&self.keys.path_view).unwrap_or_default();
        let named = self.routes.iter().zip(routes::names(&self.routes));
        let routes = named
            .filter_map(|(route, name)| route.model(name, view, (has_rules, self.cors.is_some())))
            .collect();
        let redirect = self.redirect.as_ref().map(|redirect| redirect.model(&PathPattern::any(), view));
        let default = HttpConfig {
            routes,
            redirect,
            headers: self.headers.clone(),
            rate: rates.model(),
            total: rates.total(),
            limits: self.limits,
            error_pages: self.error_pages.clone(),
            compression,
            cors: self.cors.clone(),
            retry: self.retry.as_ref().map(|retry| retry.rules.clone()),
            ..HttpConfig::default()
        };
        self.keys.model((), default)
    }
}

fn client_address(value: &DeValue<'_>) -> Result<ClientAddress, String> {
    const ALLOWED: &str = r#"x-forwarded-for, forwarded, header:NAME with a header of one address, such as header:X-Real-IP, or connection"#;
    let text = value.as_str().unwrap_or_default();
    text.parse().map_err(|()| not_allowed(value, ALLOWED))
}

fn path_view(value: &DeValue<'_>) -> Result<PathView, String> {
    Ok(if boolean(value)? { PathView::Normalized } else { PathView::AsSent })
}
