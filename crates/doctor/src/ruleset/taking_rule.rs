//! Rules and policies that drop, reject or redirect a packet, and commands that let the packet
//! pass. Pure.

use std::net::IpAddr;

use super::{JudgedPacket, PacketEnd, Tool};

/// Effect of a rule that takes a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TakenHow {
    /// Drops the packet without an error to the sender.
    Drops,
    /// Rejects the packet with an error to the sender.
    Rejects,
    /// Redirects the packet to another port, host or interface.
    Redirects,
}

/// Rule or policy that certainly drops, rejects or redirects a packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TakingRule {
    /// Effect on the packet.
    pub how: TakenHow,
    /// Program that manages the table.
    pub tool: Tool,
    /// Address family: `inet`, `ip` and so on.
    pub family: String,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Handle or number of the rule; `None` for the policy of the chain.
    pub rule: Option<u64>,
}

impl TakingRule {
    /// Description for messages: `rule 5 of chain INPUT (iptables, table filter) drops`.
    pub(crate) fn description(&self) -> String {
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

    /// Commands that insert rules before this rule, so that `packets` pass. There is one command
    /// for all addresses with the same protocol and port. For packets without a port, the new rule
    /// matches only the protocol.
    pub(crate) fn fix(&self, packets: &[&JudgedPacket]) -> Vec<String> {
        let mut all: Vec<(SparedPackets, Vec<IpAddr>)> = Vec::new();
        for packet in packets {
            let (spared, ip) = SparedPackets::of(packet);
            let known = all.iter().position(|(of, _)| *of == spared);
            let at = known.unwrap_or_else(|| {
                all.push((spared, Vec::new()));
                all.len() - 1
            });
            if let Some(ip) = ip.filter(|ip| !all[at].1.contains(ip)) {
                all[at].1.push(ip);
            }
        }
        all.iter().map(|(spared, ips)| self.command(spared, ips)).collect()
    }

    fn command(&self, spared: &SparedPackets, ips: &[IpAddr]) -> String {
        let TakingRule { tool, family, table, chain, rule, .. } = self;
        let SparedPackets { is_v6, protocol, side, port, .. } = *spared;
        let all = |separator: &str| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(separator);
        if *tool == Tool::Nft {
            let at = rule.map(|handle| format!("handle {handle} ")).unwrap_or_default();
            let version = if is_v6 { "ip6" } else { "ip" };
            let ip = match ips {
                [] => String::new(),
                [ip] => format!("{version} {side}addr {ip} "),
                _ => format!("{version} {side}addr {{ {} }} ", all(", ")),
            };
            let what = port
                .map_or(format!("meta l4proto {protocol}"), |port| format!("{protocol} {side}port {port}"));
            return format!("nft insert rule {family} {table} {chain} {at}{ip}{what} accept");
        }
        let at = rule.map(|number| format!("{number} ")).unwrap_or_default();
        let ip = if ips.is_empty() { String::new() } else { format!("-{side} {} ", all(",")) };
        let port = port.map(|port| format!("--{side}port {port} ")).unwrap_or_default();
        format!("{} -t {table} -I {chain} {at}{ip}-p {protocol} {port}-j ACCEPT", tool.program())
    }
}

/// Match of the packets to let through, without the address of their server or VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SparedPackets {
    is_v6: bool,
    protocol: &'static str,
    /// `d` to match the destination port, `s` to match the source port.
    side: char,
    port: Option<u16>,
    has_ip: bool,
}

impl SparedPackets {
    fn of(packet: &JudgedPacket) -> (SparedPackets, Option<IpAddr>) {
        let (side, end, port) = match packet.destination_port {
            Some(port) => ('d', packet.destination, Some(port)),
            None => ('s', packet.source, packet.source_port),
        };
        let ip = match end {
            PacketEnd::Host(ip) => Some(ip),
            PacketEnd::Client | PacketEnd::Unknown => None,
        };
        let JudgedPacket { is_v6, protocol, .. } = *packet;
        (SparedPackets { is_v6, protocol, side, port, has_ip: ip.is_some() }, ip)
    }
}
