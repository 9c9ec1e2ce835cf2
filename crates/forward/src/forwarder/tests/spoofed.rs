//! Packets in a server's name from another interface than the server's.

use super::lab::{Family, LAN, Lab, Outcome, WAN, error_about};
use crate::FlowState;
use convey_model::DropReason;
use convey_wire::IcmpError;

run_cases_over_both_families! {
    spoofed_server_packets_change_nothing_and_are_counted,
    spoofed_syn_ack_from_the_client_side_is_dropped,
    icmp_error_about_a_server_is_accepted_only_from_its_side,
    packet_by_an_equal_route_of_the_server_is_accepted,
    an_interface_that_leads_nowhere_by_itself_is_nobodys,
    refusal_is_accepted_only_from_the_next_hop_of_the_server,
}

const SPOOFED: Outcome = Outcome::Dropped(DropReason::WrongInterface);

fn spoofed_server_packets_change_nothing_and_are_counted(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!(lab.handle_from(WAN, &syn.reply().rst().ack(101).bytes()), SPOOFED);
    assert_eq!((lab.forwarder.flows().count(FlowState::SynSent), lab.server_messages), (1, [0, 0]));
    assert!(matches!(lab.handle_from(LAN, &syn.reply().rst().ack(101).bytes()), Outcome::Sent(_)));
    assert_eq!(lab.server_messages, [0, 1]);

    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    assert_eq!(lab.handle_from(WAN, &question.reply().bytes()), SPOOFED);
    assert_eq!((lab.forwarder.flows().count(FlowState::UdpNew), lab.server_messages), (1, [0, 0]));
    assert!(matches!(lab.handle_from(LAN, &question.reply().bytes()), Outcome::Sent(_)));
    assert_eq!(lab.server_messages, [1, 0]);
    // A client may be on any interface.
    assert!(matches!(lab.handle_from(LAN, &lab.client(1).udp().bytes()), Outcome::Sent(_)));
}

fn spoofed_syn_ack_from_the_client_side_is_dropped(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!(lab.handle_from(WAN, &syn.reply().syn().seq(7_000_000).ack(101).bytes()), SPOOFED);
    assert_eq!((lab.forwarder.flows().count(FlowState::SynSent), lab.server_messages), (1, [0, 0]));
    let answer = syn.reply().syn().seq(500).ack(101);
    assert!(matches!(lab.handle_from(LAN, &answer.bytes()), Outcome::Sent(_)));
    lab.send(lab.client(1).seq(101).ack(501));
    assert_eq!((lab.forwarder.flows().count(FlowState::Established), lab.server_messages[0]), (1, 1));
}

fn icmp_error_about_a_server_is_accepted_only_from_its_side(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    let server = question.to.ip().to_string();
    for error in [IcmpError::PortUnreachable, IcmpError::TimeExceeded, IcmpError::TooBig { mtu: 1_280 }] {
        let error = error_about(&question.frame, error, &server);
        assert_eq!(lab.handle_from(WAN, &error), SPOOFED);
        assert_eq!(lab.server_messages, [0, 0]);
        assert!(matches!(lab.handle_from(LAN, &error), Outcome::Sent(_)));
        lab.server_messages = [0, 0];
    }
    // An error about an answer: the client's side may be on any interface.
    let answer = lab.send(question.reply());
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    let error = error_about(&answer.frame, IcmpError::TimeExceeded, router);
    assert!(matches!(lab.handle_from(LAN, &error), Outcome::Sent(_)));
}

fn packet_by_an_equal_route_of_the_server_is_accepted(family: Family) {
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

fn refusal_is_accepted_only_from_the_next_hop_of_the_server(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    let server = question.to.ip().to_string();
    let refusal = error_about(&question.frame, IcmpError::PortUnreachable, &server);
    let mut forged = refusal.clone();
    forged[11] ^= 0x40;
    assert_eq!(lab.handle_from(LAN, &forged), SPOOFED);
    assert_eq!(lab.server_messages, [0, 0]);
    lab.handle_from(LAN, &refusal);
    assert_eq!(lab.server_messages, [0, 1]);
}
