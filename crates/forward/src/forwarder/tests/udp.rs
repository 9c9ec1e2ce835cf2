//! UDP: exchanges and streams of datagrams, in both modes.

use std::net::SocketAddr;
use std::time::Duration;

use super::lab::{ENOUGH, Family, LAN, Lab, Outcome, Size, WAN};
use crate::plan::ByView;
use crate::{FlowEnd, FlowState};
use convey_model::{Algorithm, DropReason, OnDown};
use convey_wire::{IcmpError, TestPacket};

run_cases_over_both_families! {
    udp_request_with_answer_expires_after_half_a_minute,
    udp_stream_expires_after_five_minutes_of_silence,
    in_dsr_the_server_sees_its_client_and_answers_it_directly,
    repeated_udp_request_keeps_its_server_and_port,
    datagrams_without_content_pass_and_so_do_those_without_checksum,
    udp_answer_from_another_port_is_dropped,
    next_datagram_goes_to_another_server_after_down,
    port_unreachable_without_a_server_is_limited_per_second,
    answered_questions_make_room_before_those_that_wait_and_streams_never,
    in_dsr_streams_make_room_too_and_find_their_server_again,
    an_answered_question_gives_up_its_port_before_a_client_is_refused,
    a_full_frontend_refuses_until_a_flow_is_forgotten,
    stopping_worker_continues_udp_streams_and_refuses_new_ones,
    a_datagram_that_says_it_comes_from_a_server_begins_nothing,
    a_datagram_that_names_a_server_gets_it_whatever_its_client,
}

/// A datagram of client `n`.
fn client_datagram(lab: &Lab, n: u16) -> TestPacket {
    lab.client(n).udp().payload(b"?")
}

/// Client `n` sends, is answered, and sends again.
fn stream(lab: &mut Lab, n: u16) -> super::lab::Seen {
    let seen = lab.send(client_datagram(lab, n));
    lab.send(seen.reply().payload(b"!"));
    lab.send(client_datagram(lab, n));
    seen
}

fn count(lab: &Lab, state: FlowState) -> u32 {
    lab.forwarder.flows().count(state)
}

fn udp_request_with_answer_expires_after_half_a_minute(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let seen = lab.send(lab.client(1).udp().payload(b"who?"));
    assert_eq!((seen.from.ip().to_string().as_str(), seen.to.port()), (family.snat(), 8080));
    assert_eq!((seen.interface, seen.to.ip(), seen.ttl), (LAN, family.server_ip(seen.mac), 63));
    assert_eq!((seen.payload.as_slice(), count(&lab, FlowState::UdpNew)), (&b"who?"[..], 1));
    let answer = lab.send(seen.reply().payload(b"you!"));
    assert_eq!(answer.route(), (family.vip().into(), family.client_addr(1)));
    assert_eq!((answer.interface, answer.mac, answer.ttl), (WAN, 0xfe, 63));
    assert_eq!((answer.payload.as_slice(), count(&lab, FlowState::UdpAnswered)), (&b"you!"[..], 1));
    lab.wait(Duration::from_secs(29));
    assert_eq!((lab.forwarder.flows().len(), lab.ended()), (1, 0));
    lab.wait(Duration::from_secs(2));
    assert_eq!((lab.forwarder.flows().len(), lab.opened, lab.ended()), (0, 1, 1));
    assert_eq!(lab.forwarder.snat_ports_in_use(), 0);
}

