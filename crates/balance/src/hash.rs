//! Hashes that are equal on every machine and in every release: xxh3 with fixed seeds over explicit
//! bytes in a fixed order. Any change here moves nearly every client to another server.

use std::net::{IpAddr, SocketAddr};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

use convey_model::{HashKey, HashOn};

/// Hash of a flow, for algorithms that hash. All 64 bits are well mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowHash(pub u64);

/// Hashes the fields of a connection from `client` to `vip` that `on` selects.
pub fn flow_hash(on: HashOn, client: SocketAddr, vip: SocketAddr) -> FlowHash {
    const SEED: u64 = u64::from_be_bytes(*b"flowhash");
    let client = address_bytes(client);
    let hash = match on {
        HashOn::Source => xxh3_64_with_seed(&client[..IP], SEED),
        HashOn::Tuple | HashOn::QuicCid => {
            let mut tuple = [0; 2 * ADDRESS];
            tuple[..ADDRESS].copy_from_slice(&client);
            tuple[ADDRESS..].copy_from_slice(&address_bytes(vip));
            xxh3_64_with_seed(&tuple, SEED)
        }
    };
    FlowHash(hash)
}

/// Hashes the value of a request field that identifies the client.
pub fn value_hash(value: &[u8]) -> FlowHash {
    const SEED: u64 = u64::from_be_bytes(*b"reqvalue");
    FlowHash(xxh3_64_with_seed(value, SEED))
}

/// Identity of a server in hash tables. Identities sort by place first, then by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Bytes that determine the server's place in a hash table: address and port, address, or name,
    /// as `hash_key` selects.
    pub(super) place: [u8; ADDRESS],
    /// Address and port of the server. They determine the order of servers that share a place,
    /// regardless of weights and of the order in the configuration file.
    addr: [u8; ADDRESS],
}

impl Identity {
    /// Identity of a server with this name and address; `key` selects the parts that determine its
    /// place.
    pub fn new(key: HashKey, name: &str, addr: SocketAddr) -> Identity {
        let addr = address_bytes(addr);
        let mut place = addr;
        match key {
            HashKey::AddrPort => {}
            HashKey::Addr => place[IP..].fill(0),
            HashKey::Name => {
                place[..IP].copy_from_slice(&xxh3_128(name.as_bytes()).to_be_bytes());
                place[IP..].fill(0);
            }
        }
        Identity { place, addr }
    }
}

impl From<SocketAddr> for Identity {
    fn from(addr: SocketAddr) -> Identity {
        Identity::new(HashKey::AddrPort, "", addr)
    }
}

impl FlowHash {
    /// Hash for the next attempt of the same flow, independent of this hash. So the flows of one
    /// unusable server spread over all others.
    pub(super) fn again(self) -> FlowHash {
        FlowHash(xxh3_64(&self.0.to_le_bytes()))
    }

    /// Maps the hash evenly onto `0..len` (onto 0 if `len` is 0).
    #[inline]
    pub(super) fn below(self, len: usize) -> usize {
        self.below_sum(len as u64) as usize
    }

    /// Maps the hash evenly onto `0..sum`, for a sum of weights.
    #[inline]
    pub(super) fn below_sum(self, sum: u64) -> u64 {
        // The high half of the product is as even as the remainder, and needs a multiplication
        // instead of a division.
        ((u128::from(self.0) * u128::from(sum)) >> 64) as u64
    }
}

impl FlowHash {
    /// Maps the hash evenly onto numbers from 0 to below 1.
    pub(super) fn fraction(self) -> f64 {
        // An `f64` has 53 significant bits.
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Length of an IP address in bytes; an IPv4 address is stored as an IPv4-mapped IPv6 address.
const IP: usize = 16;
/// Length of an address with its port in bytes.
pub(super) const ADDRESS: usize = IP + 2;

/// Bytes of an address and its port, in network order.
///
/// An IPv4 address and its IPv4-mapped form give the same bytes, as the listener's family decides
/// which form convey sees. The bytes contain no scope id, because scope ids differ between
/// machines.
fn address_bytes(addr: SocketAddr) -> [u8; ADDRESS] {
    let ip = match addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    bytes[..IP].copy_from_slice(&ip.octets());
    bytes[IP..].copy_from_slice(&addr.port().to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(on: HashOn, client: &str, vip: &str) -> u64 {
        flow_hash(on, client.parse().unwrap(), vip.parse().unwrap()).0
    }

    #[test]
    fn hashes_are_the_same_on_every_machine_and_in_every_release() {
        let v4 = ("192.0.2.1:40000", "198.51.100.7:443");
        let v6 = ("[2001:db8::1]:40000", "[2001:db8::7]:443");
        assert_eq!(hash(HashOn::Source, v4.0, v4.1), 0x10c9_d385_bf47_7e94);
        assert_eq!(hash(HashOn::Tuple, v4.0, v4.1), 0x0235_31dc_1ea3_d3e1);
        assert_eq!(hash(HashOn::Source, v6.0, v6.1), 0x3290_a286_ec56_8e87);
        assert_eq!(hash(HashOn::Tuple, v6.0, v6.1), 0x1c8e_a599_2937_2cd3);
        assert_eq!(FlowHash(1).again(), FlowHash(0x2fbc_5935_64db_792e));
    }

    #[test]
    fn source_hash_ignores_client_port_and_vip() {
        let first = hash(HashOn::Source, "192.0.2.1:40000", "198.51.100.7:443");
        assert_eq!(first, hash(HashOn::Source, "192.0.2.1:40001", "198.51.100.8:80"));
        assert_ne!(first, hash(HashOn::Source, "192.0.2.2:40000", "198.51.100.7:443"));
    }

    #[test]
    fn every_part_of_a_tuple_counts() {
        let tuples = [
            ("192.0.2.1:40000", "198.51.100.7:443"),
            ("192.0.2.2:40000", "198.51.100.7:443"),
            ("192.0.2.1:40001", "198.51.100.7:443"),
            ("192.0.2.1:40000", "198.51.100.8:443"),
            ("192.0.2.1:40000", "198.51.100.7:444"),
            ("198.51.100.7:443", "192.0.2.1:40000"),
        ];
        let hashes: std::collections::HashSet<u64> =
            tuples.iter().map(|(client, vip)| hash(HashOn::Tuple, client, vip)).collect();
        assert_eq!(hashes.len(), tuples.len());
    }

    #[test]
    fn an_ipv4_client_of_a_dual_stack_listener_is_the_same_client() {
        let seen_as_v4 = hash(HashOn::Tuple, "192.0.2.1:40000", "198.51.100.7:443");
        let seen_as_v6 = hash(HashOn::Tuple, "[::ffff:192.0.2.1]:40000", "[::ffff:198.51.100.7]:443");
        assert_eq!(seen_as_v4, seen_as_v6);
    }

    #[test]
    fn a_hash_maps_onto_the_whole_range_and_never_beyond() {
        assert_eq!(FlowHash(0).below(10), 0);
        assert_eq!(FlowHash(u64::MAX).below(10), 9);
        assert_eq!(FlowHash(u64::MAX / 2).below(10), 4);
        assert_eq!(FlowHash(u64::MAX).below(0), 0);
    }
}
