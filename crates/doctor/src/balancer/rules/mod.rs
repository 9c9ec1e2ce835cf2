//! Rules of nftables and iptables that drop, reject or redirect packets of clients or servers.
//!
//! [`packet`] lists the packets that must pass, [`ruleset`](crate::ruleset) evaluates the rules for
//! them. A rule that matches only some of these packets is considered intended.

mod packet;

use std::collections::BTreeSet;
use std::net::IpAddr;

use self::packet::{Packet, Purpose};
use super::Host;
use crate::ruleset::{Fate, Ruleset, TakingRule};
use crate::{Diagnosis, SkippedCheck, masquerade};

/// Maximum number of kinds of packets named in a finding about a rule. The commands cover all
/// kinds.
const MAX_TOLD: usize = 4;

/// Findings about the rules of this host.
#[derive(Debug, Default)]
pub(super) struct RulesSeen {
    /// Findings for rules that drop, reject or redirect our packets.
    pub(super) findings: Vec<Diagnosis>,
    /// Servers whose packets the rules drop, reject or redirect.
    pub(super) servers: BTreeSet<IpAddr>,
    /// Skipped check of the rules; `None` if all rules were listed.
    pub(super) unseen: Option<SkippedCheck>,
}

/// Lists the rules of this host, and evaluates them for the packets of clients and servers.
pub(super) fn examine(host: &Host<'_>) -> RulesSeen {
    let (rules, needs) = Ruleset::of_host();
    let unseen = needs.map(|needs| SkippedCheck { check: "foreign-rule", needs });
    let translating = match masquerade::translates(host.config) {
        true => {
            masquerade::diagnose(&rules, host.config, &host.config.passthrough.snat_addresses, host.network)
        }
        false => Vec::new(),
    };
    let mut seen = RulesSeen { unseen, ..diagnose(rules, &packet::of(host)) };
    seen.findings.extend(translating);
    seen
}

/// Builds a finding for each rule. Its commands let all packets pass that the rule would take.
fn diagnose(mut rules: Ruleset, packets: &[Packet]) -> RulesSeen {
    // Tables of convey's own guard and scripts.
    rules.tables.retain(|table| !table.name.starts_with("convey"));
    let (mut seen, mut all) = (RulesSeen::default(), Vec::<(TakingRule, Vec<&Packet>)>::new());
    for packet in packets {
        let Fate::Lost(taken) = rules.fate(&packet.judged, packet.hooks) else { continue };
        if let Purpose::Server(server) = packet.purpose {
            seen.servers.insert(server);
        }
        match all.iter_mut().find(|(rule, _)| *rule == taken) {
            Some((_, packets)) => packets.push(packet),
            None => all.push((taken, vec![packet])),
        }
    }
    seen.findings = all.iter().map(|(taken, packets)| diagnosis(taken, packets)).collect();
    seen
}

fn diagnosis(taken: &TakingRule, packets: &[&Packet]) -> Diagnosis {
    let mut told: Vec<String> = packets.iter().map(|packet| packet.description()).collect();
    told.dedup();
    let more = told.len().saturating_sub(MAX_TOLD);
    told.truncate(MAX_TOLD);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let seen = format!("{} {}{more}", taken.description(), told.join("; "));
    let why = "The kernel does this before convey receives the packets, or after convey has sent them. If the rule \
               comes from a file (/etc/nftables.conf) or another program, change it there, too.";
    let fix = taken.fix(&packets.iter().map(|packet| &packet.judged).collect::<Vec<_>>());
    Diagnosis { fix, ..Diagnosis::error("foreign-rule", seen, why) }
}

#[cfg(test)]
mod tests;
