//! Direct server return through a tunnel: each packet reaches the server whole, encapsulated in
//! another one.

use super::handover::{export_flows, take};
use super::lab::{Family, LAN, Lab, Outcome, error_about, neighbour, run_with_cache};
use super::rules::add_rule;
use convey_model::{DropReason, DsrKind, Encapsulation, TunnelConfig};
use convey_wire::{IcmpError, TestPacket};

run_cases_over_both_families! {
    tunneled_packets_keep_addresses_and_their_flow_one_tunnel,
    servers_may_be_of_the_other_family_and_behind_a_router,
    packet_too_long_for_the_tunnel_gets_the_inner_mtu,
    packet_without_df_is_fragmented_before_encapsulation,
    super_frames_go_in_packet_by_packet,
    errors_about_answers_go_through_it_too,
    a_full_table_forwards_through_it,
    restored_flow_takes_the_route_of_its_tunnels_source,
    the_cache_puts_packets_into_the_tunnel_that_workers_would,
    packets_whose_outer_checksum_needs_all_of_them_are_left_to_workers,
    a_reload_that_changes_a_tunnel_reaches_flows_in_the_cache,
    a_flow_whose_tunnel_is_gone_leaves_the_cache,
    reload_changes_tunnel_kind_but_keeps_tunneled_connections_tunneled,
}

const KINDS: [DsrKind; 2] = [DsrKind::Ipip, DsrKind::Gue];

fn lab(family: Family, dsr: DsrKind) -> Lab {
    let mut lab = Lab::dsr(family);
    lab.change(|world| world.frontends[0].dsr = dsr);
    lab
}

fn overhead(family: Family, dsr: DsrKind) -> usize {
    let gue = match dsr {
        DsrKind::Gue => 12,
        DsrKind::L3 | DsrKind::L2 | DsrKind::Ipip => 0,
    };
    gue + family.pick(20, 40)
}

fn tunneled_packets_keep_addresses_and_their_flow_one_tunnel(family: Family) {
    for dsr in KINDS {
        let mut lab = lab(family, dsr);
        let syn = lab.send(lab.client(1).syn());
        let first = lab.envelope.unwrap();
        assert_eq!((syn.interface, syn.to.to_string()), (LAN, family.vip().to_owned()));
        assert_eq!(syn.from.to_string(), family.client_addr(1));
        assert_eq!(first.tunnel.server.ip(), family.server_ip(syn.mac));
        let own = family.pick("10.0.0.254", "2001:db8:1::fe");
        assert!(lab.plan.network.is_own(first.tunnel.source.first()), "{first:?}, not {own}");
        for packet in [lab.client(1).seq(1).ack(1), lab.client(1).seq(1).ack(1).payload(b"hello")] {
            lab.send(packet);
            assert_eq!(lab.envelope, Some(first));
        }
        lab.send(lab.client(2).syn());
        assert_ne!(lab.envelope.unwrap().hash, first.hash);
    }
    let mut without = Lab::l2(family);
    without.send(without.client(1).syn());
    assert_eq!(without.envelope, None);
}

fn servers_may_be_of_the_other_family_and_behind_a_router(family: Family) {
    let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
    let mut lab = lab(family, DsrKind::Ipip);
    lab.change(|world| {
        world.servers.truncate(1);
        world.servers[0].ip = other.server_ip(11);
        world.neighbours.push(neighbour(LAN, other.server_ip(11), 11));
    });
    let syn = lab.send(lab.client(1).syn());
    let tunnel = lab.envelope.unwrap().tunnel;
    assert_eq!((syn.mac, syn.to.to_string()), (11, family.vip().to_owned()));
    assert_eq!(tunnel.server.ip(), other.server_ip(11));
    assert_eq!(tunnel.source.first().is_ipv4(), other == Family::V4);

    let mut far = self::lab(family, DsrKind::Gue);
    let router = neighbour(LAN, family.server_ip(99), 99);
    far.change(|world| {
        world.neighbours.push(router);
        world.server_router = Some(router.ip);
    });
    assert_eq!(far.send(far.client(1).syn()).mac, 99);
    assert!(far.envelope.is_some());
}

