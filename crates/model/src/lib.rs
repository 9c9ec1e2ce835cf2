//! Shared vocabulary of all crates: frontends, backends and servers of a validated configuration,
//! and counts that several crates share, such as connections per source. Pure.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod access;
mod acme;
mod announce;
mod body_pattern;
mod client;
mod discovery;
mod draining;
mod error_pages;
mod files_config;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod flow;
mod flow_list;
mod flow_timeouts;
mod frontend;
mod http;
mod http_check;
mod http_limits;
mod http_version;
mod ipsec;
mod limits;
mod listen;
mod log_level;
mod mode;
mod names;
mod network;
mod next_hops;
mod offload;
mod one_line;
mod outlier;
mod overlay;
mod own_timeouts;
mod packet;
mod path_mtus;
mod prefix;
mod probe_via;
mod proxy_version;
mod quic;
mod reason;
mod request_rate;
mod routing_rules;
mod server;
mod server_endpoints;
mod server_ip;
mod server_source;
mod shortage;
mod slots;
mod sni;
mod sources;
mod tls;
mod tunnel;

pub use access::{Access, AccessFile};
pub use acme::{AcmeChallenge, AcmeConfig, ExternalAccount};
pub use announce::AnnounceConfig;
pub use body_pattern::{BodyPattern, BodyPatternError};
pub use client::{ALWAYS_FITS, ClientNetwork, client_of, fits, networks_of};
pub use discovery::{
    DiscoveredServer, DiscoveryConfig, DiscoverySource, DiscoveryState, KubernetesCluster, KubernetesService,
    ServicePort, SourceSettings,
};
pub use draining::DrainingEndpoints;
pub use error_pages::{ErrorPage, ErrorPages};
pub use files_config::{CacheRule, FilesConfig, InvalidGlob};
pub use flow::{Addr, Endpoint, FlowKey, NextHop, Protocol, Rewrite, TCP, UDP};
pub use flow_list::{
    ClientFilter, FlowActivity, FlowAnswer, FlowFacts, FlowFilter, FlowGroup, FlowGrouping, FlowKind,
    FlowListing, FlowQuery, FlowServer, FlowSort, FlowsUnavailable, ListedFlow, ListedFlowId,
};
pub use flow_timeouts::FlowTimeouts;
pub use frontend::FrontendConfig;
pub use http::{HeaderRules, HttpConfig, Redirect, RouteAction, RouteCompression, RouteConfig};
pub use http_check::{HttpCheck, TlsCheck};
pub use http_limits::HttpLimits;
pub use http_version::HttpVersion;
pub use ipsec::{IpsecEffect, IpsecPolicy};
pub use limits::{Limits, OverLimit};
pub use listen::{Listen, ListenError, overlap};
pub use log_level::{LogLevel, SaidLogLevel};
pub use mode::Mode;
pub use names::{DnsRecords, Lookup, LookupFault, Missing};
pub use network::{
    Interface, InterfaceAddress, Neighbour, NeighbourKey, NetworkTables, Route, RouteHop, WantedNeighbour,
};
pub use next_hops::{NextHops, PathEnds, Unreachable};
pub use offload::{CacheOutcome, Layer, Nic, Offload};
pub use one_line::{changes_line, one_line};
pub use outlier::OutlierDetection;
pub use overlay::{AddedServer, AdminState, Overlay, OverlayValue, Target};
pub use own_timeouts::OwnTimeouts;
pub use packet::{DsrKind, OnDown, PacketSettings};
pub use path_mtus::{NarrowPath, PathMtus};
pub use prefix::Prefix;
pub use probe_via::ProbeVia;
pub use proxy_version::ProxyVersion;
pub use quic::QuicConfig;
pub use reason::DropReason;
pub use request_rate::RequestRate;
pub use routing_rules::{RoutingRule, RuleAction};
pub use server::{NamedServer, ServerAddr, ServerConfig, ServerSettings, is_service};
pub use server_endpoints::ServerEndpoints;
pub use server_ip::{is_local, is_of_one_machine};
pub use server_source::ServerSource;
pub use shortage::{Handshakes, Shortage};
pub use slots::Slots;
pub use sni::SniRouteConfig;
pub use sources::{CountedSource, Excess, Sources};
pub use tls::{Authorities, BackendTls, CertificatePair, ClientCa, FrontendTls, SecretBytes, TlsVersion};
pub use tunnel::{Encapsulation, Tunnel, TunnelConfig};

