//! Whether the host's own packet filter lets clients in and answers out. Pure.

use super::facts::ServerFacts;
use super::nat::answer;
use super::service::protocols;
use super::setup::ServerSetup;
use crate::doctor::ruleset::{Fate, JudgedPacket, Tool};
use crate::doctor::{Diagnosis, Severity};

/// What is wrong with it.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    let of_port = |port: &u16| {
        let port = *port;
        protocols(facts, port).into_iter().filter_map(move |protocol| service(setup, facts, port, protocol))
    };
    setup.ports.iter().flat_map(of_port).collect()
}

fn service(setup: &ServerSetup, facts: &ServerFacts, port: u16, protocol: &'static str) -> Option<Diagnosis> {
    let request = JudgedPacket {
        is_v6: setup.vip.is_ipv6(),
        protocol,
        destination: setup.server,
        destination_port: Some(port),
        in_interface: facts.way_in(setup.vip, setup.server).map(|link| link.name.clone()),
        state: "new",
        ..JudgedPacket::default()
    };
    let came_in = facts.rules.fate(&request, &["prerouting", "input"]);
    let went_out = || facts.rules.fate(&answer(setup, facts, port, protocol), &["output", "postrouting"]);
    diagnosis(came_in, port, protocol, true).or_else(|| diagnosis(went_out(), port, protocol, false))
}

fn diagnosis(fate: Fate, port: u16, protocol: &str, came_in: bool) -> Option<Diagnosis> {
    let Fate::Lost { rejected, tool, table: (family, table), chain, rule } = fate else { return None };
    let (whose, at) = match came_in {
        true => (format!("requests of clients to port {port} ({protocol})"), "dport"),
        false => (format!("answers to clients from port {port} ({protocol})"), "sport"),
    };
    let (check, does) = if rejected { ("firewall-rejects", "rejects") } else { ("firewall-drops", "drops") };
    let command = match tool {
        Tool::Nft => "nft",
        Tool::Iptables => "iptables",
        Tool::Ip6tables => "ip6tables",
    };
    let by = match rule {
        Some(number) if tool == Tool::Nft => format!("the rule with handle {number}"),
        Some(number) => format!("rule {number}"),
        None => "the policy".to_owned(),
    };
    let mend = match (tool, rule) {
        (Tool::Nft, Some(handle)) => {
            format!("nft insert rule {family} {table} {chain} handle {handle} {protocol} {at} {port} accept")
        }
        (Tool::Nft, None) => format!("nft add rule {family} {table} {chain} {protocol} {at} {port} accept"),
        (_, rule) => {
            let number = rule.map_or(String::new(), |number| format!("{number} "));
            let how = if rule.is_some() { "-I" } else { "-A" };
            format!("{command} -t {table} {how} {chain} {number}-p {protocol} --{at} {port} -j ACCEPT")
        }
    };
    let place = match tool {
        Tool::Nft => format!("table {family} {table}"),
        Tool::Iptables | Tool::Ip6tables => format!("{command}, table {table}"),
    };
    Some(Diagnosis {
        check,
        severity: Severity::Error,
        seen: format!("{by} of chain {chain} ({place}) {does} {whose}"),
        why: match rejected {
            true => "Clients are refused, or see their answers refused.".to_owned(),
            false => "Clients wait in vain until they give up.".to_owned(),
        },
        on: None,
        mend: vec![mend],
    })
}
