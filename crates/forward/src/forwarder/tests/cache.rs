//! Flow cache: it forwards the packets of open flows, and the balancer sees their beginning and
//! end.

use std::time::Duration;

use super::lab::{
    ENOUGH, Family, LAN, Lab, MockKernel, Outcome, Seen, Size, TestServer, WAN, error_about, neighbour,
    run_with_cache,
};
use crate::{ACK, CacheEvent, FIN, FlowState, Segment};
use convey_model::{DropReason, FlowKey, Mode};
use convey_wire::{IcmpError, TestPacket};

const SPOOFED: Outcome = Outcome::Dropped(DropReason::WrongInterface);

/// Runs each of these scenarios over IPv4 and over IPv6.
macro_rules! run_cases_with_cache {
    ($($case:ident),+ $(,)?) => {
        $(#[test] fn $case() { for family in Family::BOTH { run_with_cache(|| cases::$case(family)); } })+
    };
}

mod beside;
mod ends;
mod watched;
mod ways;

run_cases_with_cache! {
    connection_passes_through_the_cache_after_its_syn,
    dsr_client_packets_pass_through_the_cache_after_the_second,
    a_handshake_that_does_not_fit_is_left_to_us,
    a_handshake_that_the_cache_missed_part_of_is_completed_here,
    a_client_that_begins_anew_before_it_was_answered_is_followed,
    forged_syn_before_the_answer_changes_nothing_of_a_handshake,
    client_whose_first_syn_was_answered_begins_anew,
    dsr_client_completes_the_handshake_of_either_syn,
    client_behind_a_forged_syn_that_was_answered_connects,
    a_client_that_finishes_as_soon_as_it_is_answered_is_believed,
    unreported_open_connection_can_be_reset,
    syn_does_not_restart_an_unreported_open_connection,
    an_acknowledgement_of_the_connection_before_does_not_open_the_next,
    connection_with_syn_data_opens_without_an_ack_event,
    datagrams_leave_once_they_are_a_stream,
    connection_seen_only_by_the_cache_expires_once_silent,
    a_connection_that_nobody_told_of_is_not_forgotten_as_half_open,
    upload_whose_handshake_events_were_lost_is_not_forgotten,
    upload_of_gigabytes_whose_handshake_events_were_lost_is_not_forgotten,
    upload_of_gigabytes_whose_handshake_events_were_lost_is_not_evicted,
    unreported_open_connection_is_not_evicted_from_a_full_table,
    connection_continues_after_the_cache_lost_its_entry,
}

mod cases {
    use super::*;

    pub(super) fn connection_passes_through_the_cache_after_its_syn(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        assert_eq!((kernel(&lab).entries(), state(&lab)), (2, FlowState::SynSent));
        let answer = lab.send(syn.reply().syn().seq(500).ack(101));
        assert_eq!(answer.route(), (family.vip().to_owned(), family.client_addr(1)));
        assert_eq!(state(&lab), FlowState::SynReceived);
        lab.send(lab.client(1).seq(101).ack(501));
        assert_eq!(state(&lab), FlowState::Established);

        let hi = lab.send(lab.client(1).seq(101).ack(501).payload(b"hi?"));
        assert_eq!((hi.route(), hi.payload.as_slice()), (syn.route(), &b"hi?"[..]));
        let hello = lab.send(syn.reply().seq(501).ack(104).payload(b"hello"));
        assert_eq!(hello.route(), (family.vip().to_owned(), family.client_addr(1)));
        assert_eq!(forwarded(&lab, 1), (Some(2), Some(2)));
    }

    pub(super) fn dsr_client_packets_pass_through_the_cache_after_the_second(family: Family) {
        for mut lab in [Lab::dsr(family), Lab::l2(family)] {
            let syn = lab.send(lab.client(1).syn().seq(100));
            lab.send(lab.client(1).seq(101).ack(501));
            assert_eq!(state(&lab), FlowState::HandshakeOnly);
            let get = lab.send(lab.client(1).seq(101).ack(501).payload(b"GET"));
            assert_eq!((get.route(), get.mac, kernel(&lab).entries()), (syn.route(), syn.mac, 1));
            assert_eq!(kernel(&lab).forwarded(&client_key(&lab, 1)), Some(2));
        }
    }

    pub(super) fn a_handshake_that_does_not_fit_is_left_to_us(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).seq(101).ack(501));
        assert_eq!(forwarded(&lab, 1), (Some(0), Some(0)), "nobody has answered");
        lab.send(syn.reply().syn().seq(500).ack(3_000_000_000));
        lab.send(syn.reply().syn().seq(500).ack(101).fin());
        assert_eq!(forwarded(&lab, 1), (Some(0), Some(0)), "that is no answer");
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(3_000_000_000));
        lab.send(lab.client(1).seq(3_000_000_000).ack(501));
        assert_eq!((forwarded(&lab, 1), state(&lab)), ((Some(0), Some(1)), FlowState::SynReceived));
        lab.send(lab.client(1).seq(101).ack(501).fin());
        assert_eq!((forwarded(&lab, 1), state(&lab)), ((Some(0), Some(0)), FlowState::HalfClosedByClient));
    }

    pub(super) fn a_handshake_that_the_cache_missed_part_of_is_completed_here(family: Family) {
        for misses_answer in [true, false] {
            let mut lab = Lab::passthrough(family);
            let syn = lab.send(lab.client(1).syn().seq(100));
            if misses_answer {
                kernel(&lab).lose_all();
            }
            lab.send(syn.reply().syn().seq(500).ack(101));
            if !misses_answer {
                kernel(&lab).lose_all();
            }
            lab.send(lab.client(1).seq(101).ack(501));
            assert_eq!((state(&lab), forwarded(&lab, 1)), (FlowState::Established, (Some(0), Some(0))));
            lab.send(syn.reply().seq(501).ack(101).payload(b"hello"));
            lab.send(syn.reply().seq(506).ack(101).fin());
            lab.send(lab.client(1).seq(101).ack(507).fin());
            assert_eq!((state(&lab), lab.ended()), (FlowState::Closing, 1));
        }
    }

    pub(super) fn a_client_that_begins_anew_before_it_was_answered_is_followed(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        let again = lab.send(lab.client(1).syn().seq(3_000_000_000));
        assert_eq!((again.route(), lab.opened), (syn.route(), 1));
        lab.send(lab.client(1).syn().seq(3_000_000_000));
        lab.send(syn.reply().syn().seq(500).ack(3_000_000_001));
        lab.send(lab.client(1).seq(3_000_000_001).ack(501));
        assert_eq!((state(&lab), forwarded(&lab, 1)), (FlowState::Established, (Some(0), Some(0))));
    }

    pub(super) fn forged_syn_before_the_answer_changes_nothing_of_a_handshake(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).syn().seq(3_000_000_000));
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        assert_eq!((state(&lab), kernel(&lab).entries()), (FlowState::Established, 2));
    }

    pub(super) fn client_whose_first_syn_was_answered_begins_anew(family: Family) {
        for is_deaf in [true, false] {
            let mut lab = Lab::passthrough(family);
            let syn = lab.send(lab.client(1).syn().seq(100));
            lab.is_deaf = is_deaf;
            lab.send(syn.reply().syn().seq(500).ack(101));
            lab.send(lab.client(1).syn().seq(3_000_000_000));
            lab.apply_cache_events();
            assert_eq!((state(&lab), lab.opened), (FlowState::SynReceived, 1));
            connect_again(&mut lab, &syn);
        }
    }

    pub(super) fn dsr_client_completes_the_handshake_of_either_syn(family: Family) {
        for begins in [100, 3_000_000_000] {
            let mut lab = Lab::dsr(family);
            lab.send(lab.client(1).syn().seq(100));
            lab.send(lab.client(1).syn().seq(3_000_000_000));
            assert_eq!(kernel(&lab).entries(), 0, "the next segment decides");
            lab.send(lab.client(1).seq(begins + 1).ack(501));
            assert_eq!((kernel(&lab).entries(), state(&lab)), (1, FlowState::HandshakeOnly), "{begins}");
            lab.send(lab.client(1).seq(begins + 1).ack(501).payload(b"hi"));
            lab.send(lab.client(1).seq(begins + 3).rst());
            assert_eq!((state(&lab), lab.ended()), (FlowState::Closed, 1), "{begins}");
        }
    }

    pub(super) fn client_behind_a_forged_syn_that_was_answered_connects(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).syn().seq(3_000_000_000));
        lab.send(syn.reply().syn().seq(500).ack(101));
        connect_again(&mut lab, &syn);
    }

    /// The server answers the SYN with the number 3,000,000,000, and the client continues.
    fn connect_again(lab: &mut Lab, syn: &Seen) {
        lab.send(syn.reply().syn().seq(700).ack(3_000_000_001));
        lab.send(lab.client(1).seq(3_000_000_001).ack(701));
        assert_eq!((state(lab), kernel(lab).entries()), (FlowState::Established, 2));
        lab.wait(Duration::from_secs(100));
        let hello = lab.client(1).seq(3_000_000_001).ack(701).payload(b"hello");
        assert_eq!(lab.send(hello).route(), syn.route());
        assert_eq!((lab.ended(), forwarded(lab, 1)), (0, (Some(1), Some(0))));
    }

    pub(super) fn a_client_that_finishes_as_soon_as_it_is_answered_is_believed(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.is_deaf = true;
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501).fin());
        assert_eq!(state(&lab), FlowState::HalfClosedByClient);
        lab.send(syn.reply().seq(501).ack(102).payload(b"hello"));
        assert_eq!(forwarded(&lab, 1), (Some(0), Some(1)), "counted from the end of the handshake on");
        lab.apply_cache_events();
        lab.is_deaf = false;
        lab.send(syn.reply().seq(506).ack(102).fin());
        assert_eq!((state(&lab), lab.ended()), (FlowState::Closing, 1));
    }

    pub(super) fn unreported_open_connection_can_be_reset(family: Family) {
        for by_client in [true, false] {
            let mut lab = Lab::passthrough(family);
            let syn = lab.send(lab.client(1).syn().seq(100));
            lab.is_deaf = true;
            lab.send(syn.reply().syn().seq(500).ack(101));
            lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
            let reset = if by_client { lab.client(1).seq(103) } else { syn.reply().seq(501) };
            lab.send(reset.rst());
            assert_eq!((state(&lab), kernel(&lab).entries(), lab.ended()), (FlowState::Closed, 0, 1));
            lab.apply_cache_events();
            assert_eq!(state(&lab), FlowState::Closed);
        }
    }

    pub(super) fn syn_does_not_restart_an_unreported_open_connection(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.is_deaf = true;
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        assert_eq!(state(&lab), FlowState::SynSent);
        lab.send(lab.client(1).syn().seq(3_000_000_000));
        assert_eq!(state(&lab), FlowState::Established);
        lab.apply_cache_events();
        assert_eq!((state(&lab), lab.opened), (FlowState::Established, 1));
        lab.close(1, &syn);
    }

    pub(super) fn an_acknowledgement_of_the_connection_before_does_not_open_the_next(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.send(lab.client(1).syn().seq(3_000_000_000));
        for seq in [101, 2_999_999_000] {
            let late = Segment { flags: ACK, seq, ack: 501, len: 0 };
            lab.forwarder.on_cached(CacheEvent { key: client_key(&lab, 1), segment: late }, lab.now);
            assert_eq!(state(&lab), FlowState::SynSent);
        }
    }

    pub(super) fn connection_with_syn_data_opens_without_an_ack_event(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100).payload(&[7; 300]));
        lab.send(syn.reply().syn().seq(500).ack(401));
        assert_eq!((forwarded(&lab, 1), state(&lab)), ((Some(0), Some(1)), FlowState::SynReceived));
        lab.is_deaf = true;
        lab.send(lab.client(1).seq(401).ack(501));
        kernel(&lab).events();
        lab.wait(Duration::from_secs(100));
        assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0));
        lab.send(lab.client(1).seq(401).rst());
        assert_eq!((state(&lab), lab.ended()), (FlowState::Closed, 1));
    }

    pub(super) fn datagrams_leave_once_they_are_a_stream(family: Family) {
        let mut lab = Lab::passthrough(family).udp();
        let question = lab.send(lab.client(1).udp().payload(b"?"));
        lab.send(question.reply().payload(b"!"));
        assert_eq!(kernel(&lab).entries(), 0, "mostly that was all");
        lab.send(lab.client(1).udp().payload(b"more"));
        assert_eq!(kernel(&lab).entries(), 2);
        lab.send(question.reply().payload(b"more"));
        lab.wait(Duration::from_secs(290));
        lab.send(lab.client(1).udp().payload(b"still here"));
        lab.wait(Duration::from_secs(290));
        assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries()), (1, 2));
        lab.wait(Duration::from_secs(20));
        assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries()), (0, 0));
    }

    pub(super) fn connection_seen_only_by_the_cache_expires_once_silent(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        for _ in 0..4 {
            lab.wait(Duration::from_secs(7_000));
            lab.send(syn.reply().seq(501).ack(101));
        }
        lab.wait(Duration::from_secs(7_400));
        assert_eq!((lab.forwarder.flows().len(), lab.ended()), (1, 0));
        lab.wait(Duration::from_secs(50));
        assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries(), lab.ended()), (0, 0, 1));
        assert_eq!(lab.forwarder.snat_ports_in_use(), 0);
    }

    pub(super) fn a_connection_that_nobody_told_of_is_not_forgotten_as_half_open(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        open_untold(&mut lab, 1, &syn);
        lab.wait(Duration::from_secs(59));
        assert_eq!(state(&lab), FlowState::SynSent);
        lab.wait(Duration::from_secs(5_000));
        assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0));
        lab.send(syn.reply().seq(501).ack(101).payload(b"hello"));
        assert_eq!(forwarded(&lab, 1), (Some(1), Some(2)));
        lab.wait(Duration::from_secs(7_500));
        assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries(), lab.ended()), (0, 0, 1));
    }

    pub(super) fn upload_whose_handshake_events_were_lost_is_not_forgotten(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        open_untold(&mut lab, 1, &syn);
        transfer_100_mb(&mut lab, &syn);
        let key = client_key(&lab, 1);
        assert_eq!(lab.forwarder.find_flow(&key, lab.now).unwrap().0.state, FlowState::Established);
        lab.wait(Duration::from_secs(61));
        assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0));
    }

    pub(super) fn upload_of_gigabytes_whose_handshake_events_were_lost_is_not_forgotten(family: Family) {
        let mut lab = Lab::passthrough(family);
        upload_gigabytes_untold(&mut lab);
        let key = client_key(&lab, 1);
        assert_eq!(lab.forwarder.find_flow(&key, lab.now).unwrap().0.state, FlowState::Established);
        lab.wait(Duration::from_secs(61));
        assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0));
    }

    pub(super) fn upload_of_gigabytes_whose_handshake_events_were_lost_is_not_evicted(family: Family) {
        let mut lab = Lab::passthrough_of(family, Size { capacity: 1, ..ENOUGH });
        upload_gigabytes_untold(&mut lab);
        lab.handle(&lab.client(2).syn().seq(100));
        assert!(lab.forwarder.flows().lookup(&client_key(&lab, 1)).is_some());
        assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0));
    }

    pub(super) fn unreported_open_connection_is_not_evicted_from_a_full_table(family: Family) {
        let mut lab = Lab::passthrough_of(family, Size { capacity: 3, ..ENOUGH });
        for n in 1..3 {
            let syn = lab.send(lab.client(n).syn().seq(100));
            open_untold(&mut lab, n, &syn);
        }
        for n in 3..5 {
            lab.send(lab.client(n).syn().seq(100));
        }
        let count = |state| lab.forwarder.flows().count(state);
        assert_eq!((count(FlowState::Established), count(FlowState::SynSent)), (2, 1));
        let is_there = |n| lab.forwarder.flows().lookup(&client_key(&lab, n)).is_some();
        assert_eq!([1, 2, 3, 4].map(is_there), [true, true, false, true]);
    }

    pub(super) fn connection_continues_after_the_cache_lost_its_entry(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        kernel(&lab).lose_all();
        assert_eq!(lab.send(lab.client(1).seq(101).ack(501).payload(b"hi?")).route(), syn.route());
        lab.send(syn.reply().seq(501).ack(104).payload(b"hello"));
        lab.close(1, &syn);
        lab.wait(Duration::from_secs(61));
        assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (0, 0));
    }
}