use std::fmt;
use std::net::SocketAddr;
use std::ops::Sub;
use std::sync::Arc;
use std::time::Duration;

use convey_http_core::{HeadLimits, RequestField};

/// Pool of servers, and the algorithm that chooses one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendConfig {
    /// Unique among backends.
    pub name: String,
    /// Algorithm that chooses a server.
    pub algorithm: Algorithm,
    /// Fields of a connection that are hashed. Only [`Algorithm::Ring`] and [`Algorithm::Maglev`]
    /// read them.
    pub hash: HashOn,
    /// Encoding of servers in QUIC connection ids. Set only where `hash` is [`HashOn::QuicCid`].
    pub quic: Option<Arc<QuicConfig>>,
    /// Field of a request that is hashed instead, if the request has it. Mode `http` only.
    pub hash_request: Option<RequestField>,
    /// Part of a server's identity that decides which clients it gets. Only [`Algorithm::Ring`] and
    /// [`Algorithm::Maglev`] read it.
    pub hash_key: HashKey,
    /// Health check of the servers.
    pub health_check: HealthCheck,
    /// When servers that fail clients' connections are ejected; `None`: never.
    pub outlier_detection: Option<OutlierDetection>,
    /// Time in which a recovered server ramps up to its full share; zero: at once. Algorithms that
    /// hash ignore it, as each step would move clients to another server.
    pub slow_start: Duration,
    /// Treatment of open connections when their server goes down; `None`: the mode's default.
    pub on_down: Option<OnDown>,
    /// DSR method: how clients' packets reach the servers. DSR only.
    pub dsr: DsrKind,
    /// Settings of the tunnel; read only where `dsr` is a tunnel.
    pub tunnel: TunnelConfig,
    /// PROXY header that convey sends ahead of each connection or datagram to a server; `None`:
    /// none. Proxy mode only.
    pub send_proxy: Option<ProxyVersion>,
    /// HTTP version that convey uses with servers. Mode `http` only.
    pub protocol: HttpVersion,
    /// TLS settings for connections to servers; `None`: convey connects without TLS. Modes `proxy`
    /// and `http` only, TCP only.
    pub tls: Option<Arc<BackendTls>>,
    /// Files that convey serves itself; `None`: servers answer the requests. Mode `http` only.
    pub files: Option<FilesConfig>,
    /// Timeouts of this backend, which override the general ones. Proxy mode only.
    pub timeouts: OwnTimeouts,
    /// Servers with unique names, sorted by name, so that every machine with the same file numbers
    /// them alike. A backend that a frontend uses has at least one server here or in `named`,
    /// unless it has `files` or `discovery`.
    pub servers: Vec<ServerConfig>,
    /// Servers configured by host name, sorted by it; proxy mode only. While the backend runs,
    /// `servers` includes the servers that these names resolve to.
    pub named: Vec<NamedServer>,
    /// Source of further servers; proxy and http mode only. While the backend runs, `servers`
    /// includes the discovered servers.
    pub discovery: Option<DiscoveryConfig>,
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
            health_check: HealthCheck::new(ProbeKind::Tcp),
            outlier_detection: None,
            slow_start: Duration::ZERO,
            on_down: None,
            dsr: DsrKind::default(),
            tunnel: TunnelConfig::default(),
            send_proxy: None,
            protocol: HttpVersion::default(),
            tls: None,
            files: None,
            timeouts: OwnTimeouts::default(),
            servers: Vec::new(),
            named: Vec::new(),
            discovery: None,
        }
    }

    /// Health check of one of its servers.
    pub fn check_of(&self, server: &ServerConfig) -> HealthCheck {
        let tls = self.tls.as_ref().map(|tls| CheckTls { tls: tls.clone(), name: self.tls_name(server) });
        HealthCheck { tls, ..self.health_check.clone() }
    }

    /// Server name (SNI) that convey sends to this server in a TLS handshake; `None`: the server is
    /// verified by its address. The default of a server that is configured by host name is that
    /// name.
    pub fn tls_name(&self, server: &ServerConfig) -> Option<String> {
        let of_lookup = || {
            let (name, _) = server.name.rsplit_once('/')?;
            let named = self.named.iter().find(|named| named.name == name)?;
            (!is_service(&named.host)).then(|| named.host.clone())
        };
        self.tls.as_ref()?.server_name.clone().or_else(of_lookup)
    }

    /// Name of the hashed part of a client or request, as in the configuration.
    pub fn hash_name(&self) -> String {
        self.hash_request.as_ref().map_or_else(|| self.hash.name().to_owned(), RequestField::to_string)
    }

    /// Whether this many failed client connections in a row count against a server. Always false if
    /// neither outlier detection nor a health check is set, as nothing would bring the server back.
    pub fn is_failing_after(&self, in_a_row: u32) -> bool {
        match (&self.outlier_detection, &self.health_check.kind) {
            (Some(outlier), _) => in_a_row >= outlier.consecutive_failures,
            (None, ProbeKind::None) => false,
            (None, ProbeKind::Tcp | ProbeKind::Udp | ProbeKind::Http(_)) => {
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

    /// Time in which a recovered server ramps up to its full share with this algorithm.
    pub fn time_to_warm_up(&self) -> Duration {
        if self.algorithm.hashes() { Duration::ZERO } else { self.slow_start }
    }
}

/// Full share of a server's weight, in percent.
pub const WHOLE: u8 = 100;

/// Algorithm that chooses a server for a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Smooth weighted round robin: servers take turns, and the turns of a heavy server are spread
    /// out.
    RoundRobin,
    /// The server with the fewest open connections for its weight.
    LeastConnections,
    /// Power of two choices: draws two servers at random by weight, and takes the server with fewer
    /// open connections for its weight (Mitzenmacher, "The Power of Two Choices in Randomized Load
    /// Balancing", 2001).
    PowerOfTwo,
    /// Power of two choices by latency: draws two servers at random by weight, and compares a
    /// moving average of response times that follows peaks, and the open requests. Mode `http`
    /// only, as no other mode sees responses.
    Ewma,
    /// Consistent hash ring.
    Ring,
    /// Maglev lookup table (Eisenbud et al., NSDI 2016, section 3.4).
    Maglev,
}

impl Algorithm {
    /// All algorithms, in the order the documentation lists them.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::RoundRobin,
        Algorithm::LeastConnections,
        Algorithm::PowerOfTwo,
        Algorithm::Ewma,
        Algorithm::Ring,
        Algorithm::Maglev,
    ];

    /// Default algorithm. Packets are hashed, so that packets of a connection go to the same server
    /// even where no worker has a record of the flow.
    fn default_for(gets_packets: bool) -> Algorithm {
        if gets_packets { Algorithm::Ring } else { Algorithm::RoundRobin }
    }

    /// Whether the choice depends only on the addresses and ports of the client and of convey.
    pub fn hashes(self) -> bool {
        match self {
            Algorithm::Ring | Algorithm::Maglev => true,
            Algorithm::RoundRobin | Algorithm::LeastConnections => false,
            Algorithm::PowerOfTwo | Algorithm::Ewma => false,
        }
    }

    /// Name of the algorithm in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::RoundRobin => "round_robin",
            Algorithm::LeastConnections => "least_connections",
            Algorithm::PowerOfTwo => "power_of_two",
            Algorithm::Ewma => "ewma",
            Algorithm::Ring => "ring",
            Algorithm::Maglev => "maglev",
        }
    }
}

