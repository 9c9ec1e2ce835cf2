//! Servers, at an address or known by a name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// One machine (or process) that answers clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Unique within its backend.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// How it is used.
    pub settings: ServerSettings,
}

/// A server that is known by a name: each address that the name has is a [`Server`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedServer {
    /// Unique within its backend, in which no server is called `name/...`: those are the ones made of this.
    pub name: String,
    /// What is looked up, in lower case.
    pub host: String,
    /// Where each of the addresses is listened on.
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

impl NamedServer {
    /// The server at one of the addresses: `NAME/ADDRESS`.
    pub fn at(&self, ip: IpAddr) -> Server {
        Server {
            name: format!("{}/{ip}", self.name),
            addr: SocketAddr::new(ip, self.port),
            settings: self.settings,
        }
    }
}

impl fmt::Display for NamedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings { weight: 1, backup: false, max_connections: None }
    }
}
