//! Path MTU black holes: the driver is notified of flows that pass a hop with a shorter MTU and
//! without ICMP errors.

use std::time::Duration;

use super::lab::{Family, Lab, Outcome, Seen};
use crate::{Direction, PathMtuSuspicion};
use convey_wire::TestPacket;

run_cases_over_both_families! {
    lost_uploads_are_reported_once_if_the_server_answers_others,
    a_server_that_answers_nobody_is_dead,
    a_server_that_acknowledges_only_what_is_short_is_enough,
    lost_downloads_are_reported_if_the_client_answers,
    late_acknowledged_or_short_segments_are_not_suspected,
    a_super_frame_counts_by_the_packets_it_is_cut_into,
    a_client_that_sends_on_is_not_suspected,
}

/// Times at which Linux sends a segment without an acknowledgement, in milliseconds.
const TIMES: [u64; 5] = [0, 200, 600, 1_400, 3_000];

/// Payload that exceeds the unsuspected length with all headers.
const LARGE: [u8; 1_300] = [7; 1_300];

/// Opens a connection.
fn begun(mut lab: Lab) -> (Lab, Seen) {
    let syn = lab.send(lab.client(1).syn().seq(100));
    if lab.forwarder.snat_ports_in_use() > 0 {
        lab.send(syn.reply().syn().seq(500).ack(101));
    }
    lab.send(lab.client(1).seq(101).ack(501));
    (lab, syn)
}

fn upload(lab: &Lab) -> TestPacket {
    lab.client(1).seq(101).ack(501).payload(&LARGE)
}

/// Sends a packet at each of these times, and calls `between` after each. Returns the suspicions.
fn repeat(
    lab: &mut Lab,
    packet: &TestPacket,
    is_answering: bool,
    mut between: impl FnMut(&mut Lab, u64),
) -> Vec<PathMtuSuspicion> {
    let (begin, mut suspected) = (lab.now, Vec::new());
    for ms in TIMES {
        lab.now = begin.after(Duration::from_millis(ms));
        lab.tick();
        lab.send(packet.clone());
        let unanswered: Vec<_> = lab.forwarder.events().unanswered.drain(..).collect();
        for segment in unanswered.iter().filter(|_| is_answering) {
            assert!(segment.since <= lab.now);
            suspected.extend(lab.forwarder.server_has_answered(segment, lab.now));
        }
        suspected.append(&mut lab.forwarder.events().path_mtu);
        between(lab, ms);
    }
    suspected
}

fn lost_uploads_are_reported_once_if_the_server_answers_others(family: Family) {
    for lab in Lab::both_modes(family) {
        let (mut lab, syn) = begun(lab);
        let packet = upload(&lab);
        let suspected = repeat(&mut lab, &packet, true, |_, _| {});
        let [suspicion] = suspected[..] else { panic!("{suspected:?}") };
        let chosen = lab.plan.servers.values().find(|server| server.addr == syn.to).unwrap().id;
        assert_eq!((suspicion.flow.server, suspicion.direction), (chosen, Direction::ToServer));
        assert_eq!(usize::from(suspicion.packet_len), packet.bytes().len() - 14);
        lab.wait(Duration::from_secs(6));
        assert_eq!(repeat(&mut lab, &packet, true, |_, _| {}), [], "once");
    }
}

fn a_server_that_answers_nobody_is_dead(family: Family) {
    for lab in Lab::both_modes(family) {
        let (mut lab, _) = begun(lab);
        let packet = upload(&lab);
        assert_eq!(repeat(&mut lab, &packet, false, |_, _| {}), []);
    }
}

fn a_server_that_acknowledges_only_what_is_short_is_enough(family: Family) {
    let (mut lab, syn) = begun(Lab::passthrough(family));
    let packet = upload(&lab);
    let suspected = repeat(&mut lab, &packet, false, |lab, ms| {
        if ms == 600 {
            lab.now = lab.now.after(Duration::from_millis(10));
            lab.send(syn.reply().seq(501).ack(101));
        }
    });
    assert_eq!(suspected.len(), 1);
}

fn lost_downloads_are_reported_if_the_client_answers(family: Family) {
    for is_there in [true, false] {
        let (mut lab, syn) = begun(Lab::passthrough(family));
        let packet = syn.reply().seq(501).ack(101).payload(&LARGE);
        let suspected = repeat(&mut lab, &packet, true, |lab, ms| {
            if is_there && ms == 600 {
                lab.now = lab.now.after(Duration::from_millis(10));
                lab.send(lab.client(1).seq(101).ack(501));
            }
        });
        let directions: Vec<_> = suspected.iter().map(|suspicion| suspicion.direction).collect();
        assert_eq!(directions, if is_there { vec![Direction::ToClient] } else { vec![] });
    }
}

fn late_acknowledged_or_short_segments_are_not_suspected(family: Family) {
    let (mut lab, syn) = begun(Lab::passthrough(family));
    let packet = upload(&lab);
    let suspected = repeat(&mut lab, &packet, true, |lab, ms| {
        if ms == 1_400 {
            lab.send(syn.reply().seq(501).ack(101 + LARGE.len() as u32));
        }
    });
    assert_eq!(suspected, [], "acknowledged, and sent once more");
    for lab in Lab::both_modes(family) {
        let (mut lab, _) = begun(lab);
        let headers = lab.client(1).ack(501).bytes().len() - 14;
        let packet = lab.client(1).seq(101).ack(501).payload(&LARGE[..1_280 - headers]);
        assert_eq!(repeat(&mut lab, &packet, true, |_, _| {}), [], "of 1,280 bytes");
    }
}

fn a_super_frame_counts_by_the_packets_it_is_cut_into(family: Family) {
    for (size, is_suspected) in [(1_300, true), (1_200, false)] {
        for lab in Lab::both_modes(family) {
            let (mut lab, _) = begun(lab);
            let frame = lab.client(1).seq(101).ack(501).payload(&[7; 13_000]).bytes();
            let (begin, mut suspected) = (lab.now, 0);
            for ms in TIMES {
                lab.now = begin.after(Duration::from_millis(ms));
                let outcome = lab.handle_frame(&mut frame.clone(), Some(size));
                assert!(matches!(outcome, Outcome::Sent(_) | Outcome::Segments(..)), "{outcome:?}");
                let unanswered: Vec<_> = lab.forwarder.events().unanswered.drain(..).collect();
                for segment in &unanswered {
                    suspected += lab.forwarder.server_has_answered(segment, lab.now).iter().count();
                }
                suspected += lab.forwarder.events().path_mtu.drain(..).count();
            }
            assert_eq!(suspected, usize::from(is_suspected), "{size}");
        }
    }
}

fn a_client_that_sends_on_is_not_suspected(family: Family) {
    for lab in Lab::both_modes(family) {
        let (mut lab, _) = begun(lab);
        let packet = upload(&lab);
        let mut next = 101 + LARGE.len() as u32;
        let suspected = repeat(&mut lab, &packet, true, |lab, _| {
            lab.send(lab.client(1).seq(next).ack(501).payload(b"more"));
            next += 4;
        });
        assert_eq!(suspected, []);
    }
}
