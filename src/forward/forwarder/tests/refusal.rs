//! What is not forwarded, and who is told.

use super::lab::{ENOUGH, Lab, Outcome, SNAT, VIP, client, client_addr};
use crate::model::DropReason;
use crate::wire::TcpPacket;

#[test]
fn a_segment_without_a_flow_is_answered_in_the_words_its_sender_believes() {
    let mut lab = Lab::passthrough();
    let (reset, reason) = lab.answer(client(1).seq(5).ack(4711).payload(b"hello?"));
    assert_eq!((reason, reset.reset()), (DropReason::NoFlow, (VIP.into(), client_addr(1), "R", 4711, 0)));
    assert_eq!(reset.mac, 1, "back to where it came from");
    let (reset, _) = lab.answer(client(1).fin().seq(5).payload(b"abc"));
    assert_eq!(reset.reset(), (VIP.into(), client_addr(1), "R.", 0, 9), "RFC 9293, section 3.10.7.1");
}

#[test]
fn a_reset_is_never_answered() {
    let mut lab = Lab::passthrough();
    for packet in [client(1).rst().seq(5), client(1).rst().ack(5), client(1).syn().rst()] {
        assert_eq!(lab.handle(&packet), Outcome::Dropped(DropReason::NoFlow));
    }
}

#[test]
fn a_packet_to_a_snat_port_without_a_flow_is_dropped_without_a_word() {
    let mut lab = Lab::passthrough();
    let syn = lab.connect(1);
    for stray in [
        TcpPacket::from(syn.to).to(format!("{SNAT}:{}", syn.from.port() ^ 1)).ack(5),
        TcpPacket::from("10.0.0.99:8080").to(syn.from).ack(5),
        TcpPacket::from(format!("{}:8081", syn.to.ip())).to(syn.from).syn(),
    ] {
        assert_eq!(lab.handle(&stray), Outcome::Dropped(DropReason::NoFlow), "{stray:?}");
    }
}

#[test]
fn packets_to_nobodys_address_pass_untouched() {
    let (mut passthrough, mut dsr) = (Lab::passthrough(), Lab::dsr());
    for to in ["192.0.2.1:81", "192.0.2.2:80", "10.0.0.1:39999", "10.0.0.1:22", "203.0.113.5:80"] {
        for lab in [&mut passthrough, &mut dsr] {
            assert_eq!(lab.handle(&TcpPacket::from(client_addr(1)).to(to).syn()), Outcome::Passed, "{to}");
        }
    }
}

#[test]
fn what_cannot_be_a_client_begins_no_flow() {
    let (mut passthrough, mut dsr) = (Lab::passthrough(), Lab::dsr());
    for (from, reason) in [
        ("127.0.0.1:4000", DropReason::Martian),
        ("127.9.9.9:4000", DropReason::Martian),
        ("224.0.0.1:4000", DropReason::Martian),
        ("239.255.255.255:4000", DropReason::Martian),
        ("240.0.0.1:4000", DropReason::Martian),
        ("255.255.255.255:4000", DropReason::Martian),
        ("0.0.0.0:4000", DropReason::Martian),
        ("0.1.2.3:4000", DropReason::Martian),
        ("198.51.100.1:0", DropReason::Martian),
        ("192.0.2.1:80", DropReason::VipLoop),
        ("192.0.2.1:4000", DropReason::VipLoop),
        ("192.0.2.2:4000", DropReason::VipLoop),
        ("10.0.0.1:40000", DropReason::VipLoop),
    ] {
        for lab in [&mut passthrough, &mut dsr] {
            for packet in [TcpPacket::from(from).to(VIP).syn(), TcpPacket::from(from).to(VIP).ack(7)] {
                assert_eq!(lab.handle(&packet), Outcome::Dropped(reason), "{from}");
            }
        }
    }
    assert_eq!((passthrough.forwarder.flows().len(), dsr.forwarder.flows().len()), (0, 0));
    assert_eq!(passthrough.forwarder.snat_ports_in_use(), 0);
}

#[test]
fn a_snat_address_is_ours_though_no_interface_has_it() {
    let mut lab = Lab::passthrough_from("10.0.0.77", ENOUGH);
    assert_eq!(lab.send(client(1).syn()).from.ip().to_string(), "10.0.0.77");
    let looped = TcpPacket::from("10.0.0.77:40000").to(VIP).syn();
    assert_eq!(lab.handle(&looped), Outcome::Dropped(DropReason::VipLoop));
}

#[test]
fn a_packet_on_its_last_hop_goes_no_further_and_begins_nothing() {
    for mut lab in [Lab::passthrough(), Lab::dsr()] {
        for ttl in [0, 1] {
            let syn = client(1).syn().ttl(ttl);
            assert_eq!(lab.handle(&syn), Outcome::Dropped(DropReason::TtlExceeded));
        }
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (0, 0));
        assert_eq!(lab.send(client(1).syn().ttl(2)).ttl, 1);
        let late = client(1).ack(5).ttl(1);
        assert_eq!(lab.handle(&late), Outcome::Dropped(DropReason::TtlExceeded));
    }
}

/// Headers take 40 bytes; the servers' link takes 1400, the clients' 1500.
#[test]
fn a_packet_too_long_for_the_next_link_is_dropped_and_begins_nothing() {
    let mut lab = Lab::passthrough();
    let syn = lab.connect(1);
    let too_long = Outcome::Dropped(DropReason::TooBig);
    lab.send(client(1).ack(501).payload(&[7; 1_360]));
    assert_eq!(lab.handle(&client(1).ack(501).payload(&[7; 1_361])), too_long);
    lab.send(syn.reply().ack(101).payload(&[7; 1_460]));
    assert_eq!(lab.handle(&syn.reply().ack(101).payload(&[7; 1_461])), too_long);
    assert_eq!(lab.handle(&client(2).syn().payload(&[7; 1_361])), too_long);
    assert_eq!((lab.opened, lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (1, 1, 1));

    let mut dsr = Lab::dsr();
    assert_eq!(dsr.handle(&client(1).ack(501).payload(&[7; 1_361])), too_long);
    assert_eq!((dsr.opened, dsr.forwarder.flows().len()), (0, 0));
}

#[test]
fn a_super_frame_is_judged_by_the_packets_it_will_be_cut_into() {
    let mut lab = Lab::passthrough();
    lab.connect(1);
    let mut handle = |segment_size| {
        let mut frame = client(1).ack(501).tcp_options(&[1; 12]).payload(&[7; 60_000]).bytes();
        lab.handle_frame(&mut frame, Some(segment_size))
    };
    assert_eq!(handle(1_349), Outcome::Dropped(DropReason::TooBig));
    let Outcome::Sent(whole) = handle(1_348) else { panic!("it fits") };
    assert_eq!(whole.payload, [7; 60_000]);
}

#[test]
fn a_frame_that_cannot_be_read_has_its_own_reason() {
    let mut lab = Lab::passthrough();
    let frame = client(1).syn().bytes();
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
        (changed(&[(20, 0x20)]), Outcome::Dropped(DropReason::Fragment)),
        (changed(&[(21, 1)]), Outcome::Dropped(DropReason::Fragment)),
        (changed(&[(23, 17)]), Outcome::Passed),
        (changed(&[(12, 0x86), (13, 0xdd)]), Outcome::Passed),
        (changed(&[(12, 0x08), (13, 0x06)]), Outcome::Passed),
    ] {
        assert_eq!(lab.handle_frame(&mut frame, None), expected, "{frame:x?}");
    }
    assert_eq!(lab.forwarder.flows().len(), 0);
}
