//! Shared slots of several workers: a worker without half-open flows requests slots from the
//! others.

use super::*;

run_cases_over_both_families! {
    a_worker_without_half_open_flows_has_others_give_way,
    workers_do_not_ask_for_slots_of_connections,
    evictions_for_other_workers_stop_at_the_slot_limit,
}

/// Makes `worker` handle the packets of `act`.
fn by<T>(lab: &mut Lab, worker: &mut Forwarder, act: impl FnOnce(&mut Lab) -> T) -> T {
    std::mem::swap(&mut lab.forwarder, worker);
    let result = act(lab);
    expire_due(lab);
    std::mem::swap(&mut lab.forwarder, worker);
    result
}

/// Creates eight workers with a limit that `limit` sets. The first is the lab's.
fn eight_workers(lab: &mut Lab, limit: impl FnOnce(&mut World)) -> Vec<Forwarder> {
    let mut others = lab.colleagues(7);
    lab.change(limit);
    others.iter_mut().for_each(|other| drop(by(lab, other, Lab::tick)));
    others
}

fn a_worker_without_half_open_flows_has_others_give_way(family: Family) {
    for limits_servers in [false, true] {
        for mut lab in Lab::both_modes(family) {
            let mut others = eight_workers(&mut lab, |world| {
                world.servers.truncate(1);
                match limits_servers {
                    true => world.servers[0].max_connections = Some(8),
                    false => world.frontends[0].max_connections = Some(8),
                }
            });
            for round in 0..100 {
                for (n, other) in (0..).zip(&mut others) {
                    by(&mut lab, other, |lab| {
                        (0..3).for_each(|m| forge(lab, 1_000 + round * 30 + n * 3 + m))
                    });
                }
                lab.now.0 += 2_000_000;
                let client = 100 + round;
                let syn = connect(&mut lab, client);
                is_connected(&mut lab, client, &syn);
                lab.now.0 += 10_000_000;
                others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
                assert_eq!(lab.frontend_slots(), 8, "one has gone for it");
                is_connected(&mut lab, client, &syn);
                lab.send(lab.client(client).rst().seq(101));
                expire_due(&mut lab);
            }
        }
    }
}

fn evictions_for_other_workers_stop_at_the_slot_limit(family: Family) {
    let mut lab = Lab::passthrough(family);
    let mut others = eight_workers(&mut lab, |world| world.frontends[0].max_connections = Some(8));
    for (n, other) in (0..).zip(&mut others[..2]) {
        by(&mut lab, other, |lab| (0..4).for_each(|m| forge(lab, 1_000 + n * 4 + m)));
    }
    lab.now.0 += 2_000_000;
    (1..5).for_each(|n| drop(connect(&mut lab, n)));
    assert_eq!(lab.frontend_slots(), 12, "four are asked for");
    lab.send(lab.client(1).rst().seq(101));
    lab.send(lab.client(2).rst().seq(101));
    expire_due(&mut lab);
    // The slot of an evicted flow counts as taken until the end of its worker's batch.
    for other in &mut others[..2] {
        std::mem::swap(&mut lab.forwarder, other);
        lab.tick();
        std::mem::swap(&mut lab.forwarder, other);
    }
    others.iter_mut().for_each(|other| by(&mut lab, other, |_| {}));
    assert_eq!(lab.frontend_slots(), 8, "two of four have ended by themselves");
    others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
    assert_eq!(lab.frontend_slots(), 8);
    connect(&mut lab, 5);
    others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
    assert_eq!(lab.frontend_slots(), 8, "for the next one gives way again");
}

fn workers_do_not_ask_for_slots_of_connections(family: Family) {
    let mut lab = Lab::passthrough(family);
    let mut others = eight_workers(&mut lab, |world| world.frontends[0].max_connections = Some(80));
    for (n, other) in (0..).zip(&mut others) {
        by(&mut lab, other, |lab| (0..11).for_each(|m| drop(connect(lab, 100 + n * 11 + m))));
    }
    assert_eq!(lab.frontend_slots(), 77);
    by(&mut lab, &mut others[0], |lab| (0..3).for_each(|n| forge(lab, 1_000 + n)));
    assert_eq!(lab.answer(lab.client(1).syn()).1, DropReason::MaxConnections, "they may be clients");
    others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
    assert_eq!((lab.frontend_slots(), lab.forwarder.flows().len()), (80, 0));
    lab.now.0 += 1_500_000_000;
    let late = by(&mut lab, &mut others[1], |lab| lab.answer(lab.client(2).syn()).1);
    assert_eq!(late, DropReason::MaxConnections);
    by(&mut lab, &mut others[0], |lab| drop(connect(lab, 3)));
}
