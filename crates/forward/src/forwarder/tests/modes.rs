//! Several frontends in one process, each in its own mode.

use std::net::SocketAddr;
use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Size, TestFrontend};
use crate::{FlowEnd, FlowState};
use convey_model::{Algorithm, DrainingEndpoints, DropReason, DsrKind, Endpoint, Mode, Protocol};
use convey_wire::IcmpError;

run_cases_over_both_families! {
    each_frontend_is_forwarded_in_its_own_way,
    tcp_and_udp_of_one_port_are_two_frontends,
    removed_frontend_ends_flows_of_its_protocol_only,
    whatever_is_forged_in_dsr_passthrough_has_its_share_of_the_table,
    streams_of_forged_clients_leave_connections_their_share_of_the_table,
}

/// Passthrough on TCP port 80; DSR on UDP port 80 and TCP port 443; L2 DSR on port 444; proxy mode
/// on port 445.
fn mixed(family: Family) -> Lab {
    let mut lab = Lab::passthrough(family);
    let at = |port| SocketAddr::new(family.vip_ip().parse().unwrap(), port).to_string();
    lab.change(|world| {
        let new = TestFrontend::new;
        world.frontends.extend([
            TestFrontend { protocol: Protocol::Udp, ..new(1, Mode::Dsr, &at(80)) },
            new(2, Mode::Dsr, &at(443)),
            TestFrontend { dsr: DsrKind::L2, ..new(3, Mode::Dsr, &at(444)) },
            new(4, Mode::Proxy, &at(445)),
        ]);
    });
    lab
}

fn each_frontend_is_forwarded_in_its_own_way(family: Family) {
    let mut lab = mixed(family);
    let to = |port| SocketAddr::new(family.vip_ip().parse().unwrap(), port);
    let client = family.client_addr(1);
    let syn = lab.connect(1);
    assert_eq!((syn.from.ip().to_string().as_str(), syn.to.port()), (family.snat(), 8080));
    let nat = lab.send(lab.client(1).to(to(443)).syn());
    assert_eq!((nat.from.to_string(), nat.to), (client.clone(), (family.server_ip(nat.mac), 8080).into()));
    let l2 = lab.send(lab.client(1).to(to(444)).syn());
    assert_eq!((l2.from.to_string(), l2.to), (client, to(444)));
    assert!([11, 12, 13].contains(&l2.mac));
    assert_eq!(lab.handle(&lab.client(1).to(to(445)).syn()), Outcome::Passed);

    assert_eq!(lab.answer(lab.client(2).ack(1)).1, DropReason::NoFlow, "passthrough answers what is stray");
    lab.send(lab.client(2).to(to(443)).ack(1));
    lab.send(lab.client(2).to(to(444)).ack(1));
    assert_eq!((lab.opened, lab.forwarder.snat_ports_in_use()), (5, 1));
    let slots: Vec<_> = lab.plan.frontends.iter().map(|f| f.slots.open()).collect();
    assert_eq!(slots, [1, 0, 2, 2]);
}

fn tcp_and_udp_of_one_port_are_two_frontends(family: Family) {
    let mut lab = mixed(family);
    let syn = lab.connect(1);
    let question = lab.send(lab.client(1).udp());
    assert_eq!(question.from.to_string(), family.client_addr(1), "DSR");
    assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());
    assert_eq!(lab.send(lab.client(1).udp()).route(), question.route());
    assert_eq!((lab.opened, lab.forwarder.flows().len()), (2, 2));

    let mut lab = Lab::passthrough(family);
    lab.change(|world| {
        let udp = TestFrontend::new(1, Mode::Passthrough, family.vip());
        world.frontends.push(TestFrontend { protocol: Protocol::Udp, ..udp });
        world.servers.truncate(1);
    });
    let (syn, question) = (lab.connect(1), lab.send(lab.client(1).udp()));
    assert_eq!(syn.to, question.to);
    assert!(lab.send(question.reply()).is_udp && !lab.send(syn.reply().ack(101)).is_udp);
    assert_eq!(lab.forwarder.snat_ports_in_use(), 2);
    lab.change(|world| world.servers[0].up = false);
    assert_eq!(lab.answer(lab.client(1).syn()).0.flags, "R.");
    assert_eq!(lab.answer(lab.client(1).udp()).0.icmp_error().0, IcmpError::PortUnreachable);
}

