//! What nftables do with a packet, by the JSON of `nft -j list ruleset` (libnftables-json(5)). Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use super::Culprit;
use super::packet::Packet;
use crate::model::Prefix;

/// Chains may jump into each other so deep.
const MAX_DEPTH: u32 = 16;

/// The chains of all tables but those of convey.
#[derive(Debug, Default)]
pub(super) struct NftRuleset {
    chains: Vec<Chain>,
    /// Where each chain is in the list.
    at: HashMap<(String, String, String), usize>,
}

#[derive(Debug, Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
    #[serde(default)]
    prio: i64,
    policy: Option<String>,
    dev: Option<Value>,
    #[serde(skip)]
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    family: String,
    table: String,
    chain: String,
    handle: u64,
    #[serde(default)]
    expr: Vec<Value>,
}

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sure {
    Yes,
    No,
    /// It depends on what is not known of the packet, or not understood of the rule.
    Maybe,
}

/// How a chain has ended.
enum End {
    /// The packet has gone through.
    Passed,
    /// It was accepted, or may have been.
    Accepted,
    /// It was taken, for certain.
    Taken(Culprit),
}

impl NftRuleset {
    pub(super) fn read(text: &str) -> NftRuleset {
        let list: Value = serde_json::from_str(text).unwrap_or_default();
        let parts = list.get("nftables").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut ruleset = NftRuleset::default();
        for chain in parts.iter().filter_map(|part| part.get("chain")) {
            let Ok(chain) = serde_json::from_value::<Chain>(chain.clone()) else { continue };
            // Its guard, and the tables of its scripts.
            if !chain.table.starts_with("convey") {
                ruleset.at.insert(key(&chain.family, &chain.table, &chain.name), ruleset.chains.len());
                ruleset.chains.push(chain);
            }
        }
        for rule in parts.iter().filter_map(|part| part.get("rule")) {
            let Ok(rule) = serde_json::from_value::<Rule>(rule.clone()) else { continue };
            if let Some(at) = ruleset.at.get(&key(&rule.family, &rule.table, &rule.chain)) {
                ruleset.chains[*at].rules.push(rule);
            }
        }
        ruleset
    }

    /// The rule or policy that certainly takes the packet.
    pub(super) fn follow(&self, packet: &Packet) -> Option<Culprit> {
        packet.hooks.iter().find_map(|hook| {
            let mut chains: Vec<&Chain> = self
                .chains
                .iter()
                .filter(|chain| chain.hook.as_deref() == Some(*hook) && chain.sees(packet))
                .collect();
            chains.sort_by_key(|chain| chain.prio);
            chains.into_iter().find_map(|chain| self.through(chain, packet))
        })
    }

    fn through(&self, chain: &Chain, packet: &Packet) -> Option<Culprit> {
        match self.run(chain, packet, 0) {
            End::Taken(culprit) => Some(culprit),
            End::Accepted => None,
            End::Passed => (chain.policy.as_deref() == Some("drop")).then(|| chain.by_policy(packet)),
        }
    }

    fn run(&self, chain: &Chain, packet: &Packet, depth: u32) -> End {
        for rule in &chain.rules {
            match self.apply(rule, packet, depth) {
                Applied::Next => {}
                Applied::Return => break,
                Applied::End(end) => return end,
            }
        }
        End::Passed
    }

    fn apply(&self, rule: &Rule, packet: &Packet, depth: u32) -> Applied {
        let mut is_sure = true;
        for part in &rule.expr {
            let Some((name, value)) = part.as_object().and_then(|part| part.iter().next()) else { continue };
            match name.as_str() {
                "match" => match matches(value, packet) {
                    Sure::Yes => {}
                    Sure::No => return Applied::Next,
                    Sure::Maybe => is_sure = false,
                },
                "accept" => return Applied::End(End::Accepted),
                "drop" | "reject" | "redirect" | "dnat" | "tproxy" if is_sure => {
                    return Applied::End(End::Taken(rule.culprit(name)));
                }
                "drop" | "reject" | "redirect" | "dnat" | "tproxy" => return Applied::Next,
                "return" if is_sure => return Applied::Return,
                "return" => return Applied::End(End::Accepted),
                "jump" | "goto" => {
                    if let Some(applied) = self.jump(rule, value, packet, (depth, is_sure)) {
                        return applied;
                    }
                    if name == "goto" && is_sure {
                        return Applied::Return;
                    }
                }
                "xt" if is_target(value) && is_sure => {
                    return Applied::End(End::Taken(rule.culprit("REJECT")));
                }
                // They change nothing about where it goes.
                "counter" | "log" | "comment" | "mangle" | "notrack" | "meter" | "set" | "ct helper" => {}
                // Whether these are passed is not known: limit, quota, maps of verdicts, matches of iptables.
                "vmap" | "queue" => return Applied::End(End::Accepted),
                _ => is_sure = false,
            }
        }
        Applied::Next
    }