fn a_datagram_that_says_it_comes_from_a_server_begins_nothing(family: Family) {
    let labs = [Lab::passthrough(family), Lab::dsr(family), Lab::l2(family)];
    for mut lab in labs.map(Lab::udp) {
        // The server that would have been chosen makes no difference, nor whether it is up.
        lab.change(|world| world.servers[1].up = false);
        let from = |id, port| {
            let addr = SocketAddr::new(family.server_ip(id), port);
            TestPacket::from(addr).to(family.vip()).udp().payload(b"!")
        };
        let port = lab.plan.pools[0].servers[0].addr.port();
        for id in [11, 12, 13] {
            assert_eq!(lab.handle(&from(id, port)), Outcome::Dropped(DropReason::ClientIsServer));
        }
        assert_eq!((lab.opened, lab.forwarder.snat_ports_in_use()), (0, 0));
        lab.change(|world| world.servers.retain(|server| server.ip == family.server_ip(11)));
        lab.send(from(14, port));
        lab.send(from(13, port)); // it is a server no longer
    }
    let mut lab = Lab::passthrough(family).udp();
    let seen =
        lab.send(TestPacket::from(SocketAddr::new(family.server_ip(12), 40_404)).to(family.vip()).udp());
    assert_eq!(
        lab.send(seen.reply()).to,
        SocketAddr::new(family.server_ip(12), 40_404),
        "an ordinary client"
    );
}

fn udp_stream_expires_after_five_minutes_of_silence(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let first = stream(&mut lab, 1);
    for n in 0..4 {
        lab.wait(Duration::from_secs(299));
        let next = if n % 2 == 0 { lab.send(client_datagram(&lab, 1)) } else { lab.send(first.reply()) };
        assert_eq!(next.from == first.from, n % 2 == 0);
    }
    assert_eq!((count(&lab, FlowState::UdpStream), lab.opened, lab.ended()), (1, 1, 0));
    lab.wait(Duration::from_secs(301));
    assert_eq!((lab.forwarder.flows().len(), lab.ended()), (0, 1));
    assert_eq!(lab.handle(&first.reply()), Outcome::Dropped(DropReason::NoFlow), "too late");
}

fn in_dsr_the_server_sees_its_client_and_answers_it_directly(family: Family) {
    let mut lab = Lab::dsr(family).udp();
    let seen = lab.send(client_datagram(&lab, 1));
    assert_eq!((seen.from.to_string(), seen.to.port()), (family.client_addr(1), 8080));
    assert_eq!((seen.interface, seen.to.ip(), seen.ttl), (LAN, family.server_ip(seen.mac), 63));
    assert_eq!(lab.handle(&seen.reply()), Outcome::Passed, "what a server answers is not ours");
    lab.wait(Duration::from_secs(29));
    assert_eq!(lab.send(client_datagram(&lab, 1)).route(), seen.route());
    assert_eq!(count(&lab, FlowState::UdpStream), 1);
    lab.wait(Duration::from_secs(299));
    assert_eq!(lab.forwarder.flows().len(), 1);
    lab.wait(Duration::from_secs(2));
    assert_eq!((lab.forwarder.flows().len(), lab.opened, lab.ended()), (0, 1, 1));

    lab.send(client_datagram(&lab, 2));
    lab.wait(Duration::from_secs(31));
    assert_eq!((lab.forwarder.flows().len(), lab.opened, lab.ended()), (0, 2, 1));
}

fn repeated_udp_request_keeps_its_server_and_port(family: Family) {
    for mut lab in Lab::both_modes(family).map(Lab::udp) {
        lab.change(|world| world.algorithm = Algorithm::RoundRobin);
        let first = lab.send(client_datagram(&lab, 1));
        for _ in 0..5 {
            lab.wait(Duration::from_secs(20));
            assert_eq!(lab.send(client_datagram(&lab, 1)), first);
        }
        assert_ne!(lab.send(client_datagram(&lab, 2)).to, first.to, "others are asked in turn");
    }
}

fn datagrams_without_content_pass_and_so_do_those_without_checksum(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    assert_eq!(lab.send(lab.client(1).udp()).payload, b"");
    if family == Family::V4 {
        let seen = lab.send(lab.client(1).udp().payload(b"as it is").without_checksum());
        assert_eq!(seen.frame[40..42], [0, 0], "it has none afterwards either");
    }
}

fn udp_answer_from_another_port_is_dropped(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let seen = lab.send(client_datagram(&lab, 1));
    let other_port = std::net::SocketAddr::new(seen.to.ip(), 8081);
    let answer = TestPacket::from(other_port).to(seen.from).udp();
    assert_eq!(lab.handle(&answer), Outcome::Dropped(DropReason::NoFlow));
}

