//! Backends: pools of servers. Pure.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_http_core::RequestField;

use crate::{
    AffinityConfig, Algorithm, BackendTls, CheckTls, DiscoveryConfig, DsrKind, FilesConfig, HashKey, HashOn,
    HealthCheck, HttpVersion, Maintenance, Mode, NamedServer, OnDown, OutlierDetection, OwnTimeouts,
    ProbeKind, ProxyVersion, QuicConfig, ServerConfig, TotalRate, TunnelConfig, is_service,
};

/// Pool of servers, and the algorithm that chooses one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendConfig {
    /// Name, unique among backends.
    pub name: String,
    /// Algorithm that chooses a server.
    pub algorithm: Algorithm,
    /// Fields of a connection that are hashed. Only [`Algorithm::Ring`] and [`Algorithm::Maglev`]
    /// read them.
    pub hash: HashOn,
    /// Encoding of servers in QUIC connection ids. Set only where `hash` is [`HashOn::QuicCid`].
    pub quic: Option<Arc<QuicConfig>>,
    /// Field of a request that is hashed in place of the fields that `hash` selects, if the request
    /// has it. Mode `http` only.
    pub hash_request: Option<RequestField>,
    /// Part of a server's identity that decides which clients it gets. Only [`Algorithm::Ring`] and
    /// [`Algorithm::Maglev`] read it.
    pub hash_key: HashKey,
    /// Cookie that names the server of a client; `None`: `algorithm` chooses a server for each
    /// request. Mode `http` only.
    pub affinity: Option<Arc<AffinityConfig>>,
    /// Health check of the servers.
    pub health_check: HealthCheck,
    /// Settings for the ejection of servers that fail connections of clients; `None`: no ejection.
    pub outlier_detection: Option<OutlierDetection>,
    /// Time in which a recovered server ramps up to its full share; zero: the server gets its full
    /// share immediately. Algorithms that hash ignore the setting, because each step would move
    /// clients to another server.
    pub slow_start: Duration,
    /// Treatment of open connections when their server goes down; `None`: the mode's default.
    pub on_down: Option<OnDown>,
    /// DSR method: how clients' packets reach the servers. DSR only.
    pub dsr: DsrKind,
    /// Settings of the tunnel; read only where `dsr` is a tunnel.
    pub tunnel: TunnelConfig,
    /// PROXY header that convey sends ahead of each connection or datagram to a server; `None`: no
    /// header. Proxy mode only.
    pub send_proxy: Option<ProxyVersion>,
    /// Addresses of this host that connections to servers come from, at most one of each family.
    /// Without one of a server's family, the kernel chooses. Proxy and http mode only.
    pub source: Vec<IpAddr>,
    /// HTTP version that convey uses with servers. Mode `http` only.
    pub protocol: HttpVersion,
    /// TLS settings for connections to servers; `None`: convey connects without TLS. Modes `proxy`
    /// and `http` only, TCP only.
    pub tls: Option<Arc<BackendTls>>,
    /// Files that convey serves itself; `None`: servers answer the requests. Mode `http` only.
    pub files: Option<FilesConfig>,
    /// Request rate limit of all clients together; `None`: no limit. Mode `http` only.
    pub total: Option<TotalRate>,
    /// Timeouts of this backend, which override the general ones. Proxy mode only.
    pub timeouts: OwnTimeouts,
    /// Servers with unique names, sorted by name, so that every machine with the same file numbers
    /// the servers alike. A backend that a frontend uses has at least one server in this list or in
    /// `named`, unless it has `files` or `discovery`.
    pub servers: Vec<ServerConfig>,
    /// Servers configured by host name, sorted by host name; proxy mode only. While the backend
    /// runs, `servers` includes the servers that these names resolve to.
    pub named: Vec<NamedServer>,
    /// Source of further servers; proxy and http mode only. While the backend runs, `servers`
    /// includes the discovered servers.
    pub discovery: Option<DiscoveryConfig>,
    /// Maintenance that an operator has set; always `None` in a file. Mode `http` only.
    pub maintenance: Option<Arc<Maintenance>>,
}

