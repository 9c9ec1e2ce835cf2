//! Servers, at an address or known by a name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// One machine (or process) that answers clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Unique within its backend.
    pub name: String,
    /// Where it listens. Port 0: at whatever port the client has asked for.
    pub addr: SocketAddr,
    /// How it is used.
    pub settings: ServerSettings,
}

/// A server that is known by a name: each address that the name has is a [`ServerConfig`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedServer {
    /// Unique within its backend, in which no server is called `name/...`: those are the ones made of this.
    pub name: String,
    /// What is looked up, in lower case.
    pub host: String,
    /// Where each of the addresses is listened on; 0 as in [`ServerConfig::addr`].
    pub port: u16,
    /// Those of each server.
    pub settings: ServerSettings,
}

/// How a server is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSettings {
    /// Share of new connections relative to the other servers; 0 takes none.
    pub weight: u16,
    /// Used only while no other server of the backend is usable.
    pub backup: bool,
    /// Connections it is given at once; more wait for a free one. `None`: no limit.
    pub max_connections: Option<u32>,
}

impl ServerConfig {
    /// Whether a client reaches it at the port that the client has asked for.
    pub fn keeps_port(&self) -> bool {
        self.addr.port() == 0
    }

    /// Where a client reaches it that has asked for `port` of a frontend.
    pub fn addr_for(&self, port: u16) -> SocketAddr {
        let mut addr = self.addr;
        if self.keeps_port() {
            addr.set_port(port);
        }
        addr
    }
}

/// A server's address as it is written: without a port if it has none of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerAddr(pub SocketAddr);

impl ServerAddr {
    /// Without the port.
    pub fn ip(self) -> IpAddr {
        self.0.ip()
    }
}

impl From<IpAddr> for ServerAddr {
    /// One that has no port of its own.
    fn from(ip: IpAddr) -> Self {
        ServerAddr(SocketAddr::new(ip, 0))
    }
}

/// Whether SRV records are asked for, which have the ports, too: `_http._tcp.app.internal` (RFC 2782).
pub fn is_service(host: &str) -> bool {
    let mut labels = host.split('.');
    let has_underscore = |label: Option<&str>| label.is_some_and(|label| label.starts_with('_'));
    has_underscore(labels.next()) && has_underscore(labels.next()) && labels.next().is_some()
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.port() == 0 { self.0.ip().fmt(f) } else { self.0.fmt(f) }
    }
}

impl NamedServer {
    /// The server at one of the addresses: `NAME/ADDRESS`.
    pub fn at(&self, found: ServerAddr) -> ServerConfig {
        let mut addr = found.0;
        if addr.port() == 0 {
            addr.set_port(self.port);
        }
        ServerConfig { name: format!("{}/{found}", self.name), addr, settings: self.settings }
    }
}

impl fmt::Display for NamedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port == 0 { f.write_str(&self.host) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings { weight: 1, backup: false, max_connections: None }
    }
}
