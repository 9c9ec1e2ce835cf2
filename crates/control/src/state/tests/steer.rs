//! Overlays of operators at run time.

use super::*;
use convey_model::{AdminState, OverlayValue, Target};

fn set_state(state: &mut ControlState, target: &Target, value: AdminState, at: u64) -> Arc<Snapshot> {
    let changed = state.steer(target.clone(), OverlayValue::State(value), "root".into(), Timestamp(at));
    assert_eq!(changed, Ok(true));
    state.take_update().unwrap().0
}

fn a() -> Target {
    Target::server("pool", "a")
}

#[test]
fn a_server_that_drains_gets_no_new_connections_and_is_still_checked() {
    let mut state = ControlState::new(1);
    state.configure(two_servers(), Timestamp(0));
    let snapshot = set_state(&mut state, &a(), AdminState::Drain, 5);
    assert_eq!(chosen(&snapshot), ["b"]);
    let server = &snapshot.pools[0].servers[0];
    assert_eq!((server.admin, server.health.up), (AdminState::Drain, true));
    assert_eq!(state.probes().len(), 2);
    assert_eq!(snapshot.overlays.len(), 1);
    assert_eq!((snapshot.overlays[0].since, snapshot.overlays[0].by.as_str()), (Timestamp(5), "root"));
    assert_eq!(chosen(&set_state(&mut state, &a(), AdminState::Ready, 6)), ["a", "b"]);
}

#[test]
fn server_in_maintenance_is_down_unprobed_and_returns_unproven() {
    let config = two_servers();
    let key = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config, Timestamp(0));
    state.on_probe(&key, false, "refused".into(), Timestamp(1));
    let snapshot = set_state(&mut state, &a(), AdminState::Maint, 5);
    let health = &snapshot.pools[0].servers[0].health;
    assert_eq!(
        (health.up, health.reason.as_str(), health.since),
        (false, "in maintenance, set by root", Timestamp(5))
    );
    assert_eq!(state.probes().len(), 1);
    let snapshot = set_state(&mut state, &a(), AdminState::Ready, 9);
    let health = &snapshot.pools[0].servers[0].health;
    assert_eq!((health.up, health.proven, health.since), (true, false, Timestamp(9)));
    assert_eq!(state.probes().len(), 2);
}

#[test]
fn last_of_backend_and_server_overrides_applies() {
    let mut state = ControlState::new(1);
    state.configure(two_servers(), Timestamp(0));
    assert!(chosen(&set_state(&mut state, &Target::backend("pool"), AdminState::Maint, 1)).is_empty());
    assert_eq!(chosen(&set_state(&mut state, &a(), AdminState::Ready, 2)), ["a"]);
    assert_eq!(chosen(&set_state(&mut state, &Target::backend("pool"), AdminState::Ready, 3)), ["a", "b"]);
}

#[test]
fn runtime_weight_overrides_the_file_until_reset() {
    let mut state = ControlState::new(1);
    state.configure(two_servers(), Timestamp(0));
    let weight = |snapshot: &Snapshot| snapshot.pools[0].servers[0].config.settings.weight;
    let set = |state: &mut ControlState, target, weight| {
        state.steer(target, OverlayValue::Weight(weight), "root".into(), Timestamp(1))
    };
    assert_eq!(set(&mut state, a(), 7), Ok(true));
    assert_eq!(weight(&state.take_update().unwrap().0), 7);
    assert_eq!(set(&mut state, a(), 7), Ok(false));
    assert_eq!(weight(&state.configure(two_servers(), Timestamp(2))), 7, "after a reload");
    let refused = set(&mut state, Target::backend("pool"), 7).unwrap_err();
    assert_eq!(refused.to_string(), "backend pool has no weight: only servers have one");
    assert_eq!(state.reset(Some(&a()), Timestamp(3)).len(), 1);
    assert_eq!(weight(&state.take_update().unwrap().0), 1);
    assert_eq!(state.reset(None, Timestamp(4)), []);
}

#[test]
fn a_name_that_nobody_has_is_told_with_those_that_there_are() {
    let mut state = ControlState::new(1);
    state.configure(two_servers(), Timestamp(0));
    let mut refused = |target| {
        let drain = OverlayValue::State(AdminState::Drain);
        state.steer(target, drain, "root".into(), Timestamp(1)).unwrap_err().to_string()
    };
    assert_eq!(
        refused(Target::backend("poll")),
        "no backend is called \"poll\"; did you mean `pool`? (existing: pool)"
    );
    assert_eq!(
        refused(Target::server("pool", "c")),
        "no server of backend pool is called \"c\" (existing: a, b)"
    );
}

#[test]
fn the_next_process_goes_on_with_what_was_said() {
    let mut first = ControlState::new(1);
    first.configure(two_servers(), Timestamp(0));
    set_state(&mut first, &a(), AdminState::Drain, 5);
    let mut second = ControlState::new(1);
    second.expect(first.known(), Timestamp(0));
    let snapshot = second.configure(two_servers(), Timestamp(9));
    assert_eq!(chosen(&snapshot), ["b"]);
    assert_eq!(snapshot.overlays, first.known().overlays);
}
