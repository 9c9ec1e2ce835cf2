//! Operators' queries about flows, and the end of a flow by an operator.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::handover::{export_flows, take};
use super::lab::{Family, Lab, run_with_cache};
use crate::{FlowEnd, FlowInfo, VisitBudget};
use convey_model::FlowActivity;

run_cases_over_both_families! {
    a_flow_is_seen_with_its_ends_its_state_and_its_age,
    killed_flow_is_reset_and_releases_its_resources,
    a_name_of_a_flow_that_has_ended_kills_nobody_else,
    datagrams_are_looked_at_and_killed_like_connections,
    age_goes_on_in_another_process_and_names_do_not,
    bytes_are_known_where_a_log_is_kept,
}

const ALL: VisitBudget = VisitBudget { places: u32::MAX, lookups: u32::MAX };

fn list_flows(lab: &mut Lab) -> Vec<(FlowInfo, FlowActivity)> {
    let mut seen = Vec::new();
    let next = lab.forwarder.visit_flows(0, ALL, lab.now, |flow, activity| seen.push((*flow, activity())));
    assert_eq!(next, None);
    seen
}

/// Ends a flow. Returns the number of resets, or `None` if there is no such flow.
fn kill(lab: &mut Lab, flow: &FlowInfo) -> Option<usize> {
    let mut resets = 0;
    let name = (flow.place, flow.serial);
    let killed = lab.forwarder.kill(name, &lab.plan, lab.now, |_, _| resets += 1);
    lab.forwarder.flush_cache();
    killed.map(|_| resets)
}

fn a_flow_is_seen_with_its_ends_its_state_and_its_age(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let is_nat = lab.world.frontends[0].mode.has_snat();
        lab.wait(Duration::from_secs(5));
        match is_nat {
            true => _ = lab.connect(1),
            false => {
                lab.send(lab.client(1).syn().seq(100));
                lab.send(lab.client(1).seq(101).ack(501).payload(b"hello"));
            }
        }
        lab.wait(Duration::from_secs(30));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hello"));
        lab.apply_cache_events();
        lab.wait(Duration::from_secs(10));
        let seen = list_flows(&mut lab);
        let [(flow, activity)] = seen[..] else { panic!("{seen:?}") };
        assert_eq!(flow.client.source(), family.client_addr(1).parse().unwrap());
        assert_eq!(flow.client.destination(), family.vip().parse().unwrap());
        let snat = flow.server.destination();
        assert_eq!(snat.ip() == family.snat().parse::<std::net::IpAddr>().unwrap(), is_nat);
        let near = |time: Option<Duration>, seconds: u64| {
            let (time, expected) = (time.unwrap(), Duration::from_secs(seconds));
            time >= expected && time <= expected + Duration::from_millis(500)
        };
        assert!(near(activity.age, 40) && near(activity.idle, 10), "{activity:?}");
        assert_eq!((activity.bytes_rx, activity.bytes_tx), (None, None), "nobody has counted");
    }
}

fn killed_flow_is_reset_and_releases_its_resources(family: Family) {
    let mut lab = Lab::passthrough(family);
    (1..4).for_each(|n| _ = lab.connect(n));
    lab.apply_cache_events();
    let seen = list_flows(&mut lab);
    let victim = seen.iter().find(|(flow, _)| flow.client.source() == family.client_addr(2).parse().unwrap());
    let victim = victim.unwrap().0;
    assert_eq!(kill(&mut lab, &victim), Some(2), "client and server are told");
    assert_eq!(lab.ends(), [FlowEnd::Killed]);
    assert_eq!((lab.frontend_slots(), lab.forwarder.snat_ports_in_use()), (2, 2));
    assert!(list_flows(&mut lab).iter().all(|(flow, _)| *flow != victim));
    if let Some(kernel) = &lab.kernel {
        assert_eq!([&victim.client, &victim.server].map(|key| kernel.forwarded(key)), [None; 2]);
    }
    let mut dsr = Lab::dsr(family);
    dsr.send(dsr.client(1).syn().seq(100));
    dsr.send(dsr.client(1).seq(101).ack(501).payload(b"hello"));
    let victim = list_flows(&mut dsr)[0].0;
    assert_eq!(kill(&mut dsr, &victim), Some(1), "the server is not ours to tell");
    assert_eq!((dsr.ends(), dsr.frontend_slots()), (vec![FlowEnd::Killed], 0));
}

fn a_name_of_a_flow_that_has_ended_kills_nobody_else(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.connect(1);
    let first = list_flows(&mut lab)[0].0;
    assert!(kill(&mut lab, &first).is_some());
    lab.ends();
    lab.connect(2);
    let second = list_flows(&mut lab)[0].0;
    assert_eq!(second.place, first.place, "places are used again");
    assert_eq!(kill(&mut lab, &first), None);
    assert_eq!(list_flows(&mut lab).len(), 1);
    assert_eq!(kill(&mut lab, &FlowInfo { place: 77, ..first }), None);
}