/// MTU of the lab's link to the servers: 1,400 bytes.
fn packet_too_long_for_the_tunnel_gets_the_inner_mtu(family: Family) {
    for dsr in KINDS {
        let mut lab = lab(family, dsr);
        lab.send(lab.client(1).syn());
        let most = 1_400 - overhead(family, dsr);
        let of_length = |lab: &Lab, length: usize| {
            lab.client(1).seq(1).ack(1).payload(&vec![7; length - family.pick(40, 60)])
        };
        lab.send(of_length(&lab, most));
        let (reply, reason) = lab.answer(of_length(&lab, most + 1));
        assert_eq!(reason, DropReason::TooBig);
        assert_eq!(reply.icmp_error().0, IcmpError::TooBig { mtu: most as u32 });
    }
}

fn packet_without_df_is_fragmented_before_encapsulation(family: Family) {
    if family == Family::V6 {
        return; // Only its sender cuts it.
    }
    let mut lab = lab(family, DsrKind::Ipip);
    let packet = lab.client(1).udp().may_be_cut(7).payload(&[7; 1_370]);
    lab.change(|world| world.frontends[0].protocol = convey_model::Protocol::Udp);
    let Outcome::Fragments(pieces, LAN) = lab.handle(&packet) else { panic!("it is cut") };
    assert!(pieces.len() == 2 && pieces.iter().all(|piece| piece.len() <= 14 + 1_380));
    assert!(lab.envelope.is_some());
}

fn super_frames_go_in_packet_by_packet(family: Family) {
    let mut lab = lab(family, DsrKind::Gue);
    lab.send(lab.client(1).syn());
    let frame = lab.client(1).seq(1).ack(1).payload(&[7; 10_000]).bytes();
    let most = (1_400 - overhead(family, DsrKind::Gue) - family.pick(40, 60)) as u16;
    for (size, fits) in [(1_000, true), (most, true), (most + 1, false)] {
        match lab.handle_frame(&mut frame.clone(), Some(size)) {
            Outcome::Fragments(pieces, LAN) if fits => {
                assert_eq!(pieces.len(), 10_000usize.div_ceil(size.into()));
                assert!(pieces.iter().all(|piece| convey_wire::parse(piece).unwrap().dont_fragment));
            }
            // The sender of the frame cuts it. Without a checksum that covers each packet, the
            // headers of all are equal.
            Outcome::Sent(_) if fits && lab.kernel.is_some() && family == Family::V4 => {}
            Outcome::Answered(_, DropReason::TooBig) if !fits => {}
            other => panic!("{size}: {other:?}"),
        }
    }
    lab.change(|world| world.frontends[0].protocol = convey_model::Protocol::Udp);
    let frame = lab.client(2).udp().payload(&[7; 3_000]).bytes();
    let Outcome::Fragments(datagrams, LAN) = lab.handle_frame(&mut frame.clone(), Some(1_000)) else {
        panic!("datagrams")
    };
    assert_eq!(datagrams.len(), 3);
}

fn errors_about_answers_go_through_it_too(family: Family) {
    let mut lab = lab(family, DsrKind::Ipip);
    lab.send(lab.client(1).syn().seq(100));
    lab.send(lab.client(1).seq(101).ack(501));
    let tunnel = lab.envelope.take();
    let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).seq(501).ack(101);
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    let error = error_about(&answer.payload(&[7; 1_200]).bytes(), IcmpError::TooBig { mtu: 1_280 }, router);
    let seen = lab.forwarded(&error);
    assert_eq!(seen.icmp_error(), (IcmpError::TooBig { mtu: 1_280 }, router.into(), family.vip_ip().into()));
    assert_eq!(lab.envelope, tunnel);
}

