//! Evaluates rules for a packet. Pure.

use std::net::IpAddr;

use convey_model::Prefix;

use super::{Action, Base, Chain, Condition, Rule, Ruleset, Subject, Table, TakenHow, TakingRule, Value};

/// Maximum depth of jumps, which is also the limit of the kernel.
pub(super) const MAX_DEPTH: u8 = 16;

/// Source or destination of a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PacketEnd {
    /// Any client, not a specific host.
    #[default]
    Client,
    /// Host with this address.
    Host(IpAddr),
    /// Unknown address.
    Unknown,
}

impl From<Option<IpAddr>> for PacketEnd {
    fn from(ip: Option<IpAddr>) -> PacketEnd {
        ip.map_or(PacketEnd::Unknown, PacketEnd::Host)
    }
}

/// A packet for which rules are evaluated. `None` in a field means any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JudgedPacket {
    /// Whether the packet is IPv6.
    pub is_v6: bool,
    /// `tcp`, `udp`, `icmp` or `ipv6-icmp`.
    pub protocol: &'static str,
    /// Source address.
    pub source: PacketEnd,
    /// Destination address.
    pub destination: PacketEnd,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// Incoming interface.
    pub in_interface: Option<String>,
    /// Outgoing interface.
    pub out_interface: Option<String>,
    /// State of the connection in conntrack, such as `new` or `established`.
    pub state: &'static str,
}

/// Outcome of the rules for a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The packet passes or may pass. Contains the source address that the packet has after the
    /// rules.
    Passes(PacketEnd),
    /// A rule certainly drops, rejects or redirects the packet.
    Lost(TakingRule),
}

/// Outcome of a chain.
enum End {
    Accept,
    /// No rule of the chain has decided.
    Through,
    /// The packet is taken: effect, name of the chain, and number of the rule (`None` for the
    /// policy).
    Taken(TakenHow, String, Option<u64>),
}

impl Ruleset {
    /// Evaluates the chains of these hooks for a packet, in order.
    pub fn fate(&self, packet: &JudgedPacket, hooks: &[&str]) -> Fate {
        let mut packet = packet.clone();
        for hook in hooks {
            for (table, chain, base) in self.chains(hook, &packet) {
                let mut walk = Walk { table, packet: &mut packet, may_pass: false };
                let end = match walk.chain(chain, 0) {
                    End::Through if base.drops => End::Taken(TakenHow::Drops, chain.name.clone(), None),
                    end => end,
                };
                let may_pass = walk.may_pass;
                if let End::Taken(how, chain, rule) = end
                    && !may_pass
                {
                    let (tool, family, table) = (table.tool, table.family.clone(), table.name.clone());
                    return Fate::Lost(TakingRule { how, tool, family, table, chain, rule });
                }
            }
        }
        Fate::Passes(packet.source)
    }

    /// Base chains of a hook, in the order in which a packet passes them.
    pub(super) fn chains(&self, hook: &str, packet: &JudgedPacket) -> Vec<(&Table, &Chain, &Base)> {
        let of_ip = if packet.is_v6 { "ip6" } else { "ip" };
        let tables = self.tables.iter().filter(|table| ["inet", "netdev", of_ip].contains(&&*table.family));
        let chains = tables.flat_map(|table| table.chains.iter().map(move |chain| (table, chain)));
        let mut chains: Vec<_> = chains
            .filter_map(|(table, chain)| chain.base.as_ref().map(|base| (table, chain, base)))
            .filter(|(.., base)| base.hook == hook && base.sees(packet))
            .collect();
        chains.sort_by_key(|(.., base)| base.priority);
        chains
    }
}

impl Base {
    fn sees(&self, packet: &JudgedPacket) -> bool {
        let interface = if self.hook == "egress" { &packet.out_interface } else { &packet.in_interface };
        self.devices.is_empty() || interface.as_ref().is_some_and(|name| self.devices.contains(name))
    }
}

