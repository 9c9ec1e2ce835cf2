//! Results of DNS lookups.

use std::collections::BTreeSet;
use std::fmt;
use std::mem::take;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::ServerAddr;
use crate::server_ip::{is_local, is_of_one_machine};

/// Result of a lookup of a host name, for each address family. Errors are operator-facing texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// Host name.
    pub host: String,
    /// Name servers to query; if empty, convey queries those of the system.
    pub name_servers: Vec<SocketAddr>,
    /// A records.
    pub v4: Result<DnsRecords, String>,
    /// AAAA records.
    pub v6: Result<DnsRecords, String>,
    /// Whether the addresses come from the hosts file of this machine.
    pub from_hosts: bool,
    /// Addresses of the name that convey refuses: see [`Lookup::without_local`].
    pub refused: BTreeSet<ServerAddr>,
}

impl Lookup {
    /// Joins two lookups of a name, of which the earlier has not been processed yet. For each
    /// family, the later records replace the earlier ones, unless the later lookup failed.
    #[must_use]
    pub fn join(earlier: Lookup, later: Lookup) -> Lookup {
        let found = |earlier: Result<DnsRecords, String>, later: Result<DnsRecords, String>| {
            if later.is_err() && earlier.is_ok() { earlier } else { later }
        };
        Lookup { v4: found(earlier.v4, later.v4), v6: found(earlier.v6, later.v6), ..later }
    }

    /// Removes loopback and link-local addresses, which mean a different machine on each host. With
    /// such addresses, name servers under foreign control could lead clients to services that only
    /// this host may reach, such as its own or a cloud's metadata. Addresses from the hosts file of
    /// this machine stay, because its owner has such access anyway.
    #[must_use]
    pub fn without_local(mut self) -> Lookup {
        if self.from_hosts {
            return self;
        }
        for family in [&mut self.v4, &mut self.v6] {
            let Ok(records) = family else { continue };
            let (refused, others): (BTreeSet<ServerAddr>, _) =
                take(&mut records.addresses).into_iter().partition(|addr| is_local(addr.ip()));
            records.addresses = others;
            if let Some(first) = refused.first().filter(|_| records.is_empty()) {
                *family = Err(format!(
                    "{first} is a loopback or link-local address, which needs dns.allow_local = true"
                ));
            }
            self.refused.extend(refused);
        }
        self
    }

    /// Time for which the found addresses are valid; `None` if no address was found.
    pub fn ttl(&self) -> Option<Duration> {
        let found = [&self.v4, &self.v6].into_iter().flatten().filter(|records| !records.is_empty());
        found.map(|records| records.ttl).min()
    }

    /// Fault of the lookup; `None` if the queries of both families were answered and at least one
    /// address was found.
    pub fn fault(&self) -> Option<LookupFault> {
        let found = self.ttl().is_some();
        let (missing, why) = match (&self.v4, &self.v6) {
            (Ok(_), Ok(_)) if found => return None,
            (Ok(_), Ok(_)) => (Missing::All, "the name does not exist, or has no address"),
            (Err(why), Ok(_)) if found => (Missing::Records("A"), why.as_str()),
            (Ok(_), Err(why)) if found => (Missing::Records("AAAA"), why.as_str()),
            (Err(why), _) | (_, Err(why)) => (Missing::All, why.as_str()),
        };
        Some(LookupFault { missing, why: why.to_owned() })
    }
}

/// Fault of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupFault {
    /// Records that are missing.
    pub missing: Missing,
    /// Operator-facing reason.
    pub why: String,
}

/// Records that a lookup did not find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// No address was found.
    All,
    /// Records of this type are unknown; the other family has addresses.
    Records(&'static str),
}

impl fmt::Display for LookupFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.missing {
            Missing::All => f.write_str(&self.why),
            Missing::Records(kind) => write!(f, "{kind} records: {}", self.why),
        }
    }
}

/// DNS records of one address family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsRecords {
    addresses: BTreeSet<ServerAddr>,
    ttl: Duration,
}

impl DnsRecords {
    /// Records that are valid for `ttl`. Omits addresses that belong to no machine (RFC 6890),
    /// because some name servers answer 0.0.0.0 for blocked names.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>, ttl: Duration) -> DnsRecords {
        let addresses = addresses.into_iter().filter(|ip| is_of_one_machine(*ip)).map(ServerAddr::from);
        DnsRecords { addresses: addresses.collect(), ttl }
    }

    /// Sets the port of an SRV record for all addresses, and limits the validity to its `ttl`.
    #[must_use]
    pub fn at_port(self, port: u16, ttl: Duration) -> DnsRecords {
        let addresses = self.addresses.iter().map(|addr| ServerAddr(SocketAddr::new(addr.ip(), port)));
        DnsRecords { addresses: addresses.collect(), ttl: self.ttl.min(ttl) }
    }

    /// Joins two sets of records; the shorter validity applies to both.
    #[must_use]
    pub fn and(mut self, others: DnsRecords) -> DnsRecords {
        if self.is_empty() || others.is_empty() {
            return if self.is_empty() { others } else { self };
        }
        self.ttl = self.ttl.min(others.ttl);
        self.addresses.extend(others.addresses);
        self
    }

    /// Whether there are no addresses.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns the addresses; empty if the name does not exist or has no address of this family.
    pub fn into_addresses(self) -> BTreeSet<ServerAddr> {
        self.addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(v4: &[&str], v6: &[&str]) -> Lookup {
        let records = |ips: &[&str]| {
            Ok(DnsRecords::new(ips.iter().map(|ip| ip.parse().unwrap()), Duration::from_secs(60)))
        };
        Lookup {
            host: "app.internal".into(),
            name_servers: vec![],
            v4: records(v4),
            v6: records(v6),
            from_hosts: false,
            refused: BTreeSet::new(),
        }
    }

    #[test]
    fn local_addresses_are_refused_from_dns_but_not_from_hosts() {
        let lookup = found(&["10.0.0.3", "127.0.0.2", "169.254.169.254"], &["::1", "fe80::1"]);
        let hosts = Lookup { from_hosts: true, ..lookup.clone() };
        assert_eq!(hosts.clone().without_local(), hosts);
        let without = lookup.without_local();
        assert_eq!(without.v4, found(&["10.0.0.3"], &[]).v4);
        assert_eq!(
            without.v6.as_ref().unwrap_err(),
            "::1 is a loopback or link-local address, which needs dns.allow_local = true"
        );
        assert_eq!(without.refused.len(), 4);
        assert_eq!(without.fault().unwrap().missing, Missing::Records("AAAA"));
    }
}
