//! Parser of policy rules in the kernel's messages.

use std::net::IpAddr;

use convey_model::{Prefix, RoutingRule, RuleAction};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::rule::{RuleAction as Action, RuleAttribute, RuleFlags, RuleMessage};

const FRA_DSCP: u16 = 25;

/// Parses a policy rule; `None` if it applies neither to IPv4 nor to IPv6.
pub(super) fn rule(message: &RuleMessage) -> Option<RoutingRule> {
    let header = &message.header;
    let is_v4 = match header.family {
        AddressFamily::Inet => true,
        AddressFamily::Inet6 => false,
        _ => return None,
    };
    let mut rule = RoutingRule::for_all(is_v4, 0, RuleAction::Nothing);
    let (mut table, mut target) = (u32::from(header.table), None);
    let (mut mark, mut mask) = (None, u32::MAX);
    rule.tos = header.tos;
    rule.is_inverted = header.flags.contains(RuleFlags::Invert);
    let mut unknown = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Goto(priority) => target = Some(*priority),
            RuleAttribute::Source(ip) => rule.from = network(*ip, header.src_len),
            RuleAttribute::Destination(ip) => rule.to = network(*ip, header.dst_len),
            RuleAttribute::Iifname(name) => rule.input = Some(name.clone()),
            RuleAttribute::Oifname(name) => rule.output = Some(name.clone()),
            RuleAttribute::FwMark(number) => mark = Some(*number),
            RuleAttribute::FwMask(number) => mask = *number,
            RuleAttribute::SuppressPrefixLen(len) => rule.suppress_prefix_len = (*len).try_into().ok(),
            RuleAttribute::SuppressIfGroup(u32::MAX)
            | RuleAttribute::L3MDev(false)
            | RuleAttribute::TunId(0) => {}
            RuleAttribute::SuppressIfGroup(_) => unknown.push("suppress_ifgroup"),
            RuleAttribute::L3MDev(true) => unknown.push("l3mdev"),
            RuleAttribute::TunId(_) => unknown.push("tun_id"),
            RuleAttribute::UidRange(range) if (range.start, range.end) != (0, u32::MAX) => {
                unknown.push("uidrange");
            }
            RuleAttribute::IpProtocol(_) => unknown.push("ipproto"),
            RuleAttribute::SourcePortRange(_) => unknown.push("sport"),
            RuleAttribute::DestinationPortRange(_) => unknown.push("dport"),
            RuleAttribute::Other(other) => unknown.extend(selector(other)),
            // The route realm, and the number of the program that added the rule, select no
            // packets.
            _ => {}
        }
    }
    rule.mark = mark.map(|mark| (mark, mask));
    rule.action = match header.action {
        Action::ToTable => RuleAction::Table(table),
        Action::Goto => target.map_or(RuleAction::Nothing, RuleAction::Goto),
        Action::Nop => RuleAction::Nothing,
        Action::Blackhole | Action::Unreachable | Action::Prohibit => RuleAction::Refuse,
        _ => {
            unknown.push("an unknown action");
            RuleAction::Nothing
        }
    };
    rule.unknown = unknown;
    Some(rule)
}

fn network(ip: IpAddr, len: u8) -> Option<Prefix> {
    (len > 0).then(|| Prefix::of(ip, len))
}

/// Name of a selector that the netlink parser does not support. `None` if the attribute selects
/// either no packets or all packets that convey handles.
fn selector(attribute: &rtnetlink::packet_core::DefaultNla) -> Option<&'static str> {
    use rtnetlink::packet_core::Nla;
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    match attribute.kind() {
        // A rule with DSCP 0 matches all of convey's packets, which have DSCP 0. A rule for any
        // DSCP lacks the attribute.
        FRA_DSCP if value == [0] => None,
        FRA_DSCP => Some("dscp"),
        // Masks and labels of newer kernels.
        kind if kind > FRA_DSCP => Some("a selector of a newer kernel"),
        _ => None,
    }
}