/// Evaluation of a table for a packet.
struct Walk<'a> {
    table: &'a Table,
    packet: &'a mut JudgedPacket,
    /// Whether the packet may have been accepted by a rule that cannot be evaluated.
    may_pass: bool,
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Chain, depth: u8) -> End {
        for rule in &chain.rules {
            let holds = self.holds(rule);
            if holds == Some(false) {
                continue;
            }
            for action in &rule.actions {
                let Some(action) = self.resolve(action) else { continue };
                let taken = |how| End::Taken(how, chain.name.clone(), Some(rule.number));
                match (action, holds) {
                    (Action::Accept | Action::SourceNat(_), Some(_)) => return End::Accept,
                    (Action::Accept | Action::SourceNat(_), None) => self.may_pass = true,
                    (Action::Return, Some(_)) => return End::Through,
                    (Action::Drop, Some(_)) => return taken(TakenHow::Drops),
                    (Action::Reject, Some(_)) => return taken(TakenHow::Rejects),
                    (Action::Redirect, Some(_)) => return taken(TakenHow::Redirects),
                    (Action::SetSource(vip), Some(_)) => self.packet.source = PacketEnd::Host(vip),
                    (Action::Jump(to), Some(_)) => match self.jump(&to, depth) {
                        End::Through => {}
                        end => return end,
                    },
                    (Action::Goto(to), Some(_)) => return self.jump(&to, depth),
                    (Action::Jump(to), None) => {
                        let source = self.packet.source;
                        self.may_pass |= matches!(self.jump(&to, depth), End::Accept);
                        self.packet.source = source;
                    }
                    // If the conditions hold, the packet skips the rest of this chain.
                    (Action::Goto(_) | Action::Return, None) => self.may_pass = true,
                    _ => {}
                }
            }
        }
        End::Through
    }

    fn jump(&mut self, to: &str, depth: u8) -> End {
        let table = self.table;
        match table.chain(to) {
            Some(chain) if depth < MAX_DEPTH => self.chain(chain, depth + 1),
            _ => {
                self.may_pass = true;
                End::Through
            }
        }
    }

    /// Returns the action itself, or the action that a map selects. A map that cannot be evaluated
    /// may accept the packet.
    fn resolve(&mut self, action: &Action) -> Option<Action> {
        let Action::Map(subject, pairs) = action else { return Some(action.clone()) };
        for (value, action) in pairs {
            match self.packet.is(*subject, value) {
                Some(true) => return Some(action.clone()),
                Some(false) => {}
                None => self.may_pass = true,
            }
        }
        None
    }

    /// Whether all conditions of a rule hold; `None` if doctor cannot decide.
    fn holds(&self, rule: &Rule) -> Option<bool> {
        let mut all = Some(true);
        for condition in &rule.conditions {
            match self.condition(condition) {
                Some(true) => {}
                Some(false) => return Some(false),
                None => all = None,
            }
        }
        all
    }

    fn condition(&self, condition: &Condition) -> Option<bool> {
        self.packet.matches_condition(condition, self.table)
    }
}

impl JudgedPacket {
    /// Whether a condition of a rule in `table` holds; `None` if doctor cannot decide.
    pub(super) fn matches_condition(&self, condition: &Condition, table: &Table) -> Option<bool> {
        let Condition::Is { subject, values, negated } = condition else { return None };
        let values = table.values(values)?;
        let mut any = Some(false);
        for value in values {
            match self.is(*subject, value) {
                Some(true) => return Some(!negated),
                Some(false) => {}
                None => any = None,
            }
        }
        any.map(|is| is != *negated)
    }

    fn is(&self, subject: Subject, value: &Value) -> Option<bool> {
        match subject {
            Subject::EtherType => word(if self.is_v6 { "ip6" } else { "ip" }, value),
            Subject::Family => word(if self.is_v6 { "ipv6" } else { "ipv4" }, value),
            Subject::Protocol => match value {
                Value::Numbers(1, 1) => Some(self.protocol == "icmp"),
                Value::Numbers(6, 6) => Some(self.protocol == "tcp"),
                Value::Numbers(17, 17) => Some(self.protocol == "udp"),
                Value::Numbers(58, 58) => Some(self.protocol == "ipv6-icmp"),
                Value::Numbers(..) => Some(false),
                _ => word(self.protocol, value),
            },
            Subject::Source => address(self.source, value),
            Subject::Destination => address(self.destination, value),
            Subject::SourcePort => port(self.source_port, value),
            Subject::DestinationPort => port(self.destination_port, value),
            Subject::InInterface => interface(self.in_interface.as_deref(), value),
            Subject::OutInterface => interface(self.out_interface.as_deref(), value),
            Subject::State => word(self.state, value),
        }
    }
}

fn word(is: &str, value: &Value) -> Option<bool> {
    match value {
        Value::Word(word) => Some(word == is),
        _ => None,
    }
}

fn port(is: Option<u16>, value: &Value) -> Option<bool> {
    match value {
        Value::Numbers(0, 65_535) => Some(true),
        Value::Numbers(from, to) => is.map(|port| (*from..=*to).contains(&port.into())),
        _ => None,
    }
}

fn interface(is: Option<&str>, value: &Value) -> Option<bool> {
    let Value::Word(name) = value else { return None };
    let is = is?;
    Some(name.strip_suffix('*').map_or(is == name, |start| is.starts_with(start)))
}

fn address(is: PacketEnd, value: &Value) -> Option<bool> {
    match (value, is) {
        (Value::Network(_, 0), _) => Some(true),
        (Value::Network(network, len), PacketEnd::Host(ip)) => Some(within(ip, *network, *len)),
        (Value::Network(ip, len), PacketEnd::Client) => (*len == Value::full(*ip)).then_some(false),
        (Value::Addresses(from, to), PacketEnd::Host(ip)) => Some((*from..=*to).contains(&ip)),
        _ => None,
    }
}

/// Whether an address is in a network.
pub(crate) fn within(ip: IpAddr, network: IpAddr, len: u8) -> bool {
    Prefix::of(network, len).contains(ip)
}
