//! Where packets of open flows are forwarded.

use std::fmt;

/// Whether the kernel forwards packets of open flows by itself, as the configuration has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// As early as every interface allows; not at all where the kernel does not permit it.
    #[default]
    Auto,
    /// By a BPF program on tc ingress, which every interface has.
    Tc,
    /// By a BPF program in the interfaces' drivers (native XDP).
    Xdp,
    /// Never: every packet comes to the workers.
    Off,
}

impl Offload {
    /// All of them, in the order the documentation lists them.
    pub const ALL: [Offload; 4] = [Offload::Auto, Offload::Tc, Offload::Xdp, Offload::Off];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Offload::Auto => "auto",
            Offload::Tc => "tc",
            Offload::Xdp => "xdp",
            Offload::Off => "off",
        }
    }

    /// Where packets that come in on these interfaces are to be forwarded. It is the same for all: a driver without XDP
    /// drops what the program of another sends through it.
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

/// The part that forwards packets of open flows that come in on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The kernel, in the interface's driver (native XDP).
    Xdp,
    /// The kernel, before its network stack (tc ingress).
    Tc,
    /// A worker of ours.
    Worker,
}

impl Layer {
    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Xdp => "xdp",
            Layer::Tc => "tc",
            Layer::Worker => "worker",
        }
    }
}

/// What the kernel's flow cache did with a packet that it might have forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CacheOutcome {
    /// Forwarded it. All others were left to a worker.
    Forwarded,
    /// A segment of a known flow with SYN, FIN or RST, on which the state of its connection depends.
    ChangesState,
    /// Of a known flow, but it may go no further: TTL or hop limit is at its end.
    Expired,
    /// Of a known flow, but longer than its next hop takes.
    TooBig,
    /// Of a known flow whose next hop's link-layer address is not known.
    NoNextHop,
    /// Of a known flow's server, but not from the interface to that server.
    OtherInterface,
    /// A large segment of a known flow that its sender sends again after a pause: nobody may have acknowledged it.
    Repeated,
    /// To an address of ours, with IP options, extension headers or in fragments; or one that a worker alone can put into its tunnel.
    Unusual,
    /// A SYN that was dropped before, in a flood of SYNs: those of forged addresses do not come again.
    CameAgain,
}

impl CacheOutcome {
    /// Every one, in the order of their numbers.
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

    /// The name in metrics; lower case with underscores.
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

/// What decides whether XDP is of use on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// The name of its driver; `None` if it does not say. Interfaces made of software have one, too: veth, bridge,
    /// bonding.
    pub driver: Option<String>,
    /// Longest IP packet, in bytes.
    pub mtu: u32,
}

/// Drivers in which XDP programs run, and that send what those of others hand them (`ndo_xdp_xmit`). virtio_net is none
/// of them on purpose: there XDP costs super-frames and checksums left to the host, and with them more than it gains.
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

/// A frame has to lie in one page of 4,096 bytes, with the kernel's own notes before and behind it.
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
    fn what_the_file_says_goes_whatever_the_interfaces_are() {
        for nics in [[nic("ixgbe", 1_500)], [nic("", 9_000)]] {
            let layers = [Offload::Tc, Offload::Xdp, Offload::Off].map(|offload| offload.layer(&nics));
            assert_eq!(layers, [Layer::Tc, Layer::Xdp, Layer::Worker]);
        }
    }
}
