//! Servers that fail, are removed or are added; neighbours that are not resolved yet, or move.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::lab::{Family, LAN, Lab, Outcome, Seen, TestServer, WAN, World, neighbour, wanted};
use crate::FlowEnd;
use crate::plan::ByView;
use convey_model::{DropReason, FlowTimeouts, OnDown, WantedNeighbour, fixture};
use convey_wire::TestPacket;

run_cases_over_both_families! {
    clients_of_a_dead_server_are_reset,
    clients_of_a_dead_server_are_reset_in_slices,
    half_open_and_closed_flows_of_a_dead_server_get_no_reset,
    flows_of_a_dead_server_go_on_where_that_is_configured,
    flows_of_a_dead_server_end_as_their_mode_has_it,
    new_weights_and_new_servers_move_no_flow,
    unresolved_server_is_queried_once_and_reached_after_its_answer,
    client_behind_an_unresolved_router_is_answered_once_resolved,
    flow_follows_the_mac_address_of_its_server,
    flows_go_where_the_routes_lead_when_those_change,
    flows_move_to_a_router_that_is_resolved_after_its_route_came,
    flows_move_to_the_resolved_one_of_two_equal_routers,
    new_flows_ask_for_each_of_two_equal_routers,
    server_flows_move_to_a_router_once_it_is_resolved,
    router_that_no_packet_waits_for_is_asked_for_until_it_answers,
    timeouts_that_a_reload_shortens_count_from_the_reload_at_the_earliest,
    silent_flow_does_not_follow_a_reused_next_hop_index,
    a_client_on_the_link_is_asked_for_as_a_client,
    forged_clients_on_the_link_leave_room_to_ask_for_a_server,
    repeated_packet_marks_its_neighbour_query_as_repeated,
}

/// Connects clients 1 to 29. Returns the number of each client with the SYN that its server
/// received.
pub(super) fn busy(family: Family) -> (Lab, Vec<(u16, Seen)>) {
    let mut lab = Lab::passthrough(family);
    let flows = (1..30).map(|n| (n, lab.connect(n))).collect();
    (lab, flows)
}

pub(super) fn is_of_first(syn: &Seen) -> bool {
    syn.mac == 11
}

/// Asserts that packets of these connections pass in both directions as before.
pub(super) fn assert_go_on<'a>(lab: &mut Lab, flows: impl IntoIterator<Item = &'a (u16, Seen)>) {
    let family = lab.family;
    for (n, syn) in flows {
        assert_eq!(lab.send(lab.client(*n).seq(101).ack(501)).route(), syn.route());
        assert_eq!(lab.send(syn.reply().ack(101)).route(), (family.vip().into(), family.client_addr(*n)));
    }
}

fn clients_of_a_dead_server_are_reset(family: Family) {
    let (mut lab, flows) = busy(family);
    let (dead, alive): (Vec<_>, Vec<_>) = flows.into_iter().partition(|(_, syn)| is_of_first(syn));
    for (n, _) in &dead {
        lab.send(lab.client(*n).seq(101).ack(1_000 + u32::from(*n)));
    }
    let mut resets = lab.change(|world| world.servers[0].up = false);
    resets.sort_by_key(|reset| reset.to.port());
    let reply: Vec<_> = resets.iter().map(Seen::reset).collect();
    let expected: Vec<_> = (dead.iter())
        .map(|(n, _)| (family.vip().to_owned(), family.client_addr(*n), "R", 1_000 + u32::from(*n), 0))
        .collect();
    assert!(!dead.is_empty() && reply == expected, "{reply:?}");
    assert!(resets.iter().all(|reset| (reset.interface, reset.mac) == (WAN, 0xfe)));

    assert_eq!(lab.forwarder.flows().len() as usize, alive.len());
    assert_eq!(lab.forwarder.snat_ports_in_use(), alive.len());
    assert_eq!(lab.ends(), vec![FlowEnd::ServerGone; dead.len()]);
    assert_eq!(lab.handle(&dead[0].1.reply().ack(1)), Outcome::Dropped(DropReason::NoFlow));
    assert!(!is_of_first(&lab.send(lab.client(dead[0].0).syn())));
    assert_go_on(&mut lab, &alive);
    assert_eq!(lab.tick(), [], "they are told once");
}