    /// What another chain does with it, if that settles it.
    fn jump(
        &self,
        rule: &Rule,
        to: &Value,
        packet: &Packet,
        (depth, is_sure): (u32, bool),
    ) -> Option<Applied> {
        let target = to.get("target")?.as_str()?;
        let at = self.at.get(&key(&rule.family, &rule.table, target))?;
        if depth >= MAX_DEPTH {
            return Some(Applied::End(End::Accepted));
        }
        match self.run(&self.chains[*at], packet, depth + 1) {
            End::Passed => None,
            End::Accepted => Some(Applied::End(End::Accepted)),
            End::Taken(culprit) if is_sure => Some(Applied::End(End::Taken(culprit))),
            End::Taken(_) => None,
        }
    }
}

enum Applied {
    Next,
    Return,
    End(End),
}

fn key(family: &str, table: &str, chain: &str) -> (String, String, String) {
    (family.to_owned(), table.to_owned(), chain.to_owned())
}

/// A target of iptables that nft has no word for.
fn is_target(value: &Value) -> bool {
    value.get("type").and_then(Value::as_str) == Some("target")
        && value.get("name").and_then(Value::as_str) == Some("REJECT")
}

impl Chain {
    fn sees(&self, packet: &Packet) -> bool {
        let of_family = match self.family.as_str() {
            "inet" => true,
            "ip" => packet.is_ipv4,
            "ip6" => !packet.is_ipv4,
            "netdev" => true,
            _ => false,
        };
        let of_device = |name: &Value| name.as_str().is_some_and(|name| packet.interfaces.contains(name));
        of_family
            && match &self.dev {
                None => self.family != "netdev",
                Some(Value::Array(names)) => names.iter().any(of_device),
                Some(name) => of_device(name),
            }
    }

    fn by_policy(&self, packet: &Packet) -> Culprit {
        let Chain { family, table, name, .. } = self;
        Culprit {
            place: format!("the policy of chain {name} in table {family} {table}"),
            verdict: "drop".to_owned(),
            mend: format!("nft insert rule {family} {table} {name} {} accept", packet.matches()),
        }
    }
}

impl Rule {
    fn culprit(&self, verdict: &str) -> Culprit {
        let Rule { family, table, chain, handle, .. } = self;
        Culprit {
            place: format!("the rule with handle {handle} of chain {chain} in table {family} {table}"),
            verdict: verdict.to_owned(),
            mend: format!("nft delete rule {family} {table} {chain} handle {handle}"),
        }
    }
}

/// Whether a packet matches.
fn matches(expression: &Value, packet: &Packet) -> Sure {
    let operator = expression.get("op").and_then(Value::as_str).unwrap_or("==");
    let (Some(left), Some(right)) = (expression.get("left"), expression.get("right")) else {
        return Sure::Maybe;
    };
    let is_equal = compare(left, right, packet);
    match (operator, is_equal) {
        ("==" | "in", _) => is_equal,
        ("!=", Sure::Yes) => Sure::No,
        ("!=", Sure::No) => Sure::Yes,
        _ => Sure::Maybe,
    }
}

fn compare(left: &Value, right: &Value, packet: &Packet) -> Sure {
    let text = |of: &str, name: &str| left.get(of)?.get(name)?.as_str();
    if let Some(field) = text("payload", "field") {
        return match (text("payload", "protocol").unwrap_or_default(), field) {
            ("ip", "saddr") if packet.is_ipv4 => address(packet.source, right),
            ("ip", "daddr") if packet.is_ipv4 => address(packet.destination, right),
            ("ip6", "saddr") if !packet.is_ipv4 => address(packet.source, right),
            ("ip6", "daddr") if !packet.is_ipv4 => address(packet.destination, right),
            ("ip", "protocol") if packet.is_ipv4 => one_of(right, |value| value == packet.protocol.name()),
            ("ip6", "nexthdr") if !packet.is_ipv4 => one_of(right, |value| value == packet.protocol.name()),
            ("ip" | "ip6", _) => Sure::No,
            (protocol @ ("tcp" | "udp"), _) if protocol != packet.protocol.name() => Sure::No,
            ("icmp" | "icmpv6" | "arp", _) => Sure::No,
            ("tcp" | "udp" | "th", "sport") => port(packet.source_port, right),
            ("tcp" | "udp" | "th", "dport") => port(packet.destination_port, right),
            _ => Sure::Maybe,
        };
    }
    match (text("meta", "key"), text("ct", "key")) {
        (Some("l4proto"), _) => one_of(right, |value| value == packet.protocol.name()),
        (Some("nfproto"), _) => one_of(right, |value| value == if packet.is_ipv4 { "ipv4" } else { "ipv6" }),
        (Some("protocol"), _) => one_of(right, |value| value == if packet.is_ipv4 { "ip" } else { "ip6" }),
        (Some("iifname" | "iif"), _) if is_out(packet) => Sure::Maybe,
        (Some("oifname" | "oif"), _) if !is_out(packet) => Sure::No,
        (Some("iifname" | "iif" | "oifname" | "oif"), _) => interface(packet, right),
        (_, Some("state")) => {
            let state = if packet.is_new { "new" } else { "established" };
            one_of(right, |value| value == state)
        }
        _ => Sure::Maybe,
    }
}

