//! `[frontends.NAME]`: listen addresses for clients, and the backend that serves them.

pub(crate) mod access;
mod checks;
pub(crate) mod compression;
pub(crate) mod cors;
mod error_pages;
pub(crate) mod headers;
mod http;
pub(crate) mod http_limits;
pub(crate) mod limits;
mod packet_checks;
mod path_checks;
pub(crate) mod retry;
pub(crate) mod routes;
mod sni;
pub(crate) mod tls;
mod trusted_proxies;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

pub(crate) use self::checks::check;
use self::http::ParsedHttp;
use self::limits::FrontendLimits;
use self::routes::ParsedRoute;
use self::tls::ParsedTls;
use self::trusted_proxies::ParsedProxies;
use super::table;
use super::timeouts::{OwnLimits, describe_own, own_changes, read_own};
use crate::describe::limit;
use crate::diff::{change, pair};
use crate::file::value;
use crate::keys::{keys, unreported};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc, TakesEffect};
use crate::tables::acme::ParsedAcme;
use crate::values::{anything, boolean, choice, integer, listen_address, network, string};
use convey_http_core::HostPattern;
use convey_model::{Access, FrontendConfig, Listen, Mode, Prefix, Protocol};

/// `mode` in the reference.
const MODE: &[Docs] = &[Docs::Key(KeyDoc {
    name: "mode",
    kind: r#"as for the file. Saving the file applies a change between `"proxy"` and `"http"`"#,
    default: "the file's",
    change: TakesEffect::Restart,
    sample: r##"#mode = "proxy"                         # by default the mode of the file; modes run side by side"##,
    example: "'passthrough'",
    ..KeyDoc::USUAL
})];

/// `listen_addr` in the reference.
const LISTEN: &[Docs] = &[Docs::Key(KeyDoc {
    name: "listen_addr",
    kind: r#"an address, or several. A range of ports: `"10.0.0.1:21000-21010"`. `":80"` is port 80 of every IPv4 address"#,
    default: "required",
    sample: r##"
listen_addr = "0.0.0.0:8080"            # or several: ["10.0.0.1:80", "[2001:db8::1]:80"], or a range of ports:
                                        # "10.0.0.1:21000-21010" (at most 1024 ports in mode proxy)
"##,
    example: "'10.0.0.7:80'",
    ..KeyDoc::USUAL
})];

/// `[frontends.NAME]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[frontends.NAME]", docs: FrontendKeys::DOCS };

/// Parsed `[frontends.NAME]`, with the places of its values.
#[derive(Debug, Clone)]
pub(crate) struct ParsedFrontend {
    pub(crate) name: String,
    pub(crate) place: Place,
    /// Mode of the frontend; `None` means the mode of the command line or of the file.
    pub(crate) mode: Option<Placed<Mode>>,
    pub(crate) listen: Vec<Placed<Listen>>,
    pub(crate) keys: FrontendKeys,
    pub(crate) timeouts: OwnLimits,
    access: Access,
    pub(crate) trusted_proxies: ParsedProxies,
    pub(crate) limits: FrontendLimits,
    pub(crate) tls: Option<ParsedTls>,
    pub(crate) http: ParsedHttp,
}

