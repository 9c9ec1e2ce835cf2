//! ICMP errors of routers and hosts on the path: their recipients, and the packets that they quote.

use std::net::SocketAddr;
use std::time::Duration;

use super::lab::{Family, LAN, Lab, Outcome, Seen, WAN, error_about, wanted};
use crate::FlowState;
use convey_model::{Algorithm, DropReason};
use convey_wire::{IcmpError, TestPacket, update_header_checksum};

run_cases_over_both_families! {
    icmp_error_about_a_client_packet_is_translated_to_the_vip,
    icmp_error_about_a_server_packet_is_translated_to_snat,
    dsr_icmp_error_reaches_the_server_from_the_router,
    in_dsr_a_server_is_told_though_its_flow_is_not_recorded,
    a_client_of_udp_learns_that_nobody_listens_on_the_servers_port,
    server_health_counts_only_packets_of_the_server_itself,
    an_error_about_what_cannot_be_on_its_way_is_made_up,
    icmp_error_without_a_flow_is_dropped_unless_the_hosts_own,
    an_error_changes_nothing_of_its_flow,
    icmp_errors_get_no_icmp_error_in_reply,
    errors_from_addresses_that_no_host_has_are_dropped,
    an_error_waits_for_nobody_whose_link_layer_address_is_not_known,
}

const ERRORS: [IcmpError; 3] =
    [IcmpError::TooBig { mtu: 1_280 }, IcmpError::PortUnreachable, IcmpError::TimeExceeded];

/// Routers on the path to the servers, and to the clients.
fn routers(family: Family) -> [&'static str; 2] {
    family.pick(["10.9.9.9", "203.0.113.7"], ["fd09::9", "2001:db8:7::7"])
}

fn ip(addr: impl ToString) -> String {
    addr.to_string().parse::<SocketAddr>().unwrap().ip().to_string()
}

/// A lab with a TCP frontend and a lab with a UDP frontend, in which client 1 and its server have
/// sent packets. Each lab comes with the first packet that the server received.
fn conversations(tcp: Lab, udp: Lab) -> [(Lab, Seen); 2] {
    let (mut tcp, mut udp) = (tcp, udp.udp());
    let syn = tcp.connect(1);
    let question = udp.send(udp.client(1).udp().payload(b"?"));
    udp.send(question.reply());
    [(tcp, syn), (udp, question)]
}

fn of(is_udp: bool, packet: TestPacket) -> TestPacket {
    if is_udp { packet.udp() } else { packet }
}

fn icmp_error_about_a_client_packet_is_translated_to_the_vip(family: Family) {
    for (mut lab, first) in conversations(Lab::passthrough(family), Lab::passthrough(family)) {
        for error in ERRORS {
            let sent = of(first.is_udp, lab.client(1).seq(101).ack(501).payload(b"too much"));
            let behind = lab.send(sent.clone());
            let reply = lab.forwarded(&error_about(&behind.frame, error, routers(family)[0]));
            assert_eq!(reply.icmp_error(), (error, family.vip_ip().into(), ip(family.client_addr(1))));
            assert_eq!((reply.interface, reply.mac, reply.ttl), (WAN, 0xfe, 63));
            // The error quotes the client's packet as convey sent it, with the TTL of one hop less.
            let own = Seen::read(&sent.ttl(63).bytes(), 0);
            assert_eq!(reply.about().frame, own.frame[14..]);
        }
    }
}

fn icmp_error_about_a_server_packet_is_translated_to_snat(family: Family) {
    for (mut lab, first) in conversations(Lab::passthrough(family), Lab::passthrough(family)) {
        lab.plan.min_path_mtu = Some(1_280);
        for error in ERRORS {
            let sent = first.reply().payload(b"too much");
            let sent = if first.is_udp { sent } else { sent.seq(501).ack(101) };
            let behind = lab.send(sent.clone());
            let reply = lab.forwarded(&error_about(&behind.frame, error, routers(family)[1]));
            assert_eq!(reply.icmp_error(), (error, family.snat().into(), ip(first.to)));
            assert_eq!((reply.interface, reply.mac, reply.ttl), (LAN, first.mac, 63));
            let own = Seen::read(&sent.ttl(63).bytes(), 0);
            assert_eq!(reply.about().frame, own.frame[14..]);
        }
    }
}

fn dsr_icmp_error_reaches_the_server_from_the_router(family: Family) {
    let router = routers(family)[1];
    for is_udp in [false, true] {
        let mut lab = if is_udp { Lab::dsr(family).udp() } else { Lab::dsr(family) };
        let first = lab.send(of(is_udp, lab.client(1).seq(101).ack(501)));
        for error in ERRORS {
            // The quoted packet is as the server has sent it, with the VIP as its address.
            let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).seq(501).ack(101);
            let answer = of(is_udp, answer.payload(b"too much"));
            let reply = lab.forwarded(&error_about(&answer.bytes(), error, router));
            assert_eq!(reply.icmp_error(), (error, router.into(), ip(first.to)));
            assert_eq!((reply.interface, reply.mac, reply.ttl), (LAN, first.mac, 63));
            let own = of(is_udp, first.reply().seq(501).ack(101).payload(b"too much"));
            assert_eq!(reply.about().frame, own.bytes()[14..]);
        }
    }
}

