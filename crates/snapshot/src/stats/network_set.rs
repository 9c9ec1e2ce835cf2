//! Estimate of the number of clients' networks, in one 64-bit word for each core.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// Set of clients' networks since the last [`NetworkSet::take`]. Each network sets one of 64 bits.
/// Two networks may share a bit, so the number of bits can be lower than the number of networks.
#[derive(Debug)]
pub struct NetworkSet {
    cores: Box<[CachePadded<AtomicU64>]>,
}

impl NetworkSet {
    /// Creates an empty set for `cores` cores.
    pub fn new(cores: usize) -> NetworkSet {
        NetworkSet { cores: (0..cores).map(|_| CachePadded::default()).collect() }
    }

    /// Adds the network of a client that a core has seen. If the bit is set already, the call is a
    /// plain load.
    #[inline]
    pub fn note(&self, core: usize, client: IpAddr) {
        let (bit, cell) = (1 << bit_of(client), &self.cores[core]);
        if cell.load(Ordering::Relaxed) & bit == 0 {
            cell.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Returns the bits of all cores and clears them.
    pub fn take(&self) -> u64 {
        self.cores.iter().map(|cell| cell.swap(0, Ordering::Relaxed)).fold(0, |all, bits| all | bits)
    }
}

/// Bit of the client's network: the /24 of an IPv4 address, the /64 of an IPv6 address.
fn bit_of(client: IpAddr) -> u32 {
    let network = match client {
        IpAddr::V4(ip) => u64::from(ip.to_bits() >> 8),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    };
    (network.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_set_counts_a_network_once_and_is_reset_by_reading() {
        let networks = NetworkSet::new(2);
        let note = |core, client: &str| networks.note(core, client.parse().unwrap());
        note(0, "192.0.2.1");
        note(1, "192.0.2.200");
        assert_eq!(networks.take().count_ones(), 1);
        assert_eq!(networks.take(), 0);
        note(0, "192.0.2.1");
        note(0, "198.51.100.1");
        note(1, "2001:db8::1");
        note(1, "2001:db8::2");
        assert_eq!(networks.take().count_ones(), 3);
    }
}