/// Fields of a connection that the hashing algorithms hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashOn {
    /// The client's address: all connections of one client go to one server.
    Source,
    /// Client address and port, VIP and port: connections of one client spread over the servers.
    Tuple,
    /// Like [`HashOn::Tuple`], unless the connection id of a QUIC packet names a server: see
    /// [`QuicConfig`].
    QuicCid,
}

impl HashOn {
    /// Default of a backend without `hash`.
    fn default_for(gets_packets: bool) -> HashOn {
        if gets_packets { HashOn::Tuple } else { HashOn::Source }
    }

    /// All options, in the order the documentation lists them.
    pub const ALL: [HashOn; 3] = [HashOn::Source, HashOn::Tuple, HashOn::QuicCid];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HashOn::Source => "source",
            HashOn::Tuple => "tuple",
            HashOn::QuicCid => "quic_cid",
        }
    }
}

/// Part of a server's identity that the hashing algorithms hash. Servers with equal keys in two
/// backends get the same clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashKey {
    /// Address and port of the server.
    #[default]
    AddrPort,
    /// Address of the server: it gets the same clients on every port.
    Addr,
    /// Name of the server: it keeps its clients when its address changes.
    Name,
}

impl HashKey {
    /// All keys, in the order the documentation lists them.
    pub const ALL: [HashKey; 3] = [HashKey::AddrPort, HashKey::Addr, HashKey::Name];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HashKey::AddrPort => "addr_port",
            HashKey::Addr => "addr",
            HashKey::Name => "name",
        }
    }
}

