//! Servers that complete no handshakes.

use std::sync::atomic::Ordering;

use super::*;
use convey_model::{OutlierDetection, Protocol};
use convey_snapshot::Server;

fn at(seconds: u64) -> Timestamp {
    Timestamp(0).after(Duration::from_secs(seconds))
}

/// Two servers in mode `dsr`.
fn dsr(outlier: Option<OutlierDetection>) -> Config {
    let mut config = two_servers();
    config.frontends[0].mode = Mode::Dsr;
    config.backends[0].outlier_detection = outlier;
    config
}

/// Simulates clients of four networks that begin a handshake with each server in each of these
/// seconds. Server `a` completes no handshake. Returns the log lines.
fn pass(state: &mut ControlState, snapshot: &Snapshot, seconds: std::ops::Range<u64>) -> Vec<String> {
    let [a, b]: [Arc<Server>; 2] = snapshot.pools[0].servers.clone().try_into().unwrap();
    let mut lines = Vec::new();
    for second in seconds {
        for network in 0..4 {
            let client = IpAddr::from([198, 51, network, 7]);
            a.live.traffic.add(0, Counter::HandshakesBegun, 1);
            a.live.traffic.add(0, Counter::SynsRepeated, 1);
            a.live.repeating.note(0, client);
            b.live.traffic.add(0, Counter::HandshakesBegun, 1);
            b.live.traffic.add(0, Counter::HandshakesCompleted, 1);
            b.live.completing.note(0, client);
        }
        for backend in state.backends_with_handshakes() {
            lines.extend(state.check_handshakes(&backend, at(second)));
        }
    }
    lines
}

#[test]
fn server_without_completed_handshakes_is_ejected_and_returns_on_trial() {
    let mut state = ControlState::new(1);
    let snapshot = state.configure(dsr(Some(OutlierDetection::default())), at(0));
    assert_eq!(pass(&mut state, &snapshot, 0..10), Vec::<String>::new());
    let (ejected, changes) = state.take_update().unwrap();
    assert_eq!(chosen(&ejected), ["b"]);
    assert_eq!((changes.len(), changes[0].server.server.as_str()), (1, "a"));
    let reason = &changes[0].reason;
    assert!(reason.contains("connections in a row failed: no handshake completed"), "{reason}");
    assert!(reason.contains("check the server's VIP, NAT, gateway and firewall"), "{reason}");
    state.on_time(at(60));
    assert_eq!(chosen(&state.take_update().unwrap().0), ["a", "b"]);
    pass(&mut state, &snapshot, 61..70);
    let (again, changes) = state.take_update().unwrap();
    assert_eq!(
        (chosen(&again), changes[0].change),
        (vec!["b".to_owned()], HealthTransition::Ejected(60 * SECOND))
    );
}

#[test]
fn without_outlier_detection_it_is_named_once_and_stays() {
    let mut state = ControlState::new(1);
    let snapshot = state.configure(dsr(None), at(0));
    let lines = pass(&mut state, &snapshot, 0..100);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("server pool/a (10.0.0.2:80) answers no client: no handshake completed ("),
        "{lines:?}"
    );
    assert!(state.take_update().is_none());
    let a = &snapshot.pools[0].servers[0].live;
    let is_stalled = || a.handshakes_stalled.load(Ordering::Relaxed);
    assert!(is_stalled(), "as long as it completes none");
    a.traffic.add(0, Counter::HandshakesCompleted, 1);
    state.check_handshakes("pool", at(101));
    assert!(!is_stalled());
}

#[test]
fn connections_that_are_proxied_and_datagrams_have_no_handshakes_to_look_at() {
    let mut state = ControlState::new(1);
    let snapshot = state.configure(two_servers(), at(0));
    assert!(pass(&mut state, &snapshot, 0..20).is_empty());
    let mut udp = dsr(None);
    udp.frontends[0].protocol = Protocol::Udp;
    let snapshot = state.configure(udp, at(20));
    assert!(pass(&mut state, &snapshot, 20..40).is_empty());
}
