//! Failures of clients, and the probe that confirms them.

use super::*;
use convey_model::OutlierDetection;

/// State with a backend of two servers, whose check has a timeout of half a second, and the key of
/// the first server.
fn checked(kind: ProbeKind) -> (ControlState, ServerKey) {
    let mut config = two_servers();
    config.backends[0].health_check =
        HealthCheck { kind, timeout: SECOND / 2, fall: 3, ..config.backends[0].health_check.clone() };
    let mut state = ControlState::new(1);
    let a = key_of(&config, 0);
    state.configure(config, Timestamp(0));
    (state, a)
}

/// Reports `in_a_row` consecutive failures of clients. Returns the number of confirming probes.
fn fail(
    state: &mut ControlState,
    server: &ServerKey,
    in_a_row: u32,
    is_forgeable: bool,
    now: Timestamp,
) -> usize {
    let error = "refused".into();
    let failures =
        ConnectFailures { server: server.clone(), in_a_row, error, protocol: Protocol::Tcp, is_forgeable };
    state.on_connect_failures(&failures, now);
    state.take_doubts().len()
}

/// Outcome of a confirming probe, as the schedule reports it.
fn confirmed(doubt: &Confirmation, finding: Finding) -> ProbeOutcome {
    let Confirmation { server, configured: check, .. } = doubt.clone();
    ProbeOutcome { server, check, finding, reason: "connect refused".into(), confirms: true }
}

fn at(milliseconds: u64) -> Timestamp {
    Timestamp(0).after(Duration::from_millis(milliseconds))
}

#[test]
fn failed_connects_take_a_server_down_only_with_a_failed_probe() {
    let (mut state, a) = checked(ProbeKind::Tcp);
    assert_eq!(fail(&mut state, &a, 2, false, at(0)), 0, "that is no row yet");
    assert_eq!(fail(&mut state, &a, 3, false, at(1)), 1);
    assert!(state.take_update().is_none(), "nothing is decided yet");
    assert_eq!(fail(&mut state, &a, 4, false, at(2)), 0, "it is being asked");
    state.on_confirmation(&a, Finding::Failure, at(3));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!((chosen(&snapshot), changes[0].change), (vec!["b".to_owned()], HealthTransition::Down));
    assert_eq!(changes[0].reason, "3 connects in a row failed: refused");
    assert_eq!(fail(&mut state, &a, 5, false, at(9_000)), 0, "it is down");
}

#[test]
fn server_that_answers_probes_stays_up_despite_failed_connects() {
    for kind in [ProbeKind::Tcp, ProbeKind::Udp] {
        for found in [Finding::Answer, Finding::Nothing] {
            let (mut state, a) = checked(kind.clone());
            let mut probes = 0;
            // 33,000 failures per second, for 9 seconds.
            for n in 0..300_000 {
                let now = at(u64::from(n) * 9_000 / 300_000);
                for _ in 0..fail(&mut state, &a, n, false, now) {
                    probes += 1;
                    state.on_confirmation(&a, found, now);
                }
            }
            assert!(state.take_update().is_none());
            assert_eq!(probes, 9, "one a second");
        }
    }
}

#[test]
fn silent_probe_keeps_a_udp_server_up_if_refusals_are_forgeable() {
    for (is_forgeable, goes_down) in [(true, false), (false, true)] {
        let (mut state, a) = checked(ProbeKind::Udp);
        let live = state.snapshot().pools[0].servers[0].live.clone();
        (0..3).for_each(|_| assert!(live.connect_failed(live.row()).is_some()));
        assert_eq!(fail(&mut state, &a, 3, is_forgeable, at(0)), 1);
        state.on_confirmation(&a, Finding::Silence, at(500));
        assert_eq!(state.take_update().is_some(), goes_down);
    }
}

#[test]
fn udp_server_that_answers_a_client_survives_a_silent_probe() {
    let (mut state, a) = checked(ProbeKind::Udp);
    let live = state.snapshot().pools[0].servers[0].live.clone();
    (0..3).for_each(|_| assert!(live.connect_failed(live.row()).is_some()));
    assert_eq!(fail(&mut state, &a, 3, false, at(0)), 1);
    live.connect_succeeded();
    state.on_confirmation(&a, Finding::Silence, at(500));
    assert!(state.take_update().is_none());
}

