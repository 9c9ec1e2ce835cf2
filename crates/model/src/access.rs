//! Access lists of clients: networks that are allowed, and networks that are denied. Pure.

mod network_set;
mod ranges;

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::Prefix;
pub use network_set::NetworkSet;
use ranges::Ranges;

/// Access lists of a frontend. The default admits every client. Clones share the lists.
///
/// The longest prefix that contains an address decides; an address whose longest prefix is on both
/// lists is denied. An address in no network is admitted, unless the allow list has an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access(Option<Arc<AccessLists>>);

#[derive(Debug)]
struct AccessLists {
    allowed: BTreeSet<Prefix>,
    denied: BTreeSet<Prefix>,
    v4: Ranges<u32>,
    v6: Ranges<u128>,
    files: Vec<AccessFile>,
}

/// Lists are equal regardless of the files that they were read from.
impl PartialEq for AccessLists {
    fn eq(&self, other: &AccessLists) -> bool {
        (&self.allowed, &self.denied) == (&other.allowed, &other.denied)
    }
}

impl Eq for AccessLists {}

/// File that networks were read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFile {
    /// Whether the file is an allow list.
    pub is_allowed: bool,
    /// Path of the file.
    pub path: PathBuf,
    /// Fingerprint of the text that was read: see [`AccessFile::fingerprint`].
    pub fingerprint: u64,
}

impl AccessFile {
    /// Hash of a file's text, comparable within this process.
    pub fn fingerprint(text: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }
}

impl Access {
    /// Builds lists of these networks. A lookup takes time logarithmic in their number.
    pub fn new(
        allowed: impl IntoIterator<Item = Prefix>,
        denied: impl IntoIterator<Item = Prefix>,
    ) -> Access {
        Access::from_files(allowed, denied, Vec::new())
    }

    /// Like [`Access::new`], for networks that were read from files. Equality ignores the files.
    pub fn from_files(
        allowed: impl IntoIterator<Item = Prefix>,
        denied: impl IntoIterator<Item = Prefix>,
        files: Vec<AccessFile>,
    ) -> Access {
        let (allowed, denied): (BTreeSet<_>, BTreeSet<_>) =
            (allowed.into_iter().collect(), denied.into_iter().collect());
        if allowed.is_empty() && denied.is_empty() {
            return Access::default();
        }
        // Denied networks come last, because the later of two equal ranges applies.
        let all = || allowed.iter().map(|net| (net, true)).chain(denied.iter().map(|net| (net, false)));
        let rest = allowed.is_empty();
        let v4 = Ranges::new(rest, all().filter_map(|(net, is_let_in)| Some((net.v4_range()?, is_let_in))));
        let v6 = Ranges::new(rest, all().filter_map(|(net, is_let_in)| Some((net.v6_range()?, is_let_in))));
        Access(Some(Arc::new(AccessLists { allowed, denied, v4, v6, files })))
    }

    /// Files that networks were read from.
    pub fn files(&self) -> &[AccessFile] {
        self.0.as_ref().map_or(&[], |lists| &lists.files)
    }

    /// Whether the lists admit every client.
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Networks of the allow list, sorted.
    fn allowed(&self) -> impl Iterator<Item = Prefix> {
        self.0.iter().flat_map(|lists| &lists.allowed).copied()
    }

    /// Whether the lists admit a client. An IPv4-mapped address is treated as an IPv4 address.
    pub fn admits(&self, client: IpAddr) -> bool {
        let Some(lists) = &self.0 else { return true };
        match client.to_canonical() {
            IpAddr::V4(ip) => lists.v4.get(ip.to_bits()),
            IpAddr::V6(ip) => lists.v6.get(ip.to_bits()),
        }
    }

    /// Network that decides about a client, and whether that network is on the allow list; `None`
    /// if no network contains the client.
    pub fn network_of(&self, client: IpAddr) -> Option<(Prefix, bool)> {
        let client = client.to_canonical();
        let longest = if client.is_ipv4() { 32 } else { 128 };
        self.0.as_ref()?.longest_around(client, longest)
    }

    /// Deny-list entry because of which clients in this network are denied: an entry within the
    /// network, or an enclosing entry that decides about the whole network. `None` if there is no
    /// such entry.
    pub fn denied_in(&self, network: Prefix) -> Option<Prefix> {
        let lists = self.0.as_ref()?;
        // Networks sort by their first address, and then by length.
        let within = lists.denied.range(network..).next().copied();
        let within = within.filter(|denied| network.contains(denied.first()));
        let around = || lists.longest_around(network.first(), network.len());
        within.or_else(|| around().filter(|(_, is_allowed)| !is_allowed).map(|(denied, _)| denied))
    }

