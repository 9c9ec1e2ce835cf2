//! The words every room shares: what a frontend, a backend and a server *are* once the configuration
//! has been validated. And what several crates count together, such as the connections of a source. Pure.
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
pub use body_pattern::BodyPattern;
pub use client::{ALWAYS_FITS, ClientNetwork, client_of, fits, networks_of};
pub use discovery::{
    DiscoveredServer, DiscoveryConfig, DiscoverySource, DiscoveryState, KubernetesCluster, KubernetesService,
    ServicePort, SourceSettings,
};
pub use draining::DrainingEndpoints;
pub use error_pages::{ErrorPage, ErrorPages};
pub use files_config::{CacheRule, FilesConfig};
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
pub use network::{Interface, InterfaceAddress, Neighbour, NetworkTables, Route, RouteHop, WantedNeighbour};
pub use next_hops::{NextHops, Unreachable};
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

/// A pool of servers and how one of them is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendConfig {
    /// Unique among backends.
    pub name: String,
    /// How a server is chosen.
    pub algorithm: Algorithm,
    /// What of a client is hashed; read only by [`Algorithm::Ring`] and [`Algorithm::Maglev`].
    pub hash: HashOn,
    /// How servers are found by connection ids; only where `hash` is [`HashOn::QuicCid`].
    pub quic: Option<Arc<QuicConfig>>,
    /// What of a request they look at instead, where a request has it. Mode `http` only.
    pub hash_request: Option<RequestField>,
    /// What of a server decides which clients it gets; read by the same.
    pub hash_key: HashKey,
    /// How the servers are probed.
    pub health_check: HealthCheck,
    /// When servers that fail clients are ejected; `None`: never.
    pub outlier_detection: Option<OutlierDetection>,
    /// How long a server that comes back takes to its whole share; zero: it has it at once. Algorithms that hash do
    /// without, or clients would move at each step.
    pub slow_start: Duration,
    /// What becomes of the connections of a server that is down; `None`: what is usual in each mode.
    pub on_down: Option<OnDown>,
    /// How clients' packets get to the servers; DSR only.
    pub dsr: DsrKind,
    /// What there is to say of a tunnel; read only where `dsr` is one.
    pub tunnel: TunnelConfig,
    /// The PROXY header that goes before each connection or datagram to a server; `None`: none. Proxy mode only.
    pub send_proxy: Option<ProxyVersion>,
    /// How servers are spoken to. Mode `http` only.
    pub protocol: HttpVersion,
    /// How convey shakes hands with servers; `None`: they speak no TLS with convey. Modes `proxy` and `http` only, TCP only.
    pub tls: Option<Arc<BackendTls>>,
    /// The files that are served in place of servers; `None`: servers are. Mode `http` only.
    pub files: Option<FilesConfig>,
    /// Go before those of the file. Proxy mode only.
    pub timeouts: OwnTimeouts,
    /// Names unique within the backend; sorted by name, so that every machine with the same file numbers them alike.
    /// If a frontend uses the backend there is one at least, here or in `named`, unless it has `files` or `discovery`.
    pub servers: Vec<ServerConfig>,
    /// Servers that are known by name, sorted by it; proxy mode only. While the backend runs, `servers` has those
    /// that the names stand for.
    pub named: Vec<NamedServer>,
    /// Who knows more servers; proxy and http mode only. While the backend runs, `servers` has those too.
    pub discovery: Option<DiscoveryConfig>,
}

impl BackendConfig {
    /// A backend of a file that says nothing else of it. `gets_packets`: whether a packet mode uses it.
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

    /// How a server of it is checked.
    pub fn check_of(&self, server: &ServerConfig) -> HealthCheck {
        let tls = self.tls.as_ref().map(|tls| CheckTls { tls: tls.clone(), name: self.tls_name(server) });
        HealthCheck { tls, ..self.health_check.clone() }
    }

    /// The name that this server is asked for in a TLS handshake; `None`: its address. A server that is known by a name is asked for that.
    pub fn tls_name(&self, server: &ServerConfig) -> Option<String> {
        let of_lookup = || {
            let (name, _) = server.name.rsplit_once('/')?;
            let named = self.named.iter().find(|named| named.name == name)?;
            (!is_service(&named.host)).then(|| named.host.clone())
        };
        self.tls.as_ref()?.server_name.clone().or_else(of_lookup)
    }

    /// What the hashing algorithms look at, as the configuration has it.
    pub fn hash_name(&self) -> String {
        self.hash_request.as_ref().map_or_else(|| self.hash.name().to_owned(), RequestField::to_string)
    }

