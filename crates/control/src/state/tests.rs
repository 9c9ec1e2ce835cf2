//! Tests with configurations, outcomes and virtual time as input, and with snapshots and changes as
//! output.

mod differential;
mod discovery;
mod doubts;
mod drain;
mod handshakes;
mod http;
mod names;
mod nodes;
mod outlier;
mod path_mtu;
mod refused;
mod shared;
mod steer;
mod steer_http;

use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::health::Finding;
use convey_model::{self as model, AdminState, ConnectFailures, Neighbour, Overlay, ProbeKind, Protocol};
use convey_snapshot::fixture::{self, backend, server};
use convey_snapshot::stats::Counter;
use convey_snapshot::{self as snapshot, Pick, Pool};

const SECOND: Duration = Duration::from_secs(1);
const VIP: &str = "10.0.0.1:80";

/// One frontend on [`VIP`] with these servers. One failed probe takes a server down.
fn config(servers: Vec<ServerConfig>) -> Config {
    let frontend = model::fixture::frontend("web", &[VIP], "pool");
    convey_config::fixture::config(vec![frontend], vec![backend("pool", servers)])
}

fn two_servers() -> Config {
    config(vec![server("a", "10.0.0.2:80"), server("b", "10.0.0.3:80")])
}

fn key_of(config: &Config, index: usize) -> ServerKey {
    key(&config.backends[0], &config.backends[0].servers[index])
}