impl BackendConfig {
    /// Returns a backend with default settings. `gets_packets`: whether a packet mode uses it.
    pub fn new(name: &str, gets_packets: bool) -> BackendConfig {
        BackendConfig {
            name: name.to_owned(),
            algorithm: Algorithm::default_for(gets_packets),
            hash: HashOn::default_for(gets_packets),
            quic: None,
            hash_request: None,
            hash_key: HashKey::default(),
            affinity: None,
            health_check: HealthCheck::new(ProbeKind::Tcp),
            outlier_detection: None,
            slow_start: Duration::ZERO,
            on_down: None,
            dsr: DsrKind::default(),
            tunnel: TunnelConfig::default(),
            send_proxy: None,
            source: Vec::new(),
            protocol: HttpVersion::default(),
            tls: None,
            files: None,
            total: None,
            timeouts: OwnTimeouts::default(),
            servers: Vec::new(),
            named: Vec::new(),
            discovery: None,
            maintenance: None,
        }
    }

    /// Health check of one server of the backend.
    pub fn check_of(&self, server: &ServerConfig) -> HealthCheck {
        let tls = self.tls.as_ref().map(|tls| CheckTls { tls: tls.clone(), name: self.tls_name(server) });
        HealthCheck { tls, ..self.health_check.clone() }
    }

    /// Server name (SNI) that convey sends to this server in a TLS handshake; `None`: convey
    /// verifies the server by its address. Without a configured name, a server that is configured
    /// by host name uses its host name.
    pub fn tls_name(&self, server: &ServerConfig) -> Option<String> {
        let of_lookup = || {
            let (name, _) = server.name.rsplit_once('/')?;
            let named = self.named.iter().find(|named| named.name == name)?;
            (!is_service(&named.host)).then(|| named.host.clone())
        };
        self.tls.as_ref()?.server_name.clone().or_else(of_lookup)
    }

    /// Address of this host that connections to a server at this address come from; `None`: the
    /// kernel chooses.
    pub fn source_to(&self, server: IpAddr) -> Option<IpAddr> {
        source_of_family(&self.source, server)
    }

    /// Name of the field of a client or request that is hashed, as in the configuration.
    pub fn hash_name(&self) -> String {
        self.hash_request.as_ref().map_or_else(|| self.hash.name().to_owned(), RequestField::to_string)
    }

    /// Whether `in_a_row` consecutive failed client connections count as a failure of the server.
    /// Always false if neither outlier detection nor a health check is set, because nothing would
    /// bring the server back.
    pub fn is_failing_after(&self, in_a_row: u32) -> bool {
        match (&self.outlier_detection, &self.health_check.kind) {
            (Some(outlier), _) => in_a_row >= outlier.consecutive_failures,
            (None, ProbeKind::None) => false,
            (None, ProbeKind::Tcp | ProbeKind::Udp | ProbeKind::Http(_) | ProbeKind::Grpc(_)) => {
                in_a_row >= self.health_check.fall
            }
        }
    }

    /// Treatment of connections in this mode when their server goes down. In packet modes only
    /// convey can notify the client that the server is gone. A proxied connection needs no such
    /// notice: TCP detects a lost host by itself, and if the host is still there, the health check
    /// may be wrong. HAProxy (`on-marked-down`) and Envoy
    /// (`close_connections_on_host_health_failure`) also keep such connections by default.
    pub fn on_down_in(&self, mode: Mode) -> OnDown {
        self.on_down.unwrap_or(match mode {
            Mode::Proxy | Mode::Http => OnDown::Keep,
            Mode::Passthrough | Mode::Dsr => OnDown::Reset,
        })
    }

    /// Time in which a recovered server ramps up to its full share: `slow_start`, or zero with an
    /// algorithm that hashes.
    pub fn time_to_warm_up(&self) -> Duration {
        if self.algorithm.hashes() { Duration::ZERO } else { self.slow_start }
    }
}

/// Source address of the server's family; `None` without one.
pub(crate) fn source_of_family(sources: &[IpAddr], server: IpAddr) -> Option<IpAddr> {
    sources.iter().copied().find(|source| source.is_ipv4() == server.is_ipv4())
}