/// The cache forwards the rest of the handshake of client `n`, and has no room to report it.
fn open_untold(lab: &mut Lab, n: u16, syn: &Seen) {
    lab.is_deaf = true;
    lab.send(syn.reply().syn().seq(500).ack(101));
    lab.send(lab.client(n).seq(101).ack(501));
    kernel(lab).events();
    lab.is_deaf = false;
}

/// Client 1 uploads 3 GB through the cache, and its handshake was not reported.
fn upload_gigabytes_untold(lab: &mut Lab) {
    let syn = lab.send(lab.client(1).syn().seq(100));
    open_untold(lab, 1, &syn);
    let mut client = 101_u32;
    for _ in 0..300 {
        client = client.wrapping_add(10_000_000);
        lab.send(syn.reply().seq(501).ack(client));
        lab.send(lab.client(1).seq(client).ack(501));
    }
}

fn kernel(lab: &Lab) -> &MockKernel {
    lab.kernel.as_ref().expect("the case is told with a cache")
}

/// Client 1 and its server exchange 100 MB through the cache. Returns the next sequence numbers of
/// both.
fn transfer_100_mb(lab: &mut Lab, syn: &Seen) -> (u32, u32) {
    let (mut client, mut server) = (101, 501);
    for _ in 0..10 {
        lab.send(syn.reply().seq(server).ack(client + 10_000_000));
        (client, server) = (client + 10_000_000, server + 10_000_000);
        lab.send(lab.client(1).seq(client).ack(server));
    }
    lab.send(syn.reply().seq(server).ack(client));
    (client, server)
}

fn client_key(lab: &Lab, n: u16) -> FlowKey {
    convey_wire::parse(&lab.client(n).bytes()).unwrap().key
}

/// Key of the server's datagrams, for the only UDP flow.
fn datagram_key(lab: &Lab) -> FlowKey {
    let flows = lab.forwarder.flows();
    let (id, _) = flows.lookup(&convey_wire::parse(&lab.client(1).udp().bytes()).unwrap().key).unwrap();
    flows.get(id).server()
}

/// Packets of client `n` and of its server that the cache has forwarded.
fn forwarded(lab: &Lab, n: u16) -> (Option<u32>, Option<u32>) {
    let flows = lab.forwarder.flows();
    let key = client_key(lab, n);
    let (id, _) = flows.lookup(&key).expect("there is the flow");
    (kernel(lab).forwarded(&key), kernel(lab).forwarded(&flows.get(id).server()))
}

/// State of the only flow.
fn state(lab: &Lab) -> FlowState {
    let flows = lab.forwarder.flows();
    FlowState::ALL.into_iter().find(|&state| flows.count(state) == 1).expect("there is one flow")
}