fn in_dsr_a_server_is_told_though_its_flow_is_not_recorded(family: Family) {
    let router = routers(family)[1];
    for new in [Lab::dsr, Lab::l2] {
        for is_udp in [false, true] {
            let begin = || if is_udp { new(family).udp() } else { new(family) };
            let (mut before, mut restarted) = (begin(), begin());
            for n in 1..50 {
                let first = before.send(of(is_udp, before.client(n)));
                let answer = TestPacket::from(family.vip()).to(family.client_addr(n)).seq(501).ack(101);
                let mut error =
                    error_about(&of(is_udp, answer).bytes(), IcmpError::TooBig { mtu: 1_280 }, router);
                let reply = restarted.forwarded(&error);
                assert_eq!(reply.frame, before.forwarded(&error).frame, "as by who knows the flow");
                assert_eq!((reply.interface, reply.mac), (LAN, first.mac));
                restarted.change(|world| world.algorithm = Algorithm::LeastConnections);
                let outcome = restarted.handle_frame(&mut error, None);
                assert_eq!(
                    outcome,
                    Outcome::Dropped(DropReason::NoFlow),
                    "where anybody could be the server"
                );
                restarted.change(|world| world.algorithm = Algorithm::Ring);
            }
            assert_eq!((restarted.opened, restarted.untracked), (0, 49), "an error begins nothing");
            assert_eq!((restarted.forwarder.flows().len(), restarted.frontend_slots()), (0, 0));
        }
    }
}

fn a_client_of_udp_learns_that_nobody_listens_on_the_servers_port(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp().payload(b"?"));
    let server = question.to.ip().to_string();
    let reply = lab.forwarded(&error_about(&question.frame, IcmpError::PortUnreachable, &server));
    assert_eq!(
        reply.icmp_error(),
        (IcmpError::PortUnreachable, family.vip_ip().into(), ip(family.client_addr(1)))
    );
    assert_eq!(reply.about().route(), (family.client_addr(1), family.vip().into()));
}

fn server_health_counts_only_packets_of_the_server_itself(family: Family) {
    for (mut lab, first) in conversations(Lab::passthrough(family), Lab::passthrough(family)) {
        lab.server_messages = [0; 2];
        let sent = lab.client(1).seq(101).ack(501);
        let behind = lab.send(of(first.is_udp, sent)).frame;
        let answer = first.reply().seq(501).ack(101);
        let back = lab.send(if first.is_udp { first.reply() } else { answer }).frame;
        let server_messages = lab.server_messages;
        let (server, client) = (first.to.ip().to_string(), ip(family.client_addr(1)));
        for (about, error, from) in [
            (&behind, IcmpError::TimeExceeded, server.as_str()),
            (&behind, IcmpError::PortUnreachable, routers(family)[0]),
            (&back, IcmpError::PortUnreachable, client.as_str()),
        ] {
            lab.forwarded(&error_about(about, error, from));
        }
        assert_eq!(lab.server_messages, server_messages, "nothing of the server's port");
        lab.forwarded(&error_about(&behind, IcmpError::PortUnreachable, &server));
        assert_eq!(lab.server_messages[1], usize::from(first.is_udp));
    }
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    assert_eq!(lab.server_messages, [0, 0]);
    lab.send(question.reply());
    assert_eq!(lab.server_messages, [1, 0]);
}

fn an_error_about_what_cannot_be_on_its_way_is_made_up(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let to_server = |seq| TestPacket::from(syn.from).to(syn.to).seq(seq).ack(501).bytes();
    let to_client = |seq| TestPacket::from(family.vip()).to(family.client_addr(1)).seq(seq).ack(101).bytes();
    lab.send(lab.client(1).seq(101).ack(501).payload(&[7; 1_000]));
    lab.send(syn.reply().seq(501).ack(1_000_101));
    lab.send(lab.client(1).seq(1_000_101).ack(2_000_501));
    lab.send(syn.reply().seq(2_000_501).ack(1_000_101).payload(&[7; 1_000]));
    let mut outcome = |frame: &[u8]| {
        let mut error = error_about(frame, IcmpError::TimeExceeded, routers(family)[0]);
        lab.handle_frame(&mut error, None)
    };
    let mebibytes = |n: i64| n << 20;
    // Segments are in flight once convey has forwarded them, until the client has acknowledged
    // them.
    let (sent, expected): (i64, i64) = (1_000_101, 2_000_501);
    for (seq, frame, may_be) in [
        (sent, &to_server as &dyn Fn(u32) -> Vec<u8>, [0, -1, -1_400, -mebibytes(15)]),
        (expected, &to_client, [-1, 0, 999, 1_000]),
    ] {
        for off in may_be {
            let outcome = outcome(&frame((seq + off) as u32));
            assert!(matches!(outcome, Outcome::Sent(_)), "{seq} {off}: {outcome:?}");
        }
    }
    for (seq, frame, cannot_be) in [
        (sent, &to_server as &dyn Fn(u32) -> Vec<u8>, [1, 1_400, -mebibytes(17), 1 << 31]),
        (expected, &to_client, [-2, -100_000, 1_001, 1 << 31]),
    ] {
        for off in cannot_be {
            let outcome = outcome(&frame((seq + off) as u32));
            assert_eq!(outcome, Outcome::Dropped(DropReason::IcmpOutOfWindow), "{seq} {off}");
        }
    }
}

