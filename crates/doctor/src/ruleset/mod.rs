//! The packet filter of a host, as `nft` and `iptables-save` print it, and what it does to a packet.
//!
//! `Ruleset::of_host` asks the host, the rest is pure. It is read as far as it can be told what a rule does. What cannot be told is never taken for a drop.

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

/// The hooks that a packet passes that comes in, in their order.
pub const HOOKS_IN: &[&str] = &["ingress", "prerouting", "input"];

/// The hooks that a packet of this host passes.
pub const HOOKS_OUT: &[&str] = &["output", "postrouting", "egress"];

/// All rules of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Its tables, in the order in which they were read.
    pub tables: Vec<Table>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What it is changed with.
    pub tool: Tool,
    /// `inet`, `ip`, `ip6`, `arp` and so on.
    pub family: String,
    /// Its name.
    pub name: String,
    /// Its chains.
    pub chains: Vec<Chain>,
    /// What rules name with `@`.
    sets: Vec<(String, Vec<Value>)>,
}

/// The program that a table belongs to.
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
    /// Its name.
    pub name: String,
    /// Where packets come by; `None`: only by a jump.
    pub base: Option<Base>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Where the packets of a base chain come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// `input`, `output`, `prerouting`, `postrouting` and so on.
    pub hook: String,
    /// Lower ones see a packet first.
    pub priority: i64,
    /// Whether what no rule decides is dropped.
    pub drops: bool,
    /// The interfaces whose packets it sees; empty: all.
    pub devices: Vec<String>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its handle (nft), or its number in the chain (iptables).
    pub number: u64,
    /// All of them must hold.
    conditions: Vec<Condition>,
    /// What it does then.
    actions: Vec<Action>,
}

/// What a rule does to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Accept,
    Drop,
    Reject,
    /// To another port, host or interface.
    Redirect,
    Jump(String),
    Goto(String),
    Return,
    SetSource(IpAddr),
    /// Connections get this source.
    SourceNat(NewSource),
    /// By the value of something: the first that fits.
    Map(Subject, Vec<(Value, Action)>),
}

/// What must hold of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Is {
        subject: Subject,
        values: Values,
        negated: bool,
    },
    /// It can be looked up nowhere here: rates, marks, other modules.
    Unknown,
}

/// What something is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Values {
    These(Vec<Value>),
    Set(String),
}

/// A property of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// `ipv4` or `ipv6`.
    Family,
    /// `ip`, `ip6`, `arp`.
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

/// A value, or some.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Word(String),
    Numbers(u64, u64),
    Network(IpAddr, u8),
    Addresses(IpAddr, IpAddr),
    /// None that is known here.
    Unknown,
}

/// A rule that makes an address the source of answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRule {
    /// The table's name.
    pub table: String,
    /// The interface by which they leave, if it says one.
    pub interface: Option<String>,
    /// Their source before, if it says one.
    pub server: Option<IpAddr>,
    /// Their source afterwards.
    pub vip: IpAddr,
    /// Their ports, as the scripts take them: `80` or `21000-21010`.
    pub ports: Vec<String>,
    /// Of TCP, UDP or both.
    pub protocols: Vec<String>,
    /// Destinations whose packets are left alone.
    pub spared: Vec<IpAddr>,
}

impl Tool {
    /// The command that changes its rules.
    fn program(self) -> &'static str {
        match self {
            Tool::Nft => "nft",
            Tool::Iptables => "iptables",
            Tool::Ip6tables => "ip6tables",
        }
    }
}

impl Ruleset {
    /// The rules that make an address the source.
    pub fn source_rules(&self) -> Vec<SourceRule> {
        let rules = |table: &Table| -> Vec<SourceRule> {
            let rules = table.chains.iter().flat_map(|chain| &chain.rules);
            rules.filter_map(|rule| rule.source_rule(table)).collect()
        };
        self.tables.iter().flat_map(rules).collect()
    }

    /// Whether a rule of the family `arp` names an address.
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

    /// `None`: a set that was not read.
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

    /// The length of the prefix that holds one address.
    fn full(ip: IpAddr) -> u8 {
        if ip.is_ipv4() { 32 } else { 128 }
    }

    /// A word, number, network or address, as it stands in a rule.
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
