//! Rules of nftables and iptables that take the packets of clients or servers.
//!
//! [`packet`] says which packets matter, [`ruleset`](crate::doctor::ruleset) what becomes of them. A rule that may match only some
//! of them is taken to be meant.

mod packet;

use std::collections::BTreeSet;
use std::net::IpAddr;

use self::packet::{Packet, Purpose};
use super::Host;
use crate::doctor::ruleset::{Fate, Ruleset};
use crate::doctor::{Diagnosis, Unseen};

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
    RulesSeen { unseen, ..judge(rules, &packet::of(host)) }
}

/// A finding for each rule, however many packets it takes.
fn judge(mut rules: Ruleset, packets: &[Packet]) -> RulesSeen {
    // The guard of convey, and the tables of its scripts.
    rules.tables.retain(|table| !table.name.starts_with("convey"));
    let (mut seen, mut told) = (RulesSeen::default(), BTreeSet::new());
    for packet in packets {
        let Fate::Lost(taken) = rules.fate(&packet.judged, packet.hooks) else { continue };
        if let Purpose::Server(server) = packet.purpose {
            seen.servers.insert(server);
        }
        if told.insert(taken.clone()) {
            let what = format!("{} {}", taken.told(), packet.told());
            let why = "The kernel does so before convey gets them, or after convey has sent them. If the rule is of a file \
                       (/etc/nftables.conf) or of another program, change it there, too.";
            let mend = taken.mend(&packet.judged);
            seen.findings.push(Diagnosis::error("foreign-rule", what, why).mend(mend));
        }
    }
    seen
}

#[cfg(test)]
mod tests;