#[test]
fn forgeable_refusals_eject_a_server_only_with_a_refused_probe() {
    let protocols = [(Protocol::Tcp, ProbeKind::Tcp), (Protocol::Udp, ProbeKind::Udp)];
    for (kind, (protocol, asked)) in [ProbeKind::None, ProbeKind::Tcp]
        .into_iter()
        .flat_map(|kind| protocols.clone().map(|p| (kind.clone(), p)))
    {
        let mut config = two_servers();
        let backend = &mut config.backends[0];
        backend.health_check.kind = kind;
        backend.outlier_detection = Some(OutlierDetection::default());
        let a = key_of(&config, 0);
        let mut state = ControlState::new(1);
        state.configure(config, at(0));
        let error = "refused".into();
        let failures =
            ConnectFailures { server: a.clone(), in_a_row: 5, error, protocol, is_forgeable: true };
        let mut probes = 0;
        // 33,000 failures per second, for 9 seconds.
        for n in 0..300_000 {
            let now = at(n * 9_000 / 300_000);
            state.on_connect_failures(&failures, now);
            for doubt in state.take_doubts() {
                probes += 1;
                assert_eq!(doubt.check.kind, asked, "whatever checks there are");
                state.on_outcome(confirmed(&doubt, Finding::Answer), now);
            }
        }
        assert_eq!(probes, 9);
        assert!(state.take_update().is_none());
        // The server is killed. The next refusal starts a probe, and the probe ejects the server.
        state.on_connect_failures(&failures, at(9_000));
        let [doubt] = &state.take_doubts()[..] else { panic!("one probe") };
        state.on_outcome(confirmed(doubt, Finding::Failure), at(9_001));
        assert!(matches!(state.take_update().unwrap().1[0].change, HealthTransition::Ejected(_)));
    }
}

#[test]
fn forgeable_failures_are_confirmed_from_a_second_address() {
    for (is_forgeable, from) in [(true, Some(VIP.parse::<SocketAddr>().unwrap().ip())), (false, None)] {
        let (mut state, a) = checked(ProbeKind::Udp);
        let error = "refused".into();
        let failures =
            ConnectFailures { server: a, in_a_row: 3, error, protocol: Protocol::Udp, is_forgeable };
        state.on_connect_failures(&failures, at(0));
        assert_eq!(state.take_doubts()[0].from, from);
    }
}

#[test]
fn server_without_a_port_is_confirmed_at_its_health_check_port() {
    for (addr, asked) in [("10.0.0.1:0", Some(8_080)), ("10.0.0.1:80", None)] {
        let mut config = two_servers();
        let backend = &mut config.backends[0];
        backend.servers[0].addr = addr.parse().unwrap();
        backend.health_check.port = Some(8_080);
        backend.outlier_detection = Some(OutlierDetection::default());
        let server = key_of(&config, 0);
        let mut state = ControlState::new(1);
        state.configure(config, at(0));
        let error = "refused".to_owned();
        let protocol = Protocol::Udp;
        let failures = ConnectFailures { server, in_a_row: 5, error, protocol, is_forgeable: true };
        state.on_connect_failures(&failures, at(0));
        assert_eq!(state.take_doubts()[0].check.port, asked, "{addr}");
    }
}

/// Healthy servers also refuse clients that connect to closed ports.
#[test]
fn refusals_of_closed_ports_take_out_no_server_that_keeps_clients_ports() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for outlier in [None, Some(OutlierDetection::default())] {
            let mut config = two_servers();
            let backend = &mut config.backends[0];
            backend.servers[0].addr = "10.0.0.1:0".parse().unwrap();
            backend.health_check.kind = ProbeKind::Udp;
            backend.health_check.port = Some(5_060);
            backend.outlier_detection = outlier;
            let server = key_of(&config, 0);
            let mut state = ControlState::new(1);
            state.configure(config, at(0));
            let error = "refused".to_owned();
            let failures =
                ConnectFailures { server: server.clone(), in_a_row: 5, error, protocol, is_forgeable: false };
            state.on_connect_failures(&failures, at(0));
            let doubts = state.take_doubts();
            assert_eq!(doubts.len(), 1);
            assert_eq!((&doubts[0].check.kind, doubts[0].check.port), (&ProbeKind::Udp, Some(5_060)));
            state.take_update();
            state.on_confirmation(&server, Finding::Silence, at(1));
            assert!(state.take_update().is_none(), "{protocol:?}");
        }
    }
}

#[test]
fn a_probe_that_confirms_what_a_reload_took_away_changes_nothing() {
    let (mut state, a) = checked(ProbeKind::Tcp);
    assert_eq!(fail(&mut state, &a, 3, false, at(0)), 1);
    state.configure(config(vec![server("b", "10.0.0.3:80")]), at(1));
    state.on_confirmation(&a, Finding::Failure, at(2));
    assert!(state.take_update().is_none());
}
