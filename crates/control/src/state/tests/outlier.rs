//! Ejections after failures of clients, and the return of servers.

use super::*;
use convey_model::{Algorithm, OutlierDetection};

/// Names of the servers, in order.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Configuration with this many servers and no probes. Two consecutive failures eject a server for
/// 30 seconds.
fn judged(servers: usize) -> Config {
    let addr = |n: usize| format!("10.0.0.{}:80", n + 2);
    let mut config = config((0..servers).map(|n| server(NAMES[n], &addr(n))).collect());
    let backend = &mut config.backends[0];
    backend.health_check.kind = ProbeKind::None;
    backend.outlier_detection = Some(OutlierDetection { consecutive_failures: 2, ..Default::default() });
    config
}

fn at(seconds: f64) -> Timestamp {
    Timestamp(0).after(Duration::from_secs_f64(seconds))
}

/// Reports failures of clients at this server of the first backend until the server counts as
/// failing.
fn fail(state: &mut ControlState, server: usize, now: Timestamp) {
    let server = key_of(state.config().unwrap(), server);
    let error = "reset before an answer".into();
    state.on_connect_failures(
        &ConnectFailures { server, in_a_row: 2, error, protocol: Protocol::Tcp, is_forgeable: false },
        now,
    );
}

/// Names of the ejected servers.
fn ejected(snapshot: &Snapshot) -> Vec<&str> {
    let ejected = snapshot.pools[0].servers.iter().filter(|server| server.health.ejected.is_some());
    ejected.map(|server| server.config.name.as_str()).collect()
}

/// Number of connections that each server gets, out of 1,000 connections of which each is closed
/// before the next.
fn shares(snapshot: &Snapshot) -> Vec<usize> {
    let (vip, pool) = (VIP.parse().unwrap(), &snapshot.pools[0]);
    let mut shares = vec![0; pool.servers.len()];
    for port in 0..1_000 {
        let Pick::Server(index) = pool.pick(SocketAddr::new([192, 0, 2, 1].into(), 1_000 + port), vip, &[])
        else {
            panic!("there is a server")
        };
        shares[index] += 1;
    }
    shares
}

#[test]
fn reload_that_adds_or_removes_a_check_keeps_ejections() {
    let mut state = ControlState::new(1);
    state.configure(judged(3), at(0.0));
    fail(&mut state, 0, at(1.0));
    let mut checked = judged(3);
    checked.backends[0].health_check.kind = ProbeKind::Tcp;
    let snapshot = state.configure(checked, at(2.0));
    assert_eq!(ejected(&snapshot), ["a"]);
    let snapshot = state.configure(judged(3), at(3.0));
    assert_eq!(ejected(&snapshot), ["a"]);
    assert_eq!(state.due(), Some(at(31.0)));
}

#[test]
fn failing_server_is_ejected_for_longer_each_time() {
    let mut state = ControlState::new(1);
    let live = state.configure(judged(2), at(0.0)).pools[0].servers[0].live.clone();
    assert_eq!(state.due(), None);
    fail(&mut state, 0, at(1.0));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!((chosen(&snapshot), ejected(&snapshot)), (vec!["b".to_owned()], vec!["a"]));
    let change = &changes[0];
    assert_eq!((change.change, change.eligible, change.of), (HealthTransition::Ejected(30 * SECOND), 1, 2));
    assert_eq!(change.reason, "2 connections in a row failed: reset before an answer");
    assert!(snapshot.pools[0].servers[0].health.up, "it is not down: what it serves goes on");

    assert_eq!(state.due(), Some(at(31.0)));
    state.on_time(at(30.9));
    assert!(state.take_update().is_none());
    state.on_time(at(31.0));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!((chosen(&snapshot).len(), ejected(&snapshot).len()), (2, 0));
    assert_eq!((changes[0].change, changes[0].eligible), (HealthTransition::Returned, 2));
    assert_eq!(state.due(), None);

    fail(&mut state, 0, at(32.0));
    assert_eq!(state.take_update().unwrap().1[0].change, HealthTransition::Ejected(60 * SECOND));
    assert_eq!(live.ejections(), 2);
}

