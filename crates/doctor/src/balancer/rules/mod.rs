//! Rules of nftables and iptables that take the packets of clients or servers.
//!
//! [`packet`] says which packets matter, [`ruleset`](crate::ruleset) what becomes of them. A rule that may match only some
//! of them is taken to be meant.

mod packet;

use std::collections::BTreeSet;
use std::net::IpAddr;

use self::packet::{Packet, Purpose};
use super::Host;
use crate::ruleset::{Fate, Ruleset, TakingRule};
use crate::{Diagnosis, Unseen, masquerade};

/// So many kinds of packets that a rule takes are named; the commands are for all.
const MAX_TOLD: usize = 4;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct RulesSeen {
    /// Rules that take packets of ours.
    pub(super) findings: Vec<Diagnosis>,
    /// The servers whose packets they take.
    pub(super) servers: BTreeSet<IpAddr>,
    /// What could not be listed.
    pub(super) unseen: Option<Unseen>,
}

/// Lists the rules of this host, and follows the packets of clients and servers through them.
pub(super) fn look(host: &Host<'_>) -> RulesSeen {
    let (rules, needs) = Ruleset::of_host();
    let unseen = needs.map(|needs| Unseen { check: "foreign-rule", needs });
    let translating = match masquerade::translates(host.config) {
        true => masquerade::judge(&rules, host.config, &host.config.passthrough.snat_addresses, host.network),
        false => Vec::new(),
    };
    let mut seen = RulesSeen { unseen, ..judge(rules, &packet::of(host)) };
    seen.findings.extend(translating);
    seen
}

/// A finding for each rule, with the commands for all packets that it takes.
fn judge(mut rules: Ruleset, packets: &[Packet]) -> RulesSeen {
    // The guard of convey, and the tables of its scripts.
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
    let mut told: Vec<String> = packets.iter().map(|packet| packet.told()).collect();
    told.dedup();
    let more = told.len().saturating_sub(MAX_TOLD);
    told.truncate(MAX_TOLD);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let seen = format!("{} {}{more}", taken.told(), told.join("; "));
    let why = "The kernel does so before convey gets them, or after convey has sent them. If the rule is of a file \
               (/etc/nftables.conf) or of another program, change it there, too.";
    let mend = taken.mend(&packets.iter().map(|packet| &packet.judged).collect::<Vec<_>>());
    Diagnosis { mend, ..Diagnosis::error("foreign-rule", seen, why) }
}

#[cfg(test)]
mod tests;
