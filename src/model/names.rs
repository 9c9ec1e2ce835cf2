//! What a lookup of a name finds.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// What a lookup of a name found, for each family; an error in words for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The name.
    pub host: String,
    /// The name servers that were to be asked; the system's if there are none.
    pub name_servers: Vec<SocketAddr>,
    /// Its A records.
    pub v4: Result<Records, String>,
    /// Its AAAA records.
    pub v6: Result<Records, String>,
}

impl Lookup {
    /// How long the addresses that it found may be believed; `None` if it found none.
    pub fn ttl(&self) -> Option<Duration> {
        let found = [&self.v4, &self.v6].into_iter().flatten().filter(|records| !records.is_empty());
        found.map(|records| records.ttl).min()
    }

    /// What went wrong; `None` if both families were answered and have an address between them.
    pub fn fault(&self) -> Option<Fault> {
        let found = self.ttl().is_some();
        let (missing, why) = match (&self.v4, &self.v6) {
            (Ok(_), Ok(_)) if found => return None,
            (Ok(_), Ok(_)) => (Missing::All, "there is no such name, or it has no address"),
            (Err(why), Ok(_)) if found => (Missing::Records("A"), why.as_str()),
            (Ok(_), Err(why)) if found => (Missing::Records("AAAA"), why.as_str()),
            (Err(why), _) | (_, Err(why)) => (Missing::All, why.as_str()),
        };
        Some(Fault { missing, why: why.to_owned() })
    }
}

/// What went wrong with a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What it did not find.
    pub missing: Missing,
    /// Why, in words for an operator.
    pub why: String,
}

/// What a lookup did not find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Any address.
    All,
    /// Whether there are records of this type. It found those of the other family.
    Records(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.missing {
            Missing::All => f.write_str(&self.why),
            Missing::Records(kind) => write!(f, "{kind} records: {}", self.why),
        }
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

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The addresses; none if the name does not exist or has none in this family.
    pub fn into_addresses(self) -> BTreeSet<IpAddr> {
        self.addresses
    }
}