fn clients_of_a_dead_server_are_reset_in_slices(family: Family) {
    let mut lab = Lab::passthrough(family);
    for n in 0..9_000 {
        lab.connect(n);
    }
    let mut slices = vec![lab.change(|world| world.servers.iter_mut().for_each(|s| s.up = false)).len()];
    while slices.last() != Some(&0) {
        slices.push(lab.tick().len());
    }
    assert_eq!(slices, [4_096, 4_096, 808, 0]);
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use(), lab.ended()), (0, 0, 9_000));
}

fn half_open_and_closed_flows_of_a_dead_server_get_no_reset(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.send(lab.client(1).syn());
    let done = lab.connect(2);
    lab.close(2, &done);
    assert_eq!(lab.change(|world| world.servers.iter_mut().for_each(|s| s.up = false)), []);
    assert_eq!((lab.forwarder.flows().len(), lab.opened, lab.ended()), (0, 2, 2));
}

fn flows_of_a_dead_server_go_on_where_that_is_configured(family: Family) {
    let (mut lab, flows) = busy(family);
    let resets = lab.change(|world| {
        world.on_down = ByView::both(OnDown::Keep);
        world.servers[0].up = false;
    });
    assert_eq!(resets, []);
    assert_go_on(&mut lab, &flows);
    assert!((100..150).all(|n| !is_of_first(&lab.send(lab.client(n).syn()))), "new ones go elsewhere");
}

fn flows_of_a_dead_server_end_as_their_mode_has_it(family: Family) {
    for (both_sides, client_side) in [(OnDown::Keep, OnDown::Reset), (OnDown::Reset, OnDown::Keep)] {
        for (mut lab, here) in Lab::both_modes(family).into_iter().zip([both_sides, client_side]) {
            for n in 1..30 {
                lab.send(lab.client(n).syn());
            }
            lab.change(|world| {
                world.on_down = ByView { both_sides, client_side };
                world.servers[0].up = false;
            });
            assert_eq!(lab.ends().is_empty(), here == OnDown::Keep);
        }
    }
}

fn new_weights_and_new_servers_move_no_flow(family: Family) {
    let (mut lab, flows) = busy(family);
    lab.change(|world| {
        world.servers[0].weight = 0;
        world.servers[1].weight = 50;
    });
    assert_go_on(&mut lab, &flows);
    lab.change(|world| world.servers.insert(0, TestServer::new(family, 9)));
    assert_go_on(&mut lab, &flows);
    for (n, syn) in &flows {
        assert_eq!(lab.send(lab.client(*n).syn()).route(), syn.route(), "nor does a stray SYN");
    }
}

fn unresolved_server_is_queried_once_and_reached_after_its_answer(family: Family) {
    let mut lab = Lab::passthrough(family);
    let unknown = |world: &mut super::lab::World| {
        world.servers.truncate(1);
        world.neighbours = vec![family.router()];
    };
    lab.change(unknown);
    for n in 1..4 {
        let syn = lab.client(n).syn();
        assert_eq!(lab.handle(&syn), Outcome::Dropped(DropReason::NextHopUnresolved));
    }
    assert_eq!(std::mem::take(&mut lab.forwarder.events().wanted), [wanted(LAN, family.server_ip(11))]);
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (0, 0));

    lab.change(|world| world.neighbours.push(neighbour(LAN, family.server_ip(11), 11)));
    assert_eq!(lab.send(lab.client(1).syn()).mac, 11);
}

fn client_behind_an_unresolved_router_is_answered_once_resolved(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| world.neighbours.retain(|known| known.interface == LAN));
    let syn = lab.send(lab.client(1).syn().seq(100));
    let asked = std::mem::take(&mut lab.forwarder.events().wanted);
    assert_eq!(asked, [wanted(WAN, family.router().ip)], "asked for before the server answers");
    let answer = || syn.reply().syn().ack(101);
    assert_eq!(lab.handle(&answer()), Outcome::Dropped(DropReason::NextHopUnresolved));
    lab.change(|world| world.neighbours.push(family.router()));
    assert_eq!(lab.send(answer()).mac, 0xfe);
}

