//! SNAT address of new flows, with several addresses and after changes.

use std::sync::Arc;

use super::handover::{export_flows, take};
use super::lab::{Family, LAN, Lab, Outcome, WAN};
use crate::FlowState;
use convey_model::{DropReason, Prefix, Route, RouteHop, RoutingRule, RuleAction, Shortage};

run_cases_over_both_families! {
    way_to_a_server_is_that_of_the_address_it_sees,
    evicted_port_belongs_to_an_address_usable_for_the_server,
    flows_with_ports_of_another_address_are_not_ended_in_vain,
    withheld_address_begins_no_flow,
    address_withheld_after_a_restore_begins_no_flow,
    refused_syn_leaves_its_port_to_the_next_one,
}

const PORTS: u16 = 100;

fn addresses(family: Family) -> [&'static str; 2] {
    family.pick(["10.0.0.253", "10.0.0.254"], ["fd00::fd", "fd00::fe"])
}

/// Local addresses towards the servers, with `own` among them.
fn lan(family: Family, own: &[&'static str]) -> Vec<&'static str> {
    own.iter().copied().chain([family.pick("fe80::1", "fe80::1")]).collect()
}

fn lab(family: Family, own: &[&'static str], ports: u16) -> Lab {
    Lab::passthrough_by_kernel(family, addresses(family), &lan(family, own), ports)
}

fn way_to_a_server_is_that_of_the_address_it_sees(family: Family) {
    let [gone, seen] = addresses(family);
    let mut lab = lab(family, &[seen], PORTS);
    // Packets from `gone` would take a route that leads nowhere.
    lab.change(|world| {
        let anywhere = family.pick("0.0.0.0", "::").parse().unwrap();
        let hop = RouteHop::by(WAN, Some(family.server_ip(99)));
        world.more_routes.push(Route { table: 200, ..Route::of_main(anywhere, 0, vec![hop]) });
        let rule = RoutingRule::for_all(family == Family::V4, 100, RuleAction::Table(200));
        world.rules.push(RoutingRule { from: Some(Prefix::of(gone.parse().unwrap(), 128)), ..rule });
    });
    let syn = lab.send(lab.client(1).syn());
    assert_eq!((syn.from.ip().to_string().as_str(), syn.interface), (seen, LAN));
    assert_eq!(lab.forwarder.snat_ports_in_use(), 1);
}

/// The first address is removed with `first` half-open flows, then as many clients as there are
/// ports begin flows with the second.
fn change_address(family: Family, first: u16) -> Lab {
    let [old, new] = addresses(family);
    let mut lab = lab(family, &[old], PORTS);
    for n in 0..first {
        assert_eq!(lab.send(lab.client(1_000 + n).syn()).from.ip().to_string(), old);
    }
    lab.change(|world| world.lan = lan(family, &[new]));
    for n in 0..PORTS {
        assert_eq!(lab.send(lab.client(2_000 + n).syn()).from.ip().to_string(), new);
    }
    lab
}

fn evicted_port_belongs_to_an_address_usable_for_the_server(family: Family) {
    let mut lab = change_address(family, 50);
    let new = addresses(family)[1];
    for n in 0..PORTS {
        assert_eq!(lab.send(lab.client(3_000 + n).syn()).from.ip().to_string(), new);
    }
    assert_eq!(lab.forwarder.evicted(Shortage::SnatPorts), u64::from(PORTS));
    assert_eq!(lab.forwarder.flows().len(), 50 + u32::from(PORTS), "those with the first address stay");
}

fn flows_with_ports_of_another_address_are_not_ended_in_vain(family: Family) {
    let mut lab = change_address(family, PORTS);
    for n in 0..PORTS {
        let syn = lab.send(lab.client(2_000 + n).syn());
        lab.send(syn.reply().syn().seq(500).ack(syn.seq + 1));
        lab.send(lab.client(2_000 + n).seq(syn.seq + 1).ack(501));
        lab.send(lab.client(2_000 + n).seq(syn.seq + 1).ack(502));
    }
    assert_eq!(lab.forwarder.flows().count(FlowState::Established), u32::from(PORTS));
    // A search only covers some of the flows.
    for n in 0..5 {
        assert_eq!(lab.answer(lab.client(3_000 + n).syn()).1, DropReason::SnatExhausted);
    }
    assert_eq!(lab.forwarder.evicted(Shortage::SnatPorts), 0);
    assert_eq!(lab.forwarder.flows().len(), 2 * u32::from(PORTS));
}

fn withheld_address_begins_no_flow(family: Family) {
    let [first, second] = addresses(family);
    let mut lab = lab(family, &[first, second], PORTS);
    assert_eq!(lab.send(lab.client(1).syn()).from.ip().to_string(), first);
    let withhold = |lab: &mut Lab, ips: &[&str]| {
        lab.publish(|_| {});
        let ips: Vec<std::net::IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        lab.plan.snat_withheld = Arc::from(ips);
        lab.tick();
    };
    withhold(&mut lab, &[first]);
    assert_eq!(lab.send(lab.client(2).syn()).from.ip().to_string(), second);
    withhold(&mut lab, &[first, second]);
    assert_eq!(lab.answer(lab.client(3).syn()).1, DropReason::SnatExhausted);
    withhold(&mut lab, &[]);
    assert_eq!(lab.send(lab.client(4).syn()).from.ip().to_string(), first);
}

/// Flows are restored before the addresses of other processes are known, by a plan of the same
/// generation.
fn address_withheld_after_a_restore_begins_no_flow(family: Family) {
    let [first, second] = addresses(family);
    let [mut old, mut new] = [(); 2].map(|()| lab(family, &[first, second], PORTS));
    old.connect(1);
    let flows = export_flows(&mut old);
    new.publish(|_| {});
    assert_eq!(take(&mut new, &flows), 1);
    new.plan.snat_withheld = Arc::from([first.parse().unwrap()]);
    new.tick();
    assert_eq!(new.send(new.client(2).syn()).from.ip().to_string(), second);
}

fn refused_syn_leaves_its_port_to_the_next_one(family: Family) {
    let [first, second] = addresses(family);
    let mut lab = lab(family, &[first, second], 2);
    lab.change(|world| world.servers[0].max_connections = Some(1));
    lab.connect(1);
    for n in 2..10 {
        assert_eq!(lab.answer(lab.client(n).syn()).1, DropReason::MaxConnections);
        assert_eq!(lab.forwarder.snat_ports_in_use(), 1);
    }
    let too_long = lab.client(20).syn().payload(&[7; 1_400]);
    lab.change(|world| world.servers[0].max_connections = None);
    assert!(matches!(lab.handle(&too_long), Outcome::Answered(..)));
    assert_eq!(lab.forwarder.snat_ports_in_use(), 1);
    lab.connect(21);
    assert_eq!(lab.forwarder.snat_ports_in_use(), 2);
}
