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
    let gone = state.reset_http(None, Timestamp(4));
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

fn start_maintenance(state: &mut ControlState, target: model::HttpTarget) -> Result<bool, String> {
    let set = state.set_maintenance(target, Arc::default(), "root".into(), Timestamp(1));
    set.map_err(|why| why.to_string())
}

/// Maintenance of the frontend, the route of /c, the default route and the backend v1.
fn maintained(snapshot: &Snapshot) -> [bool; 4] {
    let web = snapshot.frontends.iter().find(|one| one.config.name == "web").unwrap();
    let http = web.http.as_ref().unwrap();
    let route = |path| {
        let head = fixture::head("a", path);
        http.route(&fixture::facts(&head)).unwrap().maintenance.is_some()
    };
    [http.maintenance.is_some(), route("/c"), route("/"), web.pool.config.maintenance.is_some()]
}

#[test]
fn maintenance_lasts_through_reloads_until_it_is_ended() {
    let mut state = started();
    let targets = [
        model::HttpTarget::Frontend("web".into()),
        model::HttpTarget::route("web", "checkout"),
        model::HttpTarget::route("web", "default"),
        model::HttpTarget::Backend("v1".into()),
    ];
    for (n, target) in targets.iter().enumerate() {
        let mut expected = [false; 4];
        expected[n] = true;
        assert_eq!(start_maintenance(&mut state, target.clone()), Ok(true));
        assert_eq!(start_maintenance(&mut state, target.clone()), Ok(false));
        assert_eq!(maintained(&update(&mut state)), expected, "{target}");
        assert_eq!(maintained(&state.configure(file(FILE), Timestamp(2))), expected, "{target}");
        assert_eq!(state.end_maintenance(target, Timestamp(3)), Ok(true));
        assert_eq!(maintained(&update(&mut state)), [false; 4]);
        assert_eq!(state.end_maintenance(target, Timestamp(4)), Ok(false));
    }
    targets.into_iter().for_each(|target| assert!(start_maintenance(&mut state, target).unwrap()));
    let mut next = ControlState::new(1);
    next.expect(state.known(), Timestamp(5));
    assert_eq!(maintained(&next.configure(file(FILE), Timestamp(6))), [true; 4]);
    assert_eq!(next.reset_http(None, Timestamp(7)).len(), 4);
    assert_eq!(maintained(&update(&mut next)), [false; 4]);
}

#[test]
fn maintenance_without_requests_of_mode_http_is_refused() {
    let mut state = started();
    let text = format!("{FILE}[backends.smtp]\nservers.a.addr = '10.0.0.4:25'\n").replace(
        "[frontends.mail]\nlisten_addr = '10.0.0.1:25'\nbackend = 'v1'",
        "[frontends.mail]\nlisten_addr = '10.0.0.1:25'\nbackend = 'smtp'",
    );
    state.configure(file(&text), Timestamp(0));
    for (target, why) in [
        (model::HttpTarget::Frontend("mail".into()), "frontend mail has mode proxy"),
        (model::HttpTarget::Frontend("wbe".into()), "no frontend is called \"wbe\"; did you mean"),
        (
            model::HttpTarget::route("web", "chekout"),
            "no route of frontend web is called \"chekout\"; did you mean",
        ),
        (model::HttpTarget::route("web", "nope"), ", default)"),
        (model::HttpTarget::Backend("smtp".into()), "no frontend of mode http uses backend smtp"),
        (model::HttpTarget::Backend("v3".into()), "no backend is called \"v3\""),
    ] {
        let told = start_maintenance(&mut state, target.clone()).unwrap_err();
        assert!(told.contains(why), "{told}");
        assert!(state.end_maintenance(&target, Timestamp(1)).unwrap_err().to_string().contains(why), "{why}");
    }
    assert!(state.take_update().is_none());
}
