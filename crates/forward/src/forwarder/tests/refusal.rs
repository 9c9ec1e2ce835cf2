//! Refused packets, and the replies to their senders.

use std::net::SocketAddr;

use super::lab::{ENOUGH, Family, Lab, Outcome, short};
use convey_model::DropReason;
use convey_wire::TestPacket;

run_cases_over_both_families! {
    segment_without_a_flow_gets_an_acceptable_reset,
    a_reset_is_never_answered,
    a_server_that_refuses_a_connection_is_told_from_one_that_answers,
    packet_to_an_unused_snat_port_is_dropped_silently,
    refusals_go_to_no_group_of_the_link,
    packets_to_nobodys_address_pass_untouched,
    martian_source_begins_no_flow,
    a_snat_address_is_ours_though_no_interface_has_it,
    source_routed_packets_are_dropped,
}

fn segment_without_a_flow_gets_an_acceptable_reset(family: Family) {
    let mut lab = Lab::passthrough(family);
    let (vip, client) = (family.vip().to_owned(), family.client_addr(1));
    let (reset, reason) = lab.answer(lab.client(1).seq(5).ack(4711).payload(b"hello?"));
    assert_eq!((reason, reset.reset()), (DropReason::NoFlow, (vip.clone(), client.clone(), "R", 4711, 0)));
    assert_eq!(reset.mac, 1, "back to where it came from");
    let (reset, _) = lab.answer(lab.client(1).fin().seq(5).payload(b"abc"));
    assert_eq!(reset.reset(), (vip, client, "R.", 0, 9), "RFC 9293, section 3.10.7.1");
}

fn source_routed_packets_are_dropped(family: Family) {
    for mut lab in Lab::both_modes(family) {
        lab.send(lab.client(1).syn().seq(100));
        for packet in [lab.client(1).seq(101).ack(501), lab.client(2).syn(), lab.client(2).udp()] {
            let routed = match family {
                Family::V4 => packet.ip_options(&[131, 7, 4, 198, 51, 100, 1]),
                Family::V6 => packet.extension(43, &[0, 4, 1, 0, 0, 0, 0]),
            };
            assert_eq!(lab.handle(&routed), Outcome::Dropped(DropReason::SourceRouted));
        }
        assert_eq!(lab.forwarder.flows().len(), 1);
    }
}

fn a_reset_is_never_answered(family: Family) {
    let mut lab = Lab::passthrough(family);
    for packet in [lab.client(1).rst().seq(5), lab.client(1).rst().ack(5), lab.client(1).syn().rst()] {
        assert_eq!(lab.handle(&packet), Outcome::Dropped(DropReason::NoFlow));
    }
}

fn a_server_that_refuses_a_connection_is_told_from_one_that_answers(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.send(syn.reply().rst().ack(77));
    assert_eq!(lab.server_messages, [0, 0], "somebody made that up");
    lab.send(syn.reply().rst().ack(101));
    assert_eq!(lab.server_messages, [0, 1]);
    let answered = lab.connect(2);
    lab.apply_cache_events();
    assert_eq!(lab.server_messages, [1, 1]);
    lab.send(answered.reply().rst().seq(501).ack(101));
    assert_eq!(lab.server_messages, [1, 1], "it had its reasons");
}

fn packet_to_an_unused_snat_port_is_dropped_silently(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let stranger = SocketAddr::new(family.server_ip(99), 8080);
    for stray in [
        TestPacket::from(syn.to).to(SocketAddr::new(syn.from.ip(), syn.from.port() ^ 1)).ack(5),
        TestPacket::from(stranger).to(syn.from).ack(5),
        TestPacket::from(SocketAddr::new(syn.to.ip(), 8081)).to(syn.from).syn(),
        syn.reply().udp(),
    ] {
        let outcome = lab.handle(&stray);
        assert_eq!(outcome, Outcome::Dropped(DropReason::NoFlow), "{}", short(&stray.bytes()));
    }
}

fn packets_to_nobodys_address_pass_untouched(family: Family) {
    let (mut passthrough, mut dsr) = (Lab::passthrough(family), Lab::dsr(family));
    for (ip, port) in [
        (family.vip_ip(), 81),
        (family.own_ip(), 80),
        (family.snat(), 39_999),
        (family.snat(), 22),
        (family.pick("203.0.113.5", "2001:db8:5::5"), 80),
    ] {
        let to = SocketAddr::new(ip.parse().unwrap(), port);
        for lab in [&mut passthrough, &mut dsr] {
            let packet = TestPacket::from(family.client_addr(1)).to(to);
            assert_eq!(lab.handle(&packet.clone().syn()), Outcome::Passed, "{to}");
            assert_eq!(lab.handle(&packet.udp()), Outcome::Passed, "{to}");
        }
    }
    for lab in [&mut passthrough, &mut dsr] {
        assert_eq!(lab.handle(&lab.client(1).udp()), Outcome::Passed, "the frontend is one of TCP");
    }
}

