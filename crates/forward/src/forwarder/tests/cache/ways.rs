//! Changes of routes, servers and interfaces while the cache forwards; a worker forwards the
//! packets that the cache cannot.

use super::*;
use crate::{Frame, Verdict};
use convey_model::{Route, fixture};
use convey_wire as wire;

run_cases_with_cache! {
    handshake_completed_during_a_route_change_is_cached,
    cached_connections_of_a_dead_server_are_reset_in_sequence,
    packets_in_the_cache_follow_the_routes,
    entries_are_written_by_the_end_of_a_sweep,
    flow_that_moves_or_expires_is_looked_up_once_a_side,
    flow_whose_way_was_gone_for_a_moment_still_ends,
    flow_whose_entries_are_lost_while_its_way_changes_still_ends,
    flow_whose_fin_event_is_lost_while_its_way_changes_still_ends,
    spoofed_server_packets_from_clients_bypass_the_cache_and_are_dropped,
    packets_of_a_server_without_a_route_are_left_to_workers,
    server_is_accepted_on_the_link_of_its_new_route,
    server_that_answers_by_an_equal_route_is_followed,
    rejected_packet_does_not_change_the_route_of_a_server,
    server_that_sends_by_two_ways_at_once_keeps_its_entry,
    packets_on_a_former_route_of_the_server_are_dropped,
    packets_by_a_port_that_leads_elsewhere_now_are_dropped,
    entry_keeps_another_way_to_its_server_while_routes_elsewhere_change,
    unresolved_server_is_dropped_once_no_route_leads_to_it,
    an_error_is_held_against_what_the_cache_has_seen,
    packets_the_cache_cannot_handle_are_handled_by_the_worker,
}

/// An interface without routes.
const PORT_OF_A_BRIDGE: u32 = 77;

mod cases {
    use super::*;

    pub(super) fn handshake_completed_during_a_route_change_is_cached(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        let other = family.pick("192.0.2.253", "2001:db8:2::fd");
        lab.publish(|world| {
            world.neighbours.push(neighbour(WAN, other.parse().unwrap(), 0xfd));
            world.router = Some(other.parse().unwrap());
        });
        kernel(&lab).hold_changes(true);
        lab.forwarder.handle_timeout(&lab.plan, lab.now, |_, _| {});
        lab.is_deaf = true;
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        kernel(&lab).hold_changes(false);
        lab.forwarder.flush_cache();
        lab.apply_cache_events();
        assert_eq!(state(&lab), FlowState::Established);
        assert_eq!(lab.send(syn.reply().seq(501).ack(101).payload(b"hello")).mac, 0xfd);
        lab.send(lab.client(1).seq(101).ack(506).payload(b"hi"));
        assert_eq!(forwarded(&lab, 1), (Some(1), Some(1)), "counted from its new way on");
    }

    pub(super) fn cached_connections_of_a_dead_server_are_reset_in_sequence(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.change(|world| world.servers.truncate(1));
        let syn = lab.connect(1);
        let (_, server) = transfer_100_mb(&mut lab, &syn);
        let resets = lab.change(|world| {
            world.servers[0].up = false;
            world.servers.push(TestServer::new(family, 12));
        });
        let reset = (family.vip().into(), family.client_addr(1), "R", server, 0);
        assert_eq!(resets.iter().map(Seen::reset).collect::<Vec<_>>(), [reset]);
        assert_eq!(kernel(&lab).entries(), 0);
        assert_eq!(lab.connect(1).mac, 12);
    }

    pub(super) fn packets_in_the_cache_follow_the_routes(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        assert_eq!(lab.send(syn.reply().seq(501).ack(101)).mac, 0xfe);
        let other = family.pick("192.0.2.253", "2001:db8:2::fd");
        lab.change(|world| {
            world.neighbours.push(neighbour(WAN, other.parse().unwrap(), 0xfd));
            world.router = Some(other.parse().unwrap());
        });
        assert_eq!(lab.send(syn.reply().seq(501).ack(101)).mac, 0xfd);
        assert_eq!(forwarded(&lab, 1).1, Some(1), "counted from its new way on, and not seen here");
    }

