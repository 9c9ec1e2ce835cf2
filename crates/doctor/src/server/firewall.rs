//! Checks that the host's own packet filter lets requests in and answers out. Pure.

use super::facts::ServerFacts;
use super::nat::answer;
use super::near_clients::NearClients;
use super::service::protocols;
use super::setup::ServerSetup;
use crate::ruleset::{Fate, HOOKS_IN, HOOKS_OUT, JudgedPacket, PacketEnd, TakenHow};
use crate::{Diagnosis, Severity};

/// Findings for rules that drop or reject requests or answers.
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
        destination: setup.server.into(),
        destination_port: Some(port),
        in_interface: facts.ingress_link(setup.vip, setup.server).map(|link| link.name.clone()),
        state: "new",
        ..JudgedPacket::default()
    };
    let of_clients = || {
        let whose = format!("requests of clients to port {port} ({protocol})");
        diagnosis(facts.rules.fate(&request, HOOKS_IN), &request, &whose)
    };
    let to_clients = || {
        let answer = answer(setup, facts, port, protocol);
        let whose = format!("answers to clients from port {port} ({protocol})");
        diagnosis(facts.rules.fate(&answer, HOOKS_OUT), &answer, &whose)
    };
    of_clients().or_else(to_clients).or_else(|| near(setup, facts, port, &request))
}

/// Finding for rules that admit the balancer, but drop or reject packets of other hosts on the
/// link. This may be intended, so the finding is a warning.
fn near(setup: &ServerSetup, facts: &ServerFacts, port: u16, request: &JudgedPacket) -> Option<Diagnosis> {
    let NearClients { network, clients } = NearClients::of(setup, facts)?;
    let protocol = request.protocol;
    let answer = answer(setup, facts, port, protocol);
    let of_requests =
        clients.map(|client| JudgedPacket { source: PacketEnd::Host(client), ..request.clone() });
    let of_answers =
        clients.map(|client| JudgedPacket { destination: PacketEnd::Host(client), ..answer.clone() });
    let requests = format!("requests of clients in {network} to port {port} ({protocol})");
    let answers = format!("answers to clients in {network} from port {port} ({protocol})");
    [(of_requests, HOOKS_IN, requests), (of_answers, HOOKS_OUT, answers)].into_iter().find_map(
        |(packets, hooks, whose)| {
            let [one, other] = packets.each_ref().map(|packet| facts.rules.fate(packet, hooks));
            let found = diagnosis(one.clone(), &packets[0], &whose).filter(|_| one == other)?;
            Some(Diagnosis { severity: Severity::Warning, ..found })
        },
    )
}

fn diagnosis(fate: Fate, packet: &JudgedPacket, whose: &str) -> Option<Diagnosis> {
    let Fate::Lost(taken) = fate else { return None };
    let (check, why) = match taken.how {
        TakenHow::Drops => ("firewall-drops", "Clients wait until they time out."),
        TakenHow::Rejects => ("firewall-rejects", "Clients are refused, or get no answer."),
        // The redirection may be intended, for example to a container of the service.
        TakenHow::Redirects => return None,
    };
    let seen = format!("{} {whose}", taken.description());
    // The commands match any address, because health checks arrive at the host's own address.
    let (source, destination) = (PacketEnd::Unknown, PacketEnd::Unknown);
    let fix = taken.fix(&[&JudgedPacket { source, destination, ..packet.clone() }]);
    Some(Diagnosis { fix, ..Diagnosis::error(check, seen, why) })
}
