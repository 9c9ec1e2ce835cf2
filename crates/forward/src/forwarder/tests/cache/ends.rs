//! End of cached connections: resets, and the reuse of ports.

use super::*;
use crate::{Frame, Verdict};

run_cases_with_cache! {
    a_connection_comes_back_when_both_sides_have_finished,
    simultaneous_close_ends_the_flow,
    fin_repeated_in_sequence_is_no_longer_queried,
    dsr_fin_counts_once_the_cache_forwarded_the_preceding_bytes,
    fin_behind_a_lasting_gap_is_queried_with_backoff,
    half_closed_connection_receives_through_the_cache_for_minutes,
    fin_that_its_acknowledgements_overtook_is_seen,
    connection_without_a_handshake_event_ends_by_its_fins,
    connection_ends_by_its_fins_though_all_events_were_lost,
    fin_without_an_event_shortens_the_timeout,
    fin_event_counts_after_its_flow_has_left_the_cache,
    event_of_an_answer_does_not_reopen_its_own_connection,
    a_reset_of_either_side_takes_the_connection_back,
    reused_port_begins_a_new_cached_flow,
    connections_on_used_ports_enter_the_cache_by_one_flush,
    entry_of_a_finished_connection_does_not_open_the_next,
    port_reused_before_the_end_is_reported_begins_a_flow,
    port_reused_after_a_server_fin_reopens_its_flow,
    a_pair_that_is_used_again_after_an_abort_is_followed,
    a_syn_without_a_follow_up_changes_nothing_of_a_connection,
    dsr_client_keeps_a_flow_reopened_by_a_forged_syn,
    a_fin_of_the_connection_before_does_not_end_the_next,
    syn_before_a_pending_fin_event_reopens_its_flow,
}

mod cases {
    use super::*;

    pub(super) fn a_connection_comes_back_when_both_sides_have_finished(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(syn.reply().seq(501).ack(101).fin());
        assert_eq!((state(&lab), kernel(&lab).entries()), (FlowState::HalfClosedByServer, 2));
        lab.send(lab.client(1).seq(101).ack(502).fin());
        assert_eq!((state(&lab), kernel(&lab).entries()), (FlowState::Closing, 0));
        lab.send(syn.reply().seq(502).ack(102));
        assert_eq!((state(&lab), lab.ended()), (FlowState::TimeWait, 1));
    }

    pub(super) fn simultaneous_close_ends_the_flow(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(lab.client(1).seq(101).ack(501).fin());
        lab.send(syn.reply().seq(501).ack(101).fin());
        lab.send(lab.client(1).seq(102).ack(502));
        lab.send(syn.reply().seq(502).ack(102));
        assert_eq!((state(&lab), kernel(&lab).entries(), lab.ended()), (FlowState::TimeWait, 0, 1));
    }

    pub(super) fn fin_repeated_in_sequence_is_no_longer_queried(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.connect(1);
        let fin = |lab: &Lab| lab.client(1).seq(111).ack(501).fin();
        lab.send(fin(&lab));
        lab.send(lab.client(1).seq(101).ack(501).payload(&[7; 10]));
        lab.send(fin(&lab));
        assert_eq!(state(&lab), FlowState::HalfClosedByClient);
        let asked = kernel(&lab).lookups();
        (0..200).for_each(|_| drop(lab.wait(Duration::from_secs(1))));
        assert_eq!((kernel(&lab).lookups(), state(&lab)), (asked, FlowState::HalfClosedByClient));
    }