keys! {
    /// The keys of `[frontends.NAME]` with plain values.
    pub(crate) struct FrontendKeys => FrontendConfig, from (frontend: &ParsedFrontend, default);

    also name = default.name; {
        changes: unreported,
        describe: |frontend, _| format!("-> {}", default_target(frontend)),
        docs: &[],
    };

    also mode = default.mode; {
        changes: |old, new| change("mode", old.mode.name(), new.mode.name()),
        docs: MODE,
    };

    also listen = default.listen; {
        changes: listen_changes,
        docs: LISTEN,
    };

    key "protocol" => protocol: Protocol {
        read: choice(&Protocol::ALL, Protocol::name),
        kind: r#"`"tcp"` or `"udp"`"#,
        default: r#"`"tcp"`"#,
        sample: r##"#protocol = "tcp"                       # or "udp""##,
        example: "'udp'",
    };

    key "backend" => backend: String {
        read: string,
        unset: "none",
        kind: "name of a backend; with routes, of requests and connections without one",
        default: "required; with routes, convey answers such requests with 404 and resets such connections",
        sample: r##"backend = "web"                         # the backend that serves its clients; several frontends may share one"##,
        example: "'other'",
    };

    list "ready_needs" => ready_needs: String {
        read: string,
        unset: "none",
        kind: "names of backends of this frontend. While one of them cannot serve, `/readyz` answers 503 and convey withdraws the addresses of the frontend. Without the key one backend that can serve is enough",
        default: "none",
        sample: r##"
#ready_needs = ["web"]                  # example; while one of these backends cannot serve, /readyz fails and convey withdraws
                                        # announced addresses. By default one backend that can serve is enough
"##,
        example: "'web'",
    };

    also sni_routes = match default.mode {
        Mode::Proxy => frontend.http.sni_routes(),
        Mode::Http | Mode::Passthrough | Mode::Dsr => Vec::new(),
    }; {
        changes: |old, new| sni::changes(&old.sni_routes, &new.sni_routes),
        docs: &[table("routes", "tables `[[frontends.NAME.routes]]`, http, and proxy with TCP", "none")],
    };

    key "max_connections" => max_connections: u32 {
        read: integer(1..=u32::MAX),
        unset: "none",
        describe: |frontend, _| limit(frontend.max_connections),
        kind: "1 to 4294967295. Proxy and http: further clients wait. Packet modes: convey refuses them",
        default: "no limit",
        sample: r##"
#max_connections = 10000                # example; at once. proxy, http: further clients wait. passthrough, dsr: convey
                                        # refuses them. In mode proxy UDP counts sessions
"##,
        example: "7",
    };

    key "max_connections_per_client" => max_connections_per_client: u32 {
        read: integer(1..=u32::MAX),
        unset: "automatic",
        // Packet modes count clients only roughly. Rough counts are good enough for a share of the
        // connections, but not for an exact limit.
        only_in: Proxied,
        describe: |frontend, _| {
            frontend.max_connections_per_client.map_or(String::new(), |most| format!(", {most} per client"))
        },
        kind: "1 to 4294967295, proxy and http: of one address (IPv6: one /64)",
        default: "8 times the number left for others",
        sample: r##"
#max_connections_per_client = 1000      # example; proxy, http: connections of one address (IPv6: one /64) at once. By default
                                        # 8 times as many as it leaves to others, and at least 16
"##,
        example: "7",
    };

    list "trusted_clients" => trusted_clients: Prefix {
        read: network,
        unset: "none",
        kind: "networks exempt from that limit and from `limits` of sources. dsr has only the latter",
        default: "none",
        sample: r##"
#trusted_clients = ["10.0.0.0/8"]       # example; networks without that limit and without the limits of sources (below), such
                                        # as load balancers. In mode dsr only the limits of sources exist
"##,
        example: "'10.0.0.0/8'",
    };

    key "accept_proxy" => accept_proxy: bool {
        read: boolean,
        describe: |frontend, _| match frontend.accept_proxy {
            true => format!(", PROXY header from {}", frontend.trusted_proxies),
            false => String::new(),
        },
        kind: "`true`, proxy and http: each connection or datagram begins with a PROXY header; see [PROXY protocol](../guides/proxy-protocol.md)",
        default: "`false`",
        sample: r##"
#accept_proxy = true                    # example; proxy, http: connections and datagrams begin with a PROXY header of version
                                        # 1 or 2 (UDP: 2), which names the client
"##,
        example: "true\ntrusted_proxies = '10.0.0.5'",
    };

    also trusted_proxies = frontend.trusted_proxies.model(); {
        changes: trusted_proxies::changes,
        docs: trusted_proxies::DOCS,
    };

    also timeouts = frontend.timeouts.model((), default.timeouts); {
        changes: |old, new| own_changes(&old.timeouts, &new.timeouts),
        describe: |frontend, _| describe_own(", ", &frontend.timeouts),
        docs: &[table("timeouts", "table", "see below")],
    };

    also access = frontend.access.clone(); {
        changes: access::changes,
        describe: access::describe,
        docs: &[table("access", "table", "see below")],
    };

    also limits = frontend.limits.keys.model((), default.limits); {
        changes: |old, new| limits::changes(&old.limits, &new.limits),
        describe: limits::describe,
        docs: &[table("limits", "table", "see below")],
    };

    also tls = frontend.tls.as_ref().map(|tls| Arc::new(tls.model(default.mode))); {
        changes: |old, new| tls::changes(old.tls.as_deref(), new.tls.as_deref()),
        describe: |frontend, _| tls::describe(frontend),
        docs: &[table("tls", "table, http and proxy", "see below")],
    };

    also http = default.mode.is_http().then(|| Box::new(frontend.http.model(&frontend.limits.requests))); {
        changes: |old, new| http::changes(old.http.as_deref(), new.http.as_deref()),
        describe: |frontend, _| {
            frontend.http.as_ref().map_or(String::new(), |http| http::describe(frontend, http))
        },
        docs: http::DOCS,
    };
}