fn refusals_go_to_no_group_of_the_link(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(9);
    let us = [2, 0, 0, 0, 0, 1];
    let segment = lab.client(1).seq(5).ack(4711);
    let last_hop = lab.client(9).seq(102).ack(502).ttl(1);
    for packet in [segment, last_hop] {
        let from = |mac: u8| packet.clone().macs([mac, 0, 0x5e, 0, 0, 1], us);
        assert!(matches!(lab.handle(&from(0)), Outcome::Answered(..)), "{}", short(&packet.bytes()));
        for group in [1, 0xff] {
            assert!(matches!(lab.handle(&from(group)), Outcome::Dropped(_)), "{}", short(&packet.bytes()));
        }
    }
}

fn martian_source_begins_no_flow(family: Family) {
    let (mut passthrough, mut dsr) = (Lab::passthrough(family), Lab::dsr(family));
    let (martian, looped) = (DropReason::Martian, DropReason::VipLoop);
    let v4 = [
        ("127.0.0.1:4000", martian),
        ("127.9.9.9:4000", martian),
        ("224.0.0.1:4000", martian),
        ("239.255.255.255:4000", martian),
        ("240.0.0.1:4000", martian),
        ("255.255.255.255:4000", martian),
        ("192.0.2.255:4000", martian),
        ("0.0.0.0:4000", martian),
        ("0.1.2.3:4000", martian),
        ("198.51.100.1:0", martian),
        ("192.0.2.1:80", looped),
        ("192.0.2.1:4000", looped),
        ("192.0.2.2:4000", looped),
        ("10.0.0.254:40000", looped),
    ];
    let v6 = [
        ("[::1]:4000", martian),
        ("[::]:4000", martian),
        ("[ff02::1]:4000", martian),
        ("[fe80::9]:4000", martian),
        ("[febf::9]:4000", martian),
        ("[2001:db8::1]:0", martian),
        ("[::ffff:198.51.100.1]:4000", DropReason::MappedAddress),
        ("[2001:db8:2::1]:80", looped),
        ("[2001:db8:2::1]:4000", looped),
        ("[2001:db8:2::2]:4000", looped),
        ("[fd00::fe]:40000", looped),
    ];
    for (from, reason) in family.pick(&v4[..], &v6[..]) {
        for lab in [&mut passthrough, &mut dsr] {
            let packet = TestPacket::from(from).to(family.vip());
            for packet in [packet.clone().syn(), packet.ack(7)] {
                assert_eq!(lab.handle(&packet), Outcome::Dropped(*reason), "{from}");
            }
        }
    }
    assert_eq!((passthrough.forwarder.flows().len(), dsr.forwarder.flows().len()), (0, 0));
    assert_eq!(passthrough.forwarder.snat_ports_in_use(), 0);
}

fn a_snat_address_is_ours_though_no_interface_has_it(family: Family) {
    let snat = family.pick("10.0.0.77", "fd00::77");
    let mut lab = Lab::passthrough_from(family, snat, ENOUGH);
    assert_eq!(lab.send(lab.client(1).syn()).from.ip().to_string(), snat);
    let looped = TestPacket::from(SocketAddr::new(snat.parse().unwrap(), 40_000)).to(family.vip()).syn();
    assert_eq!(lab.handle(&looped), Outcome::Dropped(DropReason::VipLoop));
}

#[test]
fn a_frame_that_cannot_be_read_has_its_own_reason() {
    let mut lab = Lab::passthrough(Family::V4);
    let frame = lab.client(1).syn().bytes();
    let changed = |changes: &[(usize, u8)]| {
        let mut frame = frame.clone();
        changes.iter().for_each(|&(at, byte)| frame[at] = byte);
        frame
    };
    for (mut frame, expected) in [
        (frame[..20].to_vec(), Outcome::Dropped(DropReason::Truncated)),
        (changed(&[(14, 0x65)]), Outcome::Dropped(DropReason::BadVersion)),
        (changed(&[(14, 0x44)]), Outcome::Dropped(DropReason::BadHeaderLength)),
        (changed(&[(46, 0x40)]), Outcome::Dropped(DropReason::BadHeaderLength)),
        (changed(&[(17, 41)]), Outcome::Dropped(DropReason::BadTotalLength)),
        (changed(&[(17, 39)]), Outcome::Dropped(DropReason::BadTotalLength)),
        (lab.client(1).syn().fragments(9, 8)[1].clone(), Outcome::Dropped(DropReason::FragmentUnmatched)),
        (changed(&[(21, 1)]), Outcome::Dropped(DropReason::BadChecksum)),
        (changed(&[(23, 17)]), Outcome::Dropped(DropReason::BadTotalLength)),
        (changed(&[(23, 50)]), Outcome::Passed),
        (changed(&[(12, 0x86), (13, 0xdd)]), Outcome::Dropped(DropReason::BadVersion)),
        (changed(&[(12, 0x08), (13, 0x06)]), Outcome::Passed),
    ] {
        assert_eq!(lab.handle_frame(&mut frame, None), expected, "{}", short(&frame));
    }
    assert_eq!(lab.forwarder.flows().len(), 0);
}
