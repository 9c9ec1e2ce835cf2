//! What iptables of the old kind do with a packet, by the text of `iptables-legacy-save`. Pure.
//!
//! Of a rule the address, the protocol, the ports and the state are understood. One with anything else may match or not, and
//! is taken to be meant.

use std::net::IpAddr;

use super::Culprit;
use super::packet::Packet;
use crate::model::Prefix;

/// The rule of a built-in chain that certainly takes the packet.
pub(super) fn follow(text: &str, packet: &Packet) -> Option<Culprit> {
    let chain = if packet.hooks.contains(&"input") { "INPUT" } else { "OUTPUT" };
    if !packet.hooks.contains(&"input") && !packet.hooks.contains(&"output") {
        return None;
    }
    let program = if packet.is_ipv4 { "iptables-legacy" } else { "ip6tables-legacy" };
    let (mut is_filter, mut drops) = (false, false);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["*filter"] => is_filter = true,
            [table] if table.starts_with('*') => is_filter = false,
            [name, policy, ..] if is_filter && name.strip_prefix(':') == Some(chain) => {
                drops = policy == "DROP"
            }
            ["-A", of, ref rest @ ..] if is_filter && of == chain => match verdict(rest, packet) {
                Some(target @ ("DROP" | "REJECT")) => return Some(culprit(program, chain, rest, target)),
                Some(_) => return None,
                None => {}
            },
            _ => {}
        }
    }
    let (side, port) = match packet.destination_port {
        Some(port) => ("d", port),
        None => ("s", packet.source_port?),
    };
    drops.then(|| Culprit {
        place: format!("the policy of chain {chain} of {program}"),
        verdict: "DROP".to_owned(),
        mend: format!("{program} -I {chain} -p {} --{side}port {port} -j ACCEPT", packet.protocol.name()),
    })
}

fn culprit(program: &str, chain: &str, rule: &[&str], target: &str) -> Culprit {
    Culprit {
        place: format!("the rule `{}` of chain {chain} of {program}", rule.join(" ")),
        verdict: target.to_owned(),
        mend: format!("{program} -D {chain} {}", rule.join(" ")),
    }
}

/// Where a rule sends the packet; `None`: to the next one, or nobody knows.
fn verdict<'a>(rule: &[&'a str], packet: &Packet) -> Option<&'a str> {
    let (mut rest, mut target, mut is_sure) = (rule, None, true);
    while let [word, after @ ..] = rest {
        let value = after.first().copied().unwrap_or_default();
        let is = match *word {
            "-p" => Some(value == packet.protocol.name()),
            "-s" => within(packet.source, value),
            "-d" => within(packet.destination, value),
            "--dport" => port(packet.destination_port, value),
            "--sport" => port(packet.source_port, value),
            "--ctstate" | "--state" => {
                Some(value.split(',').any(|state| state == if packet.is_new { "NEW" } else { "ESTABLISHED" }))
            }
            "-m" => Some(true),
            "-j" => {
                target = Some(value);
                Some(true)
            }
            "--reject-with" => Some(true),
            _ => None,
        };
        match is {
            Some(true) => {}
            Some(false) => return None,
            None => is_sure = false,
        }
        rest = after.get(1..).unwrap_or_default();
    }
    match target {
        // It may be accepted.
        Some("ACCEPT") => Some("ACCEPT"),
        Some(target @ ("DROP" | "REJECT")) => is_sure.then_some(target),
        // A chain of its own is not followed.
        _ => None,
    }
}

fn within(address: Option<IpAddr>, network: &str) -> Option<bool> {
    let network: Prefix = network.parse().ok()?;
    Some(network.contains(address?))
}

fn port(port: Option<u16>, of: &str) -> Option<bool> {
    let (first, last) = of.split_once(':').unwrap_or((of, of));
    Some((first.parse().ok()?..=last.parse().ok()?).contains(&port?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::packet::Purpose;
    use super::*;
    use crate::model::Protocol;

    fn followed(policy: &str, rules: &[&str]) -> Option<String> {
        let packet = Packet {
            purpose: Purpose::Client,
            hooks: &["prerouting", "input"],
            is_ipv4: true,
            protocol: Protocol::Tcp,
            source: None,
            destination: Some("10.0.0.100".parse().unwrap()),
            source_port: None,
            destination_port: Some(80),
            is_new: true,
            interfaces: BTreeSet::new(),
        };
        let text = format!("*filter\n:INPUT {policy} [0:0]\n{}\nCOMMIT\n", rules.join("\n"));
        follow(&text, &packet).map(|culprit| culprit.mend)
    }

    #[test]
    fn a_rule_for_all_clients_is_named_and_one_for_some_is_not() {
        let rule = "-A INPUT -d 10.0.0.100/32 -p tcp -m tcp --dport 80 -j DROP";
        let mend = "iptables-legacy -D INPUT -d 10.0.0.100/32 -p tcp -m tcp --dport 80 -j DROP";
        assert_eq!(followed("ACCEPT", &[rule]).as_deref(), Some(mend));
        for other in [
            "-A INPUT -s 198.51.100.7/32 -p tcp -m tcp --dport 80 -j DROP",
            "-A INPUT -p tcp -m tcp --dport 81:90 -j DROP",
            "-A INPUT -p tcp -m recent --set -j DROP",
            "-A OUTPUT -p tcp -j DROP",
        ] {
            assert_eq!(followed("ACCEPT", &[other]), None, "{other}");
        }
        let accept = "-A INPUT -p tcp -m tcp --dport 80 -j ACCEPT";
        assert_eq!(followed("DROP", &[accept, rule]), None);
        let old = "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        assert_eq!(
            followed("DROP", &[old]).as_deref(),
            Some("iptables-legacy -I INPUT -p tcp --dport 80 -j ACCEPT")
        );
    }
}
