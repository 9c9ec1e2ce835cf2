//! Packet filter rules of a host, from the output of `nft` and `iptables-save`, and the effect of
//! the rules on a packet.
//!
//! `Ruleset::of_host` gathers the rules, everything else is pure. Some rules cannot be evaluated;
//! such a rule never counts as a drop.

mod gather;
mod iptables;
mod nft;
mod source_nat;
mod taking_rule;
mod walk;

use std::net::IpAddr;

pub use iptables::read_save;
pub use nft::read_json;
use source_nat::NewSource;
pub use source_nat::{CollidingRule, OwnPorts};
pub use taking_rule::{TakenHow, TakingRule};
pub(crate) use walk::within;
pub use walk::{Fate, JudgedPacket, PacketEnd};

/// Netfilter hooks that an incoming packet passes, in order.
pub const HOOKS_IN: &[&str] = &["ingress", "prerouting", "input"];

/// Netfilter hooks that an outgoing packet of this host passes, in order.
pub const HOOKS_OUT: &[&str] = &["output", "postrouting", "egress"];

/// All packet filter rules of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Tables in the order in which they were read.
    pub tables: Vec<Table>,
}

/// Table of nftables or iptables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Program that manages the table.
    pub tool: Tool,
    /// Address family: `inet`, `ip`, `ip6`, `arp` and so on.
    pub family: String,
    /// Name of the table.
    pub name: String,
    /// Chains of the table.
    pub chains: Vec<Chain>,
    /// Named sets; rules refer to them as `@NAME`.
    sets: Vec<(String, Vec<Value>)>,
}

/// Program that manages a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `nft`.
    Nft,
    /// `iptables`.
    Iptables,
    /// `ip6tables`.
    Ip6tables,
}

/// A chain of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name of the chain.
    pub name: String,
    /// Hook of a base chain; `None` if packets reach the chain only by jumps.
    pub base: Option<Base>,
    /// Rules in order.
    pub rules: Vec<Rule>,
}

/// Hook and policy of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Name of the hook: `input`, `output`, `prerouting`, `postrouting` and so on.
    pub hook: String,
    /// Priority of the chain. Chains with a lower number process a packet first.
    pub priority: i64,
    /// Whether the policy drops packets if no rule accepts them.
    pub drops: bool,
    /// Interfaces that the chain is bound to; empty means all.
    pub devices: Vec<String>,
}

/// Rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Handle of the rule (nft), or number of the rule in its chain (iptables).
    pub number: u64,
    /// Conditions of the rule; all of them must hold.
    conditions: Vec<Condition>,
    /// Actions of the rule if its conditions hold.
    actions: Vec<Action>,
}

/// Effect of a rule on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Accept,
    Drop,
    Reject,
    /// Redirection to another port, host or interface.
    Redirect,
    Jump(String),
    Goto(String),
    Return,
    SetSource(IpAddr),
    /// Source NAT of the connection.
    SourceNat(NewSource),
    /// Map from the values of a packet property to actions; the first match applies.
    Map(Subject, Vec<(Value, Action)>),
}

/// Condition of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Is {
        subject: Subject,
        values: Values,
        negated: bool,
    },
    /// Condition that doctor cannot evaluate, such as rates, marks and other modules.
    Unknown,
}

/// Values that a condition compares with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Values {
    These(Vec<Value>),
    Set(String),
}

/// A property of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// Address family: `ipv4` or `ipv6`.
    Family,
    /// EtherType: `ip`, `ip6` or `arp`.
    EtherType,
    Protocol,
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    InInterface,
    OutInterface,
    State,
}

/// A value or a range of values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Word(String),
    Numbers(u64, u64),
    Network(IpAddr, u8),
    Addresses(IpAddr, IpAddr),
    /// A value that doctor cannot interpret.
    Unknown,
}

/// Rule that replaces the source address of a server's answers with the VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRule {
    /// Name of the table.
    pub table: String,
    /// Outgoing interface; `None` if the rule applies to all interfaces.
    pub interface: Option<String>,
    /// Source address before the rule; `None` if the rule applies to all sources.
    pub server: Option<IpAddr>,
    /// Source address that the rule sets.
    pub vip: IpAddr,
    /// Source ports in the format of the scripts, such as `80` or `21000-21010`.
    pub ports: Vec<String>,
    /// Protocols that the rule applies to: TCP, UDP or both.
    pub protocols: Vec<String>,
    /// Destinations to which packets keep their original source.
    pub spared: Vec<IpAddr>,
}

