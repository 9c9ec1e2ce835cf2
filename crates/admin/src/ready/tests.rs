use std::time::Duration;

use convey_forward::SnatChoice;
use convey_model::{FrontendConfig, Mode, NextHops};
use convey_snapshot::{Health, fixture};

use super::*;

#[test]
fn reasons_for_unusable_servers_are_listed_with_their_counts() {
    let down = || fixture::down("refused", Duration::ZERO);
    let named = |name: &str| fixture::server(name, "127.0.0.1:81");
    let all = vec![
        (named("a"), down()),
        (named("b"), fixture::up()),
        (named("c"), down()),
        (named("d"), fixture::up()),
    ];
    let admin = [AdminState::Ready, AdminState::Drain, AdminState::Maint, AdminState::Drain];
    let servers: Vec<Arc<Server>> = fixture::pool("app", all)
        .servers
        .iter()
        .zip(admin)
        .map(|(server, admin)| {
            let (config, health, live) = (server.config.clone(), server.health.clone(), server.live.clone());
            Arc::new(Server { config, admin, health, live })
        })
        .collect();
    assert_eq!(unusable_reasons(&servers), "1 of 4 are down, 2 of 4 are drained, 1 of 4 are in maintenance");
}

fn certificates_without_orders() -> CertificateView {
    CertificateView::of_readiness(Vec::new(), 0, &Snapshot::empty(1))
}

fn input<'a>(snapshot: &'a Snapshot, certificates: &'a CertificateView) -> ReadinessInput<'a> {
    ReadinessInput { snapshot, certificates, packets: None, is_draining: false }
}

/// Reason why this address must not be announced. `None` if it may be announced.
fn obstacle_at(frontends: &[Arc<Frontend>], ip: &str, min_servers: u32) -> Option<String> {
    let config = AnnounceConfig { min_servers, ..AnnounceConfig::default() };
    let snapshot =
        Snapshot { announce: Some(Arc::new(config)), ..fixture::snapshot(frontends.to_vec(), vec![]) };
    announced_addresses(input(&snapshot, &certificates_without_orders()))[&ip.parse().unwrap()].clone()
}

#[test]
fn address_is_announced_while_a_frontend_has_enough_servers() {
    let named = |name: &str| fixture::server(name, "127.0.0.1:81");
    let down = || fixture::down("refused", Duration::ZERO);
    let half = fixture::pool("half", vec![(named("a"), fixture::up()), (named("b"), down())]);
    let none = fixture::pool("none", vec![(named("a"), down())]);
    let frontends = [
        fixture::frontend("alone", &["10.0.0.1:80"], &half),
        fixture::frontend("beside", &["10.0.0.2:80", "10.0.0.3:80"], &half),
        fixture::frontend("broken", &["10.0.0.3:81"], &none),
    ];
    let at = |ip: &str, min_servers| obstacle_at(&frontends, ip, min_servers);
    assert_eq!(at("10.0.0.1", 1), None);
    assert_eq!(at("10.0.0.2", 1), None);
    assert_eq!(at("10.0.0.3", 1), None);
    let broken = obstacle_at(&frontends[2..], "10.0.0.3", 1);
    assert_eq!(
        broken.as_deref(),
        Some("frontend broken: no server of backend none can be chosen (1 of 1 are down)")
    );
    assert_eq!(
        at("10.0.0.1", 2).as_deref(),
        Some("frontend alone: only 1 servers of backend half can be chosen: announce.min_servers is 2")
    );
}

#[test]
fn withdrawal_is_foreseen_only_for_the_last_servers_of_an_address() {
    let named = |name: &str| fixture::server(name, "127.0.0.1:81");
    let two = fixture::pool("two", vec![(named("a"), fixture::up()), (named("b"), fixture::up())]);
    let one = fixture::pool("one", vec![(named("a"), fixture::up())]);
    let frontends = vec![
        fixture::frontend("two", &["10.0.0.1:80", "10.0.0.2:80"], &two),
        fixture::frontend("one", &["10.0.0.2:81", "10.0.0.3:81"], &one),
    ];
    let snapshot =
        Snapshot { announce: Some(Arc::default()), ..fixture::snapshot(frontends, vec![two, one]) };
    let withdrawn = |target: Target| {
        let lost = LostReadiness::without(input(&snapshot, &certificates_without_orders()), &target);
        assert_eq!(lost.frontends, [""; 0], "nothing is needed");
        lost.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
    };
    assert_eq!(withdrawn(Target::server("two", "a")), [""; 0]);
    assert_eq!(withdrawn(Target::backend("two")), ["10.0.0.1"]);
    assert_eq!(withdrawn(Target::server("one", "a")), ["10.0.0.3"]);
    assert_eq!(withdrawn(Target::backend("other")), [""; 0]);
    let left = |target: Target| backend_left_without(&snapshot, &target).map(str::to_owned);
    assert_eq!(left(Target::server("two", "a")), None);
    assert_eq!(left(Target::backend("two")).as_deref(), Some("two"));
    assert_eq!(left(Target::server("one", "a")).as_deref(), Some("one"));
    assert_eq!(left(Target::backend("other")), None);
}