/// Health check of a backend's servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Kind of the probe.
    pub kind: ProbeKind,
    /// Port to probe; `None`: the server's own port, which every server then has.
    pub port: Option<u16>,
    /// Interval between the starts of two probes; each wait is jittered by up to a tenth.
    pub interval: Duration,
    /// A probe that takes longer has failed.
    pub timeout: Duration,
    /// Successful probes in a row that bring a server back; at least 1.
    pub rise: u32,
    /// Failures in a row that take a server down; at least 1. Failed probes, failed connects of
    /// clients and refused datagrams count.
    pub fall: u32,
    /// Path that a probe takes.
    pub via: ProbeVia,
    /// PROXY header that the backend's servers expect. A check at a port other than the server's
    /// sends none.
    pub send_proxy: Option<ProxyVersion>,
    /// TLS settings of the backend's connections. Not used by a check at a port other than the
    /// server's, nor by an HTTPS check, which has its own settings.
    pub tls: Option<CheckTls>,
    /// HTTP version and limits of an HTTP check, set where all frontends of the server are in mode
    /// `http`. A check at a port other than the server's speaks HTTP/1.1.
    pub requests: Option<CheckedRequests>,
}

/// HTTP version and response limits of mode `http`, for health checks that follow them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedRequests {
    /// HTTP version of the backend.
    pub version: HttpVersion,
    /// Largest response head limits of the backend's frontends.
    pub response_head: HeadLimits,
}

/// TLS settings of a health check that shakes hands as clients' connections do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckTls {
    /// TLS settings of the backend.
    pub tls: Arc<BackendTls>,
    /// Server name (SNI) in the handshake; `None`: the server is verified by its address.
    pub name: Option<String>,
}

impl HealthCheck {
    /// Returns a check of this kind with default settings.
    pub fn new(kind: ProbeKind) -> HealthCheck {
        // A UDP probe without an answer in time succeeds. So the timeout is longer than the kernel
        // takes to report an absent neighbour: three solicitations, a second apart (RFC 4861,
        // section 10).
        let (interval, timeout) = match kind {
            ProbeKind::Udp => (Duration::from_secs(4), Duration::from_millis(3500)),
            ProbeKind::None | ProbeKind::Tcp | ProbeKind::Http(_) => {
                (Duration::from_secs(2), Duration::from_secs(1))
            }
        };
        let (rise, fall, via) = (2, 3, ProbeVia::default());
        HealthCheck {
            kind,
            port: None,
            interval,
            timeout,
            rise,
            fall,
            via,
            send_proxy: None,
            tls: None,
            requests: None,
        }
    }