fn datagrams_are_looked_at_and_killed_like_connections(family: Family) {
    for lab in Lab::both_modes(family) {
        let mut lab = lab.udp();
        lab.send(lab.client(1).udp().payload(b"who?"));
        let flow = list_flows(&mut lab)[0].0;
        assert_eq!(kill(&mut lab, &flow), Some(0), "there is nothing like a reset");
        assert_eq!((lab.ends(), list_flows(&mut lab).len()), (vec![FlowEnd::Killed], 0));
    }
}

fn age_goes_on_in_another_process_and_names_do_not(family: Family) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        old.wait(Duration::from_secs(5));
        old.send(old.client(1).syn().seq(100));
        old.wait(Duration::from_secs(20));
        old.send(old.client(1).syn().seq(100));
        new.now = old.now;
        new.tick();
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 1);
        let [before, after] = [&mut old, &mut new].map(|lab| list_flows(lab)[0].1.age);
        assert_eq!(before, after);
    }
}

fn bytes_are_known_where_a_log_is_kept(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.forwarder.set_journal_enabled(true);
    let syn = lab.connect(1);
    lab.send(lab.client(1).seq(101).ack(501).payload(b"hello"));
    lab.send(syn.reply().seq(501).ack(106).payload(b"hello, you"));
    let activity = list_flows(&mut lab)[0].1;
    assert_eq!((activity.bytes_rx, activity.bytes_tx), (Some(5), Some(10)));
}

#[test]
fn flow_listing_resumes_where_its_cache_query_budget_ended() {
    run_with_cache(|| {
        let mut lab = Lab::passthrough(Family::V4);
        (0..10).for_each(|n| _ = lab.connect(n));
        lab.apply_cache_events();
        let budget = VisitBudget { places: 100, lookups: 4 };
        let mut seen = Vec::new();
        let (mut from, mut looks) = (Some(0), 0);
        while let Some(place) = from {
            let before = seen.len();
            from = lab.forwarder.visit_flows(place, budget, lab.now, |flow, activity| {
                assert!(flow.is_cached && activity().age.is_some());
                seen.push(flow.place);
            });
            assert!(seen.len() - before <= 4);
            looks += 1;
        }
        assert_eq!((seen, looks), ((0..10).collect(), 3));
    });
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Connect(u16),
    Kill(u16),
    /// Visits this many more places.
    Look(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..30_u16).prop_map(Step::Connect),
        2 => (0..30_u16).prop_map(Step::Kill),
        3 => (1..6_u32).prop_map(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A list is made in slices, and flows begin and end between them.
    #[test]
    fn a_flow_that_lives_throughout_is_listed_exactly_once(
        before in proptest::collection::btree_set(0..30_u16, 0..30),
        steps in proptest::collection::vec(any_step(), 0..60),
    ) {
        let mut lab = Lab::dsr(Family::V4);
        let begin = |lab: &mut Lab, n: u16| _ = lab.send(lab.client(n).syn().seq(100));
        let place_of = |lab: &mut Lab, n: u16| {
            let client = Family::V4.client_addr(n).parse().unwrap();
            list_flows(lab).into_iter().map(|(flow, _)| flow).find(|flow| flow.client.source() == client)
        };
        let mut alive = before.clone();
        alive.iter().for_each(|n| begin(&mut lab, *n));
        // Flows that have existed since before the first slice.
        let mut throughout = before;
        let (mut from, mut seen) = (Some(0), Vec::new());
        for step in steps.into_iter().chain([Step::Look(u32::MAX)]) {
            match step {
                Step::Connect(n) => {
                    if alive.insert(n) {
                        begin(&mut lab, n);
                    }
                }
                Step::Kill(n) => {
                    if alive.remove(&n) {
                        let flow = place_of(&mut lab, n).unwrap();
                        prop_assert!(kill(&mut lab, &flow).is_some());
                        lab.ends();
                        throughout.remove(&n);
                    }
                }
                Step::Look(places) => {
                    if let Some(place) = from {
                        let budget = VisitBudget { places, ..ALL };
                        from = lab.forwarder.visit_flows(place, budget, lab.now, |flow, _| {
                            seen.push((flow.place, flow.serial, flow.client.source()));
                        });
                    }
                }
            }
        }
        prop_assert_eq!(from, None);
        for n in throughout {
            let client = Family::V4.client_addr(n).parse().unwrap();
            let times = seen.iter().filter(|(.., source)| *source == client).count();
            prop_assert_eq!(times, 1, "client {}", n);
        }
        // Every listed flow has existed, and none is listed twice.
        let names: BTreeSet<_> = seen.iter().map(|(place, serial, _)| (*place, *serial)).collect();
        prop_assert_eq!(names.len(), seen.len());
    }
}
