//! Rules that give forwarded connections a new source (`masquerade`, `snat`), and the ports that
//! these rules may pick. Pure.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::walk::MAX_DEPTH;
use super::{Action, Chain, Condition, JudgedPacket, Rule, Ruleset, Subject, Table, Tool, Value, Values};

/// Lowest port in rules that doctor suggests. Lower ports are for services.
const FIRST_PORT: u16 = 1024;

/// New source of a connection after source NAT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NewSource {
    /// Source address; `None` if the kernel picks an address of the outgoing interface.
    pub(super) address: Option<IpAddr>,
    /// First and last port; `None` if the kernel keeps the port of the connection or picks any
    /// port.
    pub(super) ports: Option<(u16, u16)>,
}

/// SNAT addresses and ports that convey uses on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPorts {
    /// The SNAT addresses.
    pub addresses: Vec<IpAddr>,
    /// SNAT ports on these addresses.
    pub ports: RangeInclusive<u16>,
}

/// Rule that may give a connection of another host one of convey's SNAT ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollidingRule {
    /// Program that manages the table.
    pub tool: Tool,
    /// Family of the table: `ip`, `ip6` or `inet`.
    pub family: String,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Handle (nft) or number (iptables) of the rule.
    pub rule: u64,
    /// Commands that insert a rule with other ports before this rule. Empty if the rule has
    /// conditions that doctor cannot interpret, or if no ports are left.
    pub fix: Vec<String>,
}

impl CollidingRule {
    /// Description of the rule for messages: `rule 5 of chain POSTROUTING (iptables, table nat)`.
    pub fn place(&self) -> String {
        match self.tool {
            Tool::Nft => format!(
                "the rule with handle {} of chain {} (table {} {})",
                self.rule, self.chain, self.family, self.table
            ),
            tool => format!(
                "rule {} of chain {} ({}, table {})",
                self.rule,
                self.chain,
                tool.program(),
                self.table
            ),
        }
    }
}

impl OwnPorts {
    fn matches_condition(&self, source: &NewSource) -> bool {
        let is_ours = source.address.is_none_or(|address| self.addresses.contains(&address));
        let matches_condition =
            |(first, last): (u16, u16)| first <= *self.ports.end() && *self.ports.start() <= last;
        is_ours && source.ports.is_none_or(matches_condition)
    }

    /// Ports for other connections: the larger of the ranges below and above convey's SNAT ports;
    /// `None` if both are empty.
    pub fn others(&self) -> Option<RangeInclusive<u16>> {
        let below = FIRST_PORT..=self.ports.start().saturating_sub(1);
        let above = self.ports.end().saturating_add(1).max(FIRST_PORT)..=u16::MAX;
        let larger = if below.len() >= above.len() { below } else { above };
        (!larger.is_empty() && !larger.contains(self.ports.end())).then_some(larger)
    }
}

impl Ruleset {
    /// Rules that may give a connection one of the `own` ports; `packet` is the first packet of the
    /// connection. The result does not contain a rule if an earlier rule picks other ports for the
    /// same connections.
    pub fn colliding(&self, packet: &JudgedPacket, own: &OwnPorts) -> Vec<CollidingRule> {
        let (mut found, mut safe) = (Vec::new(), Vec::new());
        for (table, chain, _) in self.chains("postrouting", packet) {
            let mut search = Search { table, packet, own, safe: &mut safe, found: &mut found };
            if search.chain(chain, &[], 0) == End::Translated {
                break;
            }
        }
        found
    }
}

/// Outcome of a chain that is certain for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// No rule of the chain has decided.
    Through,
    /// The evaluation of this table ends; the kernel continues with other tables.
    Accepted,
    /// The connection has its new source.
    Translated,
}

/// Evaluation of a table for a new connection.
struct Search<'a, 'b> {
    table: &'a Table,
    packet: &'a JudgedPacket,
    own: &'a OwnPorts,
    /// Earlier rules that pick a source other than convey's: for each rule, the conditions that the
    /// known fields of the packet do not decide.
    safe: &'b mut Vec<Vec<&'a Condition>>,
    found: &'b mut Vec<CollidingRule>,
}

