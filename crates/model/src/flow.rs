//! Flow keys and packet rewrites. Both have the same byte layout everywhere: in a worker's table
//! and in the kernel's flow cache.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IP address of either family in 16 bytes; IPv4 is held as `::ffff:a.b.c.d` (RFC 4291, section
/// 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Addr([u8; 16]);

impl Addr {
    /// Builds an address from the four bytes of an IPv4 header.
    #[inline]
    pub const fn v4(bytes: [u8; 4]) -> Addr {
        Addr((0xffff << 32 | u32::from_be_bytes(bytes) as u128).to_be_bytes())
    }

    /// Builds an address from the sixteen bytes of an IPv6 header.
    #[inline]
    pub const fn v6(bytes: [u8; 16]) -> Addr {
        Addr(bytes)
    }

    /// The four bytes for an IPv4 header; meaningful only if the address is IPv4.
    #[inline]
    pub const fn v4_bytes(&self) -> [u8; 4] {
        let [.., a, b, c, d] = self.0;
        [a, b, c, d]
    }

    /// Whether the address is IPv4.
    #[inline]
    pub const fn is_v4(&self) -> bool {
        u128::from_be_bytes(self.0) >> 32 == 0xffff
    }

    /// The address in sixteen bytes; IPv4 is mapped.
    #[inline]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The address as two numbers in the machine's byte order.
    #[inline]
    pub const fn words(&self) -> [u64; 2] {
        let both = u128::from_ne_bytes(self.0);
        [both as u64, (both >> 64) as u64]
    }

    /// The address as a type of the standard library.
    pub fn ip(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.0)).to_canonical()
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Addr {
        match ip {
            IpAddr::V4(ip) => Addr::v4(ip.octets()),
            IpAddr::V6(ip) => Addr::v6(ip.octets()),
        }
    }
}

impl From<Ipv4Addr> for Addr {
    fn from(ip: Ipv4Addr) -> Addr {
        Addr::v4(ip.octets())
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

/// Transport protocol. The value of a variant is its protocol number in the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Protocol {
    /// TCP (RFC 9293).
    #[default]
    Tcp = 6,
    /// UDP (RFC 768).
    Udp = 17,
}

impl Protocol {
    /// Both protocols, in the order the documentation lists them.
    pub const ALL: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

    /// Name in the configuration, in logs and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// The number of [`Protocol::Tcp`].
pub const TCP: u8 = Protocol::Tcp as u8;
/// The number of [`Protocol::Udp`].
pub const UDP: u8 = Protocol::Udp as u8;

/// Protocol, address and port of a listener or server. TCP and UDP have separate ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Address and port.
    pub addr: SocketAddr,
}

impl Endpoint {
    /// TCP port at this address.
    pub fn tcp(addr: SocketAddr) -> Endpoint {
        Endpoint { protocol: Protocol::Tcp, addr }
    }

    /// UDP port at this address.
    pub fn udp(addr: SocketAddr) -> Endpoint {
        Endpoint { protocol: Protocol::Udp, addr }
    }
}

/// Formats as in logs, which mark UDP only.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::Tcp => write!(f, "{}", self.addr),
            Protocol::Udp => write!(f, "{}/udp", self.addr),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Key of a flow in one direction: the fields that all of its packets share. Ports are numbers, not
/// in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowKey {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Always zero, so that equal keys have equal bytes.
    pub reserved: [u8; 3],
}

impl FlowKey {
    /// Key of a `protocol` packet from `src` to `dst`.
    pub fn new(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> FlowKey {
        FlowKey {
            src: src.ip().into(),
            dst: dst.ip().into(),
            src_port: src.port(),
            dst_port: dst.port(),
            protocol: protocol as u8,
            reserved: [0; 3],
        }
    }

    /// Key of a TCP packet from `src` to `dst`.
    pub fn tcp(src: SocketAddr, dst: SocketAddr) -> FlowKey {
        FlowKey::new(Protocol::Tcp, src, dst)
    }

    /// Key of a UDP packet from `src` to `dst`.
    pub fn udp(src: SocketAddr, dst: SocketAddr) -> FlowKey {
        FlowKey::new(Protocol::Udp, src, dst)
    }

    /// Transport protocol; `None` if convey does not forward the protocol.
    #[inline]
    pub fn transport(&self) -> Option<Protocol> {
        match self.protocol {
            TCP => Some(Protocol::Tcp),
            UDP => Some(Protocol::Udp),
            _ => None,
        }
    }

    /// Key of packets in the opposite direction.
    #[inline]
    pub fn reversed(&self) -> FlowKey {
        FlowKey { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port, ..*self }
    }

    /// Source address and port.
    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(self.src.ip(), self.src_port)
    }

    /// Destination address and port.
    pub fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.dst.ip(), self.dst_port)
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ({})", self.source(), self.destination(), self.protocol)
    }
}

/// Rewrite of a packet: new addresses and ports, and the next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Rewrite {
    /// New source address.
    pub src: Addr,
    /// New destination address.
    pub dst: Addr,
    /// New source port.
    pub src_port: u16,
    /// New destination port.
    pub dst_port: u16,
    /// Next hop: index into the snapshot's next hops.
    pub next_hop: u32,
}

/// Next hop: the neighbour that forwards packets to their destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Index of the sending interface.
    pub interface: u32,
    /// Ethernet address of that interface: the new Ethernet source.
    pub src_mac: [u8; 6],
    /// Ethernet address of the neighbour: the new Ethernet destination.
    pub dst_mac: [u8; 6],
    /// MTU of the interface: the longest IP packet, in bytes.
    pub mtu: u32,
    /// Like [`Interface::redirect_peer`](super::Interface::redirect_peer); only the flow cache uses
    /// it.
    pub redirect_peer: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_share_one_form() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!((Addr::from(v4).ip(), Addr::from(v6).ip()), (v4, v6));
        assert_eq!(Addr::from(v4).v4_bytes(), [192, 0, 2, 1]);
    }

    #[test]
    fn keys_and_rewrites_have_the_size_the_kernel_cache_expects() {
        assert_eq!((size_of::<FlowKey>(), size_of::<Rewrite>()), (40, 40));
    }
}
