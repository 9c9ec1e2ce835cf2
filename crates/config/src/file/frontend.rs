//! A frontend as the file has it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::http::ParsedHttp;
use super::limits::{self, FrontendLimits};
use super::timeouts::OwnLimits;
use super::tls::ParsedTls;
use super::{access, max_connections, value};
use crate::acme::ParsedAcme;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{anything, boolean, choice, integer, listen_address, network, string};
use convey_model::{self as model, Access, Listen, Mode, Prefix, Protocol};

/// `[frontends.NAME]`
#[derive(Debug, Clone)]
pub(crate) struct ParsedFrontend {
    pub(crate) name: String,
    pub(crate) place: Place,
    /// Where it says none, the mode of the command line, or that of the file.
    pub(crate) mode: Option<Placed<Mode>>,
    pub(crate) protocol: Option<Placed<Protocol>>,
    pub(crate) listen: Vec<Placed<Listen>>,
    pub(crate) backend: Option<Placed<String>>,
    pub(crate) ready_needs: Vec<Placed<String>>,
    max_connections: Option<u32>,
    pub(crate) max_connections_per_client: Option<Placed<u32>>,
    pub(crate) trusted_clients: Vec<Placed<Prefix>>,
    pub(crate) accept_proxy: Option<Placed<bool>>,
    pub(crate) trusted_proxies: Vec<Placed<Prefix>>,
    pub(crate) timeouts: OwnLimits,
    access: Access,
    pub(crate) limits: FrontendLimits,
    pub(crate) tls: Option<ParsedTls>,
    pub(crate) http: ParsedHttp,
}

impl ParsedFrontend {
    /// Reads one of a file with this mode, and these certificates to order.
    pub(super) fn read(
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
            protocol: table.optional("protocol", choice(&Protocol::ALL, Protocol::name)),
            listen: table.one_or_more("listen_addr", listen_address),
            backend: table.optional("backend", string),
            ready_needs: table.any_number("ready_needs", string),
            max_connections: max_connections(&mut table),
            max_connections_per_client: table.optional("max_connections_per_client", integer(1..=u32::MAX)),
            trusted_clients: table.any_number("trusted_clients", network),
            accept_proxy: table.optional("accept_proxy", boolean),
            trusted_proxies: table.any_number("trusted_proxies", network),
            timeouts: OwnLimits::read(table.table("timeouts")),
            access: access::read(table.table("access"), report),
            limits: limits::read(table.table("limits"), http.limits_sources(), report),
            tls: ParsedTls::read(&mut table, acme, report),
            http,
        };
        table.finish();
        frontend
    }

    /// The one of a list of servers.
    pub(super) fn listed(listen: Placed<SocketAddr>, backend: &str) -> ParsedFrontend {
        let place = listen.place.clone();
        ParsedFrontend {
            name: "listen".to_owned(),
            place: place.clone(),
            mode: None,
            protocol: None,
            listen: vec![Placed { value: listen.value.into(), place: listen.place }],
            backend: Some(Placed { value: backend.to_owned(), place }),
            ready_needs: Vec::new(),
            max_connections: None,
            max_connections_per_client: None,
            trusted_clients: Vec::new(),
            accept_proxy: None,
            trusted_proxies: Vec::new(),
            timeouts: OwnLimits::default(),
            access: Access::default(),
            limits: FrontendLimits::default(),
            tls: None,
            http: ParsedHttp::default(),
        }
    }

    /// TCP, unless it says otherwise.
    pub(crate) fn protocol(&self) -> Protocol {
        value(&self.protocol).unwrap_or_default()
    }

    /// Whether it asks for PROXY headers.
    pub(crate) fn accepts_proxy(&self) -> bool {
        value(&self.accept_proxy).unwrap_or_default()
    }

    /// Whether it takes HTTP/3, over UDP beside TCP.
    pub(crate) fn speaks_http3(&self) -> bool {
        self.tls.as_ref().and_then(|tls| value(&tls.http3)).unwrap_or_default()
    }

    /// The backends that it names: its own, and those of its routes.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Placed<String>> {
        self.backend.iter().chain(self.http.routes.iter().filter_map(|route| route.backend.as_ref()))
    }

    /// Whether it names this backend.
    pub(crate) fn uses(&self, backend: &str) -> bool {
        self.backends().any(|name| name.value == backend)
    }

    pub(super) fn model(&self, mode: Mode) -> model::FrontendConfig {
        let mut listen: Vec<_> = self.listen.iter().map(|addr| addr.value).collect();
        listen.sort_unstable();
        let default = model::FrontendConfig::new(&self.name, mode, listen, "");
        model::FrontendConfig {
            name: default.name,
            mode,
            protocol: self.protocol(),
            listen: default.listen,
            backend: self.backend.as_ref().map(|backend| backend.value.clone()),
            sni_routes: match mode {
                Mode::Proxy => self.http.sni_routes(),
                Mode::Http | Mode::Passthrough | Mode::Dsr => Vec::new(),
            },
            ready_needs: self.ready_needs.iter().map(|backend| backend.value.clone()).collect(),
            max_connections: self.max_connections,
            max_connections_per_client: value(&self.max_connections_per_client),
            trusted_clients: self.trusted_clients.iter().map(|network| network.value).collect(),
            accept_proxy: value(&self.accept_proxy).unwrap_or(default.accept_proxy),
            trusted_proxies: self.trusted_proxies.iter().map(|network| network.value).collect(),
            timeouts: self.timeouts.model(),
            access: self.access.clone(),
            limits: self.limits.limits,
            tls: self.tls.as_ref().map(|tls| Arc::new(tls.model(mode))),
            http: mode.is_http().then(|| Box::new(self.http.model(self.limits.requests.model()))),
        }
    }
}

/// What is said of a key that is not there.
pub(crate) const REQUIRED: &str = "required, but missing";

/// The frontends that use each backend.
pub(super) fn by_backend(frontends: &[ParsedFrontend]) -> HashMap<&str, Vec<&ParsedFrontend>> {
    let mut users: HashMap<&str, Vec<&ParsedFrontend>> = HashMap::new();
    for frontend in frontends {
        for backend in frontend.backends() {
            users.entry(&backend.value).or_default().push(frontend);
        }
    }
    users
}