    pub(super) fn dsr_fin_counts_once_the_cache_forwarded_the_preceding_bytes(family: Family) {
        let mut lab = Lab::dsr(family);
        lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).seq(101).ack(501));
        lab.send(lab.client(1).seq(111).ack(501).fin());
        lab.send(lab.client(1).seq(101).ack(501).payload(&[7; 10]));
        lab.wait(Duration::from_secs(3));
        assert_eq!(state(&lab), FlowState::HalfClosedByClient);
    }

    pub(super) fn fin_behind_a_lasting_gap_is_queried_with_backoff(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(lab.client(1).seq(111).ack(501).fin());
        lab.send(syn.reply().seq(501).ack(101));
        let asked = kernel(&lab).lookups();
        (0..7_000).for_each(|_| drop(lab.wait(Duration::from_secs(1))));
        assert_eq!(state(&lab), FlowState::Established);
        let asked = kernel(&lab).lookups() - asked;
        assert!((10..50).contains(&asked), "{asked} times");
        // The FIN is acknowledged at last.
        lab.send(lab.client(1).seq(111).ack(501).fin());
        lab.send(syn.reply().seq(501).ack(112));
        lab.wait(Duration::from_secs(3));
        assert_eq!(state(&lab), FlowState::HalfClosedByClient);
    }

    pub(super) fn half_closed_connection_receives_through_the_cache_for_minutes(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(lab.client(1).seq(101).ack(501).fin());
        for minute in 0..10 {
            lab.wait(Duration::from_secs(60));
            let seq = 501 + 1_000 * minute;
            lab.send(syn.reply().seq(seq).ack(102).payload(&[7; 1_000]));
            lab.send(lab.client(1).seq(102).ack(seq + 1_000));
        }
        assert_eq!((forwarded(&lab, 1), state(&lab)), ((Some(12), Some(11)), FlowState::HalfClosedByClient));
        lab.send(syn.reply().seq(10_501).ack(102).fin());
        assert_eq!((state(&lab), kernel(&lab).entries()), (FlowState::Closing, 0));
    }

    pub(super) fn fin_that_its_acknowledgements_overtook_is_seen(family: Family) {
        let mut lab = Lab::dsr(family);
        lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).seq(101).ack(501));
        lab.send(lab.client(1).seq(102).ack(601));
        lab.send(lab.client(1).fin().seq(101).ack(601));
        assert_eq!((state(&lab), forwarded(&lab, 1).0), (FlowState::HalfClosedByClient, None));

        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(syn.reply().seq(501).ack(101).payload(&[7; 10]));
        lab.send(syn.reply().seq(512).ack(101));
        lab.send(syn.reply().fin().seq(511).ack(101));
        assert_eq!(state(&lab), FlowState::Established);
        lab.send(lab.client(1).seq(101).ack(512));
        lab.wait(Duration::from_secs(3));
        assert_eq!(state(&lab), FlowState::HalfClosedByServer);
    }

    pub(super) fn connection_without_a_handshake_event_ends_by_its_fins(family: Family) {
        for mut lab in [Lab::passthrough(family), Lab::dsr(family)] {
            let end = open_and_finish_untold(&mut lab, |lab| drop(kernel(lab).events()));
            lab.apply_cache_events();
            assert_eq!((state(&lab), kernel(&lab).entries(), lab.ended()), (end, 0, 1));
        }
    }

    pub(super) fn connection_ends_by_its_fins_though_all_events_were_lost(family: Family) {
        for mut lab in [Lab::passthrough(family), Lab::dsr(family)] {
            open_and_finish_untold(&mut lab, |_| {});
            kernel(&lab).events();
            lab.wait(Duration::from_secs(300));
            assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries(), lab.ended()), (0, 0, 1));
        }
    }

    /// Client 1 opens a connection in the cache. Then each side whose packets pass sends a FIN,
    /// also in the cache. `lose` is called between these two steps, and may lose events. Returns
    /// the resulting state of the flow.
    fn open_and_finish_untold(lab: &mut Lab, lose: impl Fn(&Lab)) -> FlowState {
        let is_dsr = lab.world.frontends[0].mode == Mode::Dsr;
        lab.is_deaf = true;
        let syn = lab.send(lab.client(1).syn().seq(100));
        if !is_dsr {
            lab.send(syn.reply().syn().seq(500).ack(101));
        }
        lab.send(lab.client(1).seq(101).ack(501));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        lose(lab);
        lab.send(lab.client(1).seq(103).ack(501).fin());
        if is_dsr {
            return FlowState::HalfClosedByClient;
        }
        lab.send(syn.reply().seq(501).ack(104).fin());
        FlowState::Closing
    }

    pub(super) fn fin_without_an_event_shortens_the_timeout(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.wait(Duration::from_secs(1_000));
        lab.is_deaf = true;
        lab.send(syn.reply().seq(501).ack(101).fin());
        kernel(&lab).events();
        lab.wait(Duration::from_secs(6_500));
        assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries(), lab.ended()), (0, 0, 1));
    }

    pub(super) fn event_of_an_answer_does_not_reopen_its_own_connection(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.is_deaf = true;
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        // The network has duplicated the SYN.
        lab.send(lab.client(1).syn().seq(100));
        assert_eq!(state(&lab), FlowState::Established);
        for event in kernel(&lab).events() {
            lab.forwarder.on_cached(event, lab.now);
            assert_eq!(state(&lab), FlowState::Established, "{event:?}");
        }
    }

    pub(super) fn fin_event_counts_after_its_flow_has_left_the_cache(family: Family) {
        for (mut lab, end) in [
            (Lab::passthrough(family), FlowState::HalfClosedByServer),
            (Lab::dsr(family), FlowState::HalfClosedByClient),
        ] {
            let is_dsr = end == FlowState::HalfClosedByClient;
            let syn = lab.send(lab.client(1).syn().seq(100));
            if !is_dsr {
                lab.send(syn.reply().syn().seq(500).ack(101));
            }
            lab.send(lab.client(1).seq(101).ack(501));
            lab.is_deaf = true;
            let fin = if is_dsr { lab.client(1).seq(101).ack(501) } else { syn.reply().seq(501).ack(101) };
            lab.send(fin.fin());
            kernel(&lab).lose_all();
            lab.send(lab.client(1).syn().seq(3_000_000_000));
            assert_eq!(lab.forwarder.cached_flows(), 0);
            lab.apply_cache_events();
            assert_eq!(state(&lab), end);
        }
    }

    pub(super) fn a_reset_of_either_side_takes_the_connection_back(family: Family) {
        for by_client in [true, false] {
            let mut lab = Lab::passthrough(family);
            let syn = lab.connect(1);
            let (client, server) = transfer_100_mb(&mut lab, &syn);
            let reset = if by_client { lab.client(1).seq(client) } else { syn.reply().seq(server) };
            lab.send(reset.rst());
            assert_eq!((state(&lab), kernel(&lab).entries(), lab.ended()), (FlowState::Closed, 0, 1));
        }
    }

    pub(super) fn reused_port_begins_a_new_cached_flow(family: Family) {
        let mut lab = Lab::passthrough(family);
        let first = lab.connect(1);
        lab.close(1, &first);
        let second = lab.connect(1);
        assert_eq!((second.from, lab.opened, lab.ended()), (first.from, 2, 1), "by the same SNAT port");
        assert_eq!((lab.forwarder.flows().len(), kernel(&lab).entries()), (1, 2));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        assert_eq!(forwarded(&lab, 1), (Some(2), Some(1)));
    }

    pub(super) fn connections_on_used_ports_enter_the_cache_by_one_flush(family: Family) {
        let mut lab = Lab::passthrough(family);
        for n in 1..=3 {
            let syn = lab.connect(n);
            lab.close(n, &syn);
        }
        (1..=3).for_each(|n| begin_unflushed(&mut lab, n, 3_000_000_000));
        assert_eq!((lab.forwarder.cached_flows(), kernel(&lab).entries()), (3, 0));
        lab.forwarder.flush_cache();
        assert_eq!(kernel(&lab).entries(), 6);
    }

    pub(super) fn entry_of_a_finished_connection_does_not_open_the_next(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.is_deaf = true;
        lab.close(1, &syn);
        // The numbers of the finished connection are ahead of those of the next one.
        (0..2).for_each(|_| begin_unflushed(&mut lab, 1, 50));
        assert_eq!((state(&lab), lab.ended()), (FlowState::SynSent, 1));
    }

    /// Handles a SYN in a batch of packets that is not flushed yet.
    fn begin_unflushed(lab: &mut Lab, n: u16, seq: u32) {
        let mut bytes = lab.client(n).syn().seq(seq).bytes();
        let headers = convey_wire::parse(&bytes);
        let verdict = lab.forwarder.handle_frame(&mut Frame::new(&mut bytes, &headers), &lab.plan, lab.now);
        assert!(matches!(verdict, Verdict::Transmit(_)), "{verdict:?}");
    }

    pub(super) fn port_reused_before_the_end_is_reported_begins_a_flow(family: Family) {
        for mut lab in Lab::both_modes(family) {
            let is_dsr = lab.world.frontends[0].mode == Mode::Dsr;
            let first = lab.connect(1);
            lab.is_deaf = true;
            lab.send(lab.client(1).fin().seq(101).ack(501));
            if !is_dsr {
                lab.send(first.reply().fin().seq(501).ack(102));
            }
            lab.send(lab.client(1).seq(102).ack(502));
            assert_eq!(lab.ended(), 0, "nobody has told of it");
            lab.connect_at(1, 3_000_000_000);
            assert_eq!((lab.opened, lab.ended(), lab.forwarder.flows().len()), (2, 1, 1));
            lab.apply_cache_events();
            let open = if is_dsr { FlowState::HandshakeOnly } else { FlowState::Established };
            assert_eq!((lab.ended(), state(&lab)), (0, open), "that was the first");
        }
    }

    pub(super) fn port_reused_after_a_server_fin_reopens_its_flow(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(syn.reply().fin().seq(501).ack(101));
        lab.send(lab.client(1).seq(101).ack(502));
        lab.wait(Duration::from_secs(100));
        let again = lab.send(lab.client(1).syn().seq(3_000_000_000));
        assert_eq!((again.route(), state(&lab)), (syn.route(), FlowState::HalfClosedByServer));
        lab.send(syn.reply().syn().seq(2_000_000_000).ack(3_000_000_001));
        assert_eq!(state(&lab), FlowState::SynReceived);
        lab.send(lab.client(1).seq(3_000_000_001).ack(2_000_000_001));
        assert_eq!((state(&lab), lab.opened, kernel(&lab).entries()), (FlowState::Established, 1, 2));
        lab.send(lab.client(1).seq(3_000_000_001).ack(2_000_000_001).payload(b"hi"));
        assert_eq!(forwarded(&lab, 1).0, Some(1));
        lab.wait(Duration::from_secs(7_000));
        lab.send(lab.client(1).fin().seq(3_000_000_003).ack(2_000_000_001));
        lab.send(syn.reply().fin().seq(2_000_000_001).ack(3_000_000_004));
        assert_eq!((state(&lab), lab.ended()), (FlowState::Closing, 1));
    }

    pub(super) fn a_pair_that_is_used_again_after_an_abort_is_followed(family: Family) {
        let (client, server) = (3_000_000_001, 2_000_000_001);
        for mut lab in Lab::both_modes(family) {
            let is_dsr = !lab.world.frontends[0].mode.has_snat();
            let syn = lab.connect(1);
            lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
            // The server aborts, and its reset gets lost.
            let again = lab.send(lab.client(1).syn().seq(client - 1));
            assert_eq!((again.route(), lab.opened, kernel(&lab).entries()), (syn.route(), 1, 0));
            if !is_dsr {
                lab.send(syn.reply().syn().seq(server - 1).ack(client));
            }
            lab.send(lab.client(1).seq(client).ack(server));
            assert_eq!(kernel(&lab).entries(), if is_dsr { 1 } else { 2 });
            lab.send(lab.client(1).seq(client).ack(server).payload(b"hi"));
            assert_eq!(forwarded(&lab, 1).0, Some(1));
            let about = |seq: u32| {
                let answer =
                    TestPacket::from(family.vip()).to(family.client_addr(1)).seq(seq).ack(client + 2);
                let router = family.pick("203.0.113.7", "2001:db8:7::7");
                error_about(&answer.payload(b"hello").bytes(), IcmpError::TimeExceeded, router)
            };
            lab.forwarded(&about(server));
            let of_old = lab.handle_frame(&mut about(501), None);
            assert_eq!(of_old, Outcome::Dropped(DropReason::IcmpOutOfWindow));
            lab.send(lab.client(1).fin().seq(client + 2).ack(server));
            if !is_dsr {
                lab.send(syn.reply().fin().seq(server).ack(client + 3));
            }
            lab.apply_cache_events();
            assert_eq!((lab.opened, lab.ended()), (1, 1));
        }
    }

    pub(super) fn a_syn_without_a_follow_up_changes_nothing_of_a_connection(family: Family) {
        for mut lab in Lab::both_modes(family) {
            lab.connect(1);
            let entries = kernel(&lab).entries();
            for n in 0..3 {
                lab.send(lab.client(1).syn().seq(3_000_000_000));
                lab.send(lab.client(1).seq(101 + 2 * n).ack(501).payload(b"hi"));
                assert_eq!((state(&lab), kernel(&lab).entries()), (FlowState::Established, entries));
            }
            lab.send(lab.client(1).seq(3_000_000_001).ack(2_000_000_000));
            lab.send(lab.client(1).rst().seq(3_000_000_001));
            assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0));
            lab.send(lab.client(1).rst().seq(107));
            assert_eq!((state(&lab), lab.ended()), (FlowState::Closed, 1));
        }
    }

    pub(super) fn dsr_client_keeps_a_flow_reopened_by_a_forged_syn(family: Family) {
        for (is_open, is_reset) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut lab = Lab::dsr(family);
            lab.send(lab.client(1).syn().seq(100));
            if is_open {
                lab.send(lab.client(1).seq(101).ack(501));
                lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
            }
            lab.send(lab.client(1).syn().seq(3_000_000_000));
            if is_open || is_reset {
                lab.send(lab.client(1).seq(3_000_000_001).ack(7));
            }
            let end = lab.client(1).seq(3_000_000_001);
            lab.send(if is_reset { end.rst() } else { end.ack(7).fin() });
            let ended = state(&lab);
            assert!(matches!(ended, FlowState::Closed | FlowState::HalfClosedByClient), "{ended:?}");
            // The client continues with one segment every few seconds, for longer than an ended
            // flow is remembered.
            for n in 0..200 {
                lab.wait(Duration::from_secs(4));
                lab.send(lab.client(1).seq(103 + 2 * n).ack(501).payload(b"hi"));
            }
            assert_eq!(state(&lab), ended, "no flow began anew: {is_open} {is_reset}");
        }
    }

    pub(super) fn syn_before_a_pending_fin_event_reopens_its_flow(family: Family) {
        for is_lost in [false, true] {
            let mut lab = Lab::passthrough(family);
            let syn = lab.connect(1);
            lab.is_deaf = true;
            lab.send(syn.reply().fin().seq(501).ack(101));
            if is_lost {
                kernel(&lab).lose_all();
            }
            lab.send(lab.client(1).syn().seq(3_000_000_000));
            lab.apply_cache_events();
            assert_eq!(state(&lab), FlowState::HalfClosedByServer);
            lab.send(syn.reply().syn().seq(2_000_000_000).ack(3_000_000_001));
            lab.send(lab.client(1).seq(3_000_000_001).ack(2_000_000_001));
            assert_eq!((state(&lab), lab.opened), (FlowState::Established, 1));
        }
    }

    pub(super) fn a_fin_of_the_connection_before_does_not_end_the_next(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        for (seq, ack) in [(3_000_000_000, 1_000_000_000), (90, 490)] {
            let fin = Segment { flags: FIN | ACK, seq, ack, len: 1 };
            lab.forwarder.on_cached(CacheEvent { key: client_key(&lab, 1), segment: fin }, lab.now);
            assert_eq!((state(&lab), lab.ended()), (FlowState::Established, 0), "{seq}");
        }
        lab.close(1, &syn);
    }
}