    /// Whether two values share their lists in memory, rather than have equal copies.
    #[cfg(any(test, feature = "test-util"))]
    pub fn shares_lists_with(&self, other: &Access) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (own, others) => own.is_none() && others.is_none(),
        }
    }

    /// Numbers of networks that were added and removed since `old`.
    pub fn changes_since(&self, old: &Access) -> (usize, usize) {
        let count = |new: &Access, old: &Access| {
            let [new, old] = [new, old].map(|access| access.0.as_deref());
            let of = |pick: fn(&AccessLists) -> &BTreeSet<Prefix>| {
                let old = old.map(pick);
                new.map_or(0, |new| {
                    pick(new).iter().filter(|net| old.is_none_or(|o| !o.contains(net))).count()
                })
            };
            of(|lists| &lists.allowed) + of(|lists| &lists.denied)
        };
        (count(self, old), count(old, self))
    }
}

impl AccessLists {
    /// Longest listed network of at most `longest` bits that contains an address, and whether it is
    /// allowed; `None` if there is none.
    fn longest_around(&self, ip: IpAddr, longest: u8) -> Option<(Prefix, bool)> {
        (0..=longest).rev().map(|len| Prefix::of(ip, len)).find_map(|network| {
            let is_listed = self.denied.contains(&network) || self.allowed.contains(&network);
            is_listed.then(|| (network, !self.denied.contains(&network)))
        })
    }
}