#[test]
fn concurrent_ejections_are_limited_by_max_ejection_percent() {
    for (servers, percent, most) in [(4, 50, 2), (5, 50, 2), (8, 10, 1), (3, 1, 1), (2, 50, 1)] {
        let mut config = judged(servers);
        config.backends[0].outlier_detection.as_mut().unwrap().max_ejection_percent = percent;
        let mut state = ControlState::new(1);
        state.configure(config, at(0.0));
        (0..servers).for_each(|server| fail(&mut state, server, at(1.0)));
        let (snapshot, changes) = state.take_update().unwrap();
        assert_eq!(ejected(&snapshot), NAMES[..most], "{percent} % of {servers}");
        assert_eq!(changes.len(), most);
        // One more server may be ejected again.
        state.on_time(at(31.0));
        fail(&mut state, servers - 1, at(31.0));
        assert_eq!(ejected(&state.take_update().unwrap().0), [NAMES[servers - 1]]);
    }
}

#[test]
fn the_last_server_that_takes_connections_is_never_ejected() {
    let mut all = judged(3);
    all.backends[0].outlier_detection.as_mut().unwrap().max_ejection_percent = 100;
    all.backends[0].servers[2].settings.weight = 0;
    let mut state = ControlState::new(1);
    state.configure(all, at(0.0));
    fail(&mut state, 1, at(1.0));
    fail(&mut state, 0, at(1.0));
    assert_eq!(ejected(&state.take_update().unwrap().0), ["b"]);
    let mut state = ControlState::new(1);
    state.configure(judged(1), at(0.0));
    fail(&mut state, 0, at(1.0));
    assert!(state.take_update().is_none());
}

#[test]
fn an_ejected_server_serves_when_all_others_are_down() {
    let mut config = judged(2);
    config.backends[0].health_check.kind = ProbeKind::Tcp;
    let b = key_of(&config, 1);
    let mut state = ControlState::new(1);
    state.configure(config, at(0.0));
    fail(&mut state, 0, at(1.0));
    assert_eq!(chosen(&state.take_update().unwrap().0), ["b"]);
    state.on_probe(&b, false, "refused".into(), at(2.0));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!((chosen(&snapshot), changes[0].eligible), (vec!["a".to_owned()], 1));
    state.on_probe(&b, true, "connected".into(), at(3.0));
    assert_eq!(chosen(&state.take_update().unwrap().0), ["b"]);
}

#[test]
fn with_outlier_detection_failed_connects_are_no_failed_probes() {
    let mut config = judged(2);
    config.backends[0].health_check.kind = ProbeKind::Tcp; // and one would do
    let mut state = ControlState::new(1);
    state.configure(config, at(0.0));
    fail(&mut state, 0, at(1.0));
    let (snapshot, changes) = state.take_update().unwrap();
    assert!(snapshot.pools[0].servers[0].health.up && changes.len() == 1);
}

#[test]
fn a_reload_leaves_ejected_servers_out_unless_it_ends_outlier_detection() {
    let mut state = ControlState::new(1);
    state.configure(judged(2), at(0.0));
    fail(&mut state, 0, at(1.0));
    state.take_update();
    let mut config = judged(3);
    assert_eq!(ejected(&state.configure(config.clone(), at(2.0))), ["a"]);
    assert_eq!(state.due(), Some(at(31.0)));
    config.backends[0].outlier_detection = None;
    assert_eq!(ejected(&state.configure(config, at(3.0))).len(), 0);
    assert_eq!(state.due(), None);
}

/// Two servers with this algorithm and a slow start of ten seconds. One failed probe takes a server
/// down.
fn slow(algorithm: Algorithm) -> Config {
    let mut config = two_servers();
    (config.backends[0].algorithm, config.backends[0].slow_start) = (algorithm, 10 * SECOND);
    config
}

/// Takes a server down, and brings it up again at second 100.
fn bounce(state: &mut ControlState, server: &ServerKey) -> Arc<Snapshot> {
    state.on_probe(server, false, "refused".into(), at(90.0));
    state.take_update();
    state.on_probe(server, true, "connected".into(), at(100.0));
    state.take_update().unwrap().0
}

