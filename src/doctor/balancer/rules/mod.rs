//! Rules of nftables and iptables that take the packets of clients or servers.
//!
//! [`nft`] reads what `nft -j list ruleset` prints, [`legacy`] what `iptables-legacy-save` prints, [`packet`] says which packets
//! matter. A rule that may match only some of them is taken to be meant.

mod legacy;
mod nft;
mod packet;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;

use self::packet::{Packet, Purpose};
use super::Host;
use crate::dataplane::programs;
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

/// A rule, or a policy, that takes packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Culprit {
    /// For an operator: `rule 5 of chain input in table inet filter`.
    place: String,
    /// What it does with them: `drop`.
    verdict: String,
    /// The command that takes it away, or lets the packets pass.
    mend: String,
}

/// Lists the rules of this host, and follows the packets of clients and servers through them.
pub(super) fn look(host: &Host<'_>) -> RulesSeen {
    let mut seen = RulesSeen::default();
    let packets = packet::of(host);
    match output("nft", &["-j", "list", "ruleset"]) {
        Ok(text) => {
            let rules = nft::NftRuleset::read(&text);
            take_in(&mut seen, &packets, |packet| rules.follow(packet));
        }
        Err(needs) => seen.unseen = Some(Unseen { check: "foreign-rule", needs }),
    }
    for (names, program, is_ipv4) in [
        ("/proc/net/ip_tables_names", "iptables-legacy-save", true),
        ("/proc/net/ip6_tables_names", "ip6tables-legacy-save", false),
    ] {
        // Without tables there is nothing to list, and to list it would make them.
        if std::fs::read_to_string(names).is_ok_and(|tables| !tables.trim().is_empty())
            && let Ok(text) = output(program, &[])
        {
            let of_family =
                |packet: &Packet| (packet.is_ipv4 == is_ipv4).then(|| legacy::follow(&text, packet))?;
            take_in(&mut seen, &packets, of_family);
        }
    }
    seen
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let ran = programs::command(program).args(arguments).stdin(Stdio::null()).output();
    match ran {
        Ok(ran) if ran.status.success() => Ok(String::from_utf8_lossy(&ran.stdout).into_owned()),
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr).lines().next().unwrap_or_default().to_owned();
            Err(format!("root, for {program}: {said}"))
        }
        Err(_) => Err(format!("{program} (Debian package nftables)")),
    }
}

/// A finding for each rule, however many packets it takes.
fn take_in(seen: &mut RulesSeen, packets: &[Packet], follow: impl Fn(&Packet) -> Option<Culprit>) {
    let mut told: BTreeSet<Culprit> = BTreeSet::new();
    for packet in packets {
        let Some(culprit) = follow(packet) else { continue };
        if let Purpose::Server(server) = packet.purpose {
            seen.servers.insert(server);
        }
        if told.insert(culprit.clone()) {
            let Culprit { place, verdict, mend } = culprit;
            let what = format!("{place} has the verdict {verdict} for {}", packet.told());
            let why = "The kernel does so before convey gets them, or after convey has sent them. If the rule is of a file \
                       (/etc/nftables.conf) or of another program, change it there, too.";
            seen.findings.push(Diagnosis::error("foreign-rule", what, why).mend(mend));
        }
    }
}
