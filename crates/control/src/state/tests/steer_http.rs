//! Weights of a route's backends that operators set.

use super::*;
use convey_snapshot::{HttpAction, fixture};

const FILE: &str = "\
    [frontends.web]\nmode = 'http'\nlisten_addr = '10.0.0.1:80'\nbackend = 'v1'\n\
    routes = [{ name = 'checkout', path = '/c', backends = { v1 = 90, v2 = 10 } }, \
    { name = 'old', path = '/old', redirect = 'https' }]\n\
    [frontends.mail]\nlisten_addr = '10.0.0.1:25'\nbackend = 'v1'\n\
    [backends.v1]\nhealth_check.fall = 1\nservers.a.addr = '10.0.0.2:80'\n\
    [backends.v2]\nservers.a.addr = '10.0.0.3:80'\n";

fn file(text: &str) -> Config {
    convey_config::parse("test.toml", text).unwrap().config
}

fn started() -> ControlState {
    let mut state = ControlState::new(1);
    state.configure(file(FILE), Timestamp(0));
    state
}

fn set(state: &mut ControlState, route: &str, weights: &[(&str, u32)]) -> Result<bool, String> {
    let weights = weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
    let (frontend, route) = route.split_once('/').unwrap();
    let target = model::HttpTarget::route(frontend, route);
    state.set_weights(target, weights, "root".into(), Timestamp(1)).map_err(|why| why.to_string())
}

/// Weights of v1 and v2 in a snapshot.
fn weights(snapshot: &Snapshot) -> Vec<u32> {
    let web = snapshot.frontends.iter().find(|one| one.config.name == "web").unwrap();
    let head = fixture::head("a", "/c");
    match &web.http.as_ref().unwrap().route(&fixture::facts(&head)).unwrap().action {
        HttpAction::Split(all) => all.iter().map(|backend| backend.weight).collect(),
        other => panic!("{other:?}"),
    }
}

fn update(state: &mut ControlState) -> Arc<Snapshot> {
    state.take_update().expect("a change").0
}

#[test]
fn weights_apply_through_reloads_and_changes_of_health_until_reset() {
    let mut state = started();
    assert_eq!(set(&mut state, "web/checkout", &[("v2", 5)]), Ok(true));
    assert_eq!(weights(&update(&mut state)), [90, 5]);
    assert_eq!(set(&mut state, "web/checkout", &[("v2", 5)]), Ok(false));
    assert!(state.take_update().is_none(), "nothing has changed");
    let server = key_of(&file(FILE), 0);
    state.on_probe(&server, false, "refused".into(), Timestamp(2));
    assert_eq!(weights(&update(&mut state)), [90, 5]);
    let reloaded = state.configure(file(&FILE.replace("v1 = 90", "v1 = 70")), Timestamp(3));
    assert_eq!((weights(&reloaded), reloaded.http_overlays.len()), (vec![70, 5], 1));
    let gone = state.reset_http(None);
    assert_eq!((gone.len(), weights(&update(&mut state))), (1, vec![70, 10]));
}

#[test]
fn weights_pass_to_the_next_process() {
    let mut state = started();
    set(&mut state, "web/checkout", &[("v1", 0)]).unwrap();
    let mut next = ControlState::new(1);
    next.expect(state.known(), Timestamp(2));
    assert_eq!(weights(&next.configure(file(FILE), Timestamp(3))), [0, 10]);
}

#[test]
fn file_applies_if_the_weights_would_leave_no_backend() {
    let mut state = started();
    set(&mut state, "web/checkout", &[("v1", 0)]).unwrap();
    let reloaded = state.configure(file(&FILE.replace("v2 = 10", "v2 = 0")), Timestamp(3));
    assert_eq!(weights(&reloaded), [90, 0]);
}

#[test]
fn wrong_weights_are_errors_that_name_the_fix() {
    let mut state = started();
    for (route, given, why) in [
        ("wbe/checkout", ("v2", 5), "no frontend is called \"wbe\"; did you mean"),
        ("web/chekout", ("v2", 5), "no route of frontend web is called \"chekout\"; did you mean"),
        ("web/checkout", ("v3", 5), "no backend of route web/checkout is called \"v3\""),
        ("web/checkout", ("v2", 1_000_001), "weight of v2: found 1000001, allowed: 0 to 1000000"),
        (
            "web/default",
            ("v2", 5),
            "route web/default has a single backend, v1; for weights, set `backends =",
        ),
        ("web/old", ("v2", 5), "route web/old forwards to no backend (redirect to https)"),
        ("mail/checkout", ("v2", 5), "frontend mail has mode proxy; this command is for mode http"),
    ] {
        let told = set(&mut state, route, &[given]).unwrap_err();
        assert!(told.contains(why), "{told}");
    }
    let told = set(&mut state, "web/checkout", &[("v1", 0), ("v2", 0)]).unwrap_err();
    assert!(told.contains("no backend would have a weight above 0"), "{told}");
    assert_eq!(set(&mut state, "web/checkout", &[("v1", 0)]), Ok(true));
    assert!(set(&mut state, "web/checkout", &[("v2", 0)]).is_err(), "v1 has none, either");
}