fn a_full_table_forwards_through_it(family: Family) {
    let mut lab = Lab::dsr_of(family, 1);
    let mut unlimited = self::lab(family, DsrKind::Ipip);
    lab.change(|world| world.frontends[0].dsr = DsrKind::Ipip);
    lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1).payload(b"x"));
    for n in 2..20 {
        let packet = lab.client(n).syn();
        assert_eq!(lab.send(packet.clone()), unlimited.send(packet));
        assert_eq!(lab.envelope, unlimited.envelope);
    }
    assert_eq!(lab.untracked, 18);
}

fn restored_flow_takes_the_route_of_its_tunnels_source(family: Family) {
    for dsr in KINDS {
        let [mut old, mut new] = [(); 2].map(|()| {
            let mut lab = lab(family, dsr);
            let source = lab.plan.tunnels.values().next().unwrap().source.first();
            add_rule(&mut lab, family, source);
            lab
        });
        let syn = old.send(old.client(1).syn());
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 1);
        let [before, after] = [&mut old, &mut new].map(|lab| lab.send(lab.client(1).seq(1).ack(1)).mac);
        assert_eq!([before, after], [syn.mac; 2]);
        assert_eq!(syn.mac, 0xfd, "the rule leads to the router");
    }
}

/// Creates a lab with a cache that forwards an open flow.
fn cached_lab(family: Family, dsr: DsrKind) -> Lab {
    let mut made = None;
    run_with_cache(|| made = Some(lab(family, dsr)));
    let mut lab = made.unwrap();
    lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1));
    assert_eq!(in_kernel(&lab), Some(1));
    lab
}

/// Number of packets of the first client's connection that the cache has forwarded under its
/// current entry.
fn in_kernel(lab: &Lab) -> Option<u32> {
    let key = convey_wire::parse(&lab.client(1).bytes()).unwrap().key;
    lab.kernel.as_ref()?.forwarded(&key)
}

fn the_cache_puts_packets_into_the_tunnel_that_workers_would(family: Family) {
    let without = KINDS.map(|dsr| lab(family, dsr));
    for (dsr, mut alone) in KINDS.into_iter().zip(without) {
        let mut cached = cached_lab(family, dsr);
        alone.send(alone.client(1).syn());
        alone.send(alone.client(1).seq(1).ack(1));
        for n in 1..5 {
            let packet = cached.client(1).seq(n).ack(1).payload(b"x");
            assert_eq!(cached.send(packet.clone()), alone.send(packet));
            assert!(cached.envelope.is_some() && cached.envelope == alone.envelope);
        }
        assert_eq!((in_kernel(&cached), cached.forwarder.cached_flows()), (Some(5), 1));
        // MTU of the lab's link to the servers: 1,400 bytes.
        let most = 1_400 - overhead(family, dsr) - family.pick(40, 60);
        cached.send(cached.client(1).seq(5).ack(1).payload(&vec![7; most]));
        let (_, reason) = cached.answer(cached.client(1).seq(5).ack(1).payload(&vec![7; most + 1]));
        assert_eq!((reason, in_kernel(&cached)), (DropReason::TooBig, Some(6)));
    }
}

fn packets_whose_outer_checksum_needs_all_of_them_are_left_to_workers(family: Family) {
    if family == Family::V6 {
        return; // Without a checksum a datagram of IPv6 is none.
    }
    for (dsr, server, by_kernel) in [(DsrKind::Gue, Family::V6, 1), (DsrKind::Gue, Family::V4, 2)] {
        let mut lab = cached_lab(family, dsr);
        lab.change(|world| {
            world.frontends[0].protocol = convey_model::Protocol::Udp;
            world.servers.truncate(1);
            world.servers[0].ip = server.server_ip(11);
            world.neighbours.push(neighbour(LAN, server.server_ip(11), 11));
        });
        let datagram = |lab: &Lab| lab.client(2).udp().payload(b"hello");
        for _ in 0..3 {
            lab.send(datagram(&lab));
        }
        let key = convey_wire::parse(&datagram(&lab).bytes()).unwrap().key;
        let forwarded = |lab: &Lab| lab.kernel.as_ref().unwrap().forwarded(&key).unwrap();
        let before = forwarded(&lab);
        lab.send(datagram(&lab).without_checksum());
        lab.send(datagram(&lab));
        assert_eq!(forwarded(&lab) - before, by_kernel, "{server:?}");
    }
}