fn next_datagram_goes_to_another_server_after_down(family: Family) {
    // This also holds with `on_down = "keep"`: there is no connection to keep.
    let labs =
        [OnDown::Reset, OnDown::Keep].map(|on_down| Lab::both_modes(family).map(|lab| (lab.udp(), on_down)));
    for (mut lab, on_down) in labs.into_iter().flatten() {
        lab.change(|world| world.on_down = ByView::both(on_down));
        let seen: Vec<_> = (1..30).map(|n| (n, lab.send(client_datagram(&lab, n)))).collect();
        let (dead, alive): (Vec<_>, Vec<_>) = seen.into_iter().partition(|(_, seen)| seen.mac == 11);
        assert_eq!(lab.change(|world| world.servers[0].up = false), [], "UDP has no word for it");
        assert!(!dead.is_empty());
        assert_eq!(lab.ends(), vec![FlowEnd::ServerGone; dead.len()]);
        for (n, _) in &dead {
            assert_ne!(lab.send(client_datagram(&lab, *n)).mac, 11);
        }
        for (n, seen) in &alive {
            assert_eq!(lab.send(client_datagram(&lab, *n)).route(), seen.route());
        }
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (29 + dead.len(), 29));
    }
}

fn port_unreachable_without_a_server_is_limited_per_second(family: Family) {
    for mut lab in Lab::both_modes(family).map(Lab::udp) {
        lab.change(|world| world.servers.iter_mut().for_each(|server| server.up = false));
        let (reply, reason) = lab.answer(client_datagram(&lab, 1));
        let client = reply.about().from;
        assert_eq!(
            (reason, reply.icmp_error()),
            (
                DropReason::NoServer,
                (IcmpError::PortUnreachable, family.vip_ip().into(), client.ip().to_string())
            )
        );
        assert_eq!(reply.about().route(), (family.client_addr(1), family.vip().into()));
        assert_eq!(reply.mac, 1, "back to where it came from");
        let answered = |lab: &mut Lab| {
            let mut answered = 0;
            for n in 0..3_000 {
                match lab.handle(&client_datagram(lab, n)) {
                    Outcome::Answered(_, DropReason::NoServer) => answered += 1,
                    Outcome::Dropped(DropReason::NoServer) => {}
                    other => panic!("{other:?}"),
                }
            }
            answered
        };
        assert_eq!(answered(&mut lab), 999);
        lab.wait(Duration::from_millis(500));
        assert_eq!(answered(&mut lab), 500);
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (0, 0));
    }
}

fn answered_questions_make_room_before_those_that_wait_and_streams_never(family: Family) {
    let mut lab = Lab::passthrough_of(family, Size { capacity: 4, ..ENOUGH }).udp();
    let waiting = lab.send(client_datagram(&lab, 1));
    let streams = [2, 3].map(|n| stream(&mut lab, n));
    let answered = lab.send(client_datagram(&lab, 4));
    lab.send(answered.reply());

    lab.send(client_datagram(&lab, 5));
    assert_eq!(lab.handle(&answered.reply()), Outcome::Dropped(DropReason::NoFlow), "it had its answer");
    assert_eq!(lab.send(waiting.reply()).to.to_string(), family.client_addr(1));
    lab.send(client_datagram(&lab, 6));
    assert_eq!(lab.handle(&waiting.reply()), Outcome::Dropped(DropReason::NoFlow), "so has this one by now");
    for n in [5, 6] {
        stream(&mut lab, n);
    }
    let (reply, reason) = lab.answer(client_datagram(&lab, 7));
    assert_eq!((reply.icmp_error().0, reason), (IcmpError::PortUnreachable, DropReason::TableFull));
    for (n, seen) in [2, 3].into_iter().zip(&streams) {
        assert_eq!(lab.send(seen.reply()).to.to_string(), family.client_addr(n));
    }
    assert_eq!((lab.opened, lab.ended(), lab.forwarder.snat_ports_in_use()), (6, 2, 4));
}

