//! Sharing between snapshots: the cost of a change depends on the size of the change, not on the
//! size of the configuration.

use super::*;

#[test]
fn change_of_a_backend_shares_the_others_unchanged() {
    let backends = vec![
        backend("web", vec![server("a", "10.0.0.2:80"), server("b", "10.0.0.3:80")]),
        backend("dns", vec![server("c", "10.0.0.4:53")]),
    ];
    let frontends = vec![
        model::fixture::frontend("web", &[VIP], "web"),
        model::fixture::frontend("dns", &["10.0.0.1:53"], "dns"),
    ];
    let config = convey_config::fixture::config(frontends, backends);
    let a = key_of(&config, 0);
    let mut state = ControlState::new(1);
    let before = state.configure(config.clone(), Timestamp(0));
    state.on_probe(&a, false, "refused".into(), Timestamp(1));
    let (after, _) = state.take_update().unwrap();
    let place = |frontends: &[Arc<snapshot::Frontend>], name: &str| {
        frontends.iter().position(|frontend| frontend.config.name == name).unwrap()
    };
    let is_kept = |name: &str| {
        let place = place(&after.frontends, name);
        let (before, after) = (&before.frontends[place], &after.frontends[place]);
        (Arc::ptr_eq(before, after), Arc::ptr_eq(&before.pool, &after.pool))
    };
    assert_eq!((is_kept("dns"), is_kept("web")), ((true, true), (false, false)));
    assert!(Arc::ptr_eq(&before.places, &after.places));
    assert_eq!(after.listener(&Endpoint::tcp(VIP.parse().unwrap())).unwrap().pool.eligible(), 1);
    let again = state.configure(config, Timestamp(2));
    assert!(!Arc::ptr_eq(&after.places, &again.places));
}

#[test]
fn a_server_that_is_gone_is_not_found_by_its_number() {
    let mut config = two_servers();
    let mut state = ControlState::new(1);
    let before = state.configure(config.clone(), Timestamp(0));
    config.backends[0].servers.remove(0);
    let after = state.configure(config, Timestamp(1));
    let [a, b] = [0, 1].map(|index| before.pools[0].servers[index].live.id);
    assert!(after.server(a).is_none() && after.server(b).is_some_and(|server| server.config.name == "b"));
}
