//! Packets in a server's name from another interface than the server's.

use super::lab::{Family, LAN, Lab, Outcome, WAN, error_about};
use crate::FlowState;
use convey_model::DropReason;
use convey_wire::IcmpError;

told_over_both_families! {
    what_comes_from_the_clients_side_in_a_servers_name_changes_nothing_and_is_counted,
    who_answers_a_syn_from_the_clients_side_in_a_servers_name_is_not_believed,
    an_error_about_a_packet_to_a_server_is_believed_from_the_servers_side_alone,
    what_comes_by_another_route_that_is_as_good_is_the_servers,
    an_interface_that_leads_nowhere_by_itself_is_nobodys,
    a_refusal_is_believed_only_if_the_neighbour_sent_it_that_leads_to_the_server,
}

const SPOOFED: Outcome = Outcome::Dropped(DropReason::WrongInterface);

fn what_comes_from_the_clients_side_in_a_servers_name_changes_nothing_and_is_counted(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!(lab.handle_from(WAN, &syn.reply().rst().ack(101).bytes()), SPOOFED);
    assert_eq!((lab.forwarder.flows().count(FlowState::SynSent), lab.heard), (1, [0, 0]));
    assert!(matches!(lab.handle_from(LAN, &syn.reply().rst().ack(101).bytes()), Outcome::Sent(_)));
    assert_eq!(lab.heard, [0, 1]);

    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    assert_eq!(lab.handle_from(WAN, &question.reply().bytes()), SPOOFED);
    assert_eq!((lab.forwarder.flows().count(FlowState::UdpNew), lab.heard), (1, [0, 0]));
    assert!(matches!(lab.handle_from(LAN, &question.reply().bytes()), Outcome::Sent(_)));
    assert_eq!(lab.heard, [1, 0]);
    // A client may be on any interface.
    assert!(matches!(lab.handle_from(LAN, &lab.client(1).udp().bytes()), Outcome::Sent(_)));
}

fn who_answers_a_syn_from_the_clients_side_in_a_servers_name_is_not_believed(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!(lab.handle_from(WAN, &syn.reply().syn().seq(7_000_000).ack(101).bytes()), SPOOFED);
    assert_eq!((lab.forwarder.flows().count(FlowState::SynSent), lab.heard), (1, [0, 0]));
    let answer = syn.reply().syn().seq(500).ack(101);
    assert!(matches!(lab.handle_from(LAN, &answer.bytes()), Outcome::Sent(_)));
    lab.send(lab.client(1).seq(101).ack(501));
    assert_eq!((lab.forwarder.flows().count(FlowState::Established), lab.heard[0]), (1, 1));
}

fn an_error_about_a_packet_to_a_server_is_believed_from_the_servers_side_alone(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    let server = question.to.ip().to_string();
    for error in [IcmpError::PortUnreachable, IcmpError::TimeExceeded, IcmpError::TooBig { mtu: 1_280 }] {
        let error = error_about(&question.frame, error, &server);
        assert_eq!(lab.handle_from(WAN, &error), SPOOFED);
        assert_eq!(lab.heard, [0, 0]);
        assert!(matches!(lab.handle_from(LAN, &error), Outcome::Sent(_)));
        lab.heard = [0, 0];
    }
    // An error about an answer: the client's side may be on any interface.
    let answer = lab.send(question.reply());
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    let error = error_about(&answer.frame, IcmpError::TimeExceeded, router);
    assert!(matches!(lab.handle_from(LAN, &error), Outcome::Sent(_)));
}

fn what_comes_by_another_route_that_is_as_good_is_the_servers(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    let network = &lab.plan.network;
    let ends = (question.to.ip(), question.from.ip());
    assert!(network.is_spoofed(ends, WAN) && !network.is_spoofed(ends, LAN));
    lab.change(|world| world.servers_by_both = true);
    assert!(!lab.plan.network.is_spoofed(ends, WAN));
    assert!(matches!(lab.handle_from(WAN, &question.reply().bytes()), Outcome::Sent(_)));
}

fn an_interface_that_leads_nowhere_by_itself_is_nobodys(family: Family) {
    const PORT_OF_A_BRIDGE: u32 = 77;
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    assert!(matches!(lab.handle_from(PORT_OF_A_BRIDGE, &question.reply().bytes()), Outcome::Sent(_)));
}

fn a_refusal_is_believed_only_if_the_neighbour_sent_it_that_leads_to_the_server(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    let server = question.to.ip().to_string();
    let refusal = error_about(&question.frame, IcmpError::PortUnreachable, &server);
    let mut forged = refusal.clone();
    forged[11] ^= 0x40;
    assert_eq!(lab.handle_from(LAN, &forged), SPOOFED);
    assert_eq!(lab.heard, [0, 0]);
    lab.handle_from(LAN, &refusal);
    assert_eq!(lab.heard, [0, 1]);
}
