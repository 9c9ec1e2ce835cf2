//! Client shares: one client opens all flows that it can, and others still find room.

use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Seen, Size, TestServer};
use crate::FlowEnd;
use convey_model::{DropReason, FlowKey, FlowTimeouts, Protocol};

run_cases_over_both_families! {
    greedy_client_leaves_snat_ports_for_others,
    greedy_client_leaves_slots_and_table_entries_for_others,
    connections_opened_beyond_the_client_share_are_reset,
    half_open_connections_do_not_extend_a_client_share,
    forged_syns_in_a_clients_name_take_nothing_of_its_share,
    forged_syns_in_any_name_take_nothing_of_anybodys_share,
    greedy_client_leaves_ports_for_udp_streams_of_others,
    forged_streams_in_a_clients_name_keep_it_from_nothing,
    trusted_clients_have_all_there_is,
    client_shares_do_not_apply_to_several_servers,
    small_limits_are_for_all_clients_together,
    in_dsr_nobody_has_a_share,
    ended_flows_no_longer_count_for_their_client,
}

/// Client number for connection `k` of the greedy client.
fn greedy(k: u16) -> u16 {
    200 * (k + 1)
}

/// Creates a lab with one server.
fn lab_of(family: Family, size: Size) -> Lab {
    let mut lab = Lab::passthrough_of(family, size);
    lab.change(|world| world.servers.truncate(1));
    lab
}

fn with_ports(family: Family, ports: u16) -> Lab {
    lab_of(family, Size { ports, ..ENOUGH })
}

/// Connects client `n`. Returns the SYN that the server received, or the reason for the refusal.
fn connect(lab: &mut Lab, n: u16) -> Result<Seen, DropReason> {
    let key = FlowKey::tcp(lab.family.client_addr(n).parse().unwrap(), lab.family.vip().parse().unwrap());
    let server = *lab.plan.servers.keys().next().unwrap();
    let said = lab.forwarder.client_share(&key, server, &lab.plan, lab.now);
    let outcome = lab.handle(&lab.client(n).syn().seq(100));
    if lab.world.servers.len() == 1 {
        let is_refused = matches!(outcome, Outcome::Answered(_, DropReason::ClientLimit));
        assert_eq!(said.is_some_and(|said| said.is_refused), is_refused, "{said:?}");
        assert!(!is_refused || said.is_some_and(|said| said.own > 8 * said.free), "{said:?}");
    }
    match outcome {
        Outcome::Sent(syn) => {
            lab.send(syn.reply().syn().seq(500).ack(101));
            lab.send(lab.client(n).seq(101).ack(501));
            assert!(lab.tick().is_empty(), "it is refused at its beginning or not at all");
            Ok(syn)
        }
        Outcome::Answered(reply, reason) => {
            assert_eq!(reply.flags, "R.");
            Err(reason)
        }
        other => panic!("{other:?}"),
    }
}

/// Number of connections that the greedy client gets.
fn connections_of_greedy_client(lab: &mut Lab) -> u16 {
    let refused = (0..150).find_map(|k| connect(lab, greedy(k)).err().map(|reason| (k, reason)));
    let (taken, reason) = refused.expect("less than it wants");
    assert_eq!(reason, DropReason::ClientLimit);
    assert_eq!(lab.forwarder.counted_for_clients(), u64::from(taken));
    taken
}

/// Ends all flows, and checks that no resource stays in use.
#[track_caller]
fn assert_all_released(lab: &mut Lab) {
    lab.wait(Duration::from_secs(3 * 3_600));
    lab.tick();
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.counted_for_clients()), (0, 0));
}

fn greedy_client_leaves_snat_ports_for_others(family: Family) {
    let mut lab = with_ports(family, 100);
    assert_eq!(connections_of_greedy_client(&mut lab), 89);
    assert!((1..=11).all(|n| connect(&mut lab, n).is_ok()));
    assert_eq!(connect(&mut lab, 12).unwrap_err(), DropReason::SnatExhausted, "all are open");
    // A connection that ends makes room for exactly one.
    lab.send(lab.client(1).rst().seq(101));
    assert_eq!(connect(&mut lab, greedy(200)).unwrap_err(), DropReason::ClientLimit);
    assert!(connect(&mut lab, 12).is_ok());
    assert_all_released(&mut lab);
}

