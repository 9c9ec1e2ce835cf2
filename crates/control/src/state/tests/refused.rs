//! Servers that packet modes must not send to.

use super::*;
use convey_model::{Interface, NetworkTables, Route, RouteHop};

const WHY: &str = "packets to it leave by wg0, which carries no Ethernet frames";

/// Server a is on Ethernet; server b is too, or behind an interface without.
fn network(before: &NextHops, b_has_ethernet: bool) -> NextHops {
    let eth = model::fixture::interface(2, &["10.0.0.1"]);
    let wg = Interface { mac: None, name: "wg0".into(), ..model::fixture::interface(3, &[]) };
    let to_b = if b_has_ethernet { 2 } else { 3 };
    let host =
        |last, interface| Route::of_main([10, 0, 0, last].into(), 32, vec![RouteHop::by(interface, None)]);
    before.update_all(&NetworkTables {
        interfaces: vec![eth, wg],
        routes: [host(2, 2), host(3, to_b)].into(),
        ..NetworkTables::default()
    })
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

    // Probes leave by the kernel's way, and change nothing.
    state.on_probe(&b, false, "timed out".into(), Timestamp(2));
    state.on_probe(&b, true, "connected".into(), Timestamp(3));
    let (snapshot, changes) = state.take_update().unwrap();
    assert!(!changes.iter().any(|change| change.change == HealthTransition::Up), "{changes:?}");
    assert_eq!(chosen(&snapshot), ["a"]);

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
fn mode_proxy_reaches_servers_by_any_interface() {
    let mut state = ControlState::new(1);
    state.set_network(network(&NextHops::default(), false));
    let snapshot = state.configure(two_servers(), Timestamp(1));
    assert_eq!(chosen(&snapshot), ["a", "b"]);
}