fn in_dsr_streams_make_room_too_and_find_their_server_again(family: Family) {
    let mut lab = Lab::dsr_of(family, 10).udp();
    let seen: Vec<_> = (0..100).map(|n| lab.send(client_datagram(&lab, n)).route()).collect();
    for (n, seen) in (0..100).zip(&seen) {
        assert_eq!(&lab.send(client_datagram(&lab, n)).route(), seen);
        assert_eq!(&lab.send(client_datagram(&lab, n)).route(), seen);
    }
    assert_eq!((lab.forwarder.flows().len(), lab.untracked), (10, 0));
    assert_eq!((lab.opened, lab.ended()), (200, 190));
}

fn an_answered_question_gives_up_its_port_before_a_client_is_refused(family: Family) {
    let mut lab = Lab::passthrough_of(family, Size { ports: 2, ..ENOUGH }).udp();
    lab.change(|world| world.servers.truncate(1));
    let answered = lab.send(client_datagram(&lab, 1));
    lab.send(answered.reply());
    let busy = stream(&mut lab, 2);
    assert_eq!(stream(&mut lab, 3).from, answered.from);
    let (reply, reason) = lab.answer(client_datagram(&lab, 4));
    assert_eq!((reply.icmp_error().0, reason), (IcmpError::PortUnreachable, DropReason::SnatExhausted));
    assert_eq!(lab.send(answered.reply()).to.to_string(), family.client_addr(3), "it is another's now");
    assert_eq!(lab.send(busy.reply()).to.to_string(), family.client_addr(2));
    assert_eq!((lab.opened, lab.ended(), lab.forwarder.snat_ports_in_use()), (3, 1, 2));
}

fn a_full_frontend_refuses_until_a_flow_is_forgotten(family: Family) {
    for mut lab in Lab::both_modes(family).map(Lab::udp) {
        lab.change(|world| world.frontends[0].max_connections = Some(1));
        let seen = lab.send(client_datagram(&lab, 1));
        lab.handle(&seen.reply());
        lab.send(client_datagram(&lab, 1));
        let (reply, reason) = lab.answer(client_datagram(&lab, 2));
        assert_eq!((reply.icmp_error().0, reason), (IcmpError::PortUnreachable, DropReason::MaxConnections));
        lab.wait(Duration::from_secs(301));
        assert_eq!((lab.ended(), lab.frontend_slots()), (1, 0));
        lab.send(client_datagram(&lab, 2));
    }
}

fn stopping_worker_continues_udp_streams_and_refuses_new_ones(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let seen = stream(&mut lab, 1);
    assert_eq!(lab.change(|world| world.stopping = true), []);
    assert_eq!(lab.send(client_datagram(&lab, 1)).route(), seen.route());
    let (reply, reason) = lab.answer(client_datagram(&lab, 2));
    assert_eq!((reply.icmp_error().0, reason), (IcmpError::PortUnreachable, DropReason::Stopping));
    assert_eq!(lab.forwarder.flows().open(), 1);
    assert_eq!(lab.change(|world| world.frontends[0].listen.clear()), [], "UDP has no word for it");
    assert_eq!((lab.ends(), lab.forwarder.snat_ports_in_use()), (vec![FlowEnd::Cut], 0));
}

fn a_datagram_that_names_a_server_gets_it_whatever_its_client(family: Family) {
    for lab in [Lab::passthrough, Lab::dsr] {
        let mut lab = lab(family).udp();
        for n in 1..=20 {
            let named = 11 + u8::from(n % 2 == 0);
            let content = format!("server {named}");
            let seen = lab.send(lab.client(n).udp().payload(content.as_bytes()));
            assert_eq!(seen.mac, named, "client {n}");
            let other = lab.send(lab.client(n).udp().payload(b"server 3, please"));
            assert_eq!(other.mac, named, "a client keeps its server");
        }
        let seen = lab.send(lab.client(30).udp().payload(b"server 99"));
        assert!((11..=13).contains(&seen.mac), "any other");
    }
}