fn flow_follows_the_mac_address_of_its_server(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| world.servers.truncate(1));
    lab.connect(1);
    lab.change(|world| world.neighbours[0].mac[5] = 77);
    assert_eq!(lab.send(lab.client(1).ack(501)).mac, 77);

    let server = lab.world.neighbours[0];
    lab.change(|world| world.neighbours.retain(|known| *known != server));
    assert_eq!(lab.handle(&lab.client(1).ack(501)), Outcome::Dropped(DropReason::NextHopUnresolved));
    lab.wait(Duration::from_secs(5));
    lab.change(|world| world.neighbours.push(server));
    assert_eq!(lab.send(lab.client(1).ack(501)).mac, 77);
}

fn timeouts_that_a_reload_shortens_count_from_the_reload_at_the_earliest(family: Family) {
    let mut lab = Lab::passthrough(family);
    let (silent, server_messages) = (lab.connect(1), lab.connect(2));
    lab.change(|world| {
        world.flow_timeouts = FlowTimeouts { established: Duration::from_secs(2), ..FlowTimeouts::default() };
    });
    lab.wait(Duration::from_millis(1_500));
    assert_eq!(lab.forwarder.flows().len(), 2);
    lab.send(server_messages.reply().ack(101));
    lab.wait(Duration::from_secs(1));
    assert_eq!((lab.forwarder.flows().len(), lab.ended()), (1, 1));
    lab.send(server_messages.reply().ack(101));
    assert_eq!(lab.handle(&silent.reply().ack(101)), Outcome::Dropped(DropReason::NoFlow));
}

fn flows_go_where_the_routes_lead_when_those_change(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    assert_eq!(lab.send(syn.reply().ack(101)).mac, family.router().mac[5]);
    let other = match family {
        Family::V4 => "192.0.2.253",
        Family::V6 => "2001:db8:2::fd",
    };
    lab.change(|world| {
        world.neighbours.push(neighbour(WAN, other.parse().unwrap(), 0xfd));
        world.router = Some(other.parse().unwrap());
    });
    assert_eq!(lab.send(syn.reply().ack(101)).mac, 0xfd, "although the first router is still there");
    assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());
}

fn flows_move_to_a_router_that_is_resolved_after_its_route_came(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let other: IpAddr = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
    lab.change(|world| world.router = Some(other));
    assert_eq!(lab.send(syn.reply().ack(101)).mac, 0xfe, "the first router is still there");
    lab.change(|world| world.neighbours.push(neighbour(LAN, family.server_ip(99), 99)));
    assert_eq!(lab.send(syn.reply().ack(101)).mac, 0xfe);
    lab.change(|world| world.neighbours.push(neighbour(WAN, other, 0xfd)));
    assert_eq!(lab.send(syn.reply().ack(101)).mac, 0xfd);
    assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());
    let network = lab.plan.network.clone();
    let is_resolved = lab.forwarder.sweep.is_any_awaited_resolved(&network);
    assert!(!is_resolved, "or each change of the network costs a look at every flow");
}

/// Two unresolved routers on default routes with equal metrics.
fn equal_routers(family: Family) -> [IpAddr; 2] {
    family
        .pick(["192.0.2.252", "192.0.2.253"], ["2001:db8:2::fc", "2001:db8:2::fd"])
        .map(|ip| ip.parse().unwrap())
}

fn lead_by_two(world: &mut World, family: Family) {
    let [first, second] = equal_routers(family);
    let anywhere = family.pick("0.0.0.0/0", "::/0");
    world.router = Some(first);
    world.more_routes.push(fixture::route(anywhere, WAN, Some(second)));
}

fn flows_move_to_the_resolved_one_of_two_equal_routers(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    lab.change(|world| lead_by_two(world, family));
    assert_eq!(lab.send(syn.reply().ack(101)).mac, 0xfe, "the first router is still there");
    let [_, second] = equal_routers(family);
    lab.change(|world| world.neighbours.push(neighbour(WAN, second, 0xfd)));
    assert_eq!(lab.send(syn.reply().ack(101)).mac, 0xfd);
}

fn new_flows_ask_for_each_of_two_equal_routers(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| lead_by_two(world, family));
    std::mem::take(&mut lab.forwarder.events().wanted);
    lab.handle(&lab.client(1).syn());
    let asked = std::mem::take(&mut lab.forwarder.events().wanted);
    assert_eq!(asked, equal_routers(family).map(|router| wanted(WAN, router)));
}