    /// PROXY header of a health check of the server at this address.
    pub fn proxy_header_at(&self, server: SocketAddr) -> Option<ProxyVersion> {
        self.send_proxy.filter(|_| self.is_at_own_port(server))
    }

    /// TLS settings of a health check of the server at this address; `None`: no TLS, or the check's
    /// own settings apply.
    pub fn tls_at(&self, server: SocketAddr) -> Option<&CheckTls> {
        self.tls.as_ref().filter(|_| self.is_at_own_port(server))
    }

    /// HTTP version and limits of an HTTP check of the server at this address; `None`: the check's
    /// own defaults apply.
    pub fn requests_at(&self, server: SocketAddr) -> Option<&CheckedRequests> {
        self.requests.as_ref().filter(|_| self.is_at_own_port(server))
    }

    fn is_at_own_port(&self, server: SocketAddr) -> bool {
        self.port.is_none_or(|port: u16| server.port() == 0 || server.port() == port)
    }
}

/// Kind of a health check probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeKind {
    /// Servers are always considered up.
    None,
    /// Open a TCP connection and close it.
    Tcp,
    /// Send an empty UDP datagram. The server is down if it or a router refuses the datagram, and
    /// up otherwise, with or without an answer.
    Udp,
    /// `GET` over HTTP/1.1, or over HTTP/2 where requests use it, with or without TLS. The server
    /// is up if status and body are as expected.
    Http(HttpCheck),
}

impl ProbeKind {
    /// Name of the kind in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            ProbeKind::None => "none",
            ProbeKind::Tcp => "tcp",
            ProbeKind::Udp => "udp",
            ProbeKind::Http(HttpCheck { tls: None, .. }) => "http",
            ProbeKind::Http(_) => "https",
        }
    }
}

/// Time limits of every proxied connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit of one attempt to connect to a server, and of the wait for a server that is at its
    /// connection limit.
    pub connect: Duration,
    /// Time without a byte in either direction after which a connection is closed.
    pub idle: Duration,
    /// Time in which a server must send the head of its response, or the request fails. Mode `http`
    /// only.
    pub response: Duration,
    /// Time after which a server's host that acknowledges nothing counts as gone, and its
    /// connections are closed.
    pub tcp_user_timeout: Duration,
    /// Time without a datagram in either direction after which a UDP session ends.
    pub udp_idle: Duration,
    /// Time for open connections to finish when convey stops.
    pub drain: Duration,
    /// Time for which convey still serves after SIGTERM, while `/readyz` sends clients elsewhere.
    pub drain_delay: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            response: Duration::from_secs(60),
            tcp_user_timeout: Duration::from_secs(30),
            udp_idle: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        }
    }
}

/// Monotonic time, in nanoseconds since the program started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Time since `earlier`; zero if `earlier` lies in the future.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Timestamp that is `time` later.
    pub fn after(self, time: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// Time since `earlier`, see [`Timestamp::since`].
    fn sub(self, earlier: Timestamp) -> Duration {
        self.since(earlier)
    }
}

/// Identity of a server: backend, name and address. A server whose address changes becomes another
/// server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerKey {
    /// The backend's name.
    pub backend: String,
    /// The server's name.
    pub server: String,
    /// The server's address.
    pub addr: SocketAddr,
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.backend, self.server, ServerAddr(self.addr))
    }
}

/// Failures of clients at one server: failed connects, refused datagrams, or (with outlier
/// detection) resets without an answer. The data path reports them to the code that decides on
/// server health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectFailures {
    /// Server that failed.
    pub server: ServerKey,
    /// Number of failures in a row, including this one.
    pub in_a_row: u32,
    /// Operator-facing message of the last error.
    pub error: String,
    /// Protocol between clients and server.
    pub protocol: Protocol,
    /// Whether a third party could have forged the failure, as it arrived by a path that clients'
    /// packets also take.
    pub is_forgeable: bool,
}