    /// Whether so many failures of clients in a row speak against a server. Without outlier detection and without a health
    /// check no number does, for nothing would bring the server back.
    pub fn is_failing_after(&self, in_a_row: u32) -> bool {
        match (&self.outlier_detection, &self.health_check.kind) {
            (Some(outlier), _) => in_a_row >= outlier.consecutive_failures,
            (None, ProbeKind::None) => false,
            (None, ProbeKind::Tcp | ProbeKind::Udp | ProbeKind::Http(_)) => {
                in_a_row >= self.health_check.fall
            }
        }
    }

    /// What becomes of connections in this mode when their server goes down. Nobody but us tells a client of a packet mode
    /// that its server is gone. A proxied connection has an end of its own: TCP notices by itself when the server's host is
    /// gone, and if it is not, the health check may be what is wrong. HAProxy (`on-marked-down`) and Envoy
    /// (`close_connections_on_host_health_failure`) keep such connections, too, unless told otherwise.
    pub fn on_down_in(&self, mode: Mode) -> OnDown {
        self.on_down.unwrap_or(match mode {
            Mode::Proxy | Mode::Http => OnDown::Keep,
            Mode::Passthrough | Mode::Dsr => OnDown::Reset,
        })
    }

    /// How long a server that comes back takes to its whole share with this algorithm.
    pub fn time_to_warm_up(&self) -> Duration {
        if self.algorithm.hashes() { Duration::ZERO } else { self.slow_start }
    }
}

/// The whole of a server's weight, in percent.
pub const WHOLE: u8 = 100;

/// The rule that chooses a server for a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Smooth weighted round robin: in turn, the turns of a heavy server spread out.
    RoundRobin,
    /// The server with the fewest open connections for its weight.
    LeastConnections,
    /// The one of two servers, drawn at random by weight, that has fewer open connections for its weight
    /// (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).
    PowerOfTwo,
    /// The one of two servers, drawn alike, whose answers come sooner, by a moving average that follows peaks, and by its open requests.
    /// Mode http only: nothing else sees answers.
    Ewma,
    /// Consistent hash ring.
    Ring,
    /// Maglev lookup table (Eisenbud et al., NSDI 2016, section 3.4).
    Maglev,
}

impl Algorithm {
    /// Every algorithm, in the order the documentation lists them.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::RoundRobin,
        Algorithm::LeastConnections,
        Algorithm::PowerOfTwo,
        Algorithm::Ewma,
        Algorithm::Ring,
        Algorithm::Maglev,
    ];

    /// The algorithm of a backend that sets none. Packets are hashed, so that those of a connection go to the same server
    /// even where nobody remembers it.
    fn default_for(gets_packets: bool) -> Algorithm {
        if gets_packets { Algorithm::Ring } else { Algorithm::RoundRobin }
    }

    /// Whether the choice follows from the client's and our addresses and ports alone.
    pub fn hashes(self) -> bool {
        match self {
            Algorithm::Ring | Algorithm::Maglev => true,
            Algorithm::RoundRobin | Algorithm::LeastConnections => false,
            Algorithm::PowerOfTwo | Algorithm::Ewma => false,
        }
    }

    /// The algorithm's name in the configuration.
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

/// What the hashing algorithms look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashOn {
    /// The client's address: all connections of one client go to one server.
    Source,
    /// Client address and port, VIP and port: connections of one client spread.
    Tuple,
    /// The same, unless the connection id of a QUIC packet names a server: see [`QuicConfig`].
    QuicCid,
}

impl HashOn {
    /// What a backend that sets nothing hashes.
    fn default_for(gets_packets: bool) -> HashOn {
        if gets_packets { HashOn::Tuple } else { HashOn::Source }
    }

    /// All of them, in the order the documentation lists them.
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

/// By what of a server the hashing algorithms place it: servers with the same keys in two backends get the same clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashKey {
    /// Its address and port.
    #[default]
    AddrPort,
    /// Its address: it gets the same clients on every port.
    Addr,
    /// Its name: it also keeps them at another address.
    Name,
}

