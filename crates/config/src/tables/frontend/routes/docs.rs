//! Keys of `[[frontends.NAME.routes]]` in the reference.

use crate::keys::OnlyIn;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::total_rate;

/// `[[frontends.NAME.routes]]` in the reference. The table has no list of keys and fields, because
/// two keys set the action, the route's name is derived from two other keys, and in mode proxy one
/// table may be several routes.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[[frontends.NAME.routes]]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "name",
            only_in: Some(OnlyIn::Http),
            kind: r##"up to 64 letters, digits, `-`, `_` and `.`: name of the route in logs, metrics and commands"##,
            default: r##"host and path, such as `api.example.com/v1`"##,
            sample: r##"#name = "checkout"                      # example; the name in logs, metrics and commands; by default host and path"##,
            example: r##"'shop'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "host",
            only_in: Some(OnlyIn::Http),
            kind: r#"a host, a glob such as `"*.example.com"`: all names below it, or several. Without a port"#,
            default: "any host",
            sample: r#"#host = "api.example.com"               # or "*.example.com", or a list; by default any host"#,
            example: "'b.example'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path",
            only_in: Some(OnlyIn::Http),
            kind: r#"a path: it and all paths below. `"/v1"` is for `/v1` and `/v1/a`, not for `/v10`"#,
            default: r#"`"/"`"#,
            sample: r#"#path = "/v1"                           # this path and all below it; by default "/""#,
            example: "'/b'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path_exact",
            only_in: Some(OnlyIn::Http),
            kind: r##"a path, in place of `path`: this path alone"##,
            default: r##"none"##,
            sample: r##"#path_exact = "/health"                 # in place of path: this path alone"##,
            example: r##"'/b'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path_regex",
            only_in: Some(OnlyIn::Http),
            kind: r##"a regular expression, in place of `path`: paths of which it matches a part"##,
            default: r##"none"##,
            sample: r##"#path_regex = '^/v(\d+)/'               # in place of path: paths of which the regular expression matches a part"##,
            example: r##"'^/b'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "method",
            only_in: Some(OnlyIn::Http),
            kind: r##"a method, or several. `"GET"` is not also for `HEAD`"##,
            default: r##"any method"##,
            sample: r##"#method = ["GET", "HEAD"]               # example; by default any method"##,
            example: r##"'GET'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "headers_match",
            only_in: Some(OnlyIn::Http),
            kind: r##"table of names and values: `"text"`, `{ regex = "..." }`, `{ present = true }` or `{ present = false }`"##,
            default: r##"any headers"##,
            sample: r##"#headers_match = { X-Canary = "always", User-Agent = { regex = "Firefox" }, X-Debug = { present = false } } # example"##,
            example: r##""##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "query_match",
            only_in: Some(OnlyIn::Http),
            kind: r##"table of names and values, as `headers_match`: parameters of the query"##,
            default: r##"any query"##,
            sample: r##"#query_match = { v = "2" }              # example; parameters of the query"##,
            example: r##""##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "cookies_match",
            only_in: Some(OnlyIn::Http),
            kind: r##"table of names and values, as `headers_match`: cookies"##,
            default: r##"any cookies"##,
            sample: r##"#cookies_match = { beta = "1" }         # example"##,
            example: r##""##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "source",
            only_in: Some(OnlyIn::Http),
            kind: r##"a network, or several: the client is in one of them"##,
            default: r##"any client"##,
            sample: r##"#source = ["192.0.2.0/24"]              # example; networks of clients"##,
            example: r##"'192.0.2.0/24'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "backend",
            kind: "name of a backend. A route has this key, `backends`, `redirect` or `respond`",
            default: "none",
            sample: r#"#backend = "web""#,
            example: "'web'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "backends",
            only_in: Some(OnlyIn::Http),
            kind: r##"table of backends and weights, 0 to 1000000, in place of `backend`: each gets its share of the requests"##,
            default: r##"none"##,
            sample: r##"#backends = { web = 90, www = 10 }      # in place of backend: each gets its share of the requests"##,
            example: r##"{ web = 1 }"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "redirect",
            only_in: Some(OnlyIn::Http),
            kind: r##"`"https"`, or a table: see below"##,
            default: r##"none"##,
            sample: r##"#redirect = "https"                     # in place of a backend, with status 308"##,
            example: r##"'https'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "respond",
            only_in: Some(OnlyIn::Http),
            kind: r##"table, in place of a backend: convey answers by itself. See below"##,
            default: r##"none"##,
            sample: r##""##,
            example: r##""##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "sni",
            only_in: Some(OnlyIn::Proxy),
            kind: r#"a host, a glob such as `"*.example.com"`, or several, proxy: the server name that the client asks for"#,
            default: "any name, or none",
            sample: r##"#sni = "api.example.com"                # the server name (SNI), "*.example.com", or a list; by default any name or none"##,
            example: "'b.example'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "alpn",
            only_in: Some(OnlyIn::Proxy),
            kind: r#"a protocol such as `"h2"`, or several, proxy: the client offers one of them. A route in mode proxy has `sni` or `alpn`, or both"#,
            default: "any protocol, or none",
            sample: r##"#alpn = "h2"                            # example; a protocol that the client has to offer (ALPN), or a list of alternatives"##,
            example: "'h2'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "access",
            only_in: Some(OnlyIn::Http),
            kind: "table, as `[frontends.NAME.access]`: clients that may use the route. The frontend's lists hold, too",
            default: "everybody",
            sample: r##"#access = { allow = ["192.0.2.0/24"] }  # example; clients that may use the route"##,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "cors",
            only_in: Some(OnlyIn::Http),
            kind: "table, as `[frontends.NAME.cors]`, in place of it",
            default: "as the frontend",
            sample: r##"#cors = { origins = ["*"] }             # example; by default as the frontend"##,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "retry",
            only_in: Some(OnlyIn::Http),
            kind: "table, as `[frontends.NAME.retry]`, in place of it",
            default: "as the frontend",
            sample: r##"#retry = { on = ["connect", "reset", "503"], attempts = 3 } # example; by default as the frontend"##,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "timeouts",
            only_in: Some(OnlyIn::Http),
            kind: "table with `connect`, `idle`, `response`, `request` and `send`, as `[frontends.NAME.timeouts]`, in place of them",
            default: "as the frontend",
            sample: r##"#timeouts = { response = 300 }          # example; connect, idle, response, request, send; by default as the frontend"##,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "max_body_size",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 9223372036854775807 bytes of a body",
            default: "as the frontend",
            sample: r##"#max_body_size = 1048576                # example; bytes; by default as the frontend"##,
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "requests_per_source",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 1000000 requests of one source a second, of this route. Beside the limit of the frontend",
            default: "no limit",
            sample: "#requests_per_source = 50               # example; a second; further requests get a 429",
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "request_burst",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 1000000 requests of one source at once after a pause, of this route",
            default: "as many as `requests_per_source`",
            sample: "#request_burst = 100                    # example; at once after a pause. By default as requests_per_source",
            example: "7\nrequests_per_source = 7",
            ..KeyDoc::USUAL
        }),
        Docs::Part(total_rate::ROUTE_DOCS),
        Docs::Key(KeyDoc {
            name: "rewrite_path",
            only_in: Some(OnlyIn::Http),
            kind: "a path that replaces `path` in the request to the server. With `path_regex` it replaces the match, `$1` to `$9` are the groups of the expression, and `$0` is the match",
            default: "as the client sent it",
            sample: r#"#rewrite_path = "/"                     # example; servers see it in place of the path above"#,
            example: "'/b'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "rewrite_host",
            only_in: Some(OnlyIn::Http),
            kind: "a host, perhaps with a port: servers get it as `Host`",
            default: "as the client sent it",
            sample: r#"#rewrite_host = "api.internal"          # example; the Host that servers see"#,
            example: "'b.internal'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "rewrite_location",
            only_in: Some(OnlyIn::Http),
            kind: "boolean: whether `Location`, `Content-Location` and `Refresh` of servers lead back through the route: see [Responses of rewritten requests](../guides/http.md#responses-of-rewritten-requests)",
            default: "true",
            sample: "#rewrite_location = true                # Location, Content-Location and Refresh of servers lead back through the route",
            example: "false\nrewrite_path = '/b'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "rewrite_cookies",
            only_in: Some(OnlyIn::Http),
            kind: "boolean: whether `Path` and `Domain` of servers' cookies become those of the client",
            default: "false",
            sample: "#rewrite_cookies = false                # whether Path and Domain of servers' cookies become those of the client",
            example: "true\nrewrite_path = '/b'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "headers",
            only_in: Some(OnlyIn::Http),
            kind: "table, as `[frontends.NAME.headers]`: applied after it",
            default: "none",
            sample: r#"#headers = { request = { remove = ["Cookie"] } }"#,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "compression",
            only_in: Some(OnlyIn::Http),
            kind: "`true`, `false` or a table, as of the frontend, in place of it. `true` is the frontend's table if it has one",
            default: "as the frontend",
            sample: "#compression = false                    # example; by default as the frontend",
            example: "false",
            ..KeyDoc::USUAL
        }),
    ],
};