impl ParsedFrontend {
    /// Reads the table of a frontend. `file_mode` is the mode of the file; `acme` has the
    /// certificates to order.
    pub(crate) fn read(
        name: String,
        mut table: TomlTable<'_>,
        (file_mode, acme): (Mode, Option<&ParsedAcme>),
        report: &Report<'_>,
    ) -> ParsedFrontend {
        if table.has("xdp") {
            let mut xdp = table.table("xdp");
            for key in ["bpf_program_path", "progsec_name", "xsks_map_name"] {
                xdp.optional(key, anything);
            }
            report.warning(&xdp.place, "has no effect");
            xdp.finish();
        }
        let mode = table.optional("mode", choice(&Mode::ALL, Mode::name));
        let may_route = value(&mode).unwrap_or(file_mode).is_proxied();
        if !value(&mode).unwrap_or(file_mode).is_http() {
            if !may_route || !table.has("routes") {
                table.require("backend", REQUIRED);
            }
        } else if !table.has("routes") && !table.has("redirect") {
            table.require("backend", "required, but missing: there are neither routes nor redirect");
        }
        let http = ParsedHttp::read(&mut table, report);
        let frontend = ParsedFrontend {
            name,
            place: table.place.clone(),
            mode,
            listen: table.one_or_more("listen_addr", listen_address),
            keys: FrontendKeys::read(&mut table),
            timeouts: read_own(table.table("timeouts")),
            access: access::read(table.table("access"), report),
            trusted_proxies: ParsedProxies::read(&mut table, report),
            limits: limits::read(table.table("limits"), http.limits_sources(), report),
            tls: ParsedTls::read(&mut table, acme, report),
            http,
        };
        table.finish();
        frontend
    }

    /// Frontend for a list of servers in place of a file.
    pub(crate) fn listed(listen: Placed<SocketAddr>, backend: &str) -> ParsedFrontend {
        let place = listen.place.clone();
        let backend = Some(Placed { value: backend.to_owned(), place: place.clone() });
        ParsedFrontend {
            name: "listen".to_owned(),
            place,
            mode: None,
            listen: vec![Placed { value: listen.value.into(), place: listen.place }],
            keys: FrontendKeys { backend, ..FrontendKeys::default() },
            timeouts: OwnLimits::default(),
            access: Access::default(),
            trusted_proxies: ParsedProxies::default(),
            limits: FrontendLimits::default(),
            tls: None,
            http: ParsedHttp::default(),
        }
    }

    /// Protocol of the frontend, by default TCP.
    pub(crate) fn protocol(&self) -> Protocol {
        value(&self.keys.protocol).unwrap_or_default()
    }

    /// Whether the frontend expects PROXY headers.
    pub(crate) fn accepts_proxy(&self) -> bool {
        value(&self.keys.accept_proxy).unwrap_or_default()
    }

    /// Whether the frontend serves HTTP/3, over UDP in addition to TCP.
    pub(crate) fn speaks_http3(&self) -> bool {
        self.tls.as_ref().and_then(|tls| value(&tls.keys.http3)).unwrap_or_default()
    }