fn router_that_no_packet_waits_for_is_asked_for_until_it_answers(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(1);
    let other: IpAddr = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
    let asked = |lab: &mut Lab| std::mem::take(&mut lab.forwarder.events().wanted);
    asked(&mut lab);
    lab.change(|world| world.router = Some(other));
    for _ in 0..3 {
        assert_eq!(asked(&mut lab), [wanted(WAN, other)]);
        lab.wait(Duration::from_secs(4));
        assert_eq!(asked(&mut lab), []);
        lab.wait(Duration::from_secs(1));
    }
    lab.change(|world| world.neighbours.push(neighbour(WAN, other, 0xfd)));
    asked(&mut lab);
    lab.wait(Duration::from_secs(5));
    assert_eq!(asked(&mut lab), []);
}

fn server_flows_move_to_a_router_once_it_is_resolved(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.connect(1);
        let router = family.server_ip(201);
        lab.change(|world| world.server_router = Some(router));
        let ack = lab.client(1).seq(101).ack(501);
        assert_eq!(lab.send(ack.clone()).mac, syn.mac, "the server is still there");
        lab.change(|world| world.neighbours.push(neighbour(LAN, router, 201)));
        assert_eq!(lab.send(ack).mac, 201);
    }
}

fn silent_flow_does_not_follow_a_reused_next_hop_index(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| world.servers.truncate(1));
    lab.connect(1);
    let known = std::mem::take(&mut lab.world.neighbours);
    let hosts = |range: std::ops::Range<u16>| range.map(|n| neighbour(LAN, host(n), 200));
    lab.change(|world| world.neighbours = hosts(0..1_200).collect());
    for seconds in [0, 61] {
        lab.wait(Duration::from_secs(seconds));
        lab.change(|world| world.neighbours.clear());
    }
    lab.change(|world| world.neighbours = hosts(2_000..3_300).collect());
    let taken = (0..4).all(|index| lab.plan.network.get(index).is_some_and(|hop| hop.dst_mac[5] == 200));
    assert!(taken, "the indices of servers and router are others' now");
    assert_eq!(lab.handle(&lab.client(1).ack(501)), Outcome::Dropped(DropReason::NextHopUnresolved));
    lab.change(|world| world.neighbours.extend(known));
    assert_eq!(lab.send(lab.client(1).ack(501)).mac, 11);
}

/// Address of a host on the servers' link.
fn host(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    [10, 9, high, low].into()
}

fn repeated_packet_marks_its_neighbour_query_as_repeated(family: Family) {
    for (udp, mut lab) in [(false, Lab::passthrough(family)), (true, Lab::passthrough(family).udp())] {
        let client = SocketAddr::new(family.server_ip(77), 5_000).to_string();
        let packet = TestPacket::from(client).to(family.vip());
        let packet = if udp { packet.udp() } else { packet.syn() };
        let mut asked = |packet: TestPacket| {
            lab.send(packet);
            let wanted = std::mem::take(&mut lab.forwarder.events().wanted);
            wanted.iter().map(|wanted| wanted.is_repeated).collect::<Vec<_>>()
        };
        assert_eq!([packet.clone(), packet].map(&mut asked), [[false], [true]], "UDP: {udp}");
    }
}

fn a_client_on_the_link_is_asked_for_as_a_client(family: Family) {
    let mut lab = Lab::passthrough(family);
    let client = SocketAddr::new(family.server_ip(77), 5_000).to_string();
    lab.send(TestPacket::from(client).to(family.vip()).syn());
    let asked = std::mem::take(&mut lab.forwarder.events().wanted);
    assert_eq!(asked, [WantedNeighbour { is_ours: false, ..wanted(LAN, family.server_ip(77)) }]);
}

fn forged_clients_on_the_link_leave_room_to_ask_for_a_server(family: Family) {
    let mut lab = Lab::passthrough(family);
    // One batch of clients with unresolved neighbours, and then a client of a server whose
    // neighbour entry is gone.
    for n in 100..180 {
        let client = SocketAddr::new(family.server_ip(n), 5_000).to_string();
        lab.send(TestPacket::from(client).to(family.vip()).syn());
    }
    lab.change(|world| world.neighbours = vec![family.router()]);
    lab.handle(&lab.client(1).syn());
    lab.handle(&lab.client(2).syn());
    let asked = std::mem::take(&mut lab.forwarder.events().wanted);
    assert!(asked.len() <= 64 && asked.iter().any(|wanted| wanted.is_ours), "{asked:?}");
}
