//! Servers with host names.

use super::*;
use convey_config::DnsConfig;
use convey_model::{DnsRecords, NamedServer, ServerSettings};

const HOST: &str = "app.internal";

/// [`config`] with an additional server `app`, which has a host name.
fn named(servers: Vec<ServerConfig>) -> Config {
    let mut config = config(servers);
    config.backends[0].named = vec![NamedServer {
        name: "app".into(),
        host: HOST.into(),
        port: 80,
        settings: ServerSettings::default(),
    }];
    config
}

fn found(addresses: &[&str]) -> Lookup {
    let v4 = Ok(DnsRecords::new(addresses.iter().map(|ip| ip.parse().unwrap()), 60 * SECOND));
    Lookup {
        host: HOST.into(),
        name_servers: vec![],
        v4,
        v6: Ok(DnsRecords::default()),
        from_hosts: false,
        refused: BTreeSet::new(),
    }
}

fn failed() -> Lookup {
    let failed = || Err("timed out".into());
    Lookup { v4: failed(), v6: failed(), ..found(&[]) }
}

/// Applies a lookup. Returns the snapshot that results; `None`: nothing changed.
fn answer(state: &mut ControlState, lookup: Lookup) -> Option<Arc<Snapshot>> {
    answer_after(state, lookup, 0)
}

/// Like [`answer`], `minutes` after the start.
fn answer_after(state: &mut ControlState, lookup: Lookup, minutes: usize) -> Option<Arc<Snapshot>> {
    state.on_lookup(lookup, Timestamp(0).after(60 * SECOND * minutes as u32));
    state.take_update().map(|(snapshot, _)| snapshot)
}

#[test]
fn reload_that_allows_local_addresses_no_longer_removes_them() {
    let mut state = ControlState::new(1);
    state.configure(
        Config { dns: DnsConfig { allow_local: true, ..DnsConfig::default() }, ..named(vec![]) },
        Timestamp(0),
    );
    let snapshot = answer(&mut state, found(&["127.0.0.9", "10.0.0.3"])).unwrap();
    assert_eq!(chosen(&snapshot), ["app/10.0.0.3", "app/127.0.0.9"]);
    let snapshot = state.configure(named(vec![]), Timestamp(1));
    assert_eq!(chosen(&snapshot), ["app/10.0.0.3"]);
}

#[test]
fn unresolved_name_has_no_servers_until_it_resolves() {
    let mut state = ControlState::new(1);
    let snapshot = state.configure(named(vec![]), Timestamp(0));
    assert_eq!(chosen(&snapshot), [""; 0]);
    let snapshot = answer(&mut state, failed()).unwrap();
    assert_eq!((chosen(&snapshot).len(), snapshot.names[0].is_resolved()), (0, false));
    let snapshot = answer(&mut state, found(&["10.0.0.3", "10.0.0.4"])).unwrap();
    assert_eq!(chosen(&snapshot), ["app/10.0.0.3", "app/10.0.0.4"]);
    assert_eq!((state.probes().len(), &snapshot.names[0].fault), (2, &None));
}

#[test]
fn a_lookup_before_the_configuration_gives_it_its_servers_from_the_start() {
    let mut state = ControlState::new(1);
    let config = named(vec![]);
    assert_eq!(state.unknown_names(&config), BTreeSet::from([HOST.to_owned()]));
    state.apply_first(found(&["10.0.0.3"]), Timestamp(0));
    assert_eq!(chosen(&state.configure(config.clone(), Timestamp(0))), ["app/10.0.0.3"]);
    assert!(state.unknown_names(&config).is_empty());
}

#[test]
fn server_leaves_with_its_dns_record_and_others_keep_state() {
    let mut state = ControlState::new(1);
    state.configure(named(vec![server("b", "10.0.0.9:80")]), Timestamp(0));
    let before = answer(&mut state, found(&["10.0.0.3", "10.0.0.4"])).unwrap();
    let stays = before.pools[0].servers[1].clone();
    assert_eq!(stays.config.name, "app/10.0.0.4");
    assert!(stays.live.slots.try_take(None));
    let key = ServerKey { backend: "pool".into(), server: "app/10.0.0.4".into(), addr: stays.config.addr };
    state.on_probe(&key, false, "refused".into(), Timestamp(1));

    let after = answer(&mut state, found(&["10.0.0.4", "10.0.0.5"])).unwrap();
    assert_eq!(chosen(&after), ["app/10.0.0.5", "b"]);
    let same = after.pools[0].servers.iter().find(|server| server.config.name == "app/10.0.0.4").unwrap();
    assert!(Arc::ptr_eq(&same.live, &stays.live) && same.live.slots.open() == 1);
    assert_eq!(same.health.reason, "refused");
    assert!(state.config().unwrap().backends[0].servers.len() == 1, "the file has not changed");
}

#[test]
fn an_answer_that_changes_nothing_publishes_nothing() {
    let mut state = ControlState::new(1);
    state.configure(named(vec![]), Timestamp(0));
    assert!(answer(&mut state, found(&["10.0.0.3"])).is_some());
    assert!(answer(&mut state, found(&["10.0.0.3"])).is_none());
    let kept = answer(&mut state, failed()).unwrap();
    assert_eq!(chosen(&kept), ["app/10.0.0.3"]);
    assert!(answer(&mut state, failed()).is_none());
}