/// Names of the servers that 20 new connections go to.
fn chosen(snapshot: &Snapshot) -> Vec<String> {
    let vip: SocketAddr = VIP.parse().unwrap();
    let pool = &snapshot.listener(&Endpoint::tcp(vip)).unwrap().pool;
    let mut names: Vec<String> = (0..20)
        .filter_map(|port| match pool.pick(SocketAddr::new(vip.ip(), 1000 + port), vip, &[]) {
            Pick::Server(index) => Some(pool.servers[index].config.name.clone()),
            Pick::Busy | Pick::Nobody => None,
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn server_with_a_failed_probe_gets_no_connections_until_it_answers() {
    let config = two_servers();
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    assert_eq!(chosen(&state.configure(config, Timestamp(0))), ["a", "b"]);

    state.on_probe(&a, false, "connect failed".into(), Timestamp(5));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!(chosen(&snapshot), ["b"]);
    assert_eq!(
        (changes.len(), changes[0].change, changes[0].eligible, changes[0].of),
        (1, HealthTransition::Down, 1, 2)
    );
    let health = &snapshot.pools[0].servers[0].health;
    assert_eq!(health, &fixture::down("connect failed", Duration::from_nanos(5)));

    state.on_probe(&a, true, "connect succeeded".into(), Timestamp(9));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!(chosen(&snapshot), ["a", "b"]);
    assert_eq!(changes[0].change, HealthTransition::Up);
}

#[test]
fn probe_of_a_replaced_check_decides_nothing() {
    let before = two_servers();
    let a = key_of(&before, 0);
    let mut state = ControlState::new(1);
    state.configure(before.clone(), Timestamp(0));
    let check = state.probes()[&a].clone();
    let mut after = before;
    after.backends[0].health_check.kind = ProbeKind::None;
    state.configure(after, Timestamp(1));
    for confirms in [false, true] {
        let (server, check, reason) = (a.clone(), check.clone(), "connect refused".to_owned());
        let outcome = ProbeOutcome { server, check, finding: Finding::Failure, reason, confirms };
        state.on_outcome(outcome, Timestamp(2));
        state.take_update();
        assert_eq!(chosen(&state.snapshot()), ["a", "b"]);
    }
}

#[test]
fn a_server_that_is_down_shows_why_its_latest_probe_failed() {
    let config = two_servers();
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config, Timestamp(0));
    state.on_probe(&a, false, "connect refused".into(), Timestamp(5));
    state.take_update();
    state.on_probe(&a, false, "connect refused".into(), Timestamp(6));
    assert!(state.take_update().is_none(), "the same reason is no news");

    state.on_probe(&a, false, "HTTP status 503".into(), Timestamp(7));
    let (snapshot, changes) = state.take_update().unwrap();
    let told: Vec<_> = changes.iter().map(|change| (change.change, change.reason.as_str())).collect();
    assert_eq!(told, [(HealthTransition::StillDown, "HTTP status 503")]);
    let health = &snapshot.pools[0].servers[0].health;
    assert_eq!(
        health,
        &fixture::down("HTTP status 503", Duration::from_nanos(5)),
        "down since the first failure"
    );
}

#[test]
fn server_endpoints_follow_the_configuration() {
    let mut state = ControlState::new(1);
    let is_server = |snapshot: &Snapshot, addr: &str| {
        snapshot.server_endpoints.contain(Protocol::Tcp, addr.parse().unwrap(), 80)
    };
    let snapshot = state.configure(two_servers(), Timestamp(0));
    assert!(is_server(&snapshot, "10.0.0.2:80") && is_server(&snapshot, "10.0.0.3:80"));
    let snapshot = state.configure(config(vec![server("b", "10.0.0.3:80")]), Timestamp(1));
    assert!(!is_server(&snapshot, "10.0.0.2:80") && is_server(&snapshot, "10.0.0.3:80"));
}

#[test]
fn the_first_good_probe_is_shown_but_is_no_news() {
    let config = two_servers();
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config, Timestamp(0));
    state.on_probe(&a, true, "connect succeeded".into(), Timestamp(1));
    let (snapshot, changes) = state.take_update().unwrap();
    assert!(changes.is_empty());
    assert_eq!(snapshot.pools[0].servers[0].health.reason, "connect succeeded");
    state.on_probe(&a, true, "connect succeeded".into(), Timestamp(2));
    assert!(state.take_update().is_none(), "a steady server publishes nothing");
}

#[test]
fn many_outcomes_settle_in_one_snapshot() {
    let config = two_servers();
    let (a, b) = (key_of(&config, 0), key_of(&config, 1));
    let mut state = ControlState::new(1);
    state.configure(config, Timestamp(0));
    state.on_probe(&a, false, "x".into(), Timestamp(1));
    state.on_probe(&b, false, "y".into(), Timestamp(1));
    let (snapshot, changes) = state.take_update().unwrap();
    assert!(chosen(&snapshot).is_empty());
    assert_eq!(changes.iter().map(|change| change.eligible).collect::<Vec<_>>(), [0, 0]);
    assert!(state.take_update().is_none());
}

#[test]
fn a_reload_keeps_counters_and_health_of_what_stays() {
    let first = two_servers();
    let a = key_of(&first, 0);
    let mut state = ControlState::new(1);
    let before = state.configure(first, Timestamp(0));
    before.pools[0].servers[1].live.traffic.add(0, Counter::Opened, 7);
    before.frontends[0].live.traffic.add(0, Counter::Opened, 7);
    state.on_probe(&a, false, "down".into(), Timestamp(1));
    state.take_update();

    let mut servers =
        vec![server("a", "10.0.0.2:80"), server("b", "10.0.0.3:80"), server("c", "10.0.0.4:80")];
    servers[1].settings.weight = 5;
    let after = state.configure(config(servers), Timestamp(2));
    assert_eq!(chosen(&after), ["b", "c"]);
    assert_eq!(after.pools[0].servers[1].live.traffic.sum(Counter::Opened), 7);
    assert_eq!(after.frontends[0].live.traffic.sum(Counter::Opened), 7);
}

#[test]
fn a_server_taken_away_and_put_back_still_knows_its_open_connections() {
    let mut state = ControlState::new(1);
    let before = state.configure(two_servers(), Timestamp(0));
    let held = before.pools[0].servers[1].live.clone(); // as an open connection does
    assert!(held.slots.try_take(None));
    drop(before);
    state.configure(config(vec![server("a", "10.0.0.2:80")]), Timestamp(1));
    let after = state.configure(two_servers(), Timestamp(2));
    assert_eq!(after.pools[0].servers[1].live.slots.open(), 1);
}

#[test]
fn renamed_server_counts_connections_that_are_open_at_its_address() {
    let mut state = ControlState::new(1);
    let before = state.configure(two_servers(), Timestamp(0));
    assert!(before.pools[0].servers[1].live.slots.try_take(None));
    let renamed =
        vec![server("a", "10.0.0.2:80"), server("other", "10.0.0.3:80"), server("b", "10.0.0.9:80")];
    let after = state.configure(config(renamed), Timestamp(1));
    let open = |name: &str| {
        let found = after.pools[0].servers.iter().find(|server| &*server.config.name == name);
        found.unwrap().live.slots.open()
    };
    assert_eq!(["a", "other", "b"].map(open), [0, 1, 0]);
    before.pools[0].servers[1].live.slots.release();
    assert_eq!(open("other"), 0);
}

#[test]
fn returned_server_needs_a_new_row_of_failures_to_fail() {
    let mut config = two_servers();
    config.backends[0].health_check.fall = 3;
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    let live = state.configure(config, Timestamp(0)).pools[0].servers[0].live.clone();
    let fail = |state: &mut ControlState, now| {
        let in_a_row = live.connect_failed(live.row()).unwrap();
        let error = "refused".into();
        let failures = ConnectFailures {
            server: a.clone(),
            in_a_row,
            error,
            protocol: Protocol::Tcp,
            is_forgeable: false,
        };
        state.on_connect_failures(&failures, Timestamp(now));
        state.take_doubts().len()
    };
    assert_eq!([1, 2, 3].map(|now| fail(&mut state, now)), [0, 0, 1]);
    state.on_confirmation(&a, Finding::Failure, Timestamp(3));
    assert_eq!(state.take_update().unwrap().1[0].change, HealthTransition::Down);
    state.on_probe(&a, true, "connect succeeded".into(), Timestamp(4));
    assert_eq!(state.take_update().unwrap().1[0].change, HealthTransition::Up);
    fail(&mut state, 5);
    assert!(state.take_update().is_none());
    assert_eq!(live.connect_failed(live.row() - 1), None, "it began before the server came back");
}

#[test]
fn a_server_that_moves_to_another_address_starts_afresh() {
    let first = two_servers();
    let a = key_of(&first, 0);
    let mut state = ControlState::new(1);
    state.configure(first, Timestamp(0));
    state.on_probe(&a, false, "down".into(), Timestamp(1));
    state.take_update();
    let moved = config(vec![server("a", "10.0.0.9:80"), server("b", "10.0.0.3:80")]);
    assert_eq!(chosen(&state.configure(moved, Timestamp(2))), ["a", "b"]);
    state.on_probe(&a, false, "late news of the old address".into(), Timestamp(3));
    assert!(state.take_update().is_none());
}

#[test]
fn backups_serve_only_while_no_other_server_is_up() {
    let mut servers = vec![server("a", "10.0.0.2:80"), server("b", "10.0.0.3:80")];
    servers[1].settings.backup = true;
    let config = config(servers);
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    assert_eq!(chosen(&state.configure(config, Timestamp(0))), ["a"]);
    state.on_probe(&a, false, "down".into(), Timestamp(1));
    assert_eq!(chosen(&state.take_update().unwrap().0), ["b"]);
    state.on_probe(&a, true, "up".into(), Timestamp(2));
    assert_eq!(chosen(&state.take_update().unwrap().0), ["a"]);
}

#[test]
fn a_server_without_health_check_is_never_taken_out() {
    let mut config = two_servers();
    config.backends[0].health_check.kind = ProbeKind::None;
    let server = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config, Timestamp(0));
    let failures = ConnectFailures {
        server,
        in_a_row: 99,
        error: "refused".into(),
        protocol: Protocol::Tcp,
        is_forgeable: false,
    };
    state.on_connect_failures(&failures, Timestamp(1));
    assert!(state.take_doubts().is_empty(), "it is not probed");
    assert!(state.take_update().is_none());
}

