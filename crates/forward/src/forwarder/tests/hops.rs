//! Packets with an expired TTL, and packets that are too long for a link: recipients and sources of
//! the ICMP errors.

use std::net::SocketAddr;

use super::lab::{Family, LAN, Lab, Outcome, Seen, TestFrontend, WAN};
use convey_model::{DropReason, Mode, Protocol};
use convey_wire::IcmpError;

run_cases_over_both_families! {
    traceroute_shows_our_own_address_and_not_the_end_of_the_way,
    traceroute_shows_our_own_address_also_where_it_is_proxied_on,
    expired_server_packet_gets_time_exceeded_from_the_snat_address,
    oversized_packet_is_refused_by_the_vip_without_a_flow,
    super_frame_is_checked_by_its_segment_size,
    icmp_errors_are_limited_to_a_thousand_a_second,
}

/// Payload bytes of a TCP segment whose packet has this length.
fn room(family: Family, packet: usize) -> usize {
    packet - family.pick(40, 60)
}

fn client_ip(family: Family, n: u16) -> String {
    family.client_addr(n).parse::<SocketAddr>().unwrap().ip().to_string()
}

fn traceroute_shows_our_own_address_and_not_the_end_of_the_way(family: Family) {
    let [tcp, dsr] = Lab::both_modes(family);
    for mut lab in [tcp, dsr, Lab::passthrough(family).udp(), Lab::dsr(family).udp()] {
        let is_udp = lab.world.frontends[0].protocol == Protocol::Udp;
        let begin = |lab: &Lab| if is_udp { lab.client(1).udp() } else { lab.client(1).syn() };
        for ttl in [0, 1] {
            let (reply, reason) = lab.answer(begin(&lab).ttl(ttl));
            assert_eq!(reason, DropReason::TtlExceeded);
            assert_eq!(
                reply.icmp_error(),
                (IcmpError::TimeExceeded, family.own_ip().into(), client_ip(family, 1))
            );
            assert_eq!((reply.mac, reply.ttl), (1, 64), "back to where it came from");
            assert_eq!(reply.about().route(), (family.client_addr(1), family.vip().into()));
            assert_eq!(reply.about().ttl, ttl);
        }
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (0, 0));
        assert_eq!(lab.send(begin(&lab).ttl(2)).ttl, 1);
        let (late, _) = lab.answer(begin(&lab).ttl(1));
        assert_eq!(late.icmp_error().0, IcmpError::TimeExceeded);
    }
}

fn traceroute_shows_our_own_address_also_where_it_is_proxied_on(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let own = family.pick("192.0.2.2:80", "[2001:db8:2::2]:80");
        lab.change(|world| world.frontends.push(TestFrontend::new(9, Mode::Proxy, own)));
        let (reply, _) = lab.answer(lab.client(1).syn().ttl(1));
        assert_eq!(
            reply.icmp_error(),
            (IcmpError::TimeExceeded, family.own_ip().into(), client_ip(family, 1))
        );
    }
}

fn expired_server_packet_gets_time_exceeded_from_the_snat_address(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let (reply, reason) = lab.answer(syn.reply().ack(101).ttl(1));
    assert_eq!(reason, DropReason::TtlExceeded);
    assert_eq!(reply.icmp_error(), (IcmpError::TimeExceeded, family.snat().into(), syn.to.ip().to_string()));
    assert_eq!(reply.about().route(), (syn.to.to_string(), syn.from.to_string()));
}