    pub(super) fn entries_are_written_by_the_end_of_a_sweep(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let other: std::net::IpAddr = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
        lab.publish(|world| {
            world.neighbours.push(neighbour(WAN, other, 0xfd));
            world.router = Some(other);
        });
        lab.forwarder.handle_timeout(&lab.plan, lab.now, |_, _| {});
        assert_eq!(lab.send(syn.reply().seq(501).ack(101)).mac, 0xfd);
        assert_eq!(forwarded(&lab, 1).1, Some(1), "by the cache");
    }

    pub(super) fn flow_that_moves_or_expires_is_looked_up_once_a_side(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.connect(1);
        let other: std::net::IpAddr = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
        let asked = kernel(&lab).lookups();
        lab.change(|world| {
            world.neighbours.push(neighbour(WAN, other, 0xfd));
            world.router = Some(other);
        });
        assert_eq!(kernel(&lab).lookups() - asked, 2, "its way changes");
        lab.wait(Duration::from_secs(1));
        let asked = kernel(&lab).lookups();
        assert_eq!(lab.wait(Duration::from_secs(86_400)).len(), 2, "both sides are reset");
        assert_eq!(kernel(&lab).lookups() - asked, 4, "whether it is silent, and its numbers for the resets");
    }

    pub(super) fn flow_whose_way_was_gone_for_a_moment_still_ends(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (client, server) = transfer_100_mb(&mut lab, &syn);
        let mut kept = Vec::new();
        let other = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
        lab.change(|world| {
            kept = std::mem::take(&mut world.neighbours);
            world.router = Some(other);
        });
        lab.change(|world| {
            world.neighbours = kept;
            world.router = None;
        });
        finish(&mut lab, &syn, (client, server));
    }

    pub(super) fn flow_whose_entries_are_lost_while_its_way_changes_still_ends(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (client, server) = transfer_100_mb(&mut lab, &syn);
        let other: std::net::IpAddr = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
        lab.change(|world| {
            world.neighbours.push(neighbour(WAN, other, 0xfd));
            world.router = Some(other);
        });
        // The map has no memory for the new entries.
        kernel(&lab).lose_all();
        finish(&mut lab, &syn, (client, server));
    }

    pub(super) fn flow_whose_fin_event_is_lost_while_its_way_changes_still_ends(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (client, server) = transfer_100_mb(&mut lab, &syn);
        lab.is_deaf = true;
        lab.send(syn.reply().seq(server).ack(client).fin());
        kernel(&lab).events();
        let other: std::net::IpAddr = family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
        lab.change(|world| {
            world.neighbours.push(neighbour(WAN, other, 0xfd));
            world.router = Some(other);
        });
        lab.is_deaf = false;
        assert_eq!(state(&lab), FlowState::HalfClosedByServer);
        lab.send(lab.client(1).seq(client).ack(server + 1).fin());
        assert_eq!(lab.ended(), 1);
    }

    /// Both sides of a connection with these numbers finish.
    fn finish(lab: &mut Lab, syn: &Seen, (client, server): (u32, u32)) {
        lab.send(syn.reply().seq(server).ack(client).fin());
        lab.send(lab.client(1).seq(client).ack(server + 1).fin());
        assert_eq!(lab.ended(), 1);
    }