/// Formats as `networks: 2 allowed, 1 denied`.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |pick: fn(&AccessLists) -> &BTreeSet<Prefix>| {
            self.0.as_ref().map_or(0, |lists| pick(lists).len())
        };
        match (count(|lists| &lists.allowed), count(|lists| &lists.denied)) {
            (0, 0) => f.write_str("everybody"),
            (allowed, denied) => write!(f, "networks: {allowed} allowed, {denied} denied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn access(allowed: &[&str], denied: &[&str]) -> Access {
        let read =
            |networks: &[&str]| networks.iter().map(|net| net.parse().unwrap()).collect::<Vec<Prefix>>();
        Access::new(read(allowed), read(denied))
    }

    fn admits(access: &Access, ip: &str) -> bool {
        access.admits(ip.parse().unwrap())
    }

    #[test]
    fn longest_prefix_decides_and_an_allow_list_denies_the_rest() {
        for (allowed, denied, let_in, kept_out) in [
            (&[][..], &[][..], &["10.0.0.1", "::1"][..], &[][..]),
            (&[], &["10.0.0.0/8"], &["11.0.0.0", "9.255.255.255", "::1"], &["10.0.0.0", "10.255.255.255"]),
            (&["10.0.0.0/8"], &[], &["10.1.2.3"], &["192.0.2.1", "2001:db8::1"]),
            (&["10.1.0.0/16"], &["10.0.0.0/8"], &["10.1.0.0", "10.1.255.255"], &["10.0.255.255", "10.2.0.0"]),
            (&["10.0.0.0/8"], &["10.1.0.0/16", "10.1.2.3"], &["10.2.0.0"], &["10.1.2.3", "10.1.2.4"]),
            (&["10.0.0.1"], &["10.0.0.1"], &[], &["10.0.0.1", "10.0.0.2"]),
            (&["0.0.0.0/0"], &["255.255.255.255"], &["0.0.0.0", "255.255.255.254"], &["255.255.255.255"]),
            (&["2001:db8::/32"], &["2001:db8:1::/48"], &["2001:db8:2::1"], &["2001:db8:1::9", "10.0.0.1"]),
        ] {
            let access = access(allowed, denied);
            for (ips, expected) in [(let_in, true), (kept_out, false)] {
                ips.iter()
                    .for_each(|ip| assert_eq!(admits(&access, ip), expected, "{allowed:?} {denied:?} {ip}"));
            }
        }
    }

    #[test]
    fn a_client_of_ipv4_is_the_same_at_a_socket_of_ipv6() {
        assert!(!admits(&access(&[], &["10.0.0.0/8"]), "::ffff:10.0.0.1"));
    }

    #[test]
    fn denied_addresses_of_a_network_are_found() {
        for (allowed, denied, network, found) in [
            (&[][..], &["10.6.0.0/16"][..], "10.6.6.6", Some("10.6.0.0/16")),
            (&[], &["10.6.0.0/16"], "10.0.0.0/8", Some("10.6.0.0/16")),
            (&[], &["10.6.0.0/16", "::/0"], "10.6.0.0/16", Some("10.6.0.0/16")),
            (&[], &["10.6.0.0/16", "10.8.0.0/16"], "10.7.0.0/16", None),
            (&[], &["10.6.0.0/16", "10.6.0.0/8"], "10.6.0.0/24", Some("10.6.0.0/16")),
            (&["10.6.6.0/24"], &["10.6.0.0/16"], "10.6.6.6", None),
            (&["10.6.6.0/24"], &["10.6.6.6"], "10.6.6.0/24", Some("10.6.6.6")),
            (&["10.0.0.0/8"], &[], "192.0.2.1", None),
            (&[], &["2001:db8::/32"], "2001:db8::5", Some("2001:db8::/32")),
            (&[], &["::/0"], "10.0.0.1", None),
        ] {
            let prefix = |text: &str| Prefix::around(text).unwrap();
            let access = Access::new(allowed.iter().map(|a| prefix(a)), denied.iter().map(|d| prefix(d)));
            assert_eq!(
                access.denied_in(prefix(network)),
                found.map(prefix),
                "{allowed:?} {denied:?} {network}"
            );
        }
    }

    #[test]
    fn access_changes_are_counted() {
        let [old, new] =
            [access(&["10.0.0.0/8"], &["10.1.0.0/16"]), access(&["10.0.0.0/8"], &["10.2.0.0/16", "::1"])];
        assert_eq!((new.changes_since(&old), new.changes_since(&Access::default())), ((2, 1), (3, 0)));
        assert_eq!(Access::default().changes_since(&new), (0, 3));
        assert_eq!(new.to_string(), "networks: 1 allowed, 2 denied");
    }

    /// Addresses of few varied bits, so that networks lie within and beside each other; long
    /// prefixes vary in the last bits, too.
    fn networks() -> impl Strategy<Value = Vec<Prefix>> {
        let v4 = (any::<u32>(), 0..=32_u8).prop_map(|(bits, len)| {
            let bits = (bits & 0x0300_0003) | if bits & 0x10 == 0 { 0 } else { 0xfc00_0000 };
            Prefix::of(Ipv4Addr::from_bits(bits).into(), len)
        });
        let v6 = (any::<u128>(), 0..=128_u8).prop_map(|(bits, len)| {
            Prefix::of(std::net::Ipv6Addr::from_bits(bits & (3 << 126 | 3)).into(), len)
        });
        proptest::collection::vec(prop_oneof![3 => v4, 1 => v6], 0..24)
    }

    /// Reference lookup that examines each network.
    fn scan(allowed: &[Prefix], denied: &[Prefix], ip: IpAddr) -> bool {
        let longest = |networks: &[Prefix]| networks.iter().filter(|n| n.contains(ip)).map(Prefix::len).max();
        match (longest(allowed), longest(denied)) {
            (None, None) => allowed.is_empty(),
            (allowed, denied) => allowed > denied,
        }
    }

    proptest! {
        #[test]
        fn a_lookup_finds_what_a_scan_of_all_networks_finds(
            allowed in networks(), denied in networks(), ips in networks(),
        ) {
            let access = Access::new(allowed.clone(), denied.clone());
            // Tests the first and the last address of each network, and the neighbours of both.
            for net in allowed.iter().chain(&denied).chain(&ips) {
                let edges: Vec<IpAddr> = match (net.v4_range(), net.v6_range()) {
                    (Some((a, b)), _) => [a, b, a.wrapping_sub(1), b.wrapping_add(1)]
                        .map(|bits| Ipv4Addr::from_bits(bits).into()).into(),
                    (_, Some((a, b))) => [a, b, a.wrapping_sub(1), b.wrapping_add(1)]
                        .map(|bits| std::net::Ipv6Addr::from_bits(bits).into()).into(),
                    _ => vec![],
                };
                for ip in edges.into_iter().filter(|ip| ip.to_canonical() == *ip) {
                    prop_assert_eq!(access.admits(ip), scan(&allowed, &denied, ip), "{}", ip);
                    let decided = access.network_of(ip);
                    prop_assert_eq!(access.admits(ip), decided.map_or(allowed.is_empty(), |(_, lets_in)| lets_in));
                    prop_assert!(decided.is_none_or(|(network, _)| network.contains(ip)), "{} {:?}", ip, decided);
                }
            }
        }
    }
}
