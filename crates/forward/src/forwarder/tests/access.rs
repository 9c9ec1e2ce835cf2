//! Access lists: denied clients begin no flow, and their existing flows end.

use std::net::{IpAddr, SocketAddr};

use super::lab::{Family, Lab, Outcome, error_about};
use crate::FlowEnd;
use convey_model::{Access, DropReason, Prefix};
use convey_wire::{IcmpError, TestPacket};

run_cases_over_both_families! {
    a_client_that_is_denied_begins_nothing_and_hears_nothing,
    reload_ends_only_connections_of_newly_denied_clients,
    datagrams_of_a_client_that_a_reload_denies_go_no_further,
    a_flood_from_denied_addresses_leaves_no_trace,
    fragments_of_a_client_that_is_denied_go_nowhere,
    errors_about_a_connection_of_a_client_that_is_denied_go_nowhere,
}

/// Access list that denies the address of client `n`.
fn denies(lab: &Lab, n: u16) -> Access {
    Access::new([], [Prefix::of(ip(lab.family, n), 128)])
}

/// The address of client `n`.
fn ip(family: Family, n: u16) -> IpAddr {
    family.client_addr(n).parse::<SocketAddr>().unwrap().ip()
}

fn a_client_that_is_denied_begins_nothing_and_hears_nothing(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let access = denies(&lab, 1);
        lab.change(|world| world.frontends[0].access = access);
        for packet in [lab.client(1).syn(), lab.client(1).ack(7)] {
            assert_eq!(lab.handle(&packet), Outcome::Dropped(DropReason::AccessDenied));
        }
        assert_eq!(
            (lab.forwarder.refused_at(), lab.forwarder.flows().len(), lab.frontend_slots()),
            (0, 0, 0)
        );
        lab.send(lab.client(2).syn());
    }
}

fn reload_ends_only_connections_of_newly_denied_clients(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let is_nat = lab.world.frontends[0].mode.has_snat();
        for n in [1, 2] {
            let syn = lab.send(lab.client(n).syn().seq(100));
            if is_nat {
                lab.send(syn.reply().syn().seq(500).ack(101));
            }
            lab.send(lab.client(n).seq(101).ack(501).payload(b"x"));
        }
        let access = denies(&lab, 1);
        let reply = lab.change(|world| world.frontends[0].access = access);
        assert_eq!(lab.ends(), [FlowEnd::Denied]);
        // In passthrough, the server is reset too.
        let to: Vec<u16> = reply.iter().map(|reset| reset.to.port()).collect();
        assert_eq!(to, if is_nat { vec![5_001, 8_080] } else { vec![5_001] });
        let next = lab.client(1).seq(102).ack(501).payload(b"x");
        assert_eq!(lab.handle(&next), Outcome::Dropped(DropReason::AccessDenied));
        lab.send(lab.client(2).seq(102).ack(501).payload(b"x"));
        assert_eq!(lab.forwarder.flows().len(), 1);
        if let Some(kernel) = &lab.kernel {
            assert!(kernel.entries() <= 2, "the entries of the other are left");
        }
        // A client that is admitted again begins a new connection.
        lab.change(|world| world.frontends[0].access = Access::default());
        lab.send(lab.client(1).syn().seq(900));
    }
}

fn datagrams_of_a_client_that_a_reload_denies_go_no_further(family: Family) {
    for lab in Lab::both_modes(family) {
        let mut lab = lab.udp();
        lab.send(lab.client(1).udp());
        let access = denies(&lab, 1);
        assert_eq!(lab.change(|world| world.frontends[0].access = access), []);
        assert_eq!(lab.ends(), [FlowEnd::Denied]);
        assert_eq!(lab.handle(&lab.client(1).udp()), Outcome::Dropped(DropReason::AccessDenied));
    }
}

fn a_flood_from_denied_addresses_leaves_no_trace(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(3);
    let denied: Vec<Prefix> = (0..200).filter(|n| *n != 3).map(|n| Prefix::of(ip(family, n), 128)).collect();
    lab.change(|world| world.frontends[0].access = Access::new([], denied));
    for n in (0..40_000).filter(|n| n % 200 != 3) {
        assert_eq!(lab.handle(&lab.client(n).syn()), Outcome::Dropped(DropReason::AccessDenied));
    }
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (1, 1));
    assert_eq!(lab.forwarder.handshakes().begun, 1, "they are no SYN flood");
    lab.send(lab.client(3).seq(101).ack(501));
}

fn fragments_of_a_client_that_is_denied_go_nowhere(family: Family) {
    for lab in Lab::both_modes(family) {
        let mut lab = lab.udp();
        let access = denies(&lab, 1);
        lab.change(|world| world.frontends[0].access = access);
        let frames = lab.client(1).udp().payload(&[7; 3_000]).fragments(9, 1_200);
        for order in [[0, 1, 2], [2, 1, 0]] {
            let outcomes: Vec<Outcome> =
                order.into_iter().flat_map(|n| lab.handle_fragment(&frames[n])).collect();
            assert_eq!(outcomes.len(), 3);
            for outcome in outcomes {
                let reasons = [DropReason::AccessDenied, DropReason::NoFlow].map(Outcome::Dropped);
                assert!(reasons.contains(&outcome), "{outcome:?}");
            }
        }
        assert!(lab.forwarder.flows().is_empty());
    }
}

fn errors_about_a_connection_of_a_client_that_is_denied_go_nowhere(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let is_dsr = !lab.world.frontends[0].mode.has_snat();
        let access = denies(&lab, 1);
        lab.change(|world| world.frontends[0].access = access);
        let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).seq(501).ack(101).bytes();
        let mut error = error_about(&answer, IcmpError::TooBig { mtu: 1_280 }, &ip(family, 1).to_string());
        let reason = if is_dsr { DropReason::AccessDenied } else { DropReason::NoFlow };
        assert_eq!(lab.handle_frame(&mut error, None), Outcome::Dropped(reason));
    }
}
