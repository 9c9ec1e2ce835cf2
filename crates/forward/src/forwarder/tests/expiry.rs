//! Timeouts of flows whose sides are silent, or whose client does not exist.

use std::time::Duration;

use super::lab::{Family, LAN, Lab, Seen, Size, WAN};
use crate::{FlowEnd, FlowState};
use convey_model::Mode;

run_cases_over_both_families! {
    handshakes_that_nobody_finishes_are_forgotten_although_servers_repeat_their_answer,
    a_client_that_repeats_its_syn_is_waited_for,
    silent_connection_is_reset_in_sequence,
    silent_half_closed_connection_is_reset,
    stray_packets_do_not_prolong_a_closed_connection,
    near_guesses_do_not_prolong_a_closed_dsr_connection,
    the_last_segments_of_a_connection_that_is_over_keep_it,
    in_dsr_silence_is_counted_and_nobody_is_told,
    resets_of_silent_connections_are_limited,
    a_handshake_or_a_stream_of_datagrams_ends_by_itself,
}

/// Times at which Linux sends its SYN-ACK if the handshake is not completed, in seconds
/// (`tcp_synack_retries = 5`).
const ANSWERS: [u64; 6] = [0, 1, 3, 7, 15, 31];

fn handshakes_that_nobody_finishes_are_forgotten_although_servers_repeat_their_answer(family: Family) {
    for half_open in [5, 60] {
        let mut lab = Lab::passthrough_of(family, Size { capacity: 2_000, ports: 2_000 });
        lab.change(|world| world.flow_timeouts.half_open = Duration::from_secs(half_open));
        let syns: Vec<_> = (0..1_000).map(|n| lab.send(lab.client(n).syn().seq(100))).collect();
        for second in 0..half_open + 35 {
            if ANSWERS.contains(&second) {
                for syn in &syns {
                    lab.handle(&syn.reply().syn().seq(500).ack(101));
                }
            }
            lab.wait(Duration::from_secs(1));
            lab.ended();
        }
        let flows = lab.forwarder.flows();
        let kept = (flows.len(), lab.frontend_slots(), lab.forwarder.snat_ports_in_use());
        assert_eq!(kept, (0, 0, 0), "half_open is {half_open} s");
        assert_eq!(lab.kernel.as_ref().map_or(0, |kernel| kernel.entries()), 0);
    }
}

fn a_client_that_repeats_its_syn_is_waited_for(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(100));
        for _ in 0..3 {
            lab.wait(Duration::from_secs(32));
            assert_eq!(lab.send(lab.client(1).syn().seq(100)).route(), syn.route());
        }
        assert_eq!((lab.opened, lab.forwarder.flows().count(FlowState::SynSent)), (1, 1));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        assert_eq!(lab.forwarder.flows().count(FlowState::Established), 1);
    }
}

fn silent_connection_is_reset_in_sequence(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    lab.send(lab.client(1).seq(101).ack(501).payload(b"hi?"));
    lab.send(syn.reply().seq(501).ack(104).payload(b"hello"));
    lab.send(lab.client(1).seq(104).ack(506));
    let reply = lab.wait(Duration::from_secs(7_500));
    let (vip, client) = (family.vip().to_owned(), family.client_addr(1));
    let (snat, server) = syn.route();
    let resets: Vec<_> = reply.iter().map(Seen::reset).collect();
    assert_eq!(resets, [(vip, client, "R", 506, 0), (snat, server, "R", 104, 0)]);
    assert_eq!((reply[0].interface, reply[1].interface, reply[1].mac), (WAN, LAN, syn.mac));
    assert_eq!((lab.ends(), lab.forwarder.flows().len()), (vec![FlowEnd::Silent], 0));
    assert_eq!(lab.kernel.as_ref().map_or(0, |kernel| kernel.entries()), 0);
}

fn silent_half_closed_connection_is_reset(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    lab.send(lab.client(1).seq(101).ack(501).fin());
    lab.send(syn.reply().seq(501).ack(102));
    let reply = lab.wait(Duration::from_secs(250));
    let numbers: Vec<_> = reply.iter().map(|reset| (reset.to.to_string(), reset.seq)).collect();
    assert_eq!(numbers, [(family.client_addr(1), 501), (syn.to.to_string(), 102)]);
    assert_eq!(lab.ends(), [FlowEnd::Silent]);
}