fn removed_frontend_ends_flows_of_its_protocol_only(family: Family) {
    let mut lab = mixed(family);
    let syn = lab.connect(1);
    lab.send(lab.client(1).udp());
    lab.change(|world| {
        let udp = world.frontends.remove(1);
        world.draining.listen = [Endpoint::udp(udp.listen[0].parse().unwrap())].into();
        // Another frontend still uses the servers over UDP.
        let other = udp.listen[0].replace(":80", ":53");
        let new = TestFrontend::new(5, Mode::Dsr, &other);
        world.frontends.push(TestFrontend { protocol: Protocol::Udp, ..new });
    });
    lab.send(lab.client(1).udp());
    assert_eq!(lab.handle(&lab.client(2).udp()), Outcome::Passed);
    assert_eq!(lab.change(|world| world.draining = DrainingEndpoints::default()), []);
    assert_eq!(lab.ends(), [FlowEnd::Cut]);
    assert_eq!(lab.handle(&lab.client(1).udp()), Outcome::Passed);
    assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());
}

fn whatever_is_forged_in_dsr_passthrough_has_its_share_of_the_table(family: Family) {
    for algorithm in [Algorithm::LeastConnections, Algorithm::Maglev] {
        let mut lab = Lab::passthrough_of(family, Size { capacity: 400, ..ENOUGH });
        let dsr = SocketAddr::new(family.vip_ip().parse().unwrap(), 443);
        lab.change(|world| {
            world.algorithm = algorithm;
            world.frontends.push(TestFrontend::new(1, Mode::Dsr, &dsr.to_string()));
        });
        // Half of them forge data, too, and are indistinguishable from connections.
        for n in 1_000..3_000 {
            let packet = || lab.client(n).to(dsr);
            let data = if n % 2 == 0 { &b"GET"[..] } else { &[] };
            for forged in
                [packet().syn().seq(7), packet().seq(8).ack(9), packet().seq(8).ack(9).payload(data)]
            {
                lab.handle(&forged);
            }
        }
        let count = |lab: &Lab, state| lab.forwarder.flows().count(state);
        assert_eq!((lab.forwarder.flows().len(), count(&lab, FlowState::Established)), (300, 300));

        let syns: Vec<_> = (1..100).map(|n| lab.connect(n)).collect();
        assert_eq!(count(&lab, FlowState::Established), 399);
        for (n, syn) in (1..100).zip(&syns) {
            assert_eq!(lab.send(syn.reply().seq(501).ack(101)).to.to_string(), family.client_addr(n));
        }
        lab.wait(Duration::from_secs(1));
        let (before, new) = (lab.untracked, lab.client(500).to(dsr).syn());
        match algorithm {
            Algorithm::Maglev => {
                let syn = lab.send(new);
                assert_eq!(lab.send(lab.client(500).to(dsr).seq(1).ack(1)).route(), syn.route());
                assert_eq!(lab.untracked, before + 2, "the hash finds its server without a record");
            }
            _ => assert_eq!(lab.answer(new).1, DropReason::TableShareFull),
        }
    }
}

fn streams_of_forged_clients_leave_connections_their_share_of_the_table(family: Family) {
    let mut lab = Lab::passthrough_of(family, Size { capacity: 400, ..ENOUGH });
    let vip = family.vip().to_owned();
    lab.change(|world| {
        let udp = TestFrontend::new(1, Mode::Passthrough, &vip);
        world.frontends.push(TestFrontend { protocol: Protocol::Udp, ..udp });
    });
    // A server answers, so the second datagram makes a stream, even if the answer reaches no
    // client.
    let mut refused = 0;
    for n in 1_000..2_000 {
        match lab.handle(&lab.client(n).udp()) {
            Outcome::Sent(question) => {
                lab.send(question.reply().udp());
                lab.send(lab.client(n).udp());
            }
            Outcome::Answered(_, DropReason::TableShareFull) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((lab.forwarder.flows().count(FlowState::UdpStream), refused), (300, 700));
    (1..101).for_each(|n| _ = lab.connect(n));
    assert_eq!(lab.forwarder.flows().count(FlowState::Established), 100);
}
