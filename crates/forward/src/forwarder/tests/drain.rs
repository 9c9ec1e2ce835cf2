//! Draining of servers and frontends, and stopping of the balancer.

use std::net::SocketAddr;

use super::change::{assert_go_on, busy, is_of_first};
use super::lab::{Family, Lab, Outcome, Seen, TestServer, World};
use crate::FlowEnd;
use convey_model::{DrainingEndpoints, DropReason, Endpoint};
use convey_wire::TestPacket;

run_cases_over_both_families! {
    flows_of_a_removed_server_continue_for_the_drain_time,
    a_server_that_comes_back_in_time_keeps_its_flows,
    a_new_name_for_a_server_cuts_nothing,
    removed_frontend_finishes_its_flows_and_passes_new_clients,
    drain_end_survives_a_further_change_during_the_sweep,
    stopping_worker_refuses_new_flows_and_finishes_open_ones,
    in_dsr_a_connection_met_under_way_while_we_stop_goes_on,
    dsr_connections_get_no_reset_at_the_end,
}

/// Endpoint that the frontend moves to.
fn elsewhere(family: Family) -> &'static str {
    family.pick("192.0.2.1:81", "[2001:db8:2::1]:81")
}

fn take_first_server_out(world: &mut World) {
    let addr = Endpoint::tcp((world.servers.remove(0).ip, 8080).into());
    world.draining.servers = [addr].into();
}

fn move_frontend_elsewhere(world: &mut World) {
    let was = world.frontends[0].listen[0].parse::<SocketAddr>().unwrap();
    world.frontends[0].listen = vec![SocketAddr::new(was.ip(), 81).to_string()];
    world.draining.listen = [Endpoint::tcp(was)].into();
}

fn time_is_over(world: &mut World) {
    world.draining = DrainingEndpoints::default();
}

/// Numbers of the clients that are reset.
fn reset_clients(resets: &[Seen]) -> Vec<u16> {
    assert!(resets.iter().all(|reset| (reset.flags.as_str(), reset.seq) == ("R", 501)), "{resets:?}");
    let mut reply: Vec<u16> = resets.iter().map(|reset| reset.to.port() - 5_000).collect();
    reply.sort_unstable();
    reply
}

fn flows_of_a_removed_server_continue_for_the_drain_time(family: Family) {
    let (mut lab, flows) = busy(family);
    assert_eq!(lab.change(take_first_server_out), []);
    assert_go_on(&mut lab, &flows);
    assert!((100..150).all(|n| !is_of_first(&lab.send(lab.client(n).syn()))));

    let (left, others): (Vec<_>, Vec<_>) = flows.into_iter().partition(|(_, syn)| is_of_first(syn));
    let resets = lab.change(time_is_over);
    assert_eq!(reset_clients(&resets), left.iter().map(|(n, _)| *n).collect::<Vec<_>>());
    assert_eq!(lab.ends(), vec![FlowEnd::Cut; left.len()]);
    assert_go_on(&mut lab, &others);
    assert_eq!(lab.answer(lab.client(left[0].0).ack(501)).1, DropReason::NoFlow);
}

fn a_server_that_comes_back_in_time_keeps_its_flows(family: Family) {
    let (mut lab, flows) = busy(family);
    lab.change(take_first_server_out);
    lab.change(|world| {
        world.servers.insert(0, TestServer::new(family, 11));
        time_is_over(world);
    });
    assert_go_on(&mut lab, &flows);
}

fn a_new_name_for_a_server_cuts_nothing(family: Family) {
    let (mut lab, flows) = busy(family);
    assert_eq!(lab.change(|world| world.servers[0].rename()), []);
    assert_go_on(&mut lab, &flows);
}

fn removed_frontend_finishes_its_flows_and_passes_new_clients(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        assert_eq!(lab.change(move_frontend_elsewhere), []);
        assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());
        for stranger in [lab.client(2).syn(), lab.client(2).ack(7)] {
            assert_eq!(lab.handle(&stranger), Outcome::Passed);
        }
        lab.send(TestPacket::from(family.client_addr(3)).to(elsewhere(family)).syn());

        assert_eq!(reset_clients(&lab.change(time_is_over)), [1]);
        assert_eq!(lab.ends(), [FlowEnd::Cut]);
        assert_eq!(lab.handle(&lab.client(1).ack(501)), Outcome::Passed);
        assert_eq!(lab.forwarder.flows().len(), 1, "that of the other address");
    }
}

fn drain_end_survives_a_further_change_during_the_sweep(family: Family) {
    let mut lab = Lab::passthrough(family);
    for n in 0..9_000 {
        lab.connect(n);
    }
    lab.change(move_frontend_elsewhere);
    let mut cut = lab.change(time_is_over).len();
    cut += lab.change(|world| world.servers[0].weight = 5).len();
    while !lab.forwarder.flows().is_empty() {
        let more = lab.tick().len();
        assert!(more > 0, "{} flows stay", lab.forwarder.flows().len());
        cut += more;
    }
    assert_eq!((cut, lab.ends()), (9_000, vec![FlowEnd::Cut; 9_000]));
}

fn stopping_worker_refuses_new_flows_and_finishes_open_ones(family: Family) {
    let (mut lab, flows) = busy(family);
    assert_eq!(lab.change(|world| world.stopping = true), []);
    let (reset, reason) = lab.answer(lab.client(100).syn().seq(6));
    assert_eq!(
        (reset.reset(), reason),
        ((family.vip().into(), family.client_addr(100), "R.", 0, 7), DropReason::Stopping)
    );
    assert_go_on(&mut lab, &flows);
    assert_eq!(lab.forwarder.flows().open(), 29);
    for (n, syn) in &flows[1..] {
        lab.close(*n, syn);
    }
    assert_eq!((lab.forwarder.flows().open(), lab.ended()), (1, 28));

    let resets = lab.change(|world| (world.frontends[0].listen, world.servers) = (vec![], vec![]));
    assert_eq!((reset_clients(&resets), lab.ends()), (vec![1], vec![FlowEnd::Cut]));
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (0, 0));
}

fn dsr_connections_get_no_reset_at_the_end(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.send(lab.client(1).syn().seq(100));
    lab.send(lab.client(1).seq(101).ack(501));
    let vip = Endpoint::tcp(family.vip().parse().unwrap());
    let resets = lab.change(|world| {
        (world.frontends[0].listen, world.servers) = (vec![], vec![]);
        world.outlasting = [vip].into();
    });
    assert_eq!((resets, lab.ends()), (vec![], vec![FlowEnd::Left]));
    assert_eq!(lab.forwarder.flows().len(), 0);
}

fn in_dsr_a_connection_met_under_way_while_we_stop_goes_on(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.change(|world| world.stopping = true);
    assert_eq!(lab.answer(lab.client(1).syn()).1, DropReason::Stopping);
    lab.send(lab.client(1).seq(5).ack(77));
}