fn a_reload_that_changes_a_tunnel_reaches_flows_in_the_cache(family: Family) {
    let mut lab = cached_lab(family, DsrKind::Ipip);
    for (dsr, gue_port) in [(DsrKind::Gue, 666), (DsrKind::Gue, 667), (DsrKind::Ipip, 667)] {
        lab.change(|world| {
            world.frontends[0].dsr = dsr;
            world.tunnel = TunnelConfig { gue_port, source: None };
        });
        assert_eq!(in_kernel(&lab), Some(0), "told anew");
        lab.send(lab.client(1).seq(1).ack(1));
        let encapsulation = dsr.encapsulation(&TunnelConfig { gue_port, source: None });
        assert_eq!((lab.envelope.map(|envelope| envelope.tunnel.encapsulation)), encapsulation);
        assert_eq!(in_kernel(&lab), Some(1));
    }
    // A reload that changes no tunnel.
    lab.change(|world| world.servers[0].weight = 2);
    assert_eq!(in_kernel(&lab), Some(1));
    // Connections keep their tunnel.
    lab.change(|world| world.frontends[0].dsr = DsrKind::L2);
    lab.send(lab.client(1).seq(1).ack(1));
    assert!(in_kernel(&lab) == Some(2) && lab.envelope.is_some());
}

fn a_flow_whose_tunnel_is_gone_leaves_the_cache(family: Family) {
    let mut lab = cached_lab(family, DsrKind::Ipip);
    // The server has another number, and the number before has no tunnel.
    lab.publish(|world| world.servers.iter_mut().for_each(|server| server.rename()));
    lab.forwarder.handle_timeout(&lab.plan, lab.now, |_, _| {});
    assert_eq!((in_kernel(&lab), lab.forwarder.cached_flows()), (None, 0));
    assert_eq!(lab.handle(&lab.client(1).seq(1).ack(1)), Outcome::Dropped(DropReason::NoRoute));
}

fn reload_changes_tunnel_kind_but_keeps_tunneled_connections_tunneled(family: Family) {
    let kind = |lab: &Lab| lab.envelope.map(|envelope| envelope.tunnel.encapsulation);
    let mut lab = lab(family, DsrKind::Ipip);
    let more = |lab: &Lab| lab.client(1).seq(1).ack(1);
    lab.send(lab.client(1).syn());
    lab.send(more(&lab));
    assert_eq!(kind(&lab), Some(Encapsulation::Ipip));
    lab.change(|world| {
        world.frontends[0].dsr = DsrKind::Gue;
        world.tunnel = TunnelConfig { gue_port: 666, source: None };
    });
    lab.send(more(&lab));
    assert_eq!(kind(&lab), Some(Encapsulation::Gue { port: 666 }));
    // Twice, because after the first change the connection's tunnel is no longer in the plan
    // before.
    for dsr in [DsrKind::L2, DsrKind::L2] {
        lab.change(|world| world.frontends[0].dsr = dsr);
        lab.send(more(&lab));
        assert_eq!(kind(&lab), Some(Encapsulation::Gue { port: 666 }));
    }
    lab.send(lab.client(2).syn());
    assert_eq!(kind(&lab), None);
    lab.change(|world| world.frontends[0].dsr = DsrKind::Ipip);
    lab.send(lab.client(2).seq(1).ack(1));
    assert_eq!(kind(&lab), None);
}
