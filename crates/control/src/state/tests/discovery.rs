//! Servers from a discovery source.

use super::*;
use convey_model::fixture::kubernetes_source;
use convey_model::{DiscoveredServer, DiscoveryConfig, ServerSettings};

fn source() -> DiscoverySource {
    kubernetes_source("web")
}

/// [`config`] with these servers and the servers of [`source`].
fn discovered(servers: Vec<ServerConfig>) -> Config {
    let mut config = config(servers);
    let settings = ServerSettings::default();
    config.backends[0].discovery = Some(DiscoveryConfig { source: source(), settings, zone: None });
    config
}

/// Report with pods, given by the last number of their address. A negative number means a draining
/// pod.
fn pods(pods: &[i16]) -> DiscoveryState {
    let server = |pod: &i16| DiscoveredServer {
        name: format!("web-{}", pod.abs()),
        addr: ([10, 1, 0, pod.unsigned_abs() as u8], 80).into(),
        is_draining: *pod < 0,
        zone: None,
    };
    DiscoveryState { servers: Some(pods.iter().map(server).collect()), ..DiscoveryState::default() }
}

fn fails() -> DiscoveryState {
    DiscoveryState { fault: Some("refused".into()), ..DiscoveryState::default() }
}

fn report(state: &mut ControlState, said: DiscoveryState) -> Arc<Snapshot> {
    state.on_discovery(&source(), said, Timestamp(9)).expect("something has changed");
    state.take_update().expect("it is published").0
}

#[test]
fn servers_discovered_before_the_configuration_serve_from_the_start() {
    let mut state = ControlState::new(1);
    let config = discovered(vec![server("a", "10.0.0.2:80")]);
    assert_eq!(state.unknown_sources(&config), BTreeSet::from([source()]));
    state.set_source(&source(), pods(&[1, 2]), Timestamp(0));
    assert!(state.unknown_sources(&config).is_empty());
    let snapshot = state.configure(config, Timestamp(0));
    assert_eq!(chosen(&snapshot), ["a", "web-1", "web-2"]);
    assert_eq!(snapshot.discoveries[0].servers, Some(2));
}

#[test]
fn discovered_server_drains_and_goes_without_effect_on_others() {
    let mut state = ControlState::new(1);
    let before = state.configure(discovered(vec![]), Timestamp(0));
    assert_eq!(chosen(&before), [""; 0]);
    let before = report(&mut state, pods(&[1, 2]));
    let stays = before.pools[0].servers[1].clone();
    assert!(stays.live.slots.try_take(None));
    let key = ServerKey { backend: "pool".into(), server: "web-2".into(), addr: stays.config.addr };
    state.on_probe(&key, false, "refused".into(), Timestamp(1));

    let drains = report(&mut state, pods(&[-1, 2, 3]));
    assert_eq!(chosen(&drains), ["web-3"]);
    assert_eq!(drains.pools[0].servers[0].admin, AdminState::Drain);
    let after = report(&mut state, pods(&[2, 3]));
    let same = &after.pools[0].servers[0];
    assert!(Arc::ptr_eq(&same.live, &stays.live) && same.live.slots.open() == 1);
    assert_eq!(same.health.reason, "refused");
}

#[test]
fn a_server_that_drains_no_longer_gets_new_connections() {
    let mut state = ControlState::new(1);
    state.configure(discovered(vec![]), Timestamp(0));
    assert_eq!(chosen(&report(&mut state, pods(&[-1, 2]))), ["web-2"]);
    assert_eq!(chosen(&report(&mut state, pods(&[1, 2]))), ["web-1", "web-2"]);
}

#[test]
fn a_server_that_moves_to_another_zone_becomes_a_backup() {
    let mut state = ControlState::new(1);
    let mut config = discovered(vec![]);
    config.backends[0].discovery.as_mut().unwrap().zone = Some("z1".into());
    state.configure(config, Timestamp(0));
    let in_zones = |zones: [&str; 2]| {
        let mut said = pods(&[1, 2]);
        for (server, zone) in said.servers.iter_mut().flatten().zip(zones) {
            server.zone = Some(zone.into());
        }
        said
    };
    assert_eq!(chosen(&report(&mut state, in_zones(["z1", "z1"]))), ["web-1", "web-2"]);
    assert_eq!(chosen(&report(&mut state, in_zones(["z1", "z2"]))), ["web-1"]);
}

#[test]
fn stricter_state_of_operator_and_source_applies() {
    let mut state = ControlState::new(1);
    state.configure(discovered(vec![]), Timestamp(0));
    report(&mut state, pods(&[1, -2]));
    for (pod, said, expected) in [
        ("web-1", AdminState::Drain, AdminState::Drain),
        ("web-2", AdminState::Ready, AdminState::Drain),
        ("web-2", AdminState::Maint, AdminState::Maint),
    ] {
        let target = model::Target::server("pool", pod);
        let value = model::OverlayValue::State(said);
        let (since, by) = (Timestamp(10), "ops".to_owned());
        let overlay = Overlay { target, value, since, by, superseded: false };
        state.overlays_mut().set(overlay).unwrap();
        let key = state.probed_or_not(pod);
        assert_eq!(state.view().admin_state(&key), expected, "{pod} {said:?}");
    }
}

#[test]
fn while_a_source_cannot_be_asked_its_servers_stay() {
    let mut state = ControlState::new(1);
    state.configure(discovered(vec![]), Timestamp(0));
    report(&mut state, pods(&[1]));
    let snapshot = report(&mut state, fails());
    assert_eq!(chosen(&snapshot), ["web-1"]);
    assert!(!snapshot.discoveries[0].is_connected());
    let snapshot = state.configure(config(vec![server("a", "10.0.0.2:80")]), Timestamp(11));
    assert_eq!((chosen(&snapshot), snapshot.discoveries.len()), (vec!["a".to_owned()], 0));
    assert!(state.on_discovery(&source(), pods(&[2]), Timestamp(12)).is_none(), "nobody wants it any more");
}

impl ControlState {
    /// Key of the server of a pod.
    fn probed_or_not(&self, pod: &str) -> ServerKey {
        self.servers.iter().find(|(key, _)| key.server == pod).unwrap().0.clone()
    }
}
