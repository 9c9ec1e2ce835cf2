//! A frontend as the file has it.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::{
    Access, Endpoint, ErrorPage, FrontendTls, HttpConfig, HttpLimits, Limits, Listen, Mode, OwnTimeouts,
    Prefix, Protocol, RouteConfig, SniRouteConfig,
};

/// Where clients connect to, and the backend that serves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendConfig {
    /// Unique among frontends.
    pub name: String,
    /// How its traffic is forwarded.
    pub mode: Mode,
    /// The protocol that clients speak to it.
    pub protocol: Protocol,
    /// Addresses clients connect to (the VIPs); at least one, none shared with another frontend of the same
    /// protocol; sorted.
    pub listen: Vec<Listen>,
    /// Name of the backend; with routes the one of requests and connections without a route. `None` only in mode `http` and with
    /// routes.
    pub backend: Option<String>,
    /// Where TLS connections go by the server name and the protocol that their clients ask for (proxy mode, TCP). Sorted by name. No
    /// two have the same host and protocol.
    pub sni_routes: Vec<SniRouteConfig>,
    /// Backends without which the frontend is not ready; without any, one backend that can serve is enough.
    pub ready_needs: Vec<String>,
    /// Connections served at once; more wait in the accept queue. `None`: no limit.
    pub max_connections: Option<u32>,
    /// Connections that one client address has at once (of IPv6: one /64); `None`: its share of what there may be. Proxy
    /// mode only.
    pub max_connections_per_client: Option<u32>,
    /// Clients whose connections are not counted one by one.
    pub trusted_clients: Vec<Prefix>,
    /// Whether a PROXY header goes before each connection or datagram and says who the client is. Proxy mode only.
    pub accept_proxy: bool,
    /// The networks that may send such headers; at least one if they are accepted. In mode `http` also the proxies that name the
    /// client of each request in `X-Forwarded-For`.
    pub trusted_proxies: Vec<Prefix>,
    /// Go before those of its backend. Proxy mode only.
    pub timeouts: OwnTimeouts,
    /// The clients that may come in.
    pub access: Access,
    /// The limits of one source. Not for `trusted_clients`.
    pub limits: Limits,
    /// How it shakes hands with clients; `None`: they speak no TLS with convey. Modes `proxy` and `http` only, TCP only.
    pub tls: Option<Arc<FrontendTls>>,
    /// What becomes of requests. `Some` exactly in mode `http`.
    pub http: Option<Box<HttpConfig>>,
}

impl FrontendConfig {
    /// A frontend of a file that says nothing else of it.
    pub fn new(name: &str, mode: Mode, listen: Vec<Listen>, backend: &str) -> FrontendConfig {
        FrontendConfig {
            name: name.to_owned(),
            mode,
            protocol: Protocol::default(),
            listen,
            backend: Some(backend.to_owned()),
            sni_routes: Vec::new(),
            ready_needs: Vec::new(),
            max_connections: None,
            max_connections_per_client: None,
            trusted_clients: Vec::new(),
            accept_proxy: false,
            trusted_proxies: Vec::new(),
            timeouts: OwnTimeouts::default(),
            access: Access::default(),
            limits: Limits::default(),
            tls: None,
            http: mode.is_http().then(Box::default),
        }
    }

    /// How much a request and its connection may take (mode `http`).
    pub fn http_limits(&self) -> HttpLimits {
        self.http.as_ref().map_or_else(HttpLimits::default, |http| http.limits)
    }

    /// What convey's own answers with this status say; `None`: a line of text.
    pub fn error_page(&self, status: u16) -> Option<&ErrorPage> {
        self.http.as_ref()?.error_pages.get(status)
    }

    /// The backends that serve its clients, each once: its own, and those of its routes.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let of_requests = self.http.iter().flat_map(|http| &http.routes).filter_map(RouteConfig::backend);
        let of_names = self.sni_routes.iter().map(|route| &*route.backend);
        let named = self.backend.as_deref().into_iter().chain(of_requests).chain(of_names);
        let mut seen = HashSet::new();
        named.filter(move |name| seen.insert(*name))
    }

    /// The same, as they are shown: `backend app`, or `no backend`.
    pub fn backends_in_words(&self) -> String {
        match self.backends().collect::<Vec<_>>()[..] {
            [] => "no backend".to_owned(),
            [one] => format!("backend {one}"),
            ref all => format!("backends {}", all.join(", ")),
        }
    }

    /// Whether a backend serves clients of it.
    pub fn uses(&self, backend: &str) -> bool {
        self.backends().any(|name| name == backend)
    }

    /// Where it listens, port by port.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.addrs().map(|addr| Endpoint { protocol: self.protocol, addr }).chain(self.http3_endpoints())
    }

    /// Where it takes HTTP/3.
    pub fn http3_endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.addrs().filter(|_| self.speaks_http3()).map(Endpoint::udp)
    }

    /// Whether it takes HTTP/3, over UDP beside TCP.
    pub fn speaks_http3(&self) -> bool {
        self.mode.is_http() && self.tls.as_ref().is_some_and(|tls| tls.http3)
    }

    /// Whether connections from this address are not counted: it is a trusted client, or a proxy that many clients share.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusts_client(peer) || self.is_http_proxy(peer)
    }

    /// Whether limits do not hold for this client.
    pub fn trusts_client(&self, client: IpAddr) -> bool {
        self.trusted_clients.iter().any(|network| network.contains(client))
    }

    /// Whether this address is a proxy that names the client of each HTTP request. Access lists and limits hold for that client.
    pub fn is_http_proxy(&self, peer: IpAddr) -> bool {
        self.mode.is_http() && self.trusts_proxy(peer)
    }

    /// Whether connections from this address may come in. Of a trusted HTTP proxy each request is checked instead.
    pub fn admits(&self, peer: IpAddr) -> bool {
        self.is_http_proxy(peer) || self.access.admits(peer)
    }

    /// Whether PROXY headers from this address are to be believed.
    pub fn trusts_proxy(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(peer))
    }

    /// Where it listens, as it is shown: TCP goes without saying.
    pub fn places(&self) -> impl Iterator<Item = String> {
        let suffix = if self.protocol == Protocol::Udp { "/udp" } else { "" };
        self.listen.iter().map(move |listen| format!("{listen}{suffix}"))
    }

    /// Where it listens, port by port, without the protocol.
    pub fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.listen.iter().flat_map(Listen::addrs)
    }
}