impl Tool {
    /// Command that changes rules of the table.
    fn program(self) -> &'static str {
        match self {
            Tool::Nft => "nft",
            Tool::Iptables => "iptables",
            Tool::Ip6tables => "ip6tables",
        }
    }
}

impl Ruleset {
    /// Rules that replace the source address of answers with a VIP.
    pub fn source_rules(&self) -> Vec<SourceRule> {
        let rules = |table: &Table| -> Vec<SourceRule> {
            let rules = table.chains.iter().flat_map(|chain| &chain.rules);
            rules.filter_map(|rule| rule.source_rule(table)).collect()
        };
        self.tables.iter().flat_map(rules).collect()
    }

    /// Whether a rule in a table of family `arp` contains this address.
    pub fn arp_names(&self, address: IpAddr) -> bool {
        let mut arp = self.tables.iter().filter(|table| table.family == "arp");
        arp.any(|table| {
            let mut conditions =
                table.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.conditions);
            conditions.any(|condition| match condition {
                Condition::Is { values, .. } => {
                    table.values(values).is_some_and(|values| values.contains(&Value::address(address)))
                }
                Condition::Unknown => false,
            })
        })
    }
}

impl Table {
    fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// Values of a condition; `None` if the values are in a named set that was not read.
    fn values<'a>(&'a self, values: &'a Values) -> Option<&'a [Value]> {
        match values {
            Values::These(values) => Some(values),
            Values::Set(name) => self.sets.iter().find(|(of, _)| of == name).map(|(_, values)| &values[..]),
        }
    }
}

impl Rule {
    fn source_rule(&self, table: &Table) -> Option<SourceRule> {
        let vip = self.actions.iter().find_map(|action| match action {
            Action::SetSource(vip) => Some(*vip),
            _ => None,
        })?;
        let words = |subject, negated| -> Vec<String> {
            let conditions = self.conditions.iter().filter_map(|condition| match condition {
                Condition::Is { subject: of, values, negated: is } if (*of, *is) == (subject, negated) => {
                    table.values(values)
                }
                _ => None,
            });
            conditions.flatten().map(Value::to_string).collect()
        };
        let addresses = |subject, negated| {
            words(subject, negated).iter().filter_map(|word| word.parse().ok()).collect::<Vec<IpAddr>>()
        };
        Some(SourceRule {
            table: table.name.clone(),
            interface: words(Subject::OutInterface, false).pop(),
            server: addresses(Subject::Source, false).pop(),
            vip,
            ports: words(Subject::SourcePort, false),
            protocols: words(Subject::Protocol, false),
            spared: addresses(Subject::Destination, true),
        })
    }
}

impl Value {
    fn address(ip: IpAddr) -> Value {
        Value::Network(ip, Value::full(ip))
    }

    /// Prefix length of a single address: 32 or 128.
    fn full(ip: IpAddr) -> u8 {
        if ip.is_ipv4() { 32 } else { 128 }
    }

    /// Parses a word, a number, a network or an address in a rule.
    fn read(text: &str) -> Value {
        if let Ok(number) = text.parse() {
            return Value::Numbers(number, number);
        }
        if let Ok(ip) = text.parse() {
            return Value::address(ip);
        }
        let network = text
            .split_once('/')
            .and_then(|(ip, len)| Some(Value::Network(ip.parse().ok()?, len.parse().ok()?)));
        network.unwrap_or_else(|| Value::Word(text.to_owned()))
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Word(word) => f.write_str(word),
            Value::Numbers(from, to) if from == to => write!(f, "{from}"),
            Value::Numbers(from, to) => write!(f, "{from}-{to}"),
            Value::Network(ip, 32 | 128) => write!(f, "{ip}"),
            Value::Network(ip, len) => write!(f, "{ip}/{len}"),
            Value::Addresses(from, to) => write!(f, "{from}-{to}"),
            Value::Unknown => f.write_str("?"),
        }
    }
}

#[cfg(test)]
mod tests;
