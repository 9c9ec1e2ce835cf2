//! Socket address that one thread writes without a lock. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU64, Ordering};

/// Optional socket address in three numbers. A reader in another thread may see parts of two
/// addresses; the worker's thread both writes and reads.
#[derive(Debug, Default)]
pub(super) struct AtomicAddr {
    ip: [AtomicU64; 2],
    /// Port in the lowest 16 bits, the interface (scope id) above, and the kind of the address in
    /// the highest bits.
    port: AtomicU64,
}

const IS_V4: u64 = 1 << 62;
const IS_V6: u64 = 1 << 63;

impl AtomicAddr {
    pub(super) fn store(&self, addr: Option<SocketAddr>) {
        let (ip, rest) = match addr {
            None => ([0; 2], 0),
            Some(SocketAddr::V4(v4)) => ([u64::from(v4.ip().to_bits()), 0], IS_V4 | u64::from(v4.port())),
            Some(SocketAddr::V6(v6)) => {
                let ip = v6.ip().to_bits();
                let scope = u64::from(v6.scope_id()) << 16;
                ([ip as u64, (ip >> 64) as u64], IS_V6 | scope | u64::from(v6.port()))
            }
        };
        self.ip.iter().zip(ip).for_each(|(place, part)| place.store(part, Ordering::Relaxed));
        self.port.store(rest, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> Option<SocketAddr> {
        let [low, high] = self.ip.each_ref().map(|part| part.load(Ordering::Relaxed));
        let rest = self.port.load(Ordering::Relaxed);
        let port = rest as u16;
        if rest & IS_V4 != 0 {
            return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(low as u32)), port));
        }
        let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        let scope = (rest >> 16) as u32;
        (rest & IS_V6 != 0).then(|| SocketAddrV6::new(ip, port, 0, scope).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_address_is_loaded_as_it_was() {
        let addr = AtomicAddr::default();
        assert_eq!(addr.load(), None);
        let link_local = SocketAddrV6::new("fe80::1".parse().unwrap(), 65_535, 0, u32::MAX);
        for stored in [
            Some("192.0.2.1:80".parse().unwrap()),
            Some("0.0.0.0:0".parse().unwrap()),
            Some("[2001:db8::7]:443".parse().unwrap()),
            Some("[::ffff:192.0.2.1]:80".parse().unwrap()),
            Some(link_local.into()),
            None,
        ] {
            addr.store(stored);
            assert_eq!(addr.load(), stored);
        }
    }
}
