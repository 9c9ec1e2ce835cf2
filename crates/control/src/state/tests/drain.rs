//! Draining frontends and servers.

use super::*;
use convey_model::Algorithm;

const AT: fn(u64) -> Timestamp = |seconds| Timestamp(seconds * SECOND.as_nanos() as u64);

/// Configuration in passthrough mode with a drain timeout of ten seconds.
fn patient(servers: Vec<ServerConfig>) -> Config {
    let mut patient = config(servers);
    patient.timeouts.drain = 10 * SECOND;
    patient.frontends[0].mode = Mode::Passthrough;
    patient
}

fn both() -> Config {
    patient(vec![server("a", "10.0.0.2:80"), server("b", "10.0.0.3:80")])
}

fn config_with_a() -> Config {
    patient(vec![server("a", "10.0.0.2:80")])
}

fn listening(addr: &str) -> Config {
    let mut config = both();
    config.frontends[0].listen = vec![addr.parse().unwrap()];
    config
}

/// Draining frontends and servers.
fn draining(snapshot: &Snapshot) -> (Vec<String>, Vec<String>) {
    let text =
        |places: &std::collections::BTreeSet<Endpoint>| places.iter().map(ToString::to_string).collect();
    (text(&snapshot.draining.listen), text(&snapshot.draining.servers))
}

fn nothing() -> (Vec<String>, Vec<String>) {
    (vec![], vec![])
}

#[test]
fn removed_server_drains_for_its_time_and_goes() {
    let mut state = ControlState::new(1);
    assert_eq!(draining(&state.configure(both(), AT(0))), nothing());
    assert_eq!(state.due(), None);
    assert_eq!(draining(&state.configure(config_with_a(), AT(5))), (vec![], vec!["10.0.0.3:80".into()]));
    assert_eq!(state.due(), Some(AT(15)));
    state.on_time(AT(14));
    assert!(state.take_update().is_none());
    state.on_time(AT(15));
    assert_eq!(draining(&state.take_update().unwrap().0), nothing());
    assert!(state.due().is_none() && state.take_update().is_none());
}

#[test]
fn a_frontend_that_moves_drains_where_it_was() {
    let mut state = ControlState::new(1);
    state.configure(both(), AT(0));
    let moved = state.configure(listening("10.0.0.1:81"), AT(1));
    assert_eq!(draining(&moved), (vec![VIP.into()], vec![]));
    assert!(moved.listener(&Endpoint::tcp(VIP.parse().unwrap())).is_none());
    let back = state.configure(listening(VIP), AT(2));
    assert_eq!(draining(&back), (vec!["10.0.0.1:81".into()], vec![]));
    assert_eq!(state.due(), Some(AT(12)));
}

#[test]
fn further_reloads_do_not_prolong_it() {
    let mut state = ControlState::new(1);
    state.configure(both(), AT(0));
    state.configure(config_with_a(), AT(1));
    for second in 2..11 {
        assert_eq!(draining(&state.configure(config_with_a(), AT(second))).1, ["10.0.0.3:80"]);
    }
    assert_eq!(draining(&state.configure(config_with_a(), AT(11))), nothing());
}

#[test]
fn an_address_that_is_still_configured_somewhere_does_not_drain() {
    let mut state = ControlState::new(1);
    state.configure(both(), AT(0));
    let mut renamed = patient(vec![server("a", "10.0.0.2:80"), server("new-name", "10.0.0.3:80")]);
    renamed.frontends[0].name = "new-name".into();
    assert_eq!(draining(&state.configure(renamed, AT(1))), nothing());
}

#[test]
fn without_time_to_finish_what_is_gone_is_gone_at_once() {
    let mut state = ControlState::new(1);
    state.configure(both(), AT(0));
    let mut impatient = config_with_a();
    impatient.timeouts.drain = Duration::ZERO;
    assert_eq!(draining(&state.configure(impatient, AT(1))), nothing());
    assert_eq!(state.due(), None);
}

#[test]
fn in_proxy_mode_connections_need_no_snapshot_to_go_on() {
    let mut state = ControlState::new(1);
    state.configure(two_servers(), AT(0));
    state.configure(config(vec![server("a", "10.0.0.2:80")]), AT(1));
    assert_eq!(state.due(), None);
}

#[test]
fn at_the_end_connections_outlast_us_where_any_balancer_finds_their_server() {
    let ends = |mode, algorithm| {
        let mut config = both();
        config.frontends[0].mode = mode;
        config.backends[0].algorithm = algorithm;
        let mut state = ControlState::new(1);
        state.configure(config.clone(), AT(0));
        let listen: BTreeSet<Endpoint> = config.frontends[0].endpoints().collect();
        let outlasting = state.end().outlasting.clone();
        assert!(outlasting.is_empty() || outlasting == listen);
        !outlasting.is_empty()
    };
    assert!(ends(Mode::Dsr, Algorithm::Ring) && ends(Mode::Dsr, Algorithm::Maglev));
    assert!(!ends(Mode::Dsr, Algorithm::LeastConnections), "another server would reset them");
    assert!(!ends(Mode::Passthrough, Algorithm::Ring), "nobody else knows its SNAT ports");
}

#[test]
fn stopping_process_serves_existing_connections_until_it_ends() {
    let mut state = ControlState::new(1);
    let before = state.configure(both(), AT(0));
    assert!(!before.stopping);
    let stopping = state.stop();
    assert!(stopping.stopping && stopping.generation > before.generation);
    assert_eq!((stopping.listeners().count(), stopping.servers().count()), (1, 2));
    state.on_probe(&key_of(&both(), 0), false, "refused".into(), AT(1));
    assert!(state.take_update().unwrap().0.stopping, "whatever else happens");
    let ended = state.end();
    assert_eq!((ended.listeners().count(), ended.servers().count()), (0, 0));
    assert_eq!(draining(&ended), nothing());
    assert!(Arc::ptr_eq(&ended.totals, &before.totals), "what is cut is counted");
}
