//! Whether frames may skip an interface, and be received by its other end at once.

use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

/// The queueing discipline of an interface that queues nothing, as every veth has it at first.
const NO_QUEUE: &str = "noqueue";

/// The longest packet that a veth could be told to take (`ETH_MAX_MTU`); another limit if an XDP program is at its other end.
const MAX_VETH_MTU: u32 = 65_535;

/// Whether this is one end of a veth, and nothing would become of a frame between here and the other end: that one is in
/// another network namespace (in ours the kernel drops what is handed over), nobody shapes what goes out here, and no XDP
/// program sees what comes in there.
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
    fn only_to_a_veths_end_elsewhere_with_nothing_in_between_frames_are_handed_over() {
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
