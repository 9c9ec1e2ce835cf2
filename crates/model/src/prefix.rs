//! Networks: addresses with a common prefix.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Network prefix of one address family (`10.0.0.0/8`). The bits after the prefix are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    ip: IpAddr,
    len: u8,
}

impl Prefix {
    /// Network of `len` bits that contains `ip`; `len` is capped at 32 for IPv4 and 128 for IPv6.
    pub fn of(ip: IpAddr, len: u8) -> Prefix {
        match ip {
            IpAddr::V4(v4) => {
                let len = len.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Prefix { ip: IpAddr::V4((v4.to_bits() & mask).into()), len }
            }
            IpAddr::V6(v6) => {
                let len = len.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Prefix { ip: IpAddr::V6((v6.to_bits() & mask).into()), len }
            }
        }
    }

    /// First address of the network.
    pub fn first(&self) -> IpAddr {
        self.ip
    }

    /// Prefix length in bits.
    #[expect(clippy::len_without_is_empty, reason = "a length of bits")]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Address in the network, with the low bits of `number` as its host bits.
    pub fn member(&self, number: u128) -> IpAddr {
        match self.ip {
            IpAddr::V4(ip) => {
                let rest = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
                IpAddr::V4((ip.to_bits() | number as u32 & rest).into())
            }
            IpAddr::V6(ip) => {
                let rest = u128::MAX.checked_shr(self.len.into()).unwrap_or(0);
                IpAddr::V6((ip.to_bits() | number & rest).into())
            }
        }
    }

    /// First and last address of an IPv4 network as numbers; `None` for IPv6.
    pub(crate) fn v4_range(&self) -> Option<(u32, u32)> {
        let IpAddr::V4(ip) = self.ip else { return None };
        let rest = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
        Some((ip.to_bits(), ip.to_bits() | rest))
    }

    /// First and last address of an IPv6 network as numbers; `None` for IPv4.
    pub(crate) fn v6_range(&self) -> Option<(u128, u128)> {
        let IpAddr::V6(ip) = self.ip else { return None };
        let rest = u128::MAX.checked_shr(self.len.into()).unwrap_or(0);
        Some((ip.to_bits(), ip.to_bits() | rest))
    }

    /// Whether an address is in the network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.ip.is_ipv4() && Prefix::of(ip, self.len) == *self
    }

    /// Parses an address with its prefix length (`10.0.0.1/8`), and returns the network that
    /// contains the address. `None` if the text is invalid.
    pub fn around(text: &str) -> Option<Prefix> {
        address_and_len(text).map(|(ip, len)| Prefix::of(ip, len))
    }
}

fn address_and_len(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = text.split_once('/').map_or((text, None), |(ip, len)| (ip, Some(len)));
    let ip: IpAddr = ip.parse().ok()?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let len = len.map_or(Some(most), |len| len.parse().ok())?;
    (len <= most).then_some((ip, len))
}

impl FromStr for Prefix {
    type Err = ();

    /// Parses a network such as `10.0.0.0/8`. Without a length, the network is the single address.
    fn from_str(text: &str) -> Result<Prefix, ()> {
        let (ip, len) = address_and_len(text).ok_or(())?;
        Some(Prefix::of(ip, len)).filter(|prefix| prefix.ip == ip).ok_or(())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(prefix: &str, ip: &str) -> bool {
        prefix.parse::<Prefix>().unwrap().contains(ip.parse().unwrap())
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_like_it() {
        for (prefix, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "255.1.2.3", "::"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("::1/128", "::1", "::2"),
        ] {
            assert!(contains(prefix, inside) && !contains(prefix, outside), "{prefix}");
        }
    }

    #[test]
    fn invalid_prefixes_are_refused() {
        for text in ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "2001:db8::/129", "web"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        assert_eq!(Prefix::around("10.0.0.1/8"), "10.0.0.0/8".parse().ok());
        assert_eq!(Prefix::around("10.0.0.1/33"), None);
    }
}
