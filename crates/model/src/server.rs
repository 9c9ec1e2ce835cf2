//! Servers by address or host name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::UnixSocket;

/// Server: a machine or process that answers clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Name, unique within the backend.
    pub name: String,
    /// Address of the server. Port 0 means the port that the client connected to. The address of a
    /// unix socket is [`UnixSocket::addr`](crate::UnixSocket::addr).
    pub addr: SocketAddr,
    /// Settings of the server.
    pub settings: ServerSettings,
}

/// Server with a host name. Each address that the name resolves to becomes a [`ServerConfig`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedServer {
    /// Name, unique within the backend. No other server is named `name/...`, because the resolved
    /// servers have such names.
    pub name: String,
    /// Host name to look up, in lower case.
    pub host: String,
    /// Port of each address; 0 means the port that the client connected to, as in
    /// [`ServerConfig::addr`].
    pub port: u16,
    /// Settings of each resolved server.
    pub settings: ServerSettings,
}

/// Settings of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSettings {
    /// Share of new connections relative to the other servers; 0 takes the server out of rotation.
    pub weight: u16,
    /// Whether the server is a backup, used only while no other server of the backend is usable.
    pub backup: bool,
    /// Maximum number of open connections; further connections wait. `None`: no limit.
    pub max_connections: Option<u32>,
}

impl ServerConfig {
    /// Whether the server listens on the port that the client connected to.
    pub fn keeps_port(&self) -> bool {
        self.addr.port() == 0
    }

    /// Address of the server for a client that connected to `port` of a frontend.
    pub fn addr_for(&self, port: u16) -> SocketAddr {
        let mut addr = self.addr;
        if self.keeps_port() {
            addr.set_port(port);
        }
        addr
    }
}

/// Address of a server as written in a source. Port 0 means that the source sets no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerAddr(pub SocketAddr);

impl ServerAddr {
    /// Address without the port.
    pub fn ip(self) -> IpAddr {
        self.0.ip()
    }
}

impl From<IpAddr> for ServerAddr {
    /// Address without a port of its own.
    fn from(ip: IpAddr) -> Self {
        ServerAddr(SocketAddr::new(ip, 0))
    }
}

/// Whether a host name requires a query for SRV records, which include ports:
/// `_http._tcp.app.internal` (RFC 2782).
pub fn is_service(host: &str) -> bool {
    let mut labels = host.split('.');
    let has_underscore = |label: Option<&str>| label.is_some_and(|label| label.starts_with('_'));
    has_underscore(labels.next()) && has_underscore(labels.next()) && labels.next().is_some()
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UnixSocket::of(self.0) {
            Some(socket) => socket.fmt(f),
            None if self.0.port() == 0 => self.0.ip().fmt(f),
            None => self.0.fmt(f),
        }
    }
}

impl NamedServer {
    /// Server at one of the addresses: `NAME/ADDRESS`.
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