impl<'a> Search<'a, '_> {
    /// Evaluates a chain for the connection. `open` are the undecided conditions of the rules that
    /// jump to the chain.
    fn chain(&mut self, chain: &'a Chain, open: &[&'a Condition], depth: u8) -> End {
        for rule in &chain.rules {
            let Some(more) = self.open(rule) else { continue };
            let open: Vec<&Condition> = open.iter().copied().chain(more).collect();
            for action in &rule.actions {
                let is_certain = open.is_empty();
                match action {
                    Action::SourceNat(source) => {
                        self.apply_rule(chain, rule, source, &open);
                        if is_certain {
                            return End::Translated;
                        }
                    }
                    Action::Accept if is_certain => return End::Accepted,
                    Action::Return if is_certain => return End::Through,
                    Action::Jump(to) | Action::Goto(to) if depth < MAX_DEPTH => {
                        let to = self.table.chain(to);
                        let end = to.map_or(End::Through, |to| self.chain(to, &open, depth + 1));
                        if end != End::Through || (is_certain && matches!(action, Action::Goto(_))) {
                            return end;
                        }
                    }
                    _ => {}
                }
            }
        }
        End::Through
    }

    /// Conditions of a rule that the packet does not decide; `None` if a condition does not hold.
    fn open(&self, rule: &'a Rule) -> Option<Vec<&'a Condition>> {
        let mut open = Vec::new();
        for condition in &rule.conditions {
            match self.packet.matches_condition(condition, self.table) {
                Some(true) => {}
                Some(false) => return None,
                None => open.push(condition),
            }
        }
        Some(open)
    }

    fn apply_rule(&mut self, chain: &Chain, rule: &'a Rule, source: &NewSource, open: &[&'a Condition]) {
        if !self.own.matches_condition(source) {
            if !open.contains(&&Condition::Unknown) {
                self.safe.push(open.to_vec());
            }
            return;
        }
        let is_shadowed = self.safe.iter().any(|safe| safe.iter().all(|one| open.contains(one)));
        if is_shadowed {
            return;
        }
        let Table { tool, family, name, .. } = self.table;
        let fix = self.own.others().and_then(|ports| self.fix(chain, rule, source.address, &ports));
        self.found.push(CollidingRule {
            tool: *tool,
            family: family.clone(),
            table: name.clone(),
            chain: chain.name.clone(),
            rule: rule.number,
            fix: fix.unwrap_or_default(),
        });
    }

    /// Commands that insert a copy of the rule, with other ports, before the rule.
    fn fix(
        &self,
        chain: &Chain,
        rule: &Rule,
        address: Option<IpAddr>,
        ports: &RangeInclusive<u16>,
    ) -> Option<Vec<String>> {
        let Table { tool, family, name, .. } = self.table;
        let (first, last, chain, number) = (ports.start(), ports.end(), &chain.name, rule.number);
        let has_address =
            rule.conditions.iter().any(|one| one.is_of(Subject::Source) || one.is_of(Subject::Destination));
        let conditions: Option<Vec<String>> = rule
            .conditions
            .iter()
            .filter(|condition| !condition.is_of(Subject::Protocol) || *tool == Tool::Nft)
            // A condition on an address implies the family.
            .filter(|condition| !condition.is_of(Subject::Family) || !has_address)
            .map(|condition| condition.text(*tool))
            .collect();
        let conditions: String = conditions?.iter().map(|text| format!("{text} ")).collect();
        let is_of_protocol = rule.conditions.iter().any(|condition| condition.is_of(Subject::Protocol));
        if *tool == Tool::Nft {
            let protocols = if is_of_protocol { "" } else { "meta l4proto { tcp, udp } " };
            let source = match address {
                Some(IpAddr::V6(ip)) => format!("snat to [{ip}]:"),
                Some(ip) => format!("snat to {ip}:"),
                None => "masquerade to :".to_owned(),
            };
            return Some(vec![format!(
                "nft insert rule {family} {name} {chain} handle {number} {conditions}{protocols}{source}{first}-{last}"
            )]);
        }
        let source = match address {
            Some(IpAddr::V6(ip)) => format!("SNAT --to-source [{ip}]:"),
            Some(ip) => format!("SNAT --to-source {ip}:"),
            None => "MASQUERADE --to-ports ".to_owned(),
        };
        let holds = |protocol: &&'static str| {
            let packet = JudgedPacket { protocol, ..self.packet.clone() };
            let mut conditions =
                rule.conditions.iter().filter(|condition| condition.is_of(Subject::Protocol));
            conditions.all(|condition| packet.matches_condition(condition, self.table) == Some(true))
        };
        let command = |protocol: &'static str| {
            let program = tool.program();
            format!(
                "{program} -t {name} -I {chain} {number} -p {protocol} {conditions}-j {source}{first}-{last}"
            )
        };
        Some(["tcp", "udp"].into_iter().filter(holds).map(command).collect())
    }
}

impl Condition {
    fn is_of(&self, subject: Subject) -> bool {
        matches!(self, Condition::Is { subject: of, .. } if *of == subject)
    }

