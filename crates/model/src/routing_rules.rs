//! Policy rules of the kernel (`ip rule`), which choose the routing tables of a packet. Pure.

use std::net::IpAddr;

use crate::{Prefix, Route};

/// Policy rule. convey applies the rules to its packets as if a program on this host had sent them:
/// without a mark, with TOS 0, bound to no interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingRule {
    /// Whether the rule is for IPv4; otherwise it is for IPv6.
    pub is_v4: bool,
    /// Priority; rules are tried in ascending order.
    pub priority: u32,
    /// Network of the source address; `None`: any.
    pub from: Option<Prefix>,
    /// Network of the destination address; `None`: any.
    pub to: Option<Prefix>,
    /// Receiving interface (`iif`), where `lo` is this host itself; `None`: any.
    pub input: Option<String>,
    /// Interface that the sender is bound to (`oif`); `None`: any.
    pub output: Option<String>,
    /// Firewall mark and its mask; `None`: any mark.
    pub mark: Option<(u32, u32)>,
    /// Type of service; 0: any.
    pub tos: u8,
    /// Selectors that convey does not evaluate (`uidrange`, `ipproto` and others). With such a
    /// selector, the rule applies to no packet of convey.
    pub unknown: Vec<&'static str>,
    /// Whether the rule applies exactly to the packets that its selectors do not match (`not`).
    pub is_inverted: bool,
    /// Effect on the packets to which the rule applies.
    pub action: RuleAction,
    /// Maximum prefix length of the routes that the lookup ignores (`suppress_prefixlength`);
    /// `None`: the lookup ignores no route.
    pub suppress_prefix_len: Option<u8>,
}

/// Effect of a policy rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// The packet takes a route of this table, if the table has one.
    Table(u32),
    /// The packet is dropped, with an ICMP error or without.
    Refuse,
    /// The lookup continues at this priority.
    Goto(u32),
    /// The lookup continues with the next rule.
    Nothing,
}

impl RoutingRule {
    /// Returns a rule for all packets of a family.
    pub fn for_all(is_v4: bool, priority: u32, action: RuleAction) -> RoutingRule {
        RoutingRule {
            is_v4,
            priority,
            from: None,
            to: None,
            input: None,
            output: None,
            mark: None,
            tos: 0,
            unknown: Vec::new(),
            is_inverted: false,
            action,
            suppress_prefix_len: None,
        }
    }

    /// Default rules of the kernel.
    pub fn defaults(is_v4: bool) -> [RoutingRule; 3] {
        [(0, Route::LOCAL), (32_766, Route::MAIN), (32_767, Route::DEFAULT)]
            .map(|(priority, table)| RoutingRule::for_all(is_v4, priority, RuleAction::Table(table)))
    }

    /// Whether all selectors except the addresses match packets of convey.
    pub(crate) fn selects_ours(&self) -> bool {
        self.input.as_ref().is_none_or(|interface| interface == "lo")
            && self.output.is_none()
            && self.mark.is_none_or(|(mark, mask)| mark & mask == 0)
            && self.tos == 0
    }

    /// Whether the rule applies to no packet of convey.
    pub(crate) fn applies_to_others(&self) -> bool {
        !self.unknown.is_empty() || (!self.selects_ours() && !self.is_inverted)
    }

    /// Selectors of this rule that convey does not evaluate; empty if there are none. The kernel's
    /// route for packets that match them may differ from the route that convey uses.
    pub fn not_followed(&self) -> Vec<&'static str> {
        let is_marked = self.mark.is_some_and(|(mark, mask)| mark & mask != 0) && !self.is_inverted;
        is_marked.then_some("fwmark").into_iter().chain(self.unknown.iter().copied()).collect()
    }
}

/// Compiled rules of one family.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleSteps(Vec<RuleStep>);

#[derive(Debug, PartialEq, Eq)]
struct RuleStep {
    priority: u32,
    from: Option<Prefix>,
    to: Option<Prefix>,
    is_inverted: bool,
    step: RuleEffect,
}

/// Effect of a rule step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleEffect {
    /// Position of the table to search, and the longest prefix length that is suppressed.
    Table(usize, Option<u8>),
    Refuse,
    /// Position of the step at which the lookup continues.
    Goto(usize),
    Nothing,
}

impl RuleSteps {
    /// Compiles the rules that packets of convey may match. `table` returns the position of a
    /// table. If `rules` has no rule of the family, the kernel's default rules apply.
    pub(crate) fn new(is_v4: bool, rules: &[RoutingRule], mut table: impl FnMut(u32) -> usize) -> RuleSteps {
        let of_family: Vec<&RoutingRule> = rules.iter().filter(|rule| rule.is_v4 == is_v4).collect();
        let defaults = RoutingRule::defaults(is_v4);
        let all = if of_family.is_empty() { defaults.iter().collect() } else { of_family };
        let step = |rule: &&RoutingRule| RuleStep {
            priority: rule.priority,
            // If the selectors never match, an inverted rule applies to all packets.
            from: rule.from.filter(|_| rule.selects_ours()),
            to: rule.to.filter(|_| rule.selects_ours()),
            is_inverted: rule.is_inverted && rule.selects_ours(),
            step: match rule.action {
                RuleAction::Table(number) => RuleEffect::Table(table(number), rule.suppress_prefix_len),
                RuleAction::Refuse => RuleEffect::Refuse,
                RuleAction::Goto(_) | RuleAction::Nothing => RuleEffect::Nothing,
            },
        };
        let ours: Vec<&RoutingRule> = all.iter().copied().filter(|rule| !rule.applies_to_others()).collect();
        let mut steps: Vec<RuleStep> = ours.iter().map(step).collect();
        for (at, rule) in ours.iter().enumerate() {
            let RuleAction::Goto(target) = rule.action else { continue };
            // A jump to a priority without a rule has no effect.
            if target > rule.priority && all.iter().any(|rule| rule.priority == target) {
                let next = steps.iter().position(|step| step.priority >= target);
                steps[at].step = RuleEffect::Goto(next.unwrap_or(steps.len()));
            }
        }
        RuleSteps(steps)
    }

    /// Whether the tables that are searched depend on a packet's source.
    pub(crate) fn depend_on_source(&self) -> bool {
        self.0.iter().any(|step| step.from.is_some())
    }

    /// Calls `look` with each table of a packet in order, and returns the first result. With
    /// `destination` `None`, no destination selector matches.
    pub(crate) fn find<T>(
        &self,
        source: IpAddr,
        destination: Option<IpAddr>,
        mut look: impl FnMut(usize, Option<u8>) -> Option<T>,
    ) -> Option<T> {
        let mut at = 0;
        while let Some(step) = self.0.get(at) {
            at += 1;
            if !step.applies_to(source, destination) {
                continue;
            }
            match step.step {
                RuleEffect::Table(table, suppressed) => {
                    if let Some(found) = look(table, suppressed) {
                        return Some(found);
                    }
                }
                RuleEffect::Refuse => return None,
                RuleEffect::Goto(next) => at = at.max(next),
                RuleEffect::Nothing => {}
            }
        }
        None
    }
}

impl RuleStep {
    fn applies_to(&self, source: IpAddr, destination: Option<IpAddr>) -> bool {
        let from = self.from.is_none_or(|from| from.contains(source));
        let to = self.to.is_none_or(|to| destination.is_some_and(|ip| to.contains(ip)));
        (from && to) != self.is_inverted
    }
}