#[test]
fn returned_server_gets_a_growing_share_in_slow_start() {
    for algorithm in [Algorithm::RoundRobin, Algorithm::PowerOfTwo] {
        let config = slow(algorithm);
        let a = key_of(&config, 0);
        let mut state = ControlState::new(1);
        state.configure(config, at(0.0));
        let mut seen = vec![(0, shares(&bounce(&mut state, &a))[0])];
        while let Some(due) = state.due() {
            state.on_time(due);
            if let Some((snapshot, changes)) = state.take_update() {
                assert!(changes.is_empty(), "a share is no news");
                seen.push((due.since(at(100.0)).as_millis(), shares(&snapshot)[0]));
            }
        }
        assert_eq!(seen.len(), 20, "{algorithm:?}: {seen:?}");
        for &(millis, share) in &seen {
            // At `p` percent, the server gets `p` of `p + 100` parts.
            let percent = (millis as f64 / 100.0).max(5.0);
            let expected = 1000.0 * percent / (percent + 100.0);
            let tolerance = if algorithm == Algorithm::RoundRobin { 15.0 } else { 60.0 };
            assert!((share as f64 - expected).abs() < tolerance, "{algorithm:?}: {share} at {millis} ms");
        }
        assert_eq!(seen.last().unwrap().0, 10_000);
    }
}

#[test]
fn the_server_with_the_fewest_connections_is_spared_while_it_comes_back() {
    let config = slow(Algorithm::LeastConnections);
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config, at(0.0));
    let snapshot = bounce(&mut state, &a);
    let pool = &snapshot.pools[0];
    let vip = VIP.parse().unwrap();
    for _ in 0..105 {
        let Pick::Server(index) = pool.pick(vip, vip, &[]) else { panic!("there is a server") };
        assert!(pool.servers[index].live.slots.try_take(None));
    }
    let open: Vec<u32> = pool.servers.iter().map(|server| server.live.slots.open()).collect();
    assert_eq!(open, [5, 100], "a twentieth of the other's");
}

#[test]
fn a_server_that_returns_from_an_ejection_comes_back_slowly_too() {
    let mut config = judged(2);
    config.backends[0].slow_start = 10 * SECOND;
    let mut state = ControlState::new(1);
    state.configure(config, at(0.0));
    fail(&mut state, 0, at(1.0));
    state.take_update();
    state.on_time(at(31.0));
    let (snapshot, _) = state.take_update().unwrap();
    assert_eq!(snapshot.pools[0].servers[0].health.percent, 5);
    state.on_time(at(35.0));
    assert_eq!(state.take_update().unwrap().0.pools[0].servers[0].health.percent, 40);
}

#[test]
fn slow_start_is_skipped_at_program_start_and_for_hashing_algorithms() {
    let config = slow(Algorithm::RoundRobin);
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    let percent = |snapshot: &Snapshot| snapshot.pools[0].servers[0].health.percent;
    assert_eq!(percent(&state.configure(config, at(0.0))), 100);
    state.on_probe(&a, true, "connected".into(), at(1.0));
    assert_eq!(percent(&state.take_update().unwrap().0), 100);
    assert_eq!(percent(&bounce(&mut state, &a)), 5);
    assert_eq!(percent(&state.configure(slow(Algorithm::Maglev), at(101.0))), 100, "clients would move");
    assert_eq!(percent(&bounce(&mut state, &a)), 100);
    assert_eq!(state.due(), None);
}

#[test]
fn slow_start_continues_through_reloads_and_restarts_after_down() {
    let config = slow(Algorithm::RoundRobin);
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    state.configure(config.clone(), at(0.0));
    bounce(&mut state, &a);
    let percent = |snapshot: &Snapshot| snapshot.pools[0].servers[0].health.percent;
    assert_eq!(percent(&state.configure(config, at(106.0))), 60);
    state.on_probe(&a, false, "refused".into(), at(107.0));
    state.take_update();
    assert_eq!(state.due(), None);
    state.on_probe(&a, true, "connected".into(), at(200.0));
    assert_eq!(percent(&state.take_update().unwrap().0), 5);
}