    /// Condition in the syntax of the program; `None` if doctor does not know the syntax.
    fn text(&self, tool: Tool) -> Option<String> {
        let Condition::Is { subject, values, negated } = self else { return None };
        let texts: Vec<String> = match values {
            Values::Set(name) => vec![format!("@{name}")],
            Values::These(values) if values.contains(&Value::Unknown) => return None,
            Values::These(values) => values.iter().map(Value::to_string).collect(),
        };
        if tool == Tool::Nft {
            let key = match subject {
                Subject::Family => "meta nfproto",
                Subject::Protocol => "meta l4proto",
                Subject::Source => values.family_key("saddr")?,
                Subject::Destination => values.family_key("daddr")?,
                Subject::SourcePort => "th sport",
                Subject::DestinationPort => "th dport",
                Subject::InInterface => "iifname",
                Subject::OutInterface => "oifname",
                Subject::State => "ct state",
                Subject::EtherType => return None,
            };
            let quoted = |text: &String| match subject {
                Subject::InInterface | Subject::OutInterface => format!("\"{text}\""),
                _ => text.clone(),
            };
            let texts: Vec<String> = texts.iter().map(quoted).collect();
            let values =
                if texts.len() == 1 { texts.concat() } else { format!("{{ {} }}", texts.join(", ")) };
            return Some(format!("{key} {}{values}", if *negated { "!= " } else { "" }));
        }
        let option = match subject {
            Subject::Source => "-s",
            Subject::Destination => "-d",
            Subject::InInterface => "-i",
            Subject::OutInterface => "-o",
            Subject::SourcePort => "-m multiport --sports",
            Subject::DestinationPort => "-m multiport --dports",
            Subject::State => "-m conntrack --ctstate",
            Subject::Family | Subject::Protocol | Subject::EtherType => return None,
        };
        let values = match subject {
            Subject::InInterface | Subject::OutInterface => texts.join(",").replace('*', "+"),
            Subject::SourcePort | Subject::DestinationPort => texts.join(",").replace('-', ":"),
            Subject::State => texts.join(",").to_uppercase(),
            _ => texts.join(","),
        };
        let (module, option) = option.rsplit_once(' ').unwrap_or(("", option));
        let words = [module, if *negated { "!" } else { "" }, option, &values];
        Some(words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
    }
}

impl Values {
    /// `ip saddr` or `ip6 saddr` (or `daddr`), depending on the family of the addresses; `None` for
    /// a named set.
    fn family_key(&self, field: &str) -> Option<&'static str> {
        let Values::These(values) = self else { return None };
        let is_v6 = values.iter().any(|value| match value {
            Value::Network(ip, _) | Value::Addresses(ip, _) => ip.is_ipv6(),
            _ => false,
        });
        Some(match (is_v6, field) {
            (false, "saddr") => "ip saddr",
            (false, _) => "ip daddr",
            (true, "saddr") => "ip6 saddr",
            (true, _) => "ip6 daddr",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read_json, read_save};
    use super::*;
    use crate::ruleset::PacketEnd;

    const DOCKER: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
        -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n\
        -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE\nCOMMIT\n";

    fn own() -> OwnPorts {
        OwnPorts { addresses: vec!["10.0.0.1".parse().unwrap()], ports: 33768..=61000 }
    }

    fn to_server() -> JudgedPacket {
        JudgedPacket {
            protocol: "tcp",
            source: PacketEnd::Unknown,
            destination: PacketEnd::Host("10.0.0.11".parse().unwrap()),
            destination_port: Some(80),
            out_interface: Some("eth0".to_owned()),
            state: "new",
            ..JudgedPacket::default()
        }
    }

    fn found(tables: Vec<Table>) -> Vec<(u64, Vec<String>)> {
        let found = Ruleset { tables }.colliding(&to_server(), &own());
        found.into_iter().map(|rule| (rule.rule, rule.fix)).collect()
    }

    fn saved(rules: &str) -> Vec<(u64, Vec<String>)> {
        let text = format!("*nat\n:POSTROUTING ACCEPT [0:0]\n:OTHER - [0:0]\n{rules}COMMIT\n");
        found(read_save(&text, Tool::Iptables))
    }

    /// nft tables with one rule for each list of expressions.
    fn listed(rules: &[&str]) -> Vec<Table> {
        let rules = rules.iter().enumerate().map(|(number, expr)| {
            let handle = number + 4;
            format!(
                r#",{{"rule": {{"family": "ip", "table": "hbnat", "chain": "post", "handle": {handle}, "expr": [{expr}]}}}}"#
            )
        });
        let text = format!(
            r#"{{"nftables": [{{"table": {{"family": "ip", "name": "hbnat", "handle": 1}}}},
            {{"chain": {{"family": "ip", "table": "hbnat", "name": "post", "handle": 1, "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}}}}{}]}}"#,
            rules.collect::<String>()
        );
        read_json(&text).unwrap()
    }

    const FROM_CONTAINERS: &str = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "172.30.0.0", "len": 24}}}},
        {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "eth0"}}"#;