/// The servers' link has an MTU of 1,400 bytes, and the clients' link an MTU of 1,500 bytes.
fn oversized_packet_is_refused_by_the_vip_without_a_flow(family: Family) {
    let mut lab = Lab::passthrough(family);
    let [most, most_back] = [1_400, 1_500].map(|len| room(family, len));
    let syn = lab.connect(1);
    let is_told = |(reply, reason): (Seen, DropReason), mtu, from: &str, to: &str, of: (&str, &str)| {
        assert_eq!(reason, DropReason::TooBig);
        assert_eq!(reply.icmp_error(), (IcmpError::TooBig { mtu }, from.into(), to.into()));
        assert_eq!(reply.about().route(), (of.0.to_owned(), of.1.to_owned()), "the packet as it was sent");
    };
    let [client, other] = [1, 2].map(|n| family.client_addr(n));
    let (vip, vip_ip) = (family.vip(), family.vip_ip());
    lab.send(lab.client(1).ack(501).payload(&vec![7; most]));
    let reply = lab.answer(lab.client(1).ack(501).payload(&vec![7; most + 1]));
    is_told(reply, 1_400, vip_ip, &client_ip(family, 1), (&client, vip));
    lab.send(syn.reply().ack(101).payload(&vec![7; most_back]));
    let reply = lab.answer(syn.reply().ack(101).payload(&vec![7; most_back + 1]));
    let (server, snat) = (syn.to.to_string(), syn.from.to_string());
    is_told(reply, 1_500, family.snat(), &syn.to.ip().to_string(), (&server, &snat));
    let reply = lab.answer(lab.client(2).syn().payload(&vec![7; most + 1]));
    is_told(reply, 1_400, vip_ip, &client_ip(family, 2), (&other, vip));
    assert_eq!((lab.opened, lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (1, 1, 1));

    let mut dsr = Lab::dsr(family);
    let reply = dsr.answer(dsr.client(1).ack(501).payload(&vec![7; most + 1]));
    is_told(reply, 1_400, vip_ip, &client_ip(family, 1), (&client, vip));
    assert_eq!((dsr.opened, dsr.forwarder.flows().len()), (0, 0));
}

#[test]
fn oversized_packet_gets_packet_too_big_with_a_quote() {
    for mut lab in Lab::both_modes(Family::V4) {
        lab.change(|world| world.lan_mtu = 200);
        let (reply, _) = lab.answer(lab.client(1).syn().payload(&[7; 188]));
        assert_eq!(
            reply.icmp_error(),
            (IcmpError::TooBig { mtu: 200 }, "192.0.2.1".into(), client_ip(Family::V4, 1))
        );
        assert_eq!(reply.about().frame.len(), 228, "at least its header and 8 bytes");
        assert_eq!(reply.about().payload, [7; 188]);
        lab.send(lab.client(1).syn().payload(&[7; 160]));
    }
}

#[test]
fn oversized_packet_without_df_is_fragmented_and_reassembles() {
    for mut lab in [Lab::passthrough(Family::V4), Lab::dsr(Family::V4), Lab::l2(Family::V4)] {
        lab.change(|world| world.lan_mtu = 576);
        let payload: Vec<u8> = (0..1_400).map(|n| n as u8).collect();
        let whole = lab.send(lab.client(1).syn());
        for ip_options in [&[][..], &[7, 7, 4, 0, 0, 0, 0]] {
            let data = lab.client(1).ack(1).payload(&payload).ip_options(ip_options).may_be_cut(99);
            let Outcome::Fragments(pieces, LAN) = lab.handle(&data) else { panic!("it was not cut") };
            let [seen] = &Seen::reassemble(&pieces)[..] else { panic!("one packet") };
            assert_eq!((seen.route(), &seen.payload), (whole.route(), &payload));
            assert_eq!((pieces.len(), seen.ttl, seen.mac), (3, 63, whole.mac));
        }
        let short = lab.send(lab.client(1).ack(1).may_be_cut(100));
        assert_eq!(short.route(), whole.route(), "what fits is left whole");
    }
}

#[test]
fn an_answer_that_may_be_cut_is_cut_for_the_clients_link() {
    let mut lab = Lab::passthrough(Family::V4).udp();
    let question = lab.send(lab.client(1).udp().payload(b"how long?"));
    let answer = question.reply().payload(&[7; 4_000]).may_be_cut(9);
    let Outcome::Fragments(pieces, WAN) = lab.handle(&answer) else { panic!("it was not cut") };
    let [seen] = &Seen::reassemble(&pieces)[..] else { panic!("one datagram") };
    assert_eq!(
        (seen.route(), seen.payload.len()),
        (("192.0.2.1:80".into(), lab.family.client_addr(1)), 4_000)
    );
}

fn super_frame_is_checked_by_its_segment_size(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(1);
    let most = room(family, 1_400) as u16 - 12;
    let mut handle = |segment_size| {
        let mut frame = lab.client(1).ack(501).tcp_options(&[1; 12]).payload(&[7; 60_000]).bytes();
        lab.handle_frame(&mut frame, Some(segment_size))
    };
    let Outcome::Answered(reply, DropReason::TooBig) = handle(most + 1) else { panic!("it does not fit") };
    assert_eq!(reply.icmp_error().0, IcmpError::TooBig { mtu: 1_400 });
    let Outcome::Sent(whole) = handle(most) else { panic!("it fits") };
    assert_eq!(whole.payload, [7; 60_000]);
}

#[test]
fn super_segment_without_df_is_resegmented_to_fit() {
    for mut lab in Lab::both_modes(Family::V4) {
        let syn = lab.send(lab.client(1).syn());
        let packet = lab.client(1).ack(501).tcp_options(&[1; 12]).payload(&[7; 60_000]).may_be_cut(9);
        let Outcome::Segments(seen, 1_348) = lab.handle_frame(&mut packet.bytes(), Some(1_448)) else {
            panic!("1400 bytes fit")
        };
        assert_eq!((seen.route(), &seen.payload), (syn.route(), &vec![7; 60_000]));
        let Outcome::Sent(_) = lab.handle_frame(&mut packet.bytes(), Some(1_348)) else { panic!("it fits") };
        lab.change(|world| world.lan_mtu = 52);
        assert!(matches!(
            lab.handle_frame(&mut packet.bytes(), Some(1_348)),
            Outcome::Answered(_, DropReason::TooBig)
        ));
    }
}

#[test]
fn datagrams_in_a_super_frame_are_cut_each_on_its_own() {
    for mut lab in [Lab::passthrough(Family::V4), Lab::dsr(Family::V4), Lab::l2(Family::V4)].map(Lab::udp) {
        lab.change(|world| world.lan_mtu = 576);
        let payload: Vec<u8> = (0..7_000).map(|n| n as u8).collect();
        let mut frame = lab.client(1).udp().payload(&payload).may_be_cut(9).bytes();
        let Outcome::Fragments(pieces, LAN) = lab.handle_frame(&mut frame, Some(1_400)) else {
            panic!("1400 bytes do not fit")
        };
        let seen = Seen::reassemble(&pieces);
        assert!(seen.iter().map(|seen| &seen.payload[..]).eq(payload.chunks(1_400)), "{seen:?}");
        assert_eq!((pieces.len(), lab.opened), (5 * 3, 1));
    }
}

#[test]
fn clients_whose_packets_we_cut_are_told_apart_by_their_server() {
    let mut lab = Lab::passthrough(Family::V4).udp();
    lab.change(|world| (world.lan_mtu, _) = (576, world.servers.truncate(1)));
    let contents = [1, 2].map(|n: u8| vec![n; 1_400]);
    let mut sent = [1, 2].map(|n| {
        let packet = lab.client(n).udp().payload(&contents[usize::from(n) - 1]).may_be_cut(77);
        let Outcome::Fragments(pieces, LAN) = lab.handle(&packet) else { panic!("it was not cut") };
        pieces
    });
    let last = sent.each_mut().map(|pieces| pieces.pop().unwrap());
    let seen = Seen::reassemble(&[&sent.concat()[..], &last].concat());
    assert!(seen.iter().map(|seen| &seen.payload).eq(&contents), "{seen:?}");
}

#[test]
fn in_dsr_who_is_cut_keeps_its_number() {
    let mut lab = Lab::dsr(Family::V4).udp();
    lab.change(|world| world.lan_mtu = 576);
    let packet = lab.client(1).udp().payload(&[7; 1_400]).may_be_cut(77);
    let Outcome::Fragments(pieces, LAN) = lab.handle(&packet) else { panic!("it was not cut") };
    assert!(pieces.iter().all(|piece| piece[18..20] == [0, 77]));
}

fn icmp_errors_are_limited_to_a_thousand_a_second(family: Family) {
    let mut lab = Lab::passthrough(family);
    let answered = |lab: &mut Lab| {
        let outcomes = (0..3_000).map(|n| lab.handle(&lab.client(n).syn().ttl(1)));
        outcomes.filter(|outcome| matches!(outcome, Outcome::Answered(..))).count()
    };
    assert_eq!(answered(&mut lab), 1_000);
    lab.wait(std::time::Duration::from_millis(500));
    assert_eq!(answered(&mut lab), 500);
}
