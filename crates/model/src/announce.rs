//! Announced addresses: convey adds them to an interface while their frontends can serve, and
//! routing daemons announce them. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::{FrontendConfig, Listen};

/// `[announce]`: the interface for announced addresses, and the conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnounceConfig {
    /// Interface that gets the addresses of frontends.
    pub interface: String,
    /// Time that a frontend must be unable to serve before its address is withdrawn, and able to
    /// serve before the address returns.
    pub hold: Duration,
    /// Minimum number of available servers of a backend, at least 1. A backend with fewer available
    /// servers is treated like a backend without servers.
    pub min_servers: u32,
}

impl Default for AnnounceConfig {
    fn default() -> AnnounceConfig {
        AnnounceConfig { interface: "lo".to_owned(), hold: Duration::from_secs(2), min_servers: 1 }
    }
}

impl AnnounceConfig {
    /// Addresses of frontends that can be announced. Excludes wildcards, and addresses that are
    /// valid only on this host or its link.
    pub fn addresses<'a>(frontends: impl IntoIterator<Item = &'a FrontendConfig>) -> BTreeSet<IpAddr> {
        AnnounceConfig::addresses_of(frontends.into_iter().flat_map(|frontend| &frontend.listen))
    }

    /// Addresses of these listeners that can be announced.
    pub fn addresses_of<'a>(listens: impl IntoIterator<Item = &'a Listen>) -> BTreeSet<IpAddr> {
        listens.into_iter().map(Listen::ip).filter(|ip| can_be_announced(*ip)).collect()
    }
}

fn can_be_announced(ip: IpAddr) -> bool {
    let stays = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || Ipv6Addr::to_ipv4_mapped(&ip).is_some(),
    };
    !(stays || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_nowhere_else_are_not_announced() {
        for (ip, expected) in [
            ("10.0.0.1", true),
            ("198.51.100.1", true),
            ("2001:db8::1", true),
            ("fd00::1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.0.1", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(can_be_announced(ip.parse().unwrap()), expected, "{ip}");
        }
    }
}