fn is_out(packet: &Packet) -> bool {
    packet.hooks.contains(&"egress")
}

/// Of several interfaces the packet may pass any.
fn interface(packet: &Packet, right: &Value) -> Sure {
    let mut found = packet.interfaces.iter().map(|name| one_of(right, |value| value == name));
    let Some(first) = found.next() else { return Sure::Maybe };
    if found.all(|one| one == first) { first } else { Sure::Maybe }
}

/// Whether one of the words on the right is meant.
fn one_of(right: &Value, is: impl Fn(&str) -> bool + Copy) -> Sure {
    match right {
        Value::String(text) if text.starts_with('@') => Sure::Maybe,
        // The beginning of a name: `eth*`.
        Value::String(text) if text.ends_with('*') => Sure::Maybe,
        Value::String(text) => sure(is(text)),
        Value::Array(list) => any(list.iter().map(|one| one_of(one, is))),
        Value::Object(of) => match of.get("set") {
            Some(set) => one_of(set, is),
            None => Sure::Maybe,
        },
        _ => Sure::Maybe,
    }
}

fn port(port: Option<u16>, right: &Value) -> Sure {
    let number = |value: &Value| value.as_u64();
    match right {
        Value::Number(_) => port.map_or(Sure::Maybe, |port| sure(number(right) == Some(port.into()))),
        Value::Array(list) => any(list.iter().map(|one| self::port(port, one))),
        Value::Object(of) => match (of.get("set"), of.get("range").and_then(Value::as_array)) {
            (Some(set), _) => self::port(port, set),
            (None, Some(range)) => {
                let ends: Vec<u64> = range.iter().filter_map(number).collect();
                let [first, last] = ends[..] else { return Sure::Maybe };
                port.map_or(Sure::Maybe, |port| sure((first..=last).contains(&port.into())))
            }
            _ => Sure::Maybe,
        },
        _ => Sure::Maybe,
    }
}

fn address(address: Option<IpAddr>, right: &Value) -> Sure {
    let parse = |value: &Value| value.as_str()?.parse::<IpAddr>().ok();
    match right {
        Value::String(_) => match (address, parse(right)) {
            (Some(address), Some(right)) => sure(address == right),
            _ => Sure::Maybe,
        },
        Value::Array(list) => any(list.iter().map(|one| self::address(address, one))),
        Value::Object(of) => match (of.get("set"), of.get("prefix")) {
            (Some(set), _) => self::address(address, set),
            (None, Some(prefix)) => {
                let network = prefix.get("addr").and_then(parse);
                let length = prefix.get("len").and_then(Value::as_u64);
                match (address, network, length) {
                    (_, _, Some(0)) => Sure::Yes,
                    (Some(address), Some(network), Some(length)) => {
                        sure(Prefix::of(network, length as u8).contains(address))
                    }
                    _ => Sure::Maybe,
                }
            }
            _ => Sure::Maybe,
        },
        _ => Sure::Maybe,
    }
}

fn sure(is: bool) -> Sure {
    if is { Sure::Yes } else { Sure::No }
}

/// One of several.
fn any(all: impl Iterator<Item = Sure>) -> Sure {
    all.fold(Sure::No, |any, one| match (any, one) {
        (Sure::Yes, _) | (_, Sure::Yes) => Sure::Yes,
        (Sure::Maybe, _) | (_, Sure::Maybe) => Sure::Maybe,
        _ => Sure::No,
    })
}

#[cfg(test)]
mod tests;
