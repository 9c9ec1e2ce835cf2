//! Health checks of servers. Pure.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convey_http_core::HeadLimits;

use crate::backend::source_of_family;
use crate::{BackendTls, GrpcCheck, HttpCheck, HttpVersion, ProbeVia, ProxyVersion};

/// Health check of a backend's servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Kind of the probe.
    pub kind: ProbeKind,
    /// Port to probe; `None`: the server's own port. Required if a server has no port of its own.
    pub port: Option<u16>,
    /// Interval between the starts of two probes; each wait is jittered by up to a tenth.
    pub interval: Duration,
    /// Time limit of a probe. A probe that takes longer fails.
    pub timeout: Duration,
    /// Successful probes in a row that bring a server back; at least 1.
    pub rise: u32,
    /// Consecutive failures that take a server down; at least 1. A failed probe, a failed connect
    /// of a client and a refused datagram each count as a failure.
    pub fall: u32,
    /// Path that a probe takes.
    pub via: ProbeVia,
    /// PROXY header that the backend's servers expect. A check at a port other than the server's
    /// sends none.
    pub send_proxy: Option<ProxyVersion>,
    /// Source addresses of the backend's connections ([`BackendConfig::source`]). They apply to
    /// checks at every port.
    ///
    /// [`BackendConfig::source`]: crate::BackendConfig::source
    pub source: Vec<IpAddr>,
    /// TLS settings of the backend's connections. They do not apply to a check at a port other than
    /// the server's, nor to an HTTPS check, which has its own settings.
    pub tls: Option<CheckTls>,
    /// HTTP version and limits of an HTTP check, set where all frontends of the server are in mode
    /// `http`. An HTTP check at a port other than the server's speaks HTTP/1.1. A gRPC check
    /// always speaks HTTP/2, and only the limits apply to it.
    pub requests: Option<CheckedRequests>,
}

/// HTTP version and response limits of mode `http`, for health checks of servers in that mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedRequests {
    /// HTTP version of the backend.
    pub version: HttpVersion,
    /// Largest response head limits of the backend's frontends.
    pub response_head: HeadLimits,
}

/// TLS settings of a health check that uses the TLS of the backend's connections.
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
        // A UDP probe succeeds if no answer arrives within the timeout. So the timeout must be
        // longer than the kernel takes to report an absent neighbour: three solicitations, a second
        // apart (RFC 4861, section 10).
        let (interval, timeout) = match kind {
            ProbeKind::Udp => (Duration::from_secs(4), Duration::from_millis(3500)),
            ProbeKind::None | ProbeKind::Tcp | ProbeKind::Http(_) | ProbeKind::Grpc(_) => {
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
            source: Vec::new(),
            tls: None,
            requests: None,
        }
    }

    /// Address of this host that a check of a server at this address comes from; `None`: the kernel
    /// chooses.
    pub fn source_to(&self, server: IpAddr) -> Option<IpAddr> {
        source_of_family(&self.source, server)
    }

    /// PROXY header of a health check of the server at this address; `None`: the check sends none.
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
    /// Call of the gRPC health service over HTTP/2, within TLS if the backend uses TLS. The server
    /// is up if it answers `SERVING`.
    Grpc(GrpcCheck),
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
            ProbeKind::Grpc(_) => "grpc",
        }
    }
}
