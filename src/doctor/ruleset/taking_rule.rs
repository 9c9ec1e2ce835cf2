//! A rule, or a policy, that takes a packet: in words, and the command that lets the packet pass. Pure.

use super::{JudgedPacket, PacketEnd, Tool};

/// What a rule does with a packet that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TakenHow {
    /// Nobody is told.
    Drops,
    /// Its sender is told.
    Rejects,
    /// It goes to another port, host or interface.
    Redirects,
}

/// Who takes a packet for certain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TakingRule {
    /// What becomes of the packet.
    pub how: TakenHow,
    /// What the table is changed with.
    pub tool: Tool,
    /// `inet`, `ip` and so on.
    pub family: String,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule by its handle or number; `None`: the chain's policy.
    pub rule: Option<u64>,
}

impl TakingRule {
    /// For an operator: `rule 5 of chain INPUT (iptables, table filter) drops`.
    pub(in crate::doctor) fn told(&self) -> String {
        let TakingRule { how, tool, family, table, chain, rule } = self;
        let by = match rule {
            Some(number) if *tool == Tool::Nft => format!("the rule with handle {number}"),
            Some(number) => format!("rule {number}"),
            None => "the policy".to_owned(),
        };
        let place = match tool {
            Tool::Nft => format!("table {family} {table}"),
            Tool::Iptables | Tool::Ip6tables => format!("{}, table {table}", tool.program()),
        };
        let does = match how {
            TakenHow::Drops => "drops",
            TakenHow::Rejects => "rejects",
            TakenHow::Redirects => "redirects",
        };
        format!("{by} of chain {chain} ({place}) {does}")
    }

    /// The command that puts a rule for such packets before it. Without a port only the protocol tells them.
    pub(in crate::doctor) fn mend(&self, packet: &JudgedPacket) -> String {
        let TakingRule { tool, family, table, chain, rule, .. } = self;
        let protocol = packet.protocol;
        let (side, end, port) = match packet.destination_port {
            Some(port) => ('d', packet.destination, Some(port)),
            None => ('s', packet.source, packet.source_port),
        };
        let ip = match end {
            PacketEnd::Host(ip) => Some(ip),
            PacketEnd::Client | PacketEnd::Unknown => None,
        };
        if *tool == Tool::Nft {
            let at = rule.map(|handle| format!("handle {handle} ")).unwrap_or_default();
            let version = if packet.is_v6 { "ip6" } else { "ip" };
            let ip = ip.map(|ip| format!("{version} {side}addr {ip} ")).unwrap_or_default();
            let what = port
                .map_or(format!("meta l4proto {protocol}"), |port| format!("{protocol} {side}port {port}"));
            return format!("nft insert rule {family} {table} {chain} {at}{ip}{what} accept");
        }
        let at = rule.map(|number| format!("{number} ")).unwrap_or_default();
        let ip = ip.map(|ip| format!("-{side} {ip} ")).unwrap_or_default();
        let port = port.map(|port| format!("--{side}port {port} ")).unwrap_or_default();
        format!("{} -t {table} -I {chain} {at}{ip}-p {protocol} {port}-j ACCEPT", tool.program())
    }
}