fn icmp_error_without_a_flow_is_dropped_unless_the_hosts_own(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn());
        let own = |port| SocketAddr::new(family.own_ip().parse().unwrap(), port);
        let vip = |port| SocketAddr::new(family.vip_ip().parse().unwrap(), port);
        let client = family.client_addr(2);
        let from = |from: SocketAddr| TestPacket::from(from).to(&client).seq(7);
        let snat = TestPacket::from(SocketAddr::new(family.snat().parse().unwrap(), 49_000)).to(syn.to);
        let is_snat = if lab.forwarder.snat_ports_in_use() > 0 {
            Outcome::Dropped(DropReason::NoFlow)
        } else {
            Outcome::Passed
        };
        if lab.forwarder.snat_ports_in_use() > 0 {
            let mut error = error_about(&from(vip(80)).bytes(), IcmpError::TimeExceeded, routers(family)[1]);
            assert_eq!(lab.handle_frame(&mut error, None), Outcome::Dropped(DropReason::NoFlow));
        }
        for (about, expected) in [
            (from(vip(80)).udp(), Outcome::Passed),
            (from(vip(22)), Outcome::Passed),
            (from(own(80)), Outcome::Passed),
            (snat, is_snat),
        ] {
            let mut error = error_about(&about.bytes(), IcmpError::TimeExceeded, routers(family)[1]);
            let error = lab.handle_frame(&mut error, None);
            assert_eq!(error, expected, "{}", super::lab::short(&about.bytes()));
        }
        // An echo request of the host, which is an ICMP message of its own.
        let about = from(own(1));
        let mut error = error_about(&about.bytes(), IcmpError::TimeExceeded, routers(family)[1]);
        error[family.pick(51, 68)] = family.pick(1, 58);
        assert_eq!(lab.handle_frame(&mut error, None), Outcome::Passed, "about a ping");
    }
}

fn an_error_changes_nothing_of_its_flow(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    lab.wait(Duration::from_secs(29));
    lab.forwarded(&error_about(&question.frame, IcmpError::TimeExceeded, routers(family)[0]));
    assert_eq!(lab.forwarder.flows().count(FlowState::UdpNew), 1, "it is no answer");
    lab.wait(Duration::from_secs(2));
    assert!(lab.forwarder.flows().is_empty(), "nor does it keep the flow alive");
}

fn icmp_errors_get_no_icmp_error_in_reply(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let mut error = error_about(&syn.frame, IcmpError::TimeExceeded, routers(family)[0]);
    error[family.pick(22, 21)] = 1;
    update_header_checksum(&mut error);
    assert_eq!(lab.handle_frame(&mut error, None), Outcome::Dropped(DropReason::TtlExceeded));
    lab.change(|world| world.servers.iter_mut().for_each(|server| server.up = false));
    let mut error = error_about(&syn.frame, IcmpError::TimeExceeded, routers(family)[0]);
    assert_eq!(lab.handle_frame(&mut error, None), Outcome::Dropped(DropReason::NoFlow));
}

fn errors_from_addresses_that_no_host_has_are_dropped(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    for from in family.pick(["192.0.2.255", "224.0.0.1", "127.0.0.1"], ["ff02::1", "::1", "fe80::9"]) {
        let mut error = error_about(&syn.frame, IcmpError::TimeExceeded, from);
        assert_eq!(lab.handle_frame(&mut error, None), Outcome::Dropped(DropReason::Martian), "{from}");
    }
}

fn an_error_waits_for_nobody_whose_link_layer_address_is_not_known(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    lab.change(|world| world.neighbours.retain(|known| known.interface == LAN));
    let mut error = error_about(&syn.frame, IcmpError::TimeExceeded, routers(family)[0]);
    assert_eq!(lab.handle_frame(&mut error, None), Outcome::Dropped(DropReason::NextHopUnresolved));
    assert_eq!(lab.forwarder.events().wanted, [wanted(WAN, family.router().ip)]);
}
