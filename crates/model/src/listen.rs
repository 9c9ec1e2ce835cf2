//! Listen address of a frontend, with one port or a range of ports.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use thiserror::Error;

/// Address with one port or a range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listen {
    /// Address with its first port.
    first: SocketAddr,
    /// Last port; not below the first.
    last: u16,
}

/// Reason why a text is not a valid [`Listen`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ListenError {
    /// The text is neither an address with a port nor an address with a range of ports.
    #[error(transparent)]
    Address(#[from] AddrParseError),
    /// The range ends below its beginning.
    #[error("a range of ports begins with the lower port")]
    Backwards,
}

impl Listen {
    /// IP address, which may be a wildcard.
    pub fn ip(&self) -> IpAddr {
        self.first.ip()
    }

    /// Whether the address is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// Ports of the range, which may be a single port.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.first.port()..=self.last
    }

    /// Address with each port of the range.
    pub fn addrs(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let mut addr = self.first;
        self.ports().map(move |port| {
            addr.set_port(port);
            addr
        })
    }

    /// Address with its first port.
    pub fn first(&self) -> SocketAddr {
        self.first
    }

    /// Whether the range has more than one port.
    pub(crate) fn is_range(&self) -> bool {
        self.first.port() != self.last
    }
}

impl From<SocketAddr> for Listen {
    fn from(addr: SocketAddr) -> Listen {
        Listen { first: addr, last: addr.port() }
    }
}

/// Parses `IP:PORT` or `IP:FIRST-LAST`. Without an IP, the address is the IPv4 wildcard.
impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Listen, ListenError> {
        let full = match text.strip_prefix(':') {
            Some(ports) => format!("{}:{ports}", Ipv4Addr::UNSPECIFIED),
            None => text.to_owned(),
        };
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let range = full.rsplit_once('-').filter(|(_, last)| is_number(last));
        let Some((first, Ok(last))) = range.map(|(first, last)| (first, last.parse())) else {
            return Ok(full.parse::<SocketAddr>()?.into());
        };
        let first: SocketAddr = first.parse()?;
        if first.port() <= last { Ok(Listen { first, last }) } else { Err(ListenError::Backwards) }
    }
}

/// Formats as in the configuration.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.is_range() { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

/// Whether sockets at these addresses would conflict: both have the same port and address family,
/// and their IP addresses are equal or one is a wildcard.
pub fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let wildcard = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.is_ipv4() == b.is_ipv4() && (a.ip() == b.ip() || wildcard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_overlaps_every_address_of_its_family_and_port() {
        let overlap = |a: &str, b: &str| {
            let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(overlap(a, b), overlap(b, a));
            overlap(a, b)
        };
        assert!(overlap("0.0.0.0:80", "10.0.0.1:80") && overlap("[::]:80", "[fd00::1]:80"));
        assert!(overlap("10.0.0.1:80", "10.0.0.1:80"));
        for (a, b) in
            [("0.0.0.0:80", "10.0.0.1:81"), ("0.0.0.0:80", "[::]:80"), ("10.0.0.1:80", "10.0.0.2:80")]
        {
            assert!(!overlap(a, b), "{a} {b}");
        }
    }

    #[test]
    fn a_range_has_every_port_from_its_first_to_its_last() {
        let listen: Listen = "[fd00::1]:21000-21002".parse().unwrap();
        let addrs: Vec<String> = listen.addrs().map(|addr| addr.to_string()).collect();
        assert_eq!(addrs, ["[fd00::1]:21000", "[fd00::1]:21001", "[fd00::1]:21002"]);
        assert_eq!("10.0.0.1:65534-65535".parse::<Listen>().unwrap().addrs().count(), 2);
    }

    #[test]
    fn listen_address_round_trips_through_its_text() {
        for text in ["10.0.0.1:80", "10.0.0.1:21000-21010", "[::]:80", "[fd00::1]:21000-21010"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!(":21000-21010".parse::<Listen>().unwrap().to_string(), "0.0.0.0:21000-21010");
        assert_eq!("10.0.0.1:80-80".parse::<Listen>().unwrap(), "10.0.0.1:80".parse().unwrap());
    }

    #[test]
    fn invalid_port_ranges_are_refused() {
        assert_eq!("10.0.0.1:81-80".parse::<Listen>(), Err(ListenError::Backwards));
        for text in
            ["10.0.0.1", "10.0.0.1:", "10.0.0.1:80-", "10.0.0.1:-80", "10.0.0.1:80-65536", "80-81", ":a-b"]
        {
            assert!(matches!(text.parse::<Listen>(), Err(ListenError::Address(_))), "{text}");
        }
    }
}
