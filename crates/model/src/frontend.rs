//! Configuration of a frontend.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use convey_http_core::FieldTrust;

use crate::{
    Access, Endpoint, ErrorPage, FrontendTls, HttpConfig, HttpLimits, Limits, Listen, Mode, NetworkSet,
    OwnTimeouts, Prefix, Protocol, RouteConfig, SniRouteConfig,
};

/// Frontend: the addresses that clients connect to, and the backend that serves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendConfig {
    /// Name, unique among frontends.
    pub name: String,
    /// Forwarding mode of the frontend.
    pub mode: Mode,
    /// Protocol of the clients.
    pub protocol: Protocol,
    /// Addresses that clients connect to (the VIPs), sorted. There is at least one, and no other
    /// frontend of the same protocol has it.
    pub listen: Vec<Listen>,
    /// Name of the backend; with routes, the default for requests and connections that match no
    /// route. `None` only in mode `http` with routes.
    pub backend: Option<String>,
    /// Routes of TLS connections by the server name and the protocol that clients request (proxy
    /// mode, TCP). Sorted by name. No two routes have the same host and protocol.
    pub sni_routes: Vec<SniRouteConfig>,
    /// Backends that the frontend's readiness depends on; if empty, one backend that can serve is
    /// enough.
    pub ready_needs: Vec<String>,
    /// Maximum number of connections served at the same time; further ones wait in the accept
    /// queue. `None`: no limit.
    pub max_connections: Option<u32>,
    /// Maximum number of connections of one client address (IPv6: one /64); `None`: a fair share of
    /// the total. Proxy mode only.
    pub max_connections_per_client: Option<u32>,
    /// Clients that are exempt from the limits per client and per source.
    pub trusted_clients: Vec<Prefix>,
    /// Whether each connection or datagram must begin with a PROXY header that names the client.
    /// Proxy mode only.
    pub accept_proxy: bool,
    /// Networks that may send PROXY headers; at least one if the frontend accepts PROXY headers. In
    /// mode `http`, also the proxies that name the client of each request: see
    /// `HttpConfig::client_address`.
    pub trusted_proxies: NetworkSet,
    /// Timeouts that override those of the backend. Proxy mode only.
    pub timeouts: OwnTimeouts,
    /// Access lists for clients.
    pub access: Access,
    /// Limits per source. They do not apply to `trusted_clients`.
    pub limits: Limits,
    /// TLS settings towards clients; `None`: no TLS with clients. Modes `proxy` and `http` only,
    /// TCP only.
    pub tls: Option<Arc<FrontendTls>>,
    /// Settings for requests; `Some` if and only if the mode is `http`.
    pub http: Option<Box<HttpConfig>>,
}

impl FrontendConfig {
    /// Returns a frontend with default settings.
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
            trusted_proxies: NetworkSet::default(),
            timeouts: OwnTimeouts::default(),
            access: Access::default(),
            limits: Limits::default(),
            tls: None,
            http: mode.is_http().then(Box::default),
        }
    }

    /// Limits of a request and its connection; the defaults outside of mode `http`.
    pub fn http_limits(&self) -> &HttpLimits {
        self.http.as_ref().map_or(&HttpLimits::DEFAULT, |http| &http.limits)
    }

    /// Error page for local replies with this status; `None`: a line of text.
    pub fn error_page(&self, status: u16) -> Option<&ErrorPage> {
        self.http.as_ref()?.error_pages.get(status)
    }

    /// Backends that serve the frontend's clients, without duplicates: its own, and those of its
    /// routes.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let of_requests = self.http.iter().flat_map(|http| &http.routes).flat_map(RouteConfig::backends);
        let of_names = self.sni_routes.iter().map(|route| &*route.backend);
        let named = self.backend.as_deref().into_iter().chain(of_requests).chain(of_names);
        let mut seen = HashSet::new();
        named.filter(move |name| seen.insert(*name))
    }

    /// Backends as operator-facing text: `backend app`, `redirect to https` or `no backend`.
    pub fn backends_in_words(&self) -> String {
        let redirect = self.http.as_ref().and_then(|http| http.redirect.as_ref());
        match self.backends().collect::<Vec<_>>()[..] {
            [] => redirect.map_or_else(|| "no backend".to_owned(), |to| format!("redirect to {to}")),
            [one] => format!("backend {one}"),
            ref all => format!("backends {}", all.join(", ")),
        }
    }

    /// Whether the frontend uses a backend.
    pub fn uses(&self, backend: &str) -> bool {
        self.backends().any(|name| name == backend)
    }

    /// Endpoints that the frontend listens on, one for each port.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.addrs().map(|addr| Endpoint { protocol: self.protocol, addr }).chain(self.http3_endpoints())
    }

    /// Endpoints for HTTP/3.
    pub fn http3_endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.addrs().filter(|_| self.speaks_http3()).map(Endpoint::udp)
    }

    /// Whether the frontend serves HTTP/3, over UDP in addition to TCP.
    pub fn speaks_http3(&self) -> bool {
        self.mode.is_http() && self.tls.as_ref().is_some_and(|tls| tls.http3)
    }

    /// Whether limits per client do not apply to an address: it belongs to a trusted client, or to
    /// a proxy that many clients share.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusts_client(peer) || self.is_http_proxy(peer)
    }

    /// Whether this client is in `trusted_clients`, so that limits per client and per source do not
    /// apply to it.
    pub fn trusts_client(&self, client: IpAddr) -> bool {
        self.trusted_clients.iter().any(|network| network.contains(client))
    }

    /// Whether this address is a proxy that names the client of each HTTP request. Access lists and
    /// limits then apply to the named client.
    pub fn is_http_proxy(&self, peer: IpAddr) -> bool {
        self.trusts_fields_of(peer) && self.has_named_clients()
    }

    /// Whether this address is a proxy whose `X-Forwarded-*`, `Forwarded` and `X-SSL-Client-DN` are
    /// trusted.
    pub fn trusts_fields_of(&self, peer: IpAddr) -> bool {
        self.mode.is_http() && self.trusts_proxy(peer)
    }

    /// Trust in the headers of requests from this peer that describe their client.
    pub fn field_trust(&self, is_peer_trusted: bool) -> FieldTrust<'_> {
        FieldTrust {
            is_peer_trusted,
            has_client_certificates: self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
            own_field: self.http.as_ref().and_then(|http| http.client_address.own_field()),
        }
    }

    /// Proxies that name the client of each HTTP request.
    pub fn http_proxies(&self) -> NetworkSet {
        if self.has_named_clients() { self.trusted_proxies.clone() } else { NetworkSet::default() }
    }

    /// Whether trusted proxies name the clients of HTTP requests.
    fn has_named_clients(&self) -> bool {
        self.http.as_ref().is_some_and(|http| http.client_address.is_named_by_proxies())
    }

    /// Whether `access` admits connections from this address. Always true for a trusted HTTP proxy,
    /// because convey checks each request of the proxy instead.
    pub fn admits(&self, peer: IpAddr) -> bool {
        self.is_http_proxy(peer) || self.access.admits(peer)
    }

    /// Whether PROXY headers from this address are trusted.
    pub fn trusts_proxy(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.contains(peer)
    }

    /// Listen addresses as shown to operators. The protocol is shown only if it is UDP.
    pub fn places(&self) -> impl Iterator<Item = String> {
        let suffix = if self.protocol == Protocol::Udp { "/udp" } else { "" };
        self.listen.iter().map(move |listen| format!("{listen}{suffix}"))
    }

    /// Listen addresses, one for each port, without the protocol.
    pub fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.listen.iter().flat_map(Listen::addrs)
    }
}