fn greedy_client_leaves_slots_and_table_entries_for_others(family: Family) {
    let places = lab_of(family, Size { capacity: 100, ..ENOUGH });
    let [mut of_frontend, mut of_server] = [(); 2].map(|()| with_ports(family, ENOUGH.ports));
    of_frontend.change(|world| world.frontends[0].max_connections = Some(100));
    of_server.change(|world| world.servers[0].max_connections = Some(100));
    for mut lab in [places, of_frontend, of_server] {
        assert_eq!(connections_of_greedy_client(&mut lab), 89);
        assert!((1..=11).all(|n| connect(&mut lab, n).is_ok()));
        assert_all_released(&mut lab);
    }
}

fn connections_opened_beyond_the_client_share_are_reset(family: Family) {
    let mut lab = with_ports(family, 100);
    let syns: Vec<Seen> = (0..100).map(|k| lab.send(lab.client(greedy(k)).syn().seq(100))).collect();
    for (k, syn) in (0..).zip(&syns) {
        lab.send(syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(greedy(k)).seq(101).ack(501));
    }
    let reply = lab.tick();
    assert_eq!(lab.ends(), [FlowEnd::ClientLimit; 11]);
    let (clients, servers): (Vec<&Seen>, Vec<&Seen>) =
        reply.iter().partition(|reply| reply.from.to_string() == family.vip());
    assert_eq!((clients.len(), servers.len()), (11, 11));
    assert!(clients.iter().all(|reply| reply.flags == "R" && reply.seq == 501), "it is told");
    assert!(servers.iter().all(|reply| reply.flags == "R" && reply.seq == 101), "and so is its server");
    assert_eq!(lab.forwarder.snat_ports_in_use(), 89);
    assert!(lab.kernel.as_ref().is_none_or(|kernel| kernel.entries() == 2 * 89));
    assert!((1..=11).all(|n| connect(&mut lab, n).is_ok()));
    assert_all_released(&mut lab);
}