#[test]
fn removed_name_is_not_looked_up_any_more() {
    let mut state = ControlState::new(1);
    state.configure(named(vec![server("b", "10.0.0.9:80")]), Timestamp(0));
    answer(&mut state, found(&["10.0.0.3"]));
    let snapshot = state.configure(config(vec![server("b", "10.0.0.9:80")]), Timestamp(9));
    assert_eq!((chosen(&snapshot), snapshot.names.len(), state.due()), (vec!["b".to_owned()], 0, None));
}

#[test]
fn late_answers_of_removed_name_servers_are_ignored() {
    let (mut state, mut config) = (ControlState::new(1), named(vec![]));
    state.configure(config.clone(), Timestamp(0));
    answer(&mut state, found(&["10.0.0.3"]));
    config.dns.name_servers = vec!["10.0.0.53:53".parse().unwrap()];
    let now = Timestamp(0).after(SECOND);
    state.configure(config.clone(), now);
    assert_eq!(state.on_lookup(failed(), now), None);
    state.on_lookup(Lookup { name_servers: config.dns.name_servers.clone(), ..found(&["10.0.0.4"]) }, now);
    assert_eq!(chosen(&state.take_update().unwrap().0), ["app/10.0.0.4"]);
}

#[test]
fn an_address_that_leads_back_to_the_frontend_is_no_server() {
    let mut state = ControlState::new(1);
    state.configure(named(vec![]), Timestamp(0));
    let vip = VIP.parse::<SocketAddr>().unwrap().ip().to_string();
    assert_eq!(chosen(&answer(&mut state, found(&[&vip, "10.0.0.3"])).unwrap()), ["app/10.0.0.3"]);
    assert_eq!(state.left_out().len(), 1);
}

/// Time for which a server is ejected.
const EJECTED: Duration = Duration::from_secs(200);

/// Adds a server of [`HOST`], and runs `before` on it. Then applies `answers` DNS answers without
/// the server, one per minute, and adds the server again.
fn come_back(
    answers: usize,
    before: impl Fn(&mut ControlState, &ServerKey, Timestamp),
) -> (ControlState, Arc<Snapshot>) {
    let mut config = named(vec![]);
    let outlier = model::OutlierDetection { base_ejection_time: EJECTED, ..Default::default() };
    config.backends[0].outlier_detection = Some(outlier);
    let mut state = ControlState::new(1);
    state.configure(config, Timestamp(0));
    let both = ["10.0.0.3", "10.0.0.4"];
    let first = answer(&mut state, found(&both)).unwrap();
    let server = &first.pools[0].servers[0];
    server.live.traffic.add(0, Counter::Opened, 7);
    let key =
        ServerKey { backend: "pool".into(), server: server.config.name.clone(), addr: server.config.addr };
    before(&mut state, &key, Timestamp(1));
    drop(first);
    state.take_update();
    let without = answer_after(&mut state, found(&both[1..]), 1).unwrap();
    assert_eq!((chosen(&without), state.probes().len()), (vec!["app/10.0.0.4".to_owned()], 1));
    for minute in 2..=answers {
        assert!(answer_after(&mut state, found(&both[1..]), minute).is_none());
    }
    let again = answer_after(&mut state, found(&both), answers + 1).unwrap();
    assert_eq!(again.pools[0].servers[0].config.name, "app/10.0.0.3");
    (state, again)
}

#[test]
fn returning_dns_server_keeps_health_and_counters_for_ten_minutes() {
    let refuse = |state: &mut ControlState, server: &ServerKey, now| {
        state.on_probe(server, false, "refused".into(), now)
    };
    let (state, snapshot) = come_back(1, refuse);
    let server = &snapshot.pools[0].servers[0];
    assert_eq!(
        (chosen(&snapshot), server.health.reason.as_str()),
        (vec!["app/10.0.0.4".to_owned()], "refused")
    );
    assert_eq!((server.live.traffic.sum(Counter::Opened), state.probes().len()), (7, 2));

    let (_, snapshot) = come_back(11, refuse);
    let server = &snapshot.pools[0].servers[0];
    assert_eq!(chosen(&snapshot).len(), 2, "after ten minutes it is another server");
    assert_eq!(server.live.traffic.sum(Counter::Opened), 0);
}

#[test]
fn returning_dns_server_stays_ejected_for_the_remaining_time() {
    let eject = |state: &mut ControlState, server: &ServerKey, now| {
        let (server, error) = (server.clone(), "reset".into());
        let failures =
            ConnectFailures { server, in_a_row: 5, error, protocol: Protocol::Tcp, is_forgeable: false };
        state.on_connect_failures(&failures, now);
    };
    let (mut state, snapshot) = come_back(2, eject);
    assert_eq!(chosen(&snapshot), ["app/10.0.0.4"]);
    assert_eq!(state.due(), Some(Timestamp(1).after(EJECTED)));
    state.on_time(Timestamp(1).after(EJECTED));
    assert_eq!(state.take_update().unwrap().1[0].change, HealthTransition::Returned);

    let (mut state, _) = come_back(4, eject);
    assert!(state.due() < Some(Timestamp(0).after(240 * SECOND)), "that is over: it returns at once");
    state.on_time(Timestamp(0).after(240 * SECOND));
    let (snapshot, changes) = state.take_update().unwrap();
    assert_eq!((chosen(&snapshot).len(), changes[0].change), (2, HealthTransition::Returned));
}
