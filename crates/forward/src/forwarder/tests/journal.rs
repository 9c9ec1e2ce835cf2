//! Journal: reason for the end of each flow, and the number of bytes, whether a worker or the cache
//! forwarded them.

use std::time::Duration;

use super::lab::{Family, Lab};
use crate::{FlowEnd, FlowRecord, View};

run_cases_over_both_families! {
    a_connection_is_told_of_once_with_the_bytes_of_both_sides,
    bytes_count_from_the_syn_that_began_the_connection,
    a_reset_is_counted_as_its_sides_once_the_connection_is_open,
    flow_end_records_reset_refusal_and_silence,
    handshakes_that_nobody_finishes_are_not_told_of,
    an_exchange_of_datagrams_is_told_of_when_it_is_forgotten,
    flow_begun_before_the_journal_has_no_record,
}

fn listened(mut lab: Lab) -> Lab {
    lab.forwarder.set_journal_enabled(true);
    lab
}

fn records(lab: &mut Lab) -> Vec<FlowRecord> {
    lab.forwarder.events().records.drain(..).collect()
}

/// Reason for the end of the only flow, and its bytes.
fn only(lab: &mut Lab) -> (FlowEnd, [Option<u64>; 2]) {
    let reply = records(lab);
    assert_eq!(reply.len(), 1, "{reply:?}");
    (reply[0].how, [reply[0].bytes_rx, reply[0].bytes_tx])
}

fn a_connection_is_told_of_once_with_the_bytes_of_both_sides(family: Family) {
    for lab in Lab::both_modes(family) {
        let mut lab = listened(lab);
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        lab.wait(Duration::from_secs(1));
        lab.handle(&syn.reply().seq(501).ack(103).payload(b"hello"));
        lab.send(lab.client(1).seq(103).ack(506));
        lab.send(lab.client(1).seq(103).ack(506).fin());
        lab.handle(&syn.reply().seq(506).ack(104).fin());
        lab.send(lab.client(1).seq(104).ack(507));
        let reply = records(&mut lab);
        lab.wait(Duration::from_secs(600));
        assert_eq!(records(&mut lab), []);
        let [record] = reply[..] else { panic!("{reply:?}") };
        let sent = (record.view == View::BothSides).then_some(5);
        let reply = (record.how, record.bytes_rx, record.bytes_tx);
        assert_eq!(reply, (FlowEnd::Finished, Some(2), sent), "{record:?}");
        assert_eq!(record.client.source().to_string(), family.client_addr(1));
        assert_eq!(record.ended.since(record.began), Duration::from_secs(1));
    }
}

fn bytes_count_from_the_syn_that_began_the_connection(family: Family) {
    for (begins, other) in [(100, 3_000_000_000), (3_000_000_000, 100)] {
        for lab in Lab::both_modes(family) {
            let mut lab = listened(lab);
            lab.send(lab.client(1).syn().seq(100));
            let syn = lab.send(lab.client(1).syn().seq(3_000_000_000));
            lab.handle(&syn.reply().syn().seq(500).ack(begins + 1));
            lab.send(lab.client(1).syn().seq(other));
            lab.send(lab.client(1).seq(begins + 1).ack(501).payload(b"hi"));
            lab.handle(&syn.reply().seq(501).ack(begins + 3).payload(b"hello"));
            lab.send(lab.client(1).seq(begins + 3).ack(506).fin());
            lab.handle(&syn.reply().seq(506).ack(begins + 4).fin());
            lab.send(lab.client(1).seq(begins + 4).ack(507));
            let (end, [rx, tx]) = only(&mut lab);
            let is_dsr = lab.forwarder.snat_ports_in_use() == 0;
            assert_eq!((end, rx, tx), (FlowEnd::Finished, Some(2), (!is_dsr).then_some(5)), "{begins}");
        }
    }
}