#[test]
fn loss_of_a_needed_backend_is_foreseen() {
    let one = |name: &str| fixture::pool(name, vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
    let (app, login) = (one("app"), one("login"));
    let beside = fixture::frontend("beside", &["10.0.0.1:81"], &login);
    let mut web = fixture::frontend("web", &["10.0.0.1:80"], &app);
    Arc::get_mut(&mut web).unwrap().config.ready_needs = vec!["app".to_owned()];
    for announces in [true, false] {
        let frontends = vec![web.clone(), beside.clone()];
        let snapshot = Snapshot {
            announce: announces.then(Arc::default),
            ..fixture::snapshot(frontends, vec![app.clone(), login.clone()])
        };
        let lost = |target| {
            let lost = LostReadiness::without(input(&snapshot, &certificates_without_orders()), &target);
            (lost.addresses.len(), lost.frontends)
        };
        assert_eq!(lost(Target::backend("app")), (usize::from(announces), vec!["web".to_owned()]));
        assert_eq!(lost(Target::backend("login")), (0, vec![]));
    }
}

#[test]
fn withdrawal_is_foreseen_where_the_other_frontend_has_no_certificate() {
    let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
    let other = fixture::pool("other", vec![(fixture::server("a", "127.0.0.1:82"), fixture::up())]);
    let (secure, failing) = super::super::certificates::fixture::without_certificate("10.0.0.1:443", &other);
    let frontends = vec![fixture::frontend("web", &["10.0.0.1:80"], &pool), secure];
    let snapshot =
        Snapshot { announce: Some(Arc::default()), ..fixture::snapshot(frontends, vec![pool, other]) };
    let lost = |certificates: &CertificateView| {
        LostReadiness::without(input(&snapshot, certificates), &Target::backend("app")).addresses
    };
    assert_eq!(lost(&failing), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(lost(&certificates_without_orders()), [] as [IpAddr; 0]);
}

/// Snapshot with the host address `own`, the passthrough frontends `v4` and `v6`, and the frontend
/// `proxy` at the VIP of `v4`.
fn of_both_families(own: &str, announce: Option<Arc<AnnounceConfig>>) -> Snapshot {
    let pool =
        |name: &str, server: &str| fixture::pool(name, vec![(fixture::server("a", server), fixture::up())]);
    let [four, six, other] =
        [pool("four", "10.1.0.9:80"), pool("six", "[fd00::9]:80"), pool("other", "10.1.0.8:80")];
    let passthrough = |name: &str, listen: &str, pool: &Arc<Pool>| {
        let config = convey_model::fixture::frontend(name, &[listen], &pool.config.name);
        fixture::frontend_of(FrontendConfig { mode: Mode::Passthrough, ..config }, pool)
    };
    let frontends = vec![
        passthrough("v4", "10.0.0.1:80", &four),
        passthrough("v6", "[2001:db8::1]:80", &six),
        fixture::frontend("proxy", &["10.0.0.1:81"], &other),
    ];
    let network = NextHops::new(&[convey_model::fixture::interface(1, &[own])], [], &[]);
    let network = Arc::new(network);
    Snapshot { announce, network, ..fixture::snapshot(frontends, vec![four, six, other]) }
}

fn packets(snat_addresses: &[&str], snat_choice: SnatChoice) -> PacketFacts {
    PacketFacts {
        snat_addresses: snat_addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        snat_choice,
        split: None,
        dispatch: None,
        layers: BTreeMap::new(),
        without_kernel: String::new(),
    }
}

#[test]
fn lost_snat_addresses_of_a_family_stop_its_frontends_in_passthrough_alone() {
    let certificates = certificates_without_orders();
    let unserved = |own: &str, choice| {
        let packets = packets(&["10.1.0.1", "10.1.0.2", "fd00::1"], choice);
        let snapshot = of_both_families(own, Some(Arc::default()));
        let input = ReadinessInput { packets: Some(&packets), ..input(&snapshot, &certificates) };
        let readiness = FrontendReadiness::of(input);
        assert_eq!(readiness.obstacles(), [""; 0], "another frontend can serve");
        let obstacles = readiness.frontends.iter().filter_map(|(frontend, of)| {
            assert_eq!(of.obstacle(frontend).is_some(), !of.backends().is_empty());
            Some(format!("{}: {}", frontend.config.name, of.obstacle(frontend)?))
        });
        let withdrawn = announced_addresses(input).into_iter().filter(|(_, why)| why.is_some());
        (obstacles.collect::<Vec<_>>(), withdrawn.map(|(ip, _)| ip.to_string()).collect::<Vec<_>>())
    };
    let lost = |ips: &str| {
        format!("this host has lost its SNAT addresses ({ips}); restart convey to choose other addresses")
    };
    let v4 = format!("v4: {}", lost("10.1.0.1, 10.1.0.2"));
    let v6 = format!("v6: {}", lost("fd00::1"));
    assert_eq!(unserved("fd00::1", SnatChoice::Kernel), (vec![v4.clone()], vec![]));
    let of_v6 = vec!["2001:db8::1".to_owned()];
    assert_eq!(unserved("10.1.0.2", SnatChoice::Kernel), (vec![v6.clone()], of_v6.clone()));
    assert_eq!(unserved("10.1.0.7", SnatChoice::Kernel), (vec![v4, v6], of_v6));
    assert_eq!(unserved("10.1.0.7", SnatChoice::Named), (vec![], vec![]), "routers may lead to them");
}

#[test]
fn withdrawal_is_foreseen_where_passthrough_at_the_address_has_no_snat_address() {
    let (certificates, packets) = (certificates_without_orders(), packets(&["10.1.0.1"], SnatChoice::Kernel));
    let lost = |own: &str| {
        let snapshot = of_both_families(own, Some(Arc::default()));
        let input = ReadinessInput { packets: Some(&packets), ..input(&snapshot, &certificates) };
        LostReadiness::without(input, &Target::backend("other")).addresses
    };
    assert_eq!(lost("10.1.0.1"), [] as [IpAddr; 0]);
    assert_eq!(lost("10.1.0.7"), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn snat_address_that_convey_announces_itself_is_not_lost() {
    let (certificates, packets) = (certificates_without_orders(), packets(&["10.0.0.1"], SnatChoice::Kernel));
    for announce in [None, Some(Arc::default())] {
        let snapshot = of_both_families("10.1.0.7", announce);
        let input = ReadinessInput { packets: Some(&packets), ..input(&snapshot, &certificates) };
        let readiness = FrontendReadiness::of(input);
        let (v4, unserved) = &readiness.frontends[0];
        assert_eq!(unserved.obstacle(v4).is_some(), snapshot.announce.is_none());
    }
}

#[test]
fn unprobed_servers_do_not_count_towards_min_servers() {
    let named = |name: &str| fixture::server(name, "127.0.0.1:81");
    let unproven = Health { proven: false, ..fixture::up() };
    let pool = fixture::pool("web", vec![(named("a"), fixture::up()), (named("b"), unproven)]);
    let frontend = fixture::frontend("web", &["10.0.0.1:80"], &pool);
    let at = |min_servers| obstacle_at(std::slice::from_ref(&frontend), "10.0.0.1", min_servers);
    assert_eq!((at(1).is_none(), at(2).is_some()), (true, true));
}

#[test]
fn readiness_fails_if_no_frontend_serves_or_a_required_backend_is_down() {
    let up = fixture::pool("up", vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
    let down = fixture::down("refused", Duration::ZERO);
    let down = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:82"), down)]);
    let named = fixture::pool("named", vec![]);
    let unproven = || Health { proven: false, ..fixture::up() };
    let [a, b] = ["a", "b"].map(|name| fixture::server(name, "127.0.0.1:83"));
    let unprobed = fixture::pool("late", vec![(a.clone(), unproven()), (b.clone(), unproven())]);
    let half_probed = fixture::pool("half", vec![(a, unproven()), (b, fixture::up())]);
    let frontend = |name: &str, pool| fixture::frontend(name, &["127.0.0.1:80"], pool);
    let obstacles = |snapshot: &Snapshot, is_draining| {
        let certificates = certificates_without_orders();
        let input = ReadinessInput { is_draining, ..input(snapshot, &certificates) };
        FrontendReadiness::of(input).obstacles()
    };
    let ready = |frontends| obstacles(&fixture::snapshot(frontends, vec![up.clone()]), false);
    assert_eq!(ready(vec![frontend("web", &up)]), [""; 0]);
    let dead = || vec![frontend("api", &down), frontend("new", &named), frontend("late", &unprobed)];
    let whys = [
        "frontend api: no server of backend app can be chosen (1 of 1 are down)",
        "frontend new: backend named has no server: none of its host names has an address",
        "frontend late: no server of backend late has been probed yet",
    ];
    assert_eq!(ready(dead()), whys);
    assert_eq!(ready([dead(), vec![frontend("half", &half_probed)]].concat()), [""; 0]);
    let mut needed = frontend("api", &down);
    Arc::get_mut(&mut needed).unwrap().config.ready_needs = vec!["app".to_owned()];
    assert_eq!(ready(vec![frontend("web", &up), needed]), whys[..1]);
    let api = frontend("api", &down);
    assert_eq!(
        Unserved::of(&api, 0, None, (None, &certificates_without_orders()))
            .backends()
            .keys()
            .collect::<Vec<_>>(),
        ["app"]
    );
    assert_eq!(obstacles(&Snapshot::empty(1), false), ["starting: no frontend serves yet"]);
    let serving = fixture::snapshot(vec![frontend("web", &up)], vec![up.clone()]);
    assert_eq!(obstacles(&serving, true), ["draining: convey is about to stop"]);
}
