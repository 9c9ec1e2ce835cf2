//! Policy rules by the source of packets, and routes that reject packets.

use super::lab::{Family, LAN, Lab, Outcome, WAN, neighbour};
use convey_model::{DropReason, IpsecEffect, IpsecPolicy, Prefix, Route, RouteHop, RoutingRule, RuleAction};
use std::net::IpAddr;

run_cases_over_both_families! {
    answers_take_the_way_of_the_vip,
    packets_to_servers_take_the_way_of_the_snat_address,
    packets_to_servers_of_dsr_take_the_way_of_the_client,
    rule_that_comes_moves_open_flows,
    ipsec_policy_that_comes_stops_what_would_leave_in_the_clear,
    route_into_a_tunnel_stops_what_would_leave_without_it,
}

/// Router of table 200, on the other side than the usual one.
fn router(family: Family) -> IpAddr {
    family.pick("10.0.0.253", "fd00::fd").parse().unwrap()
}

fn anywhere(family: Family) -> IpAddr {
    family.pick("0.0.0.0", "::").parse().unwrap()
}

/// Adds a rule: packets with this source use table 200, which leads to the router on the LAN.
pub(super) fn add_rule(lab: &mut Lab, family: Family, from: IpAddr) {
    lab.change(|world| {
        world.neighbours.push(neighbour(LAN, router(family), 0xfd));
        let default = Route::of_main(anywhere(family), 0, vec![RouteHop::by(LAN, Some(router(family)))]);
        world.more_routes.push(Route { table: 200, ..default });
        let is_v4 = family == Family::V4;
        let rule = RoutingRule::for_all(is_v4, 100, RuleAction::Table(200));
        world.rules.push(RoutingRule { from: Some(Prefix::of(from, 128)), ..rule });
    });
}

fn vip(family: Family) -> IpAddr {
    family.vip_ip().parse().unwrap()
}

fn answers_take_the_way_of_the_vip(family: Family) {
    let mut lab = Lab::passthrough(family);
    add_rule(&mut lab, family, vip(family));
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert!([11, 12, 13].contains(&syn.mac), "servers are reached as ever");
    let answer = lab.send(syn.reply().syn().seq(500).ack(101));
    assert_eq!((answer.interface, answer.mac), (LAN, 0xfd));
}

fn packets_to_servers_take_the_way_of_the_snat_address(family: Family) {
    let mut lab = Lab::passthrough(family);
    add_rule(&mut lab, family, family.snat().parse().unwrap());
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!((syn.interface, syn.mac), (LAN, 0xfd));
    let answer = lab.send(syn.reply().syn().seq(500).ack(101));
    assert_eq!((answer.interface, answer.mac), (WAN, 0xfe));
}

fn packets_to_servers_of_dsr_take_the_way_of_the_client(family: Family) {
    let mut lab = Lab::dsr(family);
    let clients = family.pick("198.51.100.2", "2001:db8:100:2::1");
    add_rule(&mut lab, family, clients.parse().unwrap());
    assert_eq!(lab.send(lab.client(1).syn()).mac, 0xfd);
    assert!([11, 12, 13].contains(&lab.send(lab.client(2).syn()).mac));
}

fn rule_that_comes_moves_open_flows(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    assert_eq!(lab.send(syn.reply().seq(501).ack(101)).mac, 0xfe);
    add_rule(&mut lab, family, vip(family));
    assert_eq!(lab.send(syn.reply().seq(501).ack(101)).mac, 0xfd);
    lab.change(|world| world.rules.clear());
    assert_eq!(lab.send(syn.reply().seq(501).ack(101)).mac, 0xfe);
}

/// Asserts that a client's packets are dropped, including packets that the kernel's programs leave
/// to a worker.
fn is_stopped(lab: &mut Lab) {
    let packet = lab.client(1).seq(101).ack(501).payload(b"a secret");
    assert!(!matches!(lab.handle(&packet), Outcome::Sent(_)), "of an open flow");
    assert_eq!(lab.handle(&lab.client(2).syn()), Outcome::Dropped(DropReason::NoRoute));
}

fn ipsec_policy_that_comes_stops_what_would_leave_in_the_clear(family: Family) {
    for mut lab in Lab::both_modes(family) {
        if lab.world.frontends[0].mode.is_dsr() {
            lab.send(lab.client(1).syn().seq(100));
            lab.send(lab.client(1).seq(101).ack(501));
        } else {
            lab.connect(1);
        }
        lab.change(|world| {
            let any = Prefix::of(anywhere(family), 0);
            let servers = Prefix::of(family.server_ip(0), 24);
            let (priority, effect) = (1, IpsecEffect::Protect);
            let policy = IpsecPolicy {
                priority,
                source: any,
                destination: servers,
                protocol: 0,
                interface: 0,
                effect,
            };
            world.policies.push(policy);
        });
        is_stopped(&mut lab);
        lab.change(|world| world.policies.clear());
        assert!(matches!(lab.handle(&lab.client(3).syn()), Outcome::Sent(_)));
    }
}

fn route_into_a_tunnel_stops_what_would_leave_without_it(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(1);
    lab.change(|world| {
        for id in [11, 12, 13] {
            let len = family.pick(32, 128);
            let hop = RouteHop { is_encapsulated: true, ..RouteHop::by(LAN, None) };
            world.more_routes.push(Route::of_main(family.server_ip(id), len, vec![hop]));
        }
    });
    is_stopped(&mut lab);
}
