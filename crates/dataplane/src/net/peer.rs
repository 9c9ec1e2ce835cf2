//! Check whether frames may skip a veth interface and go directly to its peer.

use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

/// Name of the queueing discipline without a queue, the default of a veth.
const NO_QUEUE: &str = "noqueue";

/// Maximum MTU of a veth (`ETH_MAX_MTU`). The kernel lowers it if the peer has an XDP program.
const MAX_VETH_MTU: u32 = 65_535;

/// Whether frames may be redirected to the peer of an interface: the interface is a veth, and
/// nothing acts on frames between its two ends.
///
/// The peer must be in another network namespace, because in ours the kernel would drop the frames.
/// The interface must have no traffic shaping, and the peer no XDP program.
pub(super) fn redirect_peer(message: &LinkMessage) -> bool {
    let (mut is_veth, mut is_apart, mut is_unshaped, mut is_without_xdp) = (false, false, false, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::LinkInfo(infos) => is_veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::LinkNetNsId(_) => is_apart = true,
            LinkAttribute::Qdisc(name) => is_unshaped = name == NO_QUEUE,
            LinkAttribute::MaxMtu(mtu) => is_without_xdp = *mtu == MAX_VETH_MTU,
            _ => {}
        }
    }
    is_veth && is_apart && is_unshaped && is_without_xdp
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(kind: InfoKind) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])
    }

    #[test]
    fn frames_are_handed_over_only_to_a_plain_remote_veth() {
        let veth = [
            kind(InfoKind::Veth),
            LinkAttribute::LinkNetNsId(0),
            LinkAttribute::Qdisc("noqueue".into()),
            LinkAttribute::MaxMtu(65_535),
        ];
        let but = |other: LinkAttribute| {
            let is_other =
                |known: &LinkAttribute| std::mem::discriminant(known) == std::mem::discriminant(&other);
            veth.iter().map(|known| if is_other(known) { other.clone() } else { known.clone() }).collect()
        };
        let without = |at: usize| [&veth[..at], &veth[at + 1..]].concat();
        for (what, attributes, expected) in [
            ("a container's", veth.to_vec(), true),
            ("another namespace's number", but(LinkAttribute::LinkNetNsId(7)), true),
            ("both ends are ours", without(1), false),
            ("a macvlan of elsewhere", but(kind(InfoKind::MacVlan)), false),
            ("a card, moved here", without(0), false),
            ("shaped", but(LinkAttribute::Qdisc("tbf".into())), false),
            ("an XDP program at the other end", but(LinkAttribute::MaxMtu(3_520)), false),
            ("the kernel does not say", vec![], false),
        ] {
            let mut message = LinkMessage::default();
            message.attributes = attributes;
            assert_eq!(redirect_peer(&message), expected, "{what}");
        }
    }
}
