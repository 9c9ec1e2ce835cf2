//! Direct server return by link-layer address: packets reach the server unchanged.

use super::lab::{Family, LAN, Lab, Outcome, Seen, error_about, neighbour, wanted};
use convey_model::{DropReason, DsrKind, Protocol};
use convey_wire::{IcmpError, TestPacket};

run_cases_over_both_families! {
    l2_forwarding_changes_only_mac_addresses_and_ttl,
    the_next_hop_is_the_servers_although_the_packet_says_vip,
    l2_packets_for_a_routed_server_are_dropped,
    a_full_table_forwards_as_it_is_too,
    errors_about_what_a_server_answered_reach_it_as_they_are,
    flows_of_a_dead_server_are_reset_by_the_vip,
    a_reload_changes_how_datagrams_get_to_their_server_and_no_connection,
}

/// The packet that was sent, with the changes of one hop.
fn one_hop_on(family: Family, sent: &[u8], seen: &[u8]) -> Vec<u8> {
    let mut expected = sent.to_vec();
    expected[..12].copy_from_slice(&seen[..12]);
    let ttl = family.pick(22, 21);
    expected[ttl] -= 1;
    if family == Family::V4 {
        expected[24..26].copy_from_slice(&seen[24..26]); // found valid when it was read
    }
    expected
}

fn l2_forwarding_changes_only_mac_addresses_and_ttl(family: Family) {
    for mut lab in [Lab::l2(family), Lab::l2(family).udp()] {
        let is_udp = lab.world.frontends[0].protocol == Protocol::Udp;
        for payload in [&b""[..], b"hello"] {
            let packet = lab.client(1).payload(payload);
            let packet = if is_udp { packet.udp() } else { packet.ack(7) };
            let seen = lab.send(packet.clone());
            assert_eq!(seen.frame, one_hop_on(family, &packet.bytes(), &seen.frame));
            assert_eq!((seen.interface, seen.to.to_string()), (LAN, family.vip().to_owned()));
            assert!([11, 12, 13].contains(&seen.mac));
        }
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (1, 1));
    }
    let mut lab = Lab::l2(family).udp();
    for fragment in lab.client(1).udp().payload(&[7; 3_000]).fragments(0x12_3456, 1_208) {
        let Outcome::Fragments(sent, LAN) = &lab.handle_fragment(&fragment)[0] else { panic!("a fragment") };
        assert_eq!(sent[0], one_hop_on(family, &fragment, &sent[0]));
    }
}

fn the_next_hop_is_the_servers_although_the_packet_says_vip(family: Family) {
    let mut lab = Lab::l2(family);
    lab.change(|world| world.servers.truncate(1));
    assert_eq!(lab.send(lab.client(1).syn()).mac, 11);
    lab.change(|world| world.neighbours[0].mac[5] = 77);
    assert_eq!(lab.send(lab.client(1).ack(1)).mac, 77);

    lab.change(|world| world.neighbours.retain(|known| known.interface != LAN));
    lab.forwarder.events().wanted.clear();
    assert_eq!(lab.handle(&lab.client(1).ack(1)), Outcome::Dropped(DropReason::NextHopUnresolved));
    assert_eq!(std::mem::take(&mut lab.forwarder.events().wanted), [wanted(LAN, family.server_ip(11))]);
    lab.change(|world| world.neighbours.push(neighbour(LAN, family.server_ip(11), 78)));
    assert_eq!(lab.send(lab.client(1).ack(1)).mac, 78);
}

fn l2_packets_for_a_routed_server_are_dropped(family: Family) {
    let mut lab = Lab::l2(family);
    let router = neighbour(LAN, family.server_ip(99), 99);
    lab.change(|world| world.neighbours.push(router));
    let syn = lab.send(lab.client(1).syn());
    lab.change(|world| world.server_router = Some(router.ip));
    for packet in [lab.client(1).ack(1), lab.client(2).syn()] {
        assert_eq!(lab.handle(&packet), Outcome::Dropped(DropReason::ServerNotOnLink));
    }
    lab.change(|world| world.server_router = None);
    assert_eq!(lab.send(lab.client(1).ack(1)).mac, syn.mac);

    let mut by_address = Lab::dsr(family);
    by_address.change(|world| {
        world.neighbours.push(router);
        world.server_router = Some(router.ip);
    });
    assert_eq!(by_address.send(by_address.client(1).syn()).mac, 99, "that may pass one");
}

fn a_full_table_forwards_as_it_is_too(family: Family) {
    let (mut lab, mut unlimited) = (Lab::dsr_of(family, 1), Lab::l2(family));
    lab.change(|world| world.frontends[0].dsr = DsrKind::L2);
    lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1).payload(b"x"));
    for n in 2..20 {
        let packet = lab.client(n).syn();
        assert_eq!(lab.send(packet.clone()), unlimited.send(packet));
    }
    assert_eq!((lab.opened, lab.untracked), (1, 18));
}

fn errors_about_what_a_server_answered_reach_it_as_they_are(family: Family) {
    let mut lab = Lab::l2(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.send(lab.client(1).seq(101).ack(501));
    let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).seq(501).ack(101);
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    let error = error_about(&answer.payload(&[7; 1_200]).bytes(), IcmpError::TooBig { mtu: 1_280 }, router);
    let seen: Seen = lab.forwarded(&error);
    assert_eq!(seen.frame, one_hop_on(family, &error, &seen.frame));
    assert_eq!((seen.mac, seen.interface), (syn.mac, LAN));
    assert_eq!(seen.icmp_error(), (IcmpError::TooBig { mtu: 1_280 }, router.into(), family.vip_ip().into()));
}

fn flows_of_a_dead_server_are_reset_by_the_vip(family: Family) {
    let mut lab = Lab::l2(family);
    let syn = lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(4711));
    let at = lab.world.servers.iter().position(|server| server.ip == family.server_ip(syn.mac)).unwrap();
    let resets = lab.change(|world| world.servers[at].up = false);
    assert_eq!(resets.len(), 1);
    assert_eq!(resets[0].reset(), (family.vip().into(), family.client_addr(1), "R", 4711, 0));
    assert_ne!(lab.send(lab.client(1).syn()).mac, syn.mac);
}

fn a_reload_changes_how_datagrams_get_to_their_server_and_no_connection(family: Family) {
    let vip = family.pick("192.0.2.1:8080", "[2001:db8:2::1]:8080");
    let ways = [DsrKind::L3, DsrKind::L2, DsrKind::L3];
    for is_udp in [true, false] {
        let mut lab = if is_udp { Lab::dsr(family).udp() } else { Lab::dsr(family) };
        lab.change(|world| world.frontends[0].listen = vec![vip.into()]);
        let from = || TestPacket::from(family.client_addr(1)).to(vip);
        let more = || if is_udp { from().udp() } else { from().seq(1).ack(1) };
        if !is_udp {
            lab.send(from().syn());
        }
        // A stream or an open connection, which the kernel may forward.
        let [first, ..] = [0; 3].map(|_| lab.send(more()));
        let destination = |way| if way == DsrKind::L2 { vip.parse().unwrap() } else { first.to };
        for way in ways {
            lab.change(|world| world.frontends[0].dsr = way);
            let seen = [0; 3].map(|_| lab.send(more()));
            let expected = if is_udp { destination(way) } else { first.to };
            assert!(seen.iter().all(|seen| (seen.to, seen.mac) == (expected, first.mac)), "{way:?} {seen:?}");
        }
        assert_eq!(lab.forwarder.flows().len(), 1);
    }
}
