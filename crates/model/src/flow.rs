//! What identifies a flow, and what is done to its packets. Both have the same bytes everywhere: in a
//! worker's table and in the kernel's flow cache.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IP address of either family in 16 bytes; IPv4 is held as `::ffff:a.b.c.d` (RFC 4291, section
/// 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Addr([u8; 16]);

impl Addr {
    /// From the four bytes of an IPv4 header.
    #[inline]
    pub const fn v4(bytes: [u8; 4]) -> Addr {
        Addr((0xffff << 32 | u32::from_be_bytes(bytes) as u128).to_be_bytes())
    }

    /// From the sixteen bytes of an IPv6 header.
    #[inline]
    pub const fn v6(bytes: [u8; 16]) -> Addr {
        Addr(bytes)
    }

    /// The four bytes for an IPv4 header: those of the address if it is one.
    #[inline]
    pub const fn v4_bytes(&self) -> [u8; 4] {
        let [.., a, b, c, d] = self.0;
        [a, b, c, d]
    }

    /// Whether it is an IPv4 address.
    #[inline]
    pub const fn is_v4(&self) -> bool {
        u128::from_be_bytes(self.0) >> 32 == 0xffff
    }

    /// All sixteen bytes.
    #[inline]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The same bytes as two numbers of the machine's byte order.
    #[inline]
    pub const fn words(&self) -> [u64; 2] {
        let both = u128::from_ne_bytes(self.0);
        [both as u64, (both >> 64) as u64]
    }

    /// The address as the standard library has it.
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

/// What is carried over IP. Its number is that of the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Protocol {
    /// RFC 9293.
    #[default]
    Tcp = 6,
    /// RFC 768.
    Udp = 17,
}

impl Protocol {
    /// Both, in the order the documentation lists them.
    pub const ALL: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

    /// The name in the configuration, in logs and in metrics.
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

/// Where something listens: TCP and UDP have ports of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Address and port.
    pub addr: SocketAddr,
}

impl Endpoint {
    /// A TCP port.
    pub fn tcp(addr: SocketAddr) -> Endpoint {
        Endpoint { protocol: Protocol::Tcp, addr }
    }

    /// A UDP port.
    pub fn udp(addr: SocketAddr) -> Endpoint {
        Endpoint { protocol: Protocol::Udp, addr }
    }
}

/// As in logs: TCP goes without saying.
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

/// What all packets of one direction of a flow have in common. Ports are numbers, not network order.
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
    /// Zero: the bytes of equal keys are equal.
    pub reserved: [u8; 3],
}

impl FlowKey {
    /// A packet of `protocol` from `src` to `dst`.
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

    /// A TCP packet from `src` to `dst`.
    pub fn tcp(src: SocketAddr, dst: SocketAddr) -> FlowKey {
        FlowKey::new(Protocol::Tcp, src, dst)
    }

    /// A UDP packet from `src` to `dst`.
    pub fn udp(src: SocketAddr, dst: SocketAddr) -> FlowKey {
        FlowKey::new(Protocol::Udp, src, dst)
    }

    /// The protocol, if it is one that is forwarded.
    #[inline]
    pub fn transport(&self) -> Option<Protocol> {
        match self.protocol {
            TCP => Some(Protocol::Tcp),
            UDP => Some(Protocol::Udp),
            _ => None,
        }
    }

    /// The key of packets the other way.
    #[inline]
    pub fn reversed(&self) -> FlowKey {
        FlowKey { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port, ..*self }
    }

    /// Where packets come from.
    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(self.src.ip(), self.src_port)
    }

    /// Where packets go to.
    pub fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.dst.ip(), self.dst_port)
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ({})", self.source(), self.destination(), self.protocol)
    }
}

/// What is done to a packet: its new addresses and ports, and where it is sent.
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
    /// Whom to send it to: index into the snapshot's next hops.
    pub next_hop: u32,
}

/// A neighbour that takes packets on to where they are going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Interface to send on.
    pub interface: u32,
    /// That interface's address: the new Ethernet source.
    pub src_mac: [u8; 6],
    /// The neighbour's address: the new Ethernet destination.
    pub dst_mac: [u8; 6],
    /// Longest IP packet the interface takes, in bytes.
    pub mtu: u32,
    /// As [`Interface::redirect_peer`](super::Interface::redirect_peer); the flow cache alone makes use of it.
    pub redirect_peer: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_share_one_form() {
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