    pub(super) fn spoofed_server_packets_from_clients_bypass_the_cache_and_are_dropped(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let before = forwarded(&lab, 1);
        for forged in [syn.reply().seq(501).ack(101).payload(b"a lie"), syn.reply().seq(501).ack(101).fin()] {
            assert_eq!(lab.handle_from(WAN, &forged.bytes()), SPOOFED);
        }
        assert_eq!((forwarded(&lab, 1), state(&lab)), (before, FlowState::Established));
        let truth = syn.reply().seq(501).ack(101).payload(b"the truth").bytes();
        assert!(matches!(lab.handle_from(LAN, &truth), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, before.1.map(|packets| packets + 1));

        let mut lab = Lab::passthrough(family).udp();
        let question = lab.send(lab.client(1).udp());
        lab.send(question.reply());
        lab.send(lab.client(1).udp());
        let before = kernel(&lab).forwarded(&datagram_key(&lab));
        assert!(before.is_some(), "it is a stream");
        assert_eq!(lab.handle_from(WAN, &question.reply().bytes()), SPOOFED);
        assert!(matches!(lab.handle_from(LAN, &question.reply().bytes()), Outcome::Sent(_)));
        assert_eq!(kernel(&lab).forwarded(&datagram_key(&lab)), before.map(|packets| packets + 1));
    }

    pub(super) fn packets_of_a_server_without_a_route_are_left_to_workers(family: Family) {
        let prefix = family.pick("10.0.0.0/25", "fd00::/65");
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let packet = syn.reply().seq(501).ack(101).payload(b"hello").bytes();
        let refused = Route { hops: vec![], ..fixture::route(prefix, LAN, None) };
        lab.change(|world| world.more_routes.push(refused));
        for interface in [WAN, LAN] {
            assert_eq!(lab.handle_from(interface, &packet), SPOOFED);
        }
        assert!(matches!(lab.handle_from(PORT_OF_A_BRIDGE, &packet), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, Some(0), "by a worker");
        lab.change(|world| world.more_routes.clear());
        assert_eq!(lab.handle_from(WAN, &packet), SPOOFED);
        assert!(matches!(lab.handle_from(LAN, &packet), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, Some(1), "by the cache");
    }

    pub(super) fn server_is_accepted_on_the_link_of_its_new_route(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.change(|world| {
            let moved = [11, 12, 13].map(|id| neighbour(WAN, family.server_ip(id), id));
            world.neighbours.extend(moved);
            world.servers_by_wan = true;
        });
        let packet = syn.reply().seq(501).ack(101).bytes();
        assert!(matches!(lab.handle_from(WAN, &packet), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, Some(1), "by the cache");
    }

    pub(super) fn server_that_answers_by_an_equal_route_is_followed(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.change(|world| world.servers_by_both = true);
        let syn = lab.connect(1);
        let packet = syn.reply().seq(501).ack(101).payload(b"hello").bytes();
        lab.wait(Duration::from_secs(1));
        // A worker forwards the first packet, and writes the entry anew.
        for by_cache in [0, 1, 2] {
            assert!(matches!(lab.handle_from(WAN, &packet), Outcome::Sent(_)));
            assert_eq!(forwarded(&lab, 1).1, Some(by_cache));
            lab.wait(Duration::from_secs(1));
        }
        for by_cache in [0, 1, 2] {
            assert!(matches!(lab.handle_from(LAN, &packet), Outcome::Sent(_)));
            assert_eq!(forwarded(&lab, 1).1, Some(by_cache), "by its usual way again");
        }

        let mut lab = Lab::passthrough(family).udp();
        lab.change(|world| world.servers_by_both = true);
        let question = lab.send(lab.client(1).udp());
        lab.send(question.reply());
        lab.send(lab.client(1).udp());
        for way in [WAN, LAN] {
            lab.wait(Duration::from_secs(1));
            for by_cache in [0, 1, 2] {
                assert!(matches!(lab.handle_from(way, &question.reply().bytes()), Outcome::Sent(_)));
                assert_eq!(kernel(&lab).forwarded(&datagram_key(&lab)), Some(by_cache));
            }
        }
    }

    pub(super) fn rejected_packet_does_not_change_the_route_of_a_server(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.change(|world| world.servers_by_both = true);
        let syn = lab.connect(1);
        let before = forwarded(&lab, 1);
        let truth = syn.reply().seq(501).ack(101).payload(b"hello").bytes();
        let mut damaged = truth.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let others = [
            syn.reply().seq(3_000_000_000).ack(101).payload(b"a lie").bytes(),
            syn.reply().seq(501).ack(3_000_000_000).payload(b"a lie").bytes(),
            syn.reply().seq(3_000_000_000).ack(101).fin().bytes(),
            syn.reply().seq(502).rst().bytes(),
        ];
        for packet in others {
            for way in [WAN, PORT_OF_A_BRIDGE] {
                lab.wait(Duration::from_secs(1));
                assert!(matches!(lab.handle_from(way, &packet), Outcome::Sent(_)));
                assert_eq!((forwarded(&lab, 1), state(&lab)), (before, FlowState::Established));
            }
        }
        let headers = wire::parse(&damaged);
        let mut frame = Frame { interface: Some(WAN), ..Frame::new(&mut damaged, &headers) };
        assert!(matches!(lab.forwarder.handle_frame(&mut frame, &lab.plan, lab.now), Verdict::Transmit(_)));
        lab.forwarder.flush_cache();
        assert_eq!(forwarded(&lab, 1), before);
        lab.handle_from(LAN, &truth);
        assert_eq!(forwarded(&lab, 1).1, before.1.map(|packets| packets + 1));
    }

    pub(super) fn server_that_sends_by_two_ways_at_once_keeps_its_entry(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.change(|world| world.servers_by_both = true);
        let syn = lab.connect(1);
        let before = forwarded(&lab, 1).1.unwrap();
        for n in 1..=200 {
            let packet = syn.reply().seq(500 + n).ack(101).payload(b"!").bytes();
            for way in [WAN, LAN] {
                assert!(matches!(lab.handle_from(way, &packet), Outcome::Sent(_)));
            }
            assert_eq!(forwarded(&lab, 1).1, Some(before + n), "none is written anew");
            lab.wait(Duration::from_millis(10));
        }
    }

    /// A connection whose server now answers on this interface, and a packet of that server.
    fn answered_by(lab: &mut Lab, interface: u32) -> Vec<u8> {
        lab.change(|world| world.servers_by_both = true);
        let syn = lab.connect(1);
        let packet = syn.reply().seq(501).ack(101).payload(b"hello").bytes();
        lab.wait(Duration::from_secs(1));
        for by_cache in [0, 1] {
            assert!(matches!(lab.handle_from(interface, &packet), Outcome::Sent(_)));
            assert_eq!(forwarded(lab, 1).1, Some(by_cache), "the first moves the entry");
        }
        packet
    }

    pub(super) fn packets_on_a_former_route_of_the_server_are_dropped(family: Family) {
        let mut lab = Lab::passthrough(family);
        let packet = answered_by(&mut lab, WAN);
        lab.change(|world| world.servers_by_both = false);
        assert_eq!(lab.handle_from(WAN, &packet), SPOOFED);
        assert!(matches!(lab.handle_from(LAN, &packet), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, Some(1), "by the cache");

        let mut lab = Lab::passthrough(family).udp();
        lab.change(|world| world.servers_by_both = true);
        let question = lab.send(lab.client(1).udp());
        lab.send(question.reply());
        lab.send(lab.client(1).udp());
        lab.wait(Duration::from_secs(1));
        for by_cache in [0, 1] {
            assert!(matches!(lab.handle_from(WAN, &question.reply().bytes()), Outcome::Sent(_)));
            assert_eq!(kernel(&lab).forwarded(&datagram_key(&lab)), Some(by_cache));
        }
        lab.change(|world| world.servers_by_both = false);
        assert_eq!(lab.handle_from(WAN, &question.reply().bytes()), SPOOFED);
    }

    pub(super) fn packets_by_a_port_that_leads_elsewhere_now_are_dropped(family: Family) {
        let to_servers = family.pick("10.0.0.0/24", "fd00::/64");
        let elsewhere = family.pick("10.9.0.0/16", "fd00:9::/64");
        // A route to the servers that the kernel does not use makes the port a route's interface,
        // too.
        let unused = Route { metric: 5_000, ..fixture::route(to_servers, PORT_OF_A_BRIDGE, None) };
        for route in [fixture::route(elsewhere, PORT_OF_A_BRIDGE, None), unused] {
            let mut lab = Lab::passthrough(family);
            let packet = answered_by(&mut lab, PORT_OF_A_BRIDGE);
            lab.change(|world| world.more_routes.push(route));
            assert_eq!(lab.handle_from(PORT_OF_A_BRIDGE, &packet), SPOOFED);
        }
    }

    pub(super) fn entry_keeps_another_way_to_its_server_while_routes_elsewhere_change(family: Family) {
        let mut lab = Lab::passthrough(family);
        let packet = answered_by(&mut lab, WAN);
        let elsewhere = fixture::route(family.pick("10.9.0.0/16", "fd00:9::/64"), LAN, None);
        lab.change(|world| world.more_routes.push(elsewhere));
        assert!(matches!(lab.handle_from(WAN, &packet), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, Some(2), "by the cache, and not written anew");
        lab.change(|world| world.servers_by_both = false);
        assert_eq!(lab.handle_from(WAN, &packet), SPOOFED);
    }

    pub(super) fn unresolved_server_is_dropped_once_no_route_leads_to_it(family: Family) {
        let [first, second] = [201, 202].map(|id| family.server_ip(id));
        let mut lab = Lab::passthrough(family);
        lab.change(|world| {
            world.neighbours.push(neighbour(LAN, first, 201));
            world.server_router = Some(first);
        });
        let syn = lab.connect(1);
        let packet = syn.reply().seq(501).ack(101).payload(b"hello").bytes();
        lab.change(|world| {
            world.neighbours.retain(|known| known.ip != first);
            world.server_router = Some(second);
        });
        assert!(matches!(lab.handle_from(LAN, &packet), Outcome::Sent(_)));
        assert_eq!(forwarded(&lab, 1).1, Some(1), "by the cache");
        let prefix = family.pick("10.0.0.0/25", "fd00::/65");
        let refused = Route { hops: vec![], ..fixture::route(prefix, LAN, None) };
        lab.change(|world| world.more_routes.push(refused));
        assert_eq!(lab.handle_from(LAN, &packet), SPOOFED);
    }

    pub(super) fn an_error_is_held_against_what_the_cache_has_seen(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (client, server) = transfer_100_mb(&mut lab, &syn);
        let sent = lab.send(syn.reply().seq(server).ack(client).payload(b"too much"));
        let made_up = lab.send(syn.reply().seq(501).ack(101).payload(b"long ago"));
        let router = family.pick("203.0.113.7", "2001:db8:7::7");
        let mut error = |about: &Seen| {
            let mut error = error_about(&about.frame, IcmpError::TimeExceeded, router);
            lab.handle_frame(&mut error, None)
        };
        assert!(matches!(error(&sent), Outcome::Sent(_)));
        assert_eq!(error(&made_up), Outcome::Dropped(DropReason::IcmpOutOfWindow));
    }

    pub(super) fn packets_the_cache_cannot_handle_are_handled_by_the_worker(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let packet = |lab: &Lab| lab.client(1).seq(101).ack(501).payload(b"hi");
        let (reply, why) = lab.answer(packet(&lab).ttl(1));
        assert_eq!((why, reply.error.is_some()), (DropReason::TtlExceeded, true));
        let (reply, why) = lab.answer(packet(&lab).payload(&[7; 1_400]));
        assert_eq!((why, reply.error.is_some()), (DropReason::TooBig, true));
        assert_eq!(lab.send(packet(&lab).tcp_options(&[1, 1, 1, 1])).route(), syn.route());
        assert_eq!(forwarded(&lab, 1), (Some(2), Some(1)), "options of TCP matter to nobody");
    }
}
