//! Connections of which the cache forwards all but the SYN.

use convey::dataplane::{FlowEntry, Outcome};
use convey::forward::{ACK, SYN, Segment};
use convey::model::{FlowKey, Mode};
use convey::wire::{self, TestPacket};

use super::balancer::Setup;
use super::kernel;
use super::twin::{Ends, Made, Twin, client, is_tcp, setups};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        a_handshake_leaves_as_the_core_sends_it_and_makes_events,
        whoever_has_not_heard_the_other_side_completes_no_handshake,
        an_answer_that_comes_again_is_sent_on_again_and_another_one_is_left_to_a_worker,
        an_answer_from_an_interface_that_does_not_lead_to_the_server_is_left_to_a_worker,
        data_completes_a_handshake_whose_acknowledgement_was_lost,
        a_handshake_is_completed_where_there_is_no_room_to_tell_of_it,
    ]
}

const SYN_ACK: u8 = SYN | ACK;

fn connections() -> impl Iterator<Item = Setup> {
    setups().into_iter().filter(is_tcp)
}

fn answer(ends: &Ends) -> TestPacket {
    ends.to_client().syn().seq(500).ack(1)
}

fn key(packet: &TestPacket) -> FlowKey {
    wire::parse(&packet.bytes()).unwrap().key
}

fn entry(twin: &Twin, packet: &TestPacket) -> FlowEntry {
    twin.flows.get(&key(packet)).unwrap().unwrap()
}

#[track_caller]
fn is_sent(twin: &mut Twin, packet: &TestPacket) {
    let sent = twin.core(&packet.bytes(), None).unwrap();
    assert_eq!(twin.see(&packet.bytes()), Made::Sent(sent));
}

#[track_caller]
fn is_left(twin: &mut Twin, packet: &TestPacket) {
    assert_eq!(twin.see(&packet.bytes()), Made::Left(Some(Outcome::ChangesState)), "{packet:?}");
    assert!(twin.lets_in(&packet.bytes()), "userspace does not get it");
}

fn a_handshake_leaves_as_the_core_sends_it_and_makes_events() {
    for setup in connections() {
        let mut twin = Twin::new(setup);
        let mut events = twin.cache.events().unwrap();
        let ends = twin.begin(client(&setup));
        let (answer, last) = (answer(&ends), ends.to_server().seq(1).ack(501));
        if setup.mode == Mode::Passthrough {
            is_sent(&mut twin, &answer);
            let event = (key(&answer), Segment { flags: SYN_ACK, seq: 500, ack: 1, len: 0 });
            assert_eq!([events.take(), events.take()], [Some(event); 2], "of tc and of XDP");
            assert!(entry(&twin, &answer).is_opening());
        }
        is_sent(&mut twin, &last);
        assert_eq!(events.take(), Some((key(&last), Segment { flags: ACK, seq: 1, ack: 501, len: 0 })));
        is_sent(&mut twin, &ends.to_server().seq(1).ack(501).payload(b"GET"));
        assert_eq!(events.take(), None, "it is open");
        let seen = entry(&twin, &last);
        assert_eq!((seen.is_opening(), seen.sent, seen.ack), (false, 4, 501));
        if setup.mode == Mode::Passthrough {
            is_sent(&mut twin, &ends.to_client().seq(501).ack(4).payload(b"hello"));
            let seen = entry(&twin, &answer);
            assert_eq!((seen.is_opening(), seen.sent, seen.ack), (false, 506, 4));
        }
    }
}

fn whoever_has_not_heard_the_other_side_completes_no_handshake() {
    const FAR: u32 = 1 << 20;
    for setup in connections() {
        let mut twin = Twin::new(setup);
        let mut events = twin.cache.events().unwrap();
        let ends = twin.begin(client(&setup));
        let last = ends.to_server().seq(1).ack(501);
        if setup.mode == Mode::Passthrough {
            is_left(&mut twin, &last);
            for of_server in [answer(&ends).ack(FAR), answer(&ends).fin(), answer(&ends).rst()] {
                is_left(&mut twin, &of_server);
            }
            is_left(&mut twin, &ends.to_client().seq(501).ack(1));
            is_sent(&mut twin, &answer(&ends));
            is_left(&mut twin, &ends.to_server().seq(1).ack(FAR));
            events.take();
            events.take();
        }
        for of_client in [last.clone().seq(FAR), last.clone().seq(0), last.clone().fin(), last.clone().rst()]
        {
            is_left(&mut twin, &of_client);
        }
        assert_eq!(events.take(), None);
        assert!(entry(&twin, &last).is_opening());
    }
}

fn an_answer_that_comes_again_is_sent_on_again_and_another_one_is_left_to_a_worker() {
    for setup in connections().filter(|setup| setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.begin(client(&setup));
        (0..2).for_each(|_| is_sent(&mut twin, &answer(&ends)));
        is_left(&mut twin, &answer(&ends).seq(7_000_000));
        is_left(&mut twin, &ends.to_server().seq(1).ack(7_000_001));
        is_sent(&mut twin, &ends.to_server().seq(1).ack(501));
    }
}

fn an_answer_from_an_interface_that_does_not_lead_to_the_server_is_left_to_a_worker() {
    for setup in connections().filter(|setup| setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.begin(client(&setup));
        twin.lead_elsewhere(&ends);
        let left = Made::Left(Some(Outcome::OtherInterface));
        assert_eq!(twin.see(&answer(&ends).bytes()), left);
        assert!(twin.lets_in(&answer(&ends).bytes()));
        // Who forged it completes nothing either.
        is_left(&mut twin, &ends.to_server().seq(1).ack(501));
        assert!(entry(&twin, &answer(&ends)).is_opening());
    }
}

fn data_completes_a_handshake_whose_acknowledgement_was_lost() {
    for setup in connections() {
        let mut twin = Twin::new(setup);
        let mut events = twin.cache.events().unwrap();
        let ends = twin.begin(client(&setup));
        if setup.mode == Mode::Passthrough {
            is_sent(&mut twin, &answer(&ends));
            events.take();
            events.take();
        }
        let data = ends.to_server().seq(1).ack(501).payload(b"GET");
        is_sent(&mut twin, &data);
        assert_eq!(events.take(), Some((key(&data), Segment { flags: ACK, seq: 1, ack: 501, len: 3 })));
        let seen = entry(&twin, &data);
        assert_eq!((seen.is_opening(), seen.sent, seen.ack), (false, 4, 501));
    }
}

fn a_handshake_is_completed_where_there_is_no_room_to_tell_of_it() {
    for setup in connections() {
        let mut twin = Twin::new(setup);
        let mut events = twin.cache.events().unwrap();
        let ends = twin.begin(client(&setup));
        if setup.mode == Mode::Passthrough {
            is_sent(&mut twin, &answer(&ends));
        }
        let last = ends.to_server().seq(1).ack(501);
        let begun = entry(&twin, &last);
        let frame = last.bytes();
        // 1 MiB of 64 bytes each.
        for _ in 0..1 << 14 {
            kernel::run(twin.cache.tc().unwrap(), &frame);
            twin.flows.put(&[key(&last)], &[begun]).unwrap();
        }
        assert!(std::iter::from_fn(|| events.take()).count() < 1 << 14, "there was room");
        is_sent(&mut twin, &last);
        assert!(!entry(&twin, &last).is_opening());
        assert_eq!(twin.cache.fin_queue_full().unwrap(), 0, "nothing was dropped");
    }
}
