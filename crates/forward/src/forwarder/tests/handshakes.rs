//! Handshake events, which reveal a server that does not answer.

use std::time::Duration;

use super::lab::{Family, Lab};
use crate::{HandshakeEvent, HandshakeStep};

run_cases_over_both_families! {
    a_handshake_is_told_when_it_begins_and_once_it_is_complete,
    a_syn_that_comes_again_is_no_handshake_of_its_own,
    a_client_that_begins_anew_begins_another_handshake,
    a_connection_met_under_way_and_datagrams_are_no_handshakes,
    a_syn_to_a_connection_that_is_open_is_none,
    a_server_that_refuses_completes_nothing,
}

fn steps(lab: &mut Lab) -> Vec<HandshakeStep> {
    events(lab).iter().map(|event| event.step).collect()
}

fn events(lab: &mut Lab) -> Vec<HandshakeEvent> {
    lab.forwarder.events().handshakes.drain(..).collect()
}

fn a_handshake_is_told_when_it_begins_and_once_it_is_complete(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(100));
        let begun = events(&mut lab);
        let chosen = lab.plan.servers.values().find(|server| server.addr == syn.to).unwrap().id;
        let client = format!("{}", begun[0].client.ip());
        assert_eq!((begun.len(), begun[0].step, begun[0].flow.server), (1, HandshakeStep::Begun, chosen));
        assert!(family.client_addr(1).contains(&client), "{client}");
        if lab.forwarder.snat_ports_in_use() > 0 {
            lab.send(syn.reply().syn().seq(500).ack(101));
        }
        lab.send(lab.client(1).seq(101).ack(501));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"GET"));
        lab.send(lab.client(1).seq(104).ack(501).fin());
        let done = events(&mut lab);
        assert_eq!((done.len(), done[0]), (1, HandshakeEvent { step: HandshakeStep::Completed, ..begun[0] }));
    }
}

fn a_syn_that_comes_again_is_no_handshake_of_its_own(family: Family) {
    for mut lab in Lab::both_modes(family) {
        for _ in 0..3 {
            lab.send(lab.client(1).syn().seq(100));
            lab.wait(Duration::from_secs(1));
        }
        let expected = [HandshakeStep::Begun, HandshakeStep::Repeated, HandshakeStep::Repeated];
        assert_eq!(steps(&mut lab), expected);
    }
}

fn a_client_that_begins_anew_begins_another_handshake(family: Family) {
    for mut lab in Lab::both_modes(family) {
        lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).syn().seq(90_000));
        lab.send(lab.client(1).syn().seq(90_000));
        let expected = [HandshakeStep::Begun, HandshakeStep::Begun, HandshakeStep::Repeated];
        assert_eq!(steps(&mut lab), expected);
    }
}

fn a_connection_met_under_way_and_datagrams_are_no_handshakes(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.send(lab.client(1).seq(5).ack(77));
    lab.send(lab.client(1).seq(5).ack(77).payload(b"goes on"));
    assert_eq!(steps(&mut lab), []);
    for mut lab in Lab::both_modes(family).map(Lab::udp) {
        lab.send(lab.client(1).udp());
        assert_eq!(steps(&mut lab), []);
    }
}

fn a_syn_to_a_connection_that_is_open_is_none(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(1);
    events(&mut lab);
    lab.send(lab.client(1).syn().seq(77));
    assert_eq!(steps(&mut lab), []);
}

fn a_server_that_refuses_completes_nothing(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.send(syn.reply().rst().ack(101));
    assert_eq!(steps(&mut lab), [HandshakeStep::Begun]);
}