    #[test]
    fn masquerading_of_docker_is_found_and_its_remedy_is_taken() {
        let rules = found(read_save(DOCKER, Tool::Iptables));
        let fix = |protocol| {
            format!(
                "iptables -t nat -I POSTROUTING 1 -p {protocol} -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE --to-ports 1024-33767"
            )
        };
        assert_eq!(rules, [(1, vec![fix("tcp"), fix("udp")])]);
        let before =
            "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -p tcp -j MASQUERADE --to-ports 1024-33767\n";
        let mended = DOCKER.replacen("-A POSTROUTING", &format!("{before}-A POSTROUTING"), 1);
        assert_eq!(found(read_save(&mended, Tool::Iptables)), []);
        let after = DOCKER.replace("COMMIT", &format!("{before}COMMIT"));
        assert_eq!(found(read_save(&after, Tool::Iptables)).len(), 1, "a rule that comes too late");
    }

    #[test]
    fn masquerading_of_nft_is_found_and_its_remedy_is_taken() {
        let masquerade = format!(r#"{FROM_CONTAINERS}, {{"masquerade": null}}"#);
        let fix = "nft insert rule ip hbnat post handle 4 ip saddr 172.30.0.0/24 oifname \"eth0\" \
                    meta l4proto { tcp, udp } masquerade to :1024-33767";
        assert_eq!(found(listed(&[&masquerade])), [(4, vec![fix.to_owned()])]);
        let protocols = r#"{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": {"set": ["tcp", "udp"]}}}"#;
        let remedy = format!(
            r#"{FROM_CONTAINERS}, {protocols}, {{"masquerade": {{"port": {{"range": [1024, 33767]}}}}}}"#
        );
        assert_eq!(found(listed(&[&remedy, &masquerade])), []);
        let wide = remedy.replace("33767", "33768");
        assert_eq!(found(listed(&[&wide, &masquerade])).len(), 2);
    }

    #[test]
    fn rule_for_other_connections_or_sources_does_not_collide() {
        for rules in [
            "-A POSTROUTING -o eth1 -j MASQUERADE\n",
            "-A POSTROUTING -d 10.0.0.12/32 -j MASQUERADE\n",
            "-A POSTROUTING -p udp -j MASQUERADE\n",
            "-A POSTROUTING -j SNAT --to-source 10.0.0.9\n",
            "-A POSTROUTING -s 172.17.0.0/16 -p tcp -j SNAT --to-source 10.0.0.1:1024-33767\n",
            "-A POSTROUTING -d 10.0.0.0/24 -j RETURN\n-A POSTROUTING -j MASQUERADE\n",
            "-A POSTROUTING -d 10.0.0.0/24 -j ACCEPT\n-A POSTROUTING -j MASQUERADE\n",
            "-A OTHER -j MASQUERADE\n",
        ] {
            assert_eq!(saved(rules), [], "{rules}");
        }
        for rules in [
            "-A POSTROUTING -j MASQUERADE --random-fully\n",
            "-A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n-A POSTROUTING -j MASQUERADE\n",
            "-A POSTROUTING -j SNAT --to-source 10.0.0.1\n",
            "-A POSTROUTING -p tcp -j MASQUERADE --to-ports 1024-65535\n",
            "-A POSTROUTING -j OTHER\n-A OTHER -s 172.17.0.0/16 -j MASQUERADE\n",
            "-A POSTROUTING -s 10.9.0.0/16 -d 10.0.0.0/24 -j RETURN\n-A POSTROUTING -j MASQUERADE\n",
        ] {
            assert_eq!(saved(rules).len(), 1, "{rules}");
        }
    }

    #[test]
    fn rule_with_unreadable_conditions_is_found_without_a_command() {
        assert_eq!(saved("-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\n"), [(1, vec![])]);
    }

    #[test]
    fn ports_of_others_are_the_larger_range_beside_ours() {
        let others = |ports| OwnPorts { ports, ..own() }.others();
        assert_eq!(others(33768..=61000), Some(1024..=33767));
        assert_eq!(others(2000..=20000), Some(20001..=65535));
        assert_eq!(others(1024..=61000), Some(61001..=65535));
        assert_eq!(others(1..=65535), None);
        assert_eq!(others(1..=500), Some(1024..=65535));
    }
}