/// `redirect` of a route in the reference.
pub(crate) const REDIRECT: TableDoc = TableDoc {
    name: "[frontends.NAME.routes.redirect]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "scheme",
            kind: r##"`"http"` or `"https"`"##,
            default: r##"as the client"##,
            sample: r##"#scheme = "https"                      # or "http"; by default as the client"##,
            example: r##"'https'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "host",
            kind: r##"a host without a port. [Variables](../guides/http.md#variables) have values of the request"##,
            default: r##"as the client"##,
            sample: r##"#host = "www.example.com"               # example; without a port; by default as the client"##,
            example: r##"'b.example'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "port",
            kind: r##"1 to 65535"##,
            default: r##"the usual one of `scheme`; without `scheme` as the client"##,
            sample: r##"#port = 8443                            # example; by default the usual one of scheme, without scheme as the client"##,
            example: r##"8443"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path",
            kind: r##"a path, perhaps with a query, in place of the whole path. [Variables](../guides/http.md#variables) have values of the request"##,
            default: r##"as the client"##,
            sample: r##"#path = "/new{path}"                    # example; in place of the whole path; by default as the client"##,
            example: r##"'/b'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "rewrite_path",
            kind: r##"a path that replaces the part that the route matches, as `rewrite_path` of a route"##,
            default: r##"as the client"##,
            sample: r##"#rewrite_path = "/news"                 # example; replaces the part that the route matches"##,
            example: r##"'/b'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "status",
            kind: r##"301, 302, 303, 307 or 308"##,
            default: r##"`302`; of `redirect = "https"` it is 308"##,
            sample: r##"#status = 302                           # or 301, 303, 307, 308"##,
            example: r##"301"##,
            ..KeyDoc::USUAL
        }),
    ],
};

/// `respond` of a route in the reference.
pub(crate) const RESPOND: TableDoc = TableDoc {
    name: "[frontends.NAME.routes.respond]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "status",
            kind: r##"200 to 599"##,
            default: r##"`200`"##,
            sample: r##"#status = 200"##,
            example: r##"404"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "body",
            kind: r##"text of at most 64 KiB"##,
            default: r##"none: empty"##,
            sample: r##"#body = "ok"                            # example; at most 64 KiB"##,
            example: r##"'ok'"##,
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "headers",
            kind: r##"table of names and values"##,
            default: r##"`Content-Type: text/plain; charset=utf-8`"##,
            sample: r##"#headers = { Cache-Control = "max-age=60" } # example"##,
            example: r##""##,
            ..KeyDoc::USUAL
        }),
    ],
};
