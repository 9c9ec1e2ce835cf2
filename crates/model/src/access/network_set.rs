//! Set of networks. Pure.

use std::fmt;
use std::net::IpAddr;

use super::{Access, Prefix};

/// Set of networks, written in the configuration or in files that it names. Clones share the
/// networks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSet(Access);

/// Number of networks up to which a set is shown with all of them.
const MAX_SHOWN: usize = 8;

impl NetworkSet {
    /// Returns the set of the networks that are allowed in these lists.
    pub fn of_allowed(access: Access) -> NetworkSet {
        NetworkSet(access)
    }

    /// Whether the set has no network.
    pub fn is_empty(&self) -> bool {
        self.0.is_open()
    }

    /// Whether an address is in one of the networks. An IPv4-mapped address is treated as an IPv4
    /// address. Takes time logarithmic in the number of networks.
    pub fn contains(&self, ip: IpAddr) -> bool {
        !self.is_empty() && self.0.admits(ip)
    }

    /// The networks, sorted.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        self.0.allowed()
    }

    /// Whether the set is small enough to show each of its networks.
    pub fn is_short(&self) -> bool {
        self.iter().nth(MAX_SHOWN).is_none()
    }

    /// Numbers of networks that were added and removed since `old`.
    pub fn changes_since(&self, old: &NetworkSet) -> (usize, usize) {
        self.0.changes_since(&old.0)
    }
}

impl FromIterator<Prefix> for NetworkSet {
    fn from_iter<T: IntoIterator<Item = Prefix>>(networks: T) -> NetworkSet {
        NetworkSet(Access::new(networks, []))
    }
}

/// Formats as `10.0.0.0/8, 192.0.2.1/32`, or as `22 networks` if there are many.
impl fmt::Display for NetworkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_short() {
            return write!(f, "{} networks", self.iter().count());
        }
        let shown: Vec<String> = self.iter().map(|network| network.to_string()).collect();
        f.write_str(&shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(networks: impl IntoIterator<Item = String>) -> NetworkSet {
        networks.into_iter().map(|network| network.parse().unwrap()).collect()
    }

    #[test]
    fn network_set_contains_the_addresses_of_its_networks() {
        let proxies = set(["10.0.0.0/8", "2001:db8::/32"].map(str::to_owned));
        for (ip, expected) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("11.0.0.1", false),
            ("2001:db8::1", true),
            ("::1", false),
        ] {
            assert_eq!(proxies.contains(ip.parse().unwrap()), expected, "{ip}");
            assert!(!NetworkSet::default().contains(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn network_set_is_shown_by_its_networks_or_their_number() {
        assert_eq!(NetworkSet::default().to_string(), "");
        assert_eq!(set(["10.0.0.0/8".into(), "::1".into()]).to_string(), "10.0.0.0/8, ::1/128");
        assert_eq!(set((0..9).map(|n| format!("10.0.0.{n}"))).to_string(), "9 networks");
    }
}