/// Connects client 1, and closes the connection from both sides. In DSR, the server's packets do
/// not pass. Returns the SYN that the server received.
fn connect_and_close(lab: &mut Lab) -> Seen {
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.handle(&syn.reply().syn().seq(500).ack(101));
    lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
    lab.send(lab.client(1).seq(103).ack(501).fin());
    lab.handle(&syn.reply().seq(501).ack(104).fin());
    lab.send(lab.client(1).seq(104).ack(502));
    syn
}

fn stray_packets_do_not_prolong_a_closed_connection(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = connect_and_close(&mut lab);
        let state = [FlowState::TimeWait, FlowState::HalfClosedByClient]
            .into_iter()
            .find(|state| lab.forwarder.flows().count(*state) == 1)
            .unwrap();
        assert_eq!(lab.ended(), 1);
        for _ in 0..30 {
            lab.wait(Duration::from_secs(9));
            for forged in [lab.client(1).seq(1 << 30).ack(7), lab.client(1).seq(90).ack(501), lab.client(1)] {
                lab.handle(&forged);
            }
            lab.handle(&syn.reply().seq(1 << 30).ack(7));
            lab.handle(&syn.reply().syn().seq(500).ack(101));
            // Segments with which a server answers forged ones when it has closed, or is about to.
            lab.handle(&syn.reply().rst().seq(501));
            lab.handle(&syn.reply().seq(502).ack(104));
        }
        assert_eq!((lab.forwarder.flows().count(state), lab.forwarder.snat_ports_in_use()), (0, 0));
    }
}

/// Of 4 million guessed pairs of numbers, one is as close as the guesses in this scenario.
fn near_guesses_do_not_prolong_a_closed_dsr_connection(family: Family) {
    let mut lab = Lab::dsr(family);
    connect_and_close(&mut lab);
    for n in 1..30 {
        lab.wait(Duration::from_secs(9));
        for _ in 0..2 {
            lab.handle(&lab.client(1).seq(104 + n * 1_000).ack(501 + n).payload(b"kept?"));
        }
    }
    assert_eq!(lab.forwarder.flows().count(FlowState::HalfClosedByClient), 0);
}

fn the_last_segments_of_a_connection_that_is_over_keep_it(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let is_dsr = lab.forwarder.snat_ports_in_use() == 0 && lab.world.frontends[0].mode == Mode::Dsr;
        let syn = connect_and_close(&mut lab);
        let begun = lab.opened;
        // The client's last acknowledgement is lost, and so is the data before its FIN.
        for _ in 0..4 {
            lab.wait(Duration::from_secs(50));
            lab.handle(&syn.reply().seq(501).ack(104).fin());
            assert_eq!(lab.send(lab.client(1).seq(104).ack(502)).route(), syn.route());
        }
        for _ in 0..4 {
            lab.wait(Duration::from_secs(50));
            assert_eq!(lab.send(lab.client(1).seq(101).ack(501).payload(b"hi").fin()).route(), syn.route());
        }
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (begun, 1), "in DSR: {is_dsr}");
    }
}

fn in_dsr_silence_is_counted_and_nobody_is_told(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.send(lab.client(1).syn().seq(100));
    lab.send(lab.client(1).seq(101).ack(501));
    lab.send(lab.client(1).seq(101).ack(501).payload(b"hi?"));
    assert_eq!(lab.wait(Duration::from_secs(7_500)), []);
    assert_eq!(lab.ends(), [FlowEnd::Silent]);
}

fn resets_of_silent_connections_are_limited(family: Family) {
    let mut lab = Lab::passthrough(family);
    (0..1_500).for_each(|n| drop(lab.connect(n)));
    let reply = lab.wait(Duration::from_secs(7_500));
    assert_eq!((reply.len(), lab.ends()), (2_000, vec![FlowEnd::Silent; 1_500]));
}

fn a_handshake_or_a_stream_of_datagrams_ends_by_itself(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.send(syn.reply().syn().seq(500).ack(101));
    assert_eq!((lab.wait(Duration::from_secs(100)), lab.ends()), (vec![], vec![FlowEnd::Unopened]));
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp().payload(b"?"));
    lab.send(question.reply().payload(b"!"));
    lab.send(lab.client(1).udp().payload(b"more"));
    assert_eq!((lab.wait(Duration::from_secs(400)), lab.ends()), (vec![], vec![FlowEnd::Expired]));
}