impl HashKey {
    /// All of them, in the order the documentation lists them.
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

/// How and how often the servers of a backend are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// What a probe does.
    pub kind: ProbeKind,
    /// Port to probe; `None`: the server's own, which each server has then.
    pub port: Option<u16>,
    /// From one probe's start to the next; each wait is jittered by up to a tenth.
    pub interval: Duration,
    /// A probe that takes longer has failed.
    pub timeout: Duration,
    /// Successful probes in a row that bring a server back; at least 1.
    pub rise: u32,
    /// Failed probes (or failed connects of clients, or refused datagrams) in a row that take it out; at least 1.
    pub fall: u32,
    /// Which way a probe goes.
    pub via: ProbeVia,
    /// The PROXY header that the backend's servers expect. A check at another port than the server's sends none.
    pub send_proxy: Option<ProxyVersion>,
    /// How the backend shakes hands with its servers. A check at another port than the server's does not; nor does one over HTTPS, which has
    /// its own settings.
    pub tls: Option<CheckTls>,
    /// How a check over HTTP speaks and judges, where every client of the server is one of mode
    /// `http`. A check at another port than the server's speaks HTTP/1.1.
    pub requests: Option<CheckedRequests>,
}

/// How requests of mode `http` speak with a server, and which answers they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedRequests {
    /// The version of the backend.
    pub version: HttpVersion,
    /// The largest limits of its frontends.
    pub response_head: HeadLimits,
}

/// How a check shakes hands as clients' connections do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckTls {
    /// The backend's settings.
    pub tls: Arc<BackendTls>,
    /// The name that the server is asked for; `None`: its address.
    pub name: Option<String>,
}

impl HealthCheck {
    /// A check of this kind as it is unless set otherwise.
    pub fn new(kind: ProbeKind) -> HealthCheck {
        // A UDP probe without an answer in time has succeeded. So the kernel must have said before that nobody is there: it
        // asks for an address three times, a second each (RFC 4861, section 10).
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

    /// The PROXY header that goes before a check of a server at this address.
    pub fn proxy_header_at(&self, server: SocketAddr) -> Option<ProxyVersion> {
        self.send_proxy.filter(|_| self.is_at_own_port(server))
    }

    /// How a check of a server at this address shakes hands; `None`: it does not, or as its own settings say.
    pub fn tls_at(&self, server: SocketAddr) -> Option<&CheckTls> {
        self.tls.as_ref().filter(|_| self.is_at_own_port(server))
    }

    /// How a check over HTTP of a server at this address speaks and judges as requests do; `None`:
    /// it does not.
    pub fn requests_at(&self, server: SocketAddr) -> Option<&CheckedRequests> {
        self.requests.as_ref().filter(|_| self.is_at_own_port(server))
    }

    fn is_at_own_port(&self, server: SocketAddr) -> bool {
        self.port.is_none_or(|port: u16| server.port() == 0 || server.port() == port)
    }
}

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeKind {
    /// Servers are always considered up.
    None,
    /// Open a TCP connection and close it.
    Tcp,
    /// Send an empty UDP datagram; down if the server or a router refuses it, up if there is an answer or none.
    Udp,
    /// `GET` over HTTP/1.1, or over HTTP/2 where requests go over it, with or without TLS; up if
    /// the status is one that is expected, and so is the body.
    Http(HttpCheck),
}

impl ProbeKind {
    /// The name in the configuration.
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

/// Time limits that hold for every proxied connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// One attempt to connect to a server; also how long a connection waits for a server at its limit.
    pub connect: Duration,
    /// A connection without a byte in either direction for this long is closed.
    pub idle: Duration,
    /// A server that does not send the head of its response for this long has failed. Mode `http` only.
    pub response: Duration,
    /// The host of a server that leaves something unacknowledged for so long is gone, and so are its connections.
    pub tcp_user_timeout: Duration,
    /// A session of UDP without a datagram in either direction for this long is over.
    pub udp_idle: Duration,
    /// How long open connections may finish when the program stops.
    pub drain: Duration,
    /// How long convey still serves once SIGTERM has told it to stop, while `/readyz` sends clients elsewhere.
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

/// A moment of the monotonic clock, in nanoseconds since the program started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Time since `earlier`; zero if that lies in the future.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This much later.
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

/// Names one server of one backend at one address. A server that changes its address is another server.
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

/// Clients could not connect to a server, their datagrams were refused, or (with outlier detection) they were reset
/// without an answer. Told by the data path to whoever decides on health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectFailures {
    /// The server.
    pub server: ServerKey,
    /// How many times in a row, counting this one.
    pub in_a_row: u32,
    /// The last error, in words for an operator.
    pub error: String,
    /// What clients speak with it.
    pub protocol: Protocol,
    /// Whether strangers could have made it up: it came by a way that clients' packets come by, too.
    pub is_forgeable: bool,
}
