//! Checks that answers of a server with `dsr = "l3"` get the VIP as their source. Pure.

use convey_model::DsrKind;

use super::facts::ServerFacts;
use super::gather::TC_TABLE;
use super::script::ScriptVariables;
use super::service::protocols;
use super::setup::ServerSetup;
use crate::ruleset::{Fate, HOOKS_OUT, JudgedPacket, PacketEnd, SourceRule};
use crate::{Diagnosis, Severity};

const WHY: &str = "Clients wait for answers from the VIP, and ignore answers from this server's own address.";

/// Findings for missing or wrong rules that set the source of answers.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    match setup.dsr {
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => Vec::new(),
        DsrKind::L3 => rewriting(setup, facts).into_iter().collect(),
    }
}

fn rewriting(setup: &ServerSetup, facts: &ServerFacts) -> Option<Diagnosis> {
    let rules = facts.source_rules();
    let of_family: Vec<&SourceRule> =
        rules.iter().filter(|rule| rule.vip.is_ipv4() == setup.vip.is_ipv4()).collect();
    let wanted = ScriptVariables::wanted(setup, facts);
    let Some(first) = of_family.first() else {
        let seen = format!(
            "neither nftables nor tc has a rule that sets the VIP {} as the source address of answers",
            setup.vip
        );
        return Some(error("nat-missing", seen, vec![wanted.up(facts)]));
    };
    let of_table = |rule: &SourceRule| -> ScriptVariables {
        let same = |of: &&SourceRule| of.table == rule.table && of.interface == rule.interface;
        ScriptVariables::of_rules(&rules.iter().filter(same).collect::<Vec<_>>())
    };
    let of_vip: Vec<&&SourceRule> = of_family.iter().filter(|rule| rule.vip == setup.vip).collect();
    if of_vip.is_empty() {
        let seen = format!("answers get the source address {} instead of the VIP {}", first.vip, setup.vip);
        return Some(error("nat-wrong-vip", seen, vec![of_table(first).for_vip(setup.vip).up(facts)]));
    }
    let egress_interface = facts.egress_interface(setup.vip)?;
    let fits = |rule: &&&&SourceRule| rule.interface.as_deref().is_none_or(|name| name == egress_interface);
    let Some(rule) = of_vip.iter().find(fits) else {
        let variables = of_table(of_vip[0]);
        let seen = format!(
            "the rule that sets the source address {} is for {}, but answers leave through {egress_interface}",
            setup.vip, variables.interface
        );
        let fix = vec![variables.down(facts), variables.by(egress_interface).up(facts)];
        return Some(error("nat-wrong-interface", seen, fix));
    };
    if let Some(foreign) = rule.server.filter(|server| facts.links_with(*server).next().is_none()) {
        let seen = format!(
            "the rule that sets the source address {} is for answers from {foreign}, but this server does not have this address",
            setup.vip
        );
        let variables = setup.server.map(|server| of_table(rule).for_server(server)).unwrap_or(wanted);
        return Some(error("nat-wrong-address", seen, vec![variables.up(facts)]));
    }
    port(setup, facts, rule, of_table(rule))
}

/// Finding for a port or protocol that the rules do not cover, although their address and interface
/// are right.
fn port(
    setup: &ServerSetup,
    facts: &ServerFacts,
    rule: &SourceRule,
    variables: ScriptVariables,
) -> Option<Diagnosis> {
    let wrong = setup
        .ports
        .iter()
        .flat_map(|port| protocols(facts, *port).into_iter().map(move |protocol| (*port, protocol)));
    let (port, protocol) =
        wrong.into_iter().find(|(port, protocol)| !is_rewritten(setup, facts, *port, protocol))?;
    let (ports, protocols) = (rule.ports.join(", "), rule.protocols.join(" and "));
    let seen = format!(
        "answers from port {ports} ({protocols}) get the source address {}, but answers from port {port} ({protocol}) do not",
        setup.vip
    );
    let fix = variables.and_port(port).and_protocol(protocol).up(facts);
    Some(error("nat-wrong-port", seen, vec![fix]))
}

/// Whether an answer to a client leaves with the VIP as its source.
fn is_rewritten(setup: &ServerSetup, facts: &ServerFacts, port: u16, protocol: &'static str) -> bool {
    let by_tc = |rule: &SourceRule| {
        rule.table == TC_TABLE
            && rule.vip == setup.vip
            && rule.interface.as_deref() == facts.egress_interface(setup.vip)
            && rule.ports.contains(&port.to_string())
            && rule.protocols.iter().any(|of| of == protocol)
    };
    let packet = answer(setup, facts, port, protocol);
    let fate = facts.rules.fate(&packet, HOOKS_OUT);
    // The firewall check reports a dropped answer.
    matches!(fate, Fate::Lost(_))
        || fate == Fate::Passes(PacketEnd::Host(setup.vip))
        || facts.tc.iter().any(by_tc)
}

/// Packet with the service's answer to a client.
pub(super) fn answer(
    setup: &ServerSetup,
    facts: &ServerFacts,
    port: u16,
    protocol: &'static str,
) -> JudgedPacket {
    JudgedPacket {
        is_v6: setup.vip.is_ipv6(),
        protocol,
        source: setup.server.into(),
        source_port: Some(port),
        out_interface: facts.egress_interface(setup.vip).map(str::to_owned),
        state: "established",
        ..JudgedPacket::default()
    }
}

fn error(check: &'static str, seen: String, fix: Vec<String>) -> Diagnosis {
    Diagnosis { check, severity: Severity::Error, seen, why: WHY.to_owned(), on: None, fix }
}
