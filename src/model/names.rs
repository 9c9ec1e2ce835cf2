//! Servers that are known by a name, and what a lookup of one finds.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::Server;

/// A server that is known by a name: each address that the name has is a [`Server`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedServer {
    /// Unique within its backend, in which no server is called `name/...`: those are the ones made of this.
    pub name: String,
    /// What is looked up, in lower case.
    pub host: String,
    /// Where each of the addresses is listened on.
    pub port: u16,
    /// That of each server.
    pub weight: u16,
    /// That of each server.
    pub backup: bool,
    /// That of each server.
    pub max_connections: Option<u32>,
}

impl NamedServer {
    /// The server at one of the addresses: `NAME/ADDRESS`.
    pub fn at(&self, ip: IpAddr) -> Server {
        Server {
            name: format!("{}/{ip}", self.name),
            addr: SocketAddr::new(ip, self.port),
            weight: self.weight,
            backup: self.backup,
            max_connections: self.max_connections,
        }
    }
}

impl fmt::Display for NamedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What a lookup of a name found, for each family; an error in words for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The name.
    pub host: String,
    /// Its A records.
    pub v4: Result<Records, String>,
    /// Its AAAA records.
    pub v6: Result<Records, String>,
}

impl Lookup {
    /// How long it may be believed.
    ///
    /// # Errors
    /// Why it cannot, in words for an operator: something went wrong, or there is no address.
    pub fn ttl(&self) -> Result<Duration, String> {
        let (v4, v6) = (self.v4.as_ref().map_err(String::clone)?, self.v6.as_ref().map_err(String::clone)?);
        let found = [v4, v6].into_iter().filter(|records| !records.addresses.is_empty());
        let ttl = found.map(|records| records.ttl).min();
        ttl.ok_or_else(|| "there is no such name, or it has no address".to_owned())
    }
}

/// The records of one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    addresses: BTreeSet<IpAddr>,
    ttl: Duration,
}

impl Records {
    /// Records that may be believed for `ttl`. Without those that are nobody's address: some name servers answer
    /// 0.0.0.0 for what they block.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>, ttl: Duration) -> Records {
        let is_of_one_machine = |ip: &IpAddr| {
            let mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
            !ip.is_unspecified() && !ip.is_multicast() && *ip != Ipv4Addr::BROADCAST && !mapped
        };
        Records { addresses: addresses.into_iter().filter(is_of_one_machine).collect(), ttl }
    }

    /// The addresses; none if the name does not exist or has none in this family.
    pub fn into_addresses(self) -> BTreeSet<IpAddr> {
        self.addresses
    }
}