#[test]
fn a_health_check_taken_away_brings_its_down_servers_back() {
    let mut config = two_servers();
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config.clone(), Timestamp(0));
    state.on_probe(&a, false, "down".into(), Timestamp(1));
    assert_eq!(chosen(&state.take_update().unwrap().0), ["b"]);
    config.backends[0].health_check.kind = ProbeKind::None;
    assert_eq!(chosen(&state.configure(config, Timestamp(2))), ["a", "b"]);
}

#[test]
fn a_full_server_is_passed_over_and_a_full_pool_says_busy() {
    let mut servers = vec![server("a", "10.0.0.2:80"), server("b", "10.0.0.3:80")];
    servers.iter_mut().for_each(|server| server.settings.max_connections = Some(1));
    let mut state = ControlState::new(1);
    let snapshot = state.configure(config(servers), Timestamp(0));
    let vip: SocketAddr = VIP.parse().unwrap();
    let pool = &snapshot.pools[0];
    assert!(pool.servers[0].live.slots.try_take(Some(1)));
    assert_eq!(chosen(&snapshot), ["b"]);
    assert!(pool.servers[1].live.slots.try_take(Some(1)));
    assert_eq!(pool.pick(vip, vip, &[]), Pick::Busy);
    assert_eq!(pool.pick(vip, vip, &[0, 1]), Pick::Nobody);
}

