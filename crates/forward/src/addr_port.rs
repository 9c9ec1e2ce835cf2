//! Address with a port, as in the keys of flows. Pure.

use convey_model::{Addr, FlowKey};

/// Address and port of a server, or of convey towards a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddrPort {
    /// Address.
    pub addr: Addr,
    /// Port.
    pub port: u16,
}

impl AddrPort {
    /// Combines an address and a port.
    pub const fn new(addr: Addr, port: u16) -> AddrPort {
        AddrPort { addr, port }
    }

    /// Source of packets with this key.
    pub fn source(key: &FlowKey) -> AddrPort {
        AddrPort { addr: key.src, port: key.src_port }
    }

    /// Destination of packets with this key.
    pub fn destination(key: &FlowKey) -> AddrPort {
        AddrPort { addr: key.dst, port: key.dst_port }
    }
}
