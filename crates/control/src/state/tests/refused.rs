//! Servers to which packet modes must not send.

use super::*;
use convey_model::{Interface, NetworkTables, Route, RouteHop};

const WHY: &str = "packets to the server leave through wg0, which carries no Ethernet frames";

/// Network in which server a is behind Ethernet. Server b is behind Ethernet, or behind an
/// interface without Ethernet.
fn network(before: &NextHops, b_has_ethernet: bool) -> NextHops {
    network_by(before, if b_has_ethernet { 2 } else { 3 })
}

/// Network in which packets to server b leave through this interface: `wg0` is 3, `wg1` is 4.
fn network_by(before: &NextHops, to_b: u32) -> NextHops {
    let eth = model::fixture::interface(2, &["10.0.0.1"]);
    let wireguard = |index, name: &str| Interface {
        mac: None,
        name: name.to_owned(),
        ..model::fixture::interface(index, &[])
    };
    let host =
        |last, interface| Route::of_main([10, 0, 0, last].into(), 32, vec![RouteHop::by(interface, None)]);
    before.update_all(&NetworkTables {
        interfaces: vec![eth, wireguard(3, "wg0"), wireguard(4, "wg1")],
        routes: [host(2, 2), host(3, to_b)].into(),
        ..NetworkTables::default()
    })
}

/// Changes of health since the last update, each with its reason.
fn transitions(state: &mut ControlState) -> Vec<(HealthTransition, String)> {
    let changes = state.take_update().map(|(_, changes)| changes).unwrap_or_default();
    changes.into_iter().map(|change| (change.change, change.reason)).collect()
}

fn two_servers_in(mode: Mode) -> Config {
    let mut config = two_servers();
    config.frontends[0].mode = mode;
    config
}

#[test]
fn server_behind_an_interface_without_ethernet_is_down_with_its_reason() {
    let mut state = ControlState::new(1);
    state.set_network(network(&NextHops::default(), false));
    let config = two_servers_in(Mode::Passthrough);
    let b = key_of(&config, 1);
    let snapshot = state.configure(config, Timestamp(1));
    assert_eq!(chosen(&snapshot), ["a"]);
    let health = &snapshot.pools[0].servers[1].health;
    assert!(!health.up && health.proven && health.reason.starts_with(WHY), "{health:?}");
    let (_, changes) = state.take_update().unwrap();
    assert_eq!(changes.len(), 1);
    assert!(changes[0].server == b && changes[0].change == HealthTransition::Down);

    // Probes take the kernel's routes, so their outcomes do not change the refusal.
    for (success, reason) in [(false, "timed out"), (false, "connect refused"), (true, "connected")] {
        state.on_probe(&b, success, reason.into(), Timestamp(2));
        assert_eq!(transitions(&mut state), [], "{reason}");
    }
    assert_eq!(chosen(&state.snapshot()), ["a"]);

    let network = network(state.network(), true);
    state.on_network(network, Timestamp(4));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!(chosen(&snapshot), ["a", "b"]);
    assert!(changes.len() == 1 && changes[0].change == HealthTransition::Up, "{changes:?}");
}

#[test]
fn server_goes_down_when_its_way_does() {
    let mut state = ControlState::new(1);
    state.set_network(network(&NextHops::default(), true));
    let snapshot = state.configure(two_servers_in(Mode::Dsr), Timestamp(1));
    assert_eq!(chosen(&snapshot), ["a", "b"]);
    assert!(state.take_update().is_none());
    let without = network(state.network(), false);
    state.on_network(without, Timestamp(2));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!(chosen(&snapshot), ["a"]);
    assert_eq!((changes.len(), changes[0].eligible, changes[0].of), (1, 1, 2));
    let again = network(state.network(), false);
    state.on_network(again, Timestamp(3));
    let (_, changes) = state.take_update().unwrap();
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn server_that_is_down_already_is_still_down_once_refused() {
    let mut state = ControlState::new(1);
    state.set_network(network(&NextHops::default(), true));
    let config = two_servers_in(Mode::Dsr);
    let b = key_of(&config, 1);
    state.configure(config, Timestamp(1));
    state.on_probe(&b, false, "timed out".into(), Timestamp(2));
    assert_eq!(transitions(&mut state), [(HealthTransition::Down, "timed out".to_owned())]);
    for (has_ethernet, reason) in [(false, WHY), (true, "timed out")] {
        let next = network(state.network(), has_ethernet);
        state.on_network(next, Timestamp(3));
        let changes = transitions(&mut state);
        assert!(changes.len() == 1 && changes[0].0 == HealthTransition::StillDown, "{changes:?}");
        assert!(changes[0].1.starts_with(reason), "{changes:?}");
    }
}

#[test]
fn refusal_for_another_reason_leaves_the_server_down() {
    let mut state = ControlState::new(1);
    state.set_network(network(&NextHops::default(), false));
    state.configure(two_servers_in(Mode::Dsr), Timestamp(1));
    assert_eq!(transitions(&mut state)[0].0, HealthTransition::Down);
    let other = network_by(state.network(), 4);
    state.on_network(other, Timestamp(2));
    let changes = transitions(&mut state);
    assert!(changes.len() == 1 && changes[0].0 == HealthTransition::StillDown, "{changes:?}");
    assert!(changes[0].1.contains("leave through wg1"), "{changes:?}");
    let health = state.snapshot().pools[0].servers[1].health.clone();
    assert_eq!(health.since, Timestamp(1), "down since the first refusal");
}

#[test]
fn mode_proxy_reaches_servers_by_any_interface() {
    let mut state = ControlState::new(1);
    state.set_network(network(&NextHops::default(), false));
    let snapshot = state.configure(two_servers(), Timestamp(1));
    assert_eq!(chosen(&snapshot), ["a", "b"]);
}

#[test]
fn server_unreachable_by_the_data_path_is_down_only_in_passthrough() {
    for mode in [Mode::Passthrough, Mode::Dsr] {
        let mut state = ControlState::new(1);
        state.set_network(network(&NextHops::default(), true));
        state.configure(two_servers_in(mode), Timestamp(1));
        let b = state.config().unwrap().backends[0].servers[1].addr.ip();
        let reason = "there is no SNAT address for it".to_owned();
        let unreachable = crate::UnreachableServers::new([(b, reason.clone())].into());
        assert!(state.set_unreachable(unreachable.clone(), Timestamp(2)));
        assert!(!state.set_unreachable(unreachable, Timestamp(3)), "the same again");
        let (snapshot, _) = state.take_update().unwrap();
        let is_refused = mode == Mode::Passthrough;
        assert_eq!(chosen(&snapshot), if is_refused { vec!["a"] } else { vec!["a", "b"] }, "{mode:?}");
        assert_eq!(snapshot.pools[0].servers[1].health.reason == reason, is_refused);
        assert!(state.set_unreachable(crate::UnreachableServers::default(), Timestamp(4)));
        let (snapshot, _) = state.take_update().unwrap();
        assert_eq!(chosen(&snapshot), ["a", "b"], "{mode:?}");
    }
}