/// Anybody may reset a connection that was not answered.
fn a_reset_is_counted_as_its_sides_once_the_connection_is_open(family: Family) {
    let mut lab = Lab::dsr(family);
    for (client, opens, end) in [(1, false, FlowEnd::Unopened), (2, true, FlowEnd::ClientReset)] {
        lab.send(lab.client(client).syn().seq(100));
        if opens {
            lab.send(lab.client(client).seq(101).ack(501));
        }
        lab.send(lab.client(client).seq(101).ack(501).rst());
        assert_eq!(lab.ends(), [end]);
    }
    let mut lab = Lab::passthrough(family);
    lab.connect(3);
    lab.send(lab.client(3).seq(101).ack(501).rst());
    assert_eq!(lab.ends(), [FlowEnd::ClientReset]);
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.send(syn.reply().seq(0).ack(101).rst());
    assert_eq!(lab.ends(), [FlowEnd::Refused]);
    let syn = lab.connect(2);
    lab.send(syn.reply().seq(501).ack(101).rst());
    assert_eq!(lab.ends(), [FlowEnd::ServerReset]);
}

fn flow_end_records_reset_refusal_and_silence(family: Family) {
    let mut lab = listened(Lab::passthrough(family));
    lab.connect(1);
    lab.send(lab.client(1).seq(101).ack(501).rst());
    assert_eq!(only(&mut lab), (FlowEnd::ClientReset, [Some(0); 2]));

    let syn = lab.connect(2);
    lab.send(lab.client(2).seq(101).ack(501).payload(b"hi"));
    lab.send(syn.reply().seq(501).ack(103).rst());
    assert_eq!(only(&mut lab), (FlowEnd::ServerReset, [Some(2), Some(0)]));

    let syn = lab.send(lab.client(3).syn().seq(100));
    lab.send(syn.reply().seq(0).ack(101).rst());
    assert_eq!(only(&mut lab), (FlowEnd::Refused, [Some(0); 2]));

    lab.connect(4);
    lab.send(lab.client(4).seq(101).ack(501).payload(b"hi"));
    lab.wait(Duration::from_secs(7_500));
    assert_eq!(only(&mut lab), (FlowEnd::Silent, [Some(2), Some(0)]));
}

fn handshakes_that_nobody_finishes_are_not_told_of(family: Family) {
    for lab in Lab::both_modes(family) {
        let mut lab = listened(lab);
        for n in 0..100 {
            let syn = lab.send(lab.client(n).syn().seq(100));
            lab.handle(&syn.reply().syn().seq(500).ack(101));
        }
        lab.wait(Duration::from_secs(100));
        assert_eq!((records(&mut lab), lab.forwarder.flows().len()), (vec![], 0));
    }
}

fn an_exchange_of_datagrams_is_told_of_when_it_is_forgotten(family: Family) {
    let mut lab = listened(Lab::passthrough(family).udp());
    let question = lab.send(lab.client(1).udp().payload(b"who?"));
    lab.send(question.reply().payload(b"you!!"));
    lab.wait(Duration::from_secs(40));
    assert_eq!(only(&mut lab), (FlowEnd::Expired, [Some(4), Some(5)]));
    // With a cache, the packets of a stream bypass the worker.
    let question = lab.send(lab.client(2).udp().payload(b"who?"));
    lab.send(question.reply().payload(b"you!!"));
    lab.send(lab.client(2).udp().payload(b"go on"));
    lab.wait(Duration::from_secs(400));
    let bytes = if lab.kernel.is_none() { [Some(9), Some(5)] } else { [None; 2] };
    assert_eq!(only(&mut lab), (FlowEnd::Expired, bytes));
}

fn flow_begun_before_the_journal_has_no_record(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let mut lab = listened(lab);
    lab.close(1, &syn);
    assert_eq!(records(&mut lab), []);
    let syn = lab.connect(2);
    lab.forwarder.set_journal_enabled(false);
    lab.close(2, &syn);
    assert_eq!(records(&mut lab), []);
}