#[test]
fn ids_of_servers_and_frontends_are_never_reused() {
    let mut state = ControlState::new(1);
    let mut first = two_servers();
    first.frontends.push(model::FrontendConfig {
        name: "x".into(),
        listen: vec![],
        ..first.frontends[0].clone()
    });
    let numbers = |snapshot: &Snapshot| -> Vec<u32> {
        let servers = snapshot.pools.iter().flat_map(|pool| pool.servers.iter().map(|s| s.live.id));
        servers.chain(snapshot.frontends.iter().map(|frontend| frontend.live.id)).collect()
    };
    let mut seen = numbers(&state.configure(first.clone(), Timestamp(0)));
    assert_eq!(seen.len(), 4);
    let mut moved = config(vec![server("a", "10.0.0.8:80"), server("b", "10.0.0.9:80")]);
    moved.frontends[0].name = "new".into();
    seen.extend(numbers(&state.configure(moved, Timestamp(1))));
    // The state of the first servers was dropped with the last snapshot that contained them.
    seen.extend(numbers(&state.configure(first, Timestamp(2))));
    let distinct: std::collections::HashSet<u32> = seen.iter().copied().collect();
    assert_eq!((seen.len(), distinct.len()), (11, 11), "{seen:?}");
}

#[test]
fn server_with_flows_keeps_its_id_when_it_returns() {
    let mut state = ControlState::new(1);
    let before = state.configure(two_servers(), Timestamp(0));
    let held = before.pools[0].servers[1].live.clone();
    let frontend = before.frontends[0].live.id;
    let without = state.configure(config(vec![server("a", "10.0.0.2:80")]), Timestamp(1));
    drop(before);
    assert!(without.server(held.id).is_none());
    assert_eq!(without.frontends[0].live.id, frontend);
    let after = state.configure(two_servers(), Timestamp(2));
    assert_eq!(after.server(held.id).unwrap().config.name, "b");
    assert_eq!(after.server(without.pools[0].servers[0].live.id).unwrap().config.name, "a");
}

#[test]
fn every_configured_server_is_found_by_its_number_with_its_present_health() {
    let mut all = two_servers();
    let unused = BackendConfig {
        name: "unused".into(),
        servers: vec![server("c", "10.0.0.4:80")],
        ..all.backends[0].clone()
    };
    all.backends.push(unused);
    let b = key_of(&all, 1);
    let mut state = ControlState::new(1);
    state.configure(all, Timestamp(0));
    state.on_probe(&b, false, "refused".into(), Timestamp(1));
    let (snapshot, _) = state.take_update().unwrap();
    let mut found: Vec<(&str, bool)> =
        snapshot.servers().map(|server| (server.config.name.as_str(), server.health.up)).collect();
    found.sort_unstable();
    assert_eq!(found, [("a", true), ("b", false), ("c", true)]);
    assert!(snapshot.servers().all(|server| snapshot.server(server.live.id).is_some()));
}

#[test]
fn each_snapshot_is_one_more_than_the_last() {
    let config = two_servers();
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    assert_eq!(state.configure(config.clone(), Timestamp(0)).generation, Snapshot::empty(1).generation + 1);
    state.on_probe(&a, false, "refused".into(), Timestamp(1));
    assert_eq!(state.take_update().unwrap().0.generation, 2);
    assert!(state.take_update().is_none());
    assert_eq!(state.configure(config, Timestamp(2)).generation, 3);
}

#[test]
fn a_change_of_the_network_is_published_and_stays() {
    let lan = model::fixture::interface(2, &[]);
    let neighbour = Neighbour { interface: 2, ip: "10.0.0.2".parse().unwrap(), mac: [3; 6] };
    let mut state = ControlState::new(1);
    let before = state.configure(two_servers(), Timestamp(0));
    assert_eq!(before.network.get(0), None);
    let network = state.network().update(&[lan], [], &[neighbour]);
    state.set_network(network);
    let (after, changes) = state.take_update().unwrap();
    assert!(changes.is_empty());
    assert_eq!(after.network.get(0).unwrap().dst_mac, [3; 6]);
    assert!(Arc::ptr_eq(&before.pools[0], &after.pools[0]), "no table is built for it");
    assert!(state.take_update().is_none());
    let later = state.configure(two_servers(), Timestamp(1));
    assert!(Arc::ptr_eq(&later.network, &after.network));
}

#[test]
fn a_network_known_before_the_configuration_is_in_its_first_snapshot() {
    let mut state = ControlState::new(1);
    state.set_network(NextHops::default());
    let snapshot = state.configure(two_servers(), Timestamp(0));
    assert!(Arc::ptr_eq(&snapshot.network, state.network()));
    assert!(state.take_update().is_none());
}