fn half_open_connections_do_not_extend_a_client_share(family: Family) {
    let mut lab = with_ports(family, 100);
    assert!((0..88).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    // 50 forged SYNs a second.
    for n in 1..=10 {
        (0..20).for_each(|k| drop(lab.handle(&lab.client(greedy(70 + 20 * n + k)).syn().seq(7))));
        assert!(connect(&mut lab, n).is_ok());
        lab.wait(Duration::from_millis(400));
    }
}

fn forged_syns_in_a_clients_name_take_nothing_of_its_share(family: Family) {
    let mut lab = with_ports(family, 100);
    assert!((0..20).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    for k in 20..220 {
        let syn = lab.send(lab.client(greedy(k)).syn().seq(7));
        lab.send(syn.reply().syn().seq(9).ack(8));
    }
    assert!((220..250).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    assert_eq!(lab.forwarder.counted_for_clients(), 50);
}

fn forged_syns_in_any_name_take_nothing_of_anybodys_share(family: Family) {
    let mut lab = with_ports(family, 100);
    assert!((0..60).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    // The only SNAT ports left are those of evictable flows.
    (1..=199).for_each(|n| drop(lab.send(lab.client(n).syn().seq(7))));
    assert!((60..80).all(|k| connect(&mut lab, greedy(k)).is_ok()));
}

/// Client `n` sends, is answered, and sends again; the last tick has noted the server's answer.
fn talk(lab: &mut Lab, n: u16) -> Option<Seen> {
    let Outcome::Sent(seen) = lab.handle(&lab.client(n).udp().payload(b"?")) else { return None };
    lab.send(seen.reply().payload(b"!"));
    lab.send(lab.client(n).udp().payload(b"?"));
    Some(seen)
}

fn greedy_client_leaves_ports_for_udp_streams_of_others(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    let streams: Vec<Seen> = (0..100).filter_map(|k| talk(&mut lab, greedy(k))).collect();
    assert_eq!(streams.len(), 89);
    assert_eq!(lab.answer(lab.client(greedy(200)).udp()).1, DropReason::ClientLimit);
    // The greedy client keeps all of its streams in use; streams of other clients stay in use for a
    // second.
    for round in 0..20 {
        lab.wait(Duration::from_millis(200));
        // A search examines some streams for one that is not in use; if the client sends again, the
        // next search examines others.
        let mut again = || {
            lab.wait(Duration::from_millis(20));
            talk(&mut lab, 1 + round)
        };
        let other = (0..5).find_map(|_| again()).expect("it finds a port");
        for (k, stream) in (0..).zip(&streams) {
            lab.handle(&lab.client(greedy(k)).udp().payload(b"?"));
            lab.handle(&stream.reply().payload(b"!"));
        }
        assert_eq!(lab.send(other.reply()).to.to_string(), family.client_addr(1 + round));
    }
    assert!((85..=100).contains(&lab.forwarder.counted_for_clients()));
    assert_all_released(&mut lab);
}

fn forged_streams_in_a_clients_name_keep_it_from_nothing(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    // 20 forged streams a second, each answered by the server once.
    for k in 0..250u16 {
        talk(&mut lab, greedy(k % 300));
        lab.wait(Duration::from_millis(50));
        let seen = talk(&mut lab, greedy(250 + k % 50)).expect("it finds a port");
        assert_eq!(lab.send(seen.reply()).to.to_string(), family.client_addr(greedy(250 + k % 50)));
    }
}

fn trusted_clients_have_all_there_is(family: Family) {
    let mut lab = with_ports(family, 100);
    let trusted = family.pick("198.51.100.1/32", "2001:db8:100:1::/64").parse().unwrap();
    lab.change(|world| world.frontends[0].trusted_clients = vec![trusted]);
    assert!((0..100).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    assert_eq!(connect(&mut lab, 7).unwrap_err(), DropReason::SnatExhausted);
}

/// Otherwise a client would be refused while other servers have room, because it is hashed to one
/// server.
fn client_shares_do_not_apply_to_several_servers(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| {
        world.servers.truncate(2);
        world.servers.iter_mut().for_each(|server| server.max_connections = Some(100));
    });
    assert!((0..200).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    assert_eq!(connect(&mut lab, 7).unwrap_err(), DropReason::MaxConnections);
}

fn small_limits_are_for_all_clients_together(family: Family) {
    let mut lab = with_ports(family, 16);
    assert!((0..16).all(|k| connect(&mut lab, greedy(k)).is_ok()));
    assert_eq!(connect(&mut lab, 1).unwrap_err(), DropReason::SnatExhausted);
}

fn in_dsr_nobody_has_a_share(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.change(|world| world.frontends[0].max_connections = Some(100));
    for k in 0..100 {
        lab.send(lab.client(greedy(k)).syn().seq(100));
        lab.send(lab.client(greedy(k)).seq(101).ack(501).payload(b"x"));
    }
    assert_eq!(lab.answer(lab.client(greedy(100)).syn()).1, DropReason::MaxConnections);
    assert_eq!(lab.forwarder.counted_for_clients(), 0);
}

fn ended_flows_no_longer_count_for_their_client(family: Family) {
    let counted = |lab: &Lab| lab.forwarder.counted_for_clients();
    let mut lab = with_ports(family, 100);
    let open: Vec<Seen> = (1..=6).map(|n| connect(&mut lab, n).unwrap()).collect();
    assert_eq!(counted(&lab), 6);
    lab.close(1, &open[0]);
    lab.send(lab.client(2).rst().seq(101));
    assert_eq!(counted(&lab), 4);
    // The port of the first connection is reused.
    lab.send(lab.client(1).syn().seq(9_000));
    assert_eq!(counted(&lab), 4);
    lab.change(|world| world.servers[0].rename());
    lab.tick();
    assert_eq!(counted(&lab), 4, "it goes on under another name");
    lab.send(lab.client(3).rst().seq(101));
    assert_eq!(counted(&lab), 3);
    lab.change(|world| {
        world.flow_timeouts =
            FlowTimeouts { established: Duration::from_secs(300), ..FlowTimeouts::default() };
    });
    lab.wait(Duration::from_secs(200));
    lab.send(lab.client(4).seq(101).ack(501));
    lab.wait(Duration::from_secs(200));
    assert_eq!(counted(&lab), 1, "two were silent");
    lab.change(|world| world.servers = vec![TestServer::new(family, 12)]);
    lab.tick();
    assert_eq!((counted(&lab), lab.forwarder.flows().len()), (0, 0), "its server is gone");

    lab.change(|world| world.frontends[0].protocol = Protocol::Udp);
    talk(&mut lab, 1).unwrap();
    assert_eq!(counted(&lab), 1);
    lab.change(|world| world.servers[0].up = false);
    lab.tick();
    assert_eq!(counted(&lab), 0);
}