    /// Backends that the frontend names: its default backend, and those of its routes.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Placed<String>> {
        self.keys.backend.iter().chain(self.http.routes.iter().flat_map(|route| &route.action.backends))
    }

    /// Whether the frontend names this backend.
    pub(crate) fn uses(&self, backend: &str) -> bool {
        self.backends().any(|name| name.value == backend)
    }

    /// Hosts of the requests that get to this backend.
    pub(crate) fn hosts_of(&self, backend: &str) -> Vec<HostPattern> {
        if self.keys.backend.as_ref().is_some_and(|name| name.value == backend) {
            return vec![HostPattern::Any];
        }
        let uses = |route: &&ParsedRoute| route.action.backends.iter().any(|name| name.value == backend);
        self.http.routes.iter().filter(uses).flat_map(ParsedRoute::hosts).collect()
    }

    /// Model of the frontend in this mode.
    pub(crate) fn model(&self, mode: Mode) -> FrontendConfig {
        let mut listen: Vec<_> = self.listen.iter().map(|addr| addr.value).collect();
        listen.sort_unstable();
        let default = FrontendConfig::new(&self.name, mode, listen, "");
        self.keys.model(self, FrontendConfig { backend: None, ..default })
    }
}

/// Changes of a frontend for the log of a reload.
pub(crate) fn changes(old: &FrontendConfig, new: &FrontendConfig) -> Vec<String> {
    FrontendKeys::changes(old, new)
}

/// Log text about a new frontend.
pub(crate) fn about(frontend: &FrontendConfig) -> String {
    let listen: Vec<_> = frontend.places().collect();
    format!("{}, {} -> {}", frontend.mode.name(), listen.join(", "), frontend.backends_in_words())
}

/// Rows of `convey check`: the frontend, followed by its routes.
pub(crate) fn rows(frontend: &FrontendConfig) -> impl Iterator<Item = [String; 4]> {
    let routes = frontend.http.iter().flat_map(|http| &http.routes).map(http::route_row);
    let sni_routes = frontend.sni_routes.iter().map(|route| {
        let to = format!("-> backend {}", route.backend);
        [format!("  route {}", route.name), String::new(), String::new(), to]
    });
    [row(frontend)].into_iter().chain(routes).chain(sni_routes)
}

fn row(frontend: &FrontendConfig) -> [String; 4] {
    let listen: Vec<String> = frontend.listen.iter().map(ToString::to_string).collect();
    [
        format!("frontend {}", frontend.name),
        format!("{} {}", frontend.mode.name(), frontend.protocol.name()),
        listen.join(", "),
        FrontendKeys::describe(frontend, &[frontend.mode]),
    ]
}

/// Text about added and removed listen addresses.
fn listen_changes(old: &FrontendConfig, new: &FrontendConfig) -> Vec<String> {
    let changes = pair(&old.listen, &new.listen, |a, b| a == b).into_iter().filter_map(|both| match both {
        (None, Some(addr)) => Some(format!("+ {addr}")),
        (Some(addr), None) => Some(format!("- {addr}")),
        _ => None,
    });
    changes.collect()
}

/// Text about the target of requests in mode http, or of connections in other modes, that match no
/// route.
fn default_target(frontend: &FrontendConfig) -> String {
    let of_http = frontend.http.as_ref().and_then(|http| http.default_action(frontend.backend.as_deref()));
    match (of_http, &frontend.backend) {
        (Some(action), _) => action.to_string(),
        (None, Some(backend)) => format!("backend {backend}"),
        (None, None) if frontend.mode.is_http() => "404".to_owned(),
        (None, None) => "refused".to_owned(),
    }
}

/// Message for a missing key.
pub(crate) const REQUIRED: &str = "required, but missing";

/// Frontends that use each backend.
pub(crate) fn by_backend(frontends: &[ParsedFrontend]) -> HashMap<&str, Vec<&ParsedFrontend>> {
    let mut users: HashMap<&str, Vec<&ParsedFrontend>> = HashMap::new();
    for frontend in frontends {
        for backend in frontend.backends() {
            users.entry(&backend.value).or_default().push(frontend);
        }
    }
    users
}
