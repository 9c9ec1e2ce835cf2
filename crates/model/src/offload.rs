//! Offload: forwarding of open flows' packets in the kernel.

use std::fmt;

/// Offload setting: whether and where the kernel forwards packets of open flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// The earliest hook that every interface supports; no offload if the kernel does not permit
    /// offload.
    #[default]
    Auto,
    /// BPF program at tc ingress, which every interface has.
    Tc,
    /// BPF program in the interfaces' drivers (native XDP).
    Xdp,
    /// No offload: workers forward every packet.
    Off,
}

impl Offload {
    /// All settings, in the order the documentation lists them.
    pub const ALL: [Offload; 4] = [Offload::Auto, Offload::Tc, Offload::Xdp, Offload::Off];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Offload::Auto => "auto",
            Offload::Tc => "tc",
            Offload::Xdp => "xdp",
            Offload::Off => "off",
        }
    }

    /// Layer that forwards packets received on these interfaces. All interfaces share one layer,
    /// because a driver without XDP drops packets that an XDP program of another interface sends
    /// through it.
    pub fn layer<'a>(self, nics: impl IntoIterator<Item = &'a Nic>) -> Layer {
        match self {
            Offload::Off => Layer::Worker,
            Offload::Tc => Layer::Tc,
            Offload::Xdp => Layer::Xdp,
            Offload::Auto if nics.into_iter().all(Nic::has_native_xdp) => Layer::Xdp,
            Offload::Auto => Layer::Tc,
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Layer that forwards packets of open flows received on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// XDP: the kernel, in the interface's driver (native XDP).
    Xdp,
    /// tc: the kernel, before its network stack (tc ingress).
    Tc,
    /// Worker of convey, in user space.
    Worker,
}

impl Layer {
    /// Name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Xdp => "xdp",
            Layer::Tc => "tc",
            Layer::Worker => "worker",
        }
    }
}

/// Result of a packet's lookup in the kernel's flow cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CacheOutcome {
    /// The kernel forwarded the packet. With every other result, a worker receives the packet.
    Forwarded,
    /// TCP segment with SYN, FIN or RST. The segment belongs to a known flow, and changes the state
    /// of its connection.
    ChangesState,
    /// Packet of a known flow. The TTL or hop limit of the packet has expired.
    Expired,
    /// Packet of a known flow. The packet exceeds the MTU of the next hop.
    TooBig,
    /// Packet of a known flow. The next hop has no known link-layer address.
    NoNextHop,
    /// Packet from the server of a known flow, received on an interface other than the server's.
    OtherInterface,
    /// Large segment of a known flow, retransmitted by the sender after a pause. The segment may
    /// not have been acknowledged before.
    Repeated,
    /// Packet to an address of convey that needs a worker: with IP options, extension headers or
    /// fragments, or for a tunnel that only workers support.
    Unusual,
    /// Retransmitted SYN. The kernel dropped its first transmission in a SYN flood. Forged sources
    /// do not retransmit.
    CameAgain,
}

impl CacheOutcome {
    /// All results, in the order of their numbers.
    pub const ALL: [CacheOutcome; CacheOutcome::CameAgain as usize + 1] = [
        CacheOutcome::Forwarded,
        CacheOutcome::ChangesState,
        CacheOutcome::Expired,
        CacheOutcome::TooBig,
        CacheOutcome::NoNextHop,
        CacheOutcome::OtherInterface,
        CacheOutcome::Repeated,
        CacheOutcome::Unusual,
        CacheOutcome::CameAgain,
    ];

    /// Name in metrics; lower case with underscores.
    pub fn label(self) -> &'static str {
        match self {
            CacheOutcome::Forwarded => "forwarded",
            CacheOutcome::ChangesState => "changes_state",
            CacheOutcome::Expired => "expired",
            CacheOutcome::TooBig => "too_big",
            CacheOutcome::NoNextHop => "no_next_hop",
            CacheOutcome::OtherInterface => "other_interface",
            CacheOutcome::Repeated => "repeated",
            CacheOutcome::Unusual => "unusual",
            CacheOutcome::CameAgain => "came_again",
        }
    }
}

/// Properties of an interface that determine whether XDP is useful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Name of the driver; `None` if the interface does not report one. Virtual interfaces such as
    /// veth, bridge and bonding have one, too.
    pub driver: Option<String>,
    /// Longest IP packet, in bytes.
    pub mtu: u32,
}

/// Drivers that run XDP programs and send frames redirected from other drivers (`ndo_xdp_xmit`).
/// The list does not contain virtio_net on purpose: XDP there disables super-frames and checksum
/// offload, which costs more than XDP gains.
const WITH_XDP: [&str; 20] = [
    "atlantic",
    "bnxt_en",
    "dpaa2-eth",
    "ena",
    "enetc",
    "gve",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "sfc",
    "stmmac",
];

/// Maximum MTU for XDP, in bytes: the frame must fit in one page of 4,096 bytes together with the
/// kernel's metadata before and after it.
const XDP_MTU: u32 = 3_498;

impl Nic {
    fn has_native_xdp(&self) -> bool {
        self.mtu <= XDP_MTU && self.driver.as_deref().is_some_and(|driver| WITH_XDP.contains(&driver))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(driver: &str, mtu: u32) -> Nic {
        Nic { driver: (!driver.is_empty()).then(|| driver.to_owned()), mtu }
    }

    #[test]
    fn the_kernel_forwards_as_early_as_every_interface_allows() {
        for (drivers, expected) in [
            (&[("ixgbe", 1_500)][..], Layer::Xdp),
            (&[("mlx5_core", 3_498), ("ice", 1_500)], Layer::Xdp),
            (&[("mlx5_core", 9_000)], Layer::Tc),
            (&[("ixgbe", 1_500), ("veth", 1_500)], Layer::Tc),
            (&[("virtio_net", 1_500)], Layer::Tc),
            (&[("bonding", 1_500)], Layer::Tc),
            (&[("", 1_500)], Layer::Tc),
        ] {
            let nics: Vec<Nic> = drivers.iter().map(|(driver, mtu)| nic(driver, *mtu)).collect();
            assert_eq!(Offload::Auto.layer(&nics), expected, "{drivers:?}");
        }
    }

    #[test]
    fn configured_offload_overrides_interface_detection() {
        for nics in [[nic("ixgbe", 1_500)], [nic("", 9_000)]] {
            let layers = [Offload::Tc, Offload::Xdp, Offload::Off].map(|offload| offload.layer(&nics));
            assert_eq!(layers, [Layer::Tc, Layer::Xdp, Layer::Worker]);
        }
    }
}
