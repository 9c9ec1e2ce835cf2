//! Policy rules, routes for certain sources, and routes that packet modes refuse.

use super::*;
use crate::fixture::{interface, route};
use crate::{IpsecEffect, Prefix, RuleAction};

const A: u32 = 2;
const B: u32 = 3;
const VIP: &str = "10.9.9.9";
const CLIENT: &str = "198.51.100.9";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Option<Prefix> {
    Some(text.parse().unwrap())
}

/// Default routes: through the first interface in the table main, and through the second in table
/// 200.
fn routes() -> Vec<Route> {
    let of = |table, route| Route { table, ..route };
    vec![
        route("10.1.0.0/24", A, None),
        route("10.2.0.0/24", B, None),
        route("0.0.0.0/0", A, Some(ip("10.1.0.254"))),
        of(200, route("0.0.0.0/0", B, Some(ip("10.2.0.254")))),
    ]
}

fn rule(priority: u32, table: u32) -> RoutingRule {
    RoutingRule::for_all(true, priority, RuleAction::Table(table))
}

fn tables(routes: Vec<Route>, rules: Vec<RoutingRule>) -> NetworkTables {
    let defaults = RoutingRule::defaults(true);
    let mut rules: Vec<_> = rules.into_iter().chain(defaults).collect();
    rules.sort_by_key(|rule| rule.priority);
    NetworkTables {
        interfaces: vec![interface(A, &["10.1.0.1", VIP]), interface(B, &["10.2.0.1"])],
        routes: routes.into(),
        rules: rules.into(),
        ..NetworkTables::default()
    }
}

/// Index of the interface that packets from the VIP to a client leave through under this rule.
fn exit_under(rule: RoutingRule) -> Option<u32> {
    let hops = NextHops::default().update_all(&tables(routes(), vec![rule]));
    hops.hop_from(ip(VIP), ip(CLIENT)).map(|hop| hop.interface)
}

#[test]
fn rule_applies_to_packets_that_all_its_selectors_match() {
    let table = || rule(100, 200);
    let (other, ours) = (Some(A), Some(B));
    for (rule, expected) in [
        (table(), ours),
        (RoutingRule { from: prefix("10.9.0.0/16"), ..table() }, ours),
        (RoutingRule { from: prefix("10.8.0.0/16"), ..table() }, other),
        (RoutingRule { from: prefix("10.9.0.0/16"), to: prefix("203.0.113.0/24"), ..table() }, other),
        (RoutingRule { from: prefix("10.8.0.0/16"), is_inverted: true, ..table() }, ours),
        (RoutingRule { from: prefix("10.9.0.0/16"), is_inverted: true, ..table() }, other),
        (RoutingRule { input: Some("lo".into()), ..table() }, ours),
        (RoutingRule { input: Some("eth2".into()), ..table() }, other),
        (RoutingRule { input: Some("eth2".into()), is_inverted: true, ..table() }, ours),
        (RoutingRule { output: Some("eth3".into()), ..table() }, other),
        (RoutingRule { mark: Some((7, u32::MAX)), ..table() }, other),
        (RoutingRule { mark: Some((7, u32::MAX)), is_inverted: true, ..table() }, ours),
        (RoutingRule { mark: Some((0, 0xff)), ..table() }, ours),
        (RoutingRule { tos: 0x10, ..table() }, other),
        (RoutingRule { unknown: vec!["uidrange"], ..table() }, other),
        (RoutingRule { unknown: vec!["uidrange"], is_inverted: true, ..table() }, other),
        (RoutingRule { is_v4: false, ..table() }, other),
        (rule(32_800, 200), other),
        (RoutingRule::for_all(true, 100, RuleAction::Refuse), None),
        (RoutingRule::for_all(true, 100, RuleAction::Nothing), other),
    ] {
        let shown = format!("{rule:?}");
        assert_eq!(exit_under(rule), expected, "{shown}");
    }
}

#[test]
fn short_prefixes_are_suppressed_and_refusals_are_not() {
    let main = RoutingRule { suppress_prefix_len: Some(0), ..rule(100, Route::MAIN) };
    let rules = || vec![main.clone(), rule(101, 200)];
    let hops = NextHops::default().update_all(&tables(routes(), rules()));
    let exit = |hops: &NextHops, dst| hops.hop_from(ip(VIP), ip(dst)).map(|hop| hop.interface);
    assert_eq!((exit(&hops, CLIENT), exit(&hops, "10.1.0.9")), (Some(B), Some(A)));
    let refused = Route { hops: vec![], ..routes()[2].clone() };
    let refusing = vec![refused, routes()[3].clone()];
    assert_eq!(exit(&NextHops::default().update_all(&tables(refusing, rules())), CLIENT), None);
    let throw = Route { hops: vec![], is_throw: true, ..routes()[2].clone() };
    let throwing = vec![throw, routes()[3].clone()];
    assert_eq!(exit(&NextHops::default().update_all(&tables(throwing, rules())), CLIENT), Some(B));
}

#[test]
fn goto_skips_rules_up_to_its_target() {
    let jump = |target| RoutingRule::for_all(true, 50, RuleAction::Goto(target));
    let exit = |target| {
        let hops = NextHops::default().update_all(&tables(routes(), vec![jump(target), rule(100, 200)]));
        hops.hop_from(ip(VIP), ip(CLIENT)).map(|hop| hop.interface)
    };
    assert_eq!([32_766, 100, 99, 40].map(exit), [Some(A), Some(B), Some(B), Some(B)]);
}

#[test]
fn clients_and_servers_are_reached_by_the_ways_of_their_source() {
    let from_vip = RoutingRule { from: prefix("10.9.9.9/32"), ..rule(100, 200) };
    let hops = NextHops::default().update_all(&tables(routes(), vec![from_vip.clone()]));
    assert_eq!(hops.interfaces_of_clients(&[ip(VIP)]), BTreeSet::from([A, B]));
    assert_eq!(
        hops.interfaces_for(&[], PathEnds { sources: &[ip(VIP)], servers: &[ip(CLIENT)] }),
        BTreeSet::from([A, B])
    );
    assert_eq!(
        hops.interfaces_for(&[], PathEnds { sources: &[], servers: &[ip(CLIENT)] }),
        BTreeSet::from([A])
    );
    assert!(!hops.is_spoofed((ip(CLIENT), ip(VIP)), B) && hops.is_spoofed((ip(CLIENT), ip(VIP)), A));
    assert!(hops.is_spoofed((ip(CLIENT), ip("10.1.0.1")), B));
    let before = NextHops::default().update_all(&tables(routes(), vec![]));
    assert!(hops.moves_flows_of(&before) && hops.depend_on_source() && !before.depend_on_source());
    let same = hops.update_all(&tables(routes(), vec![from_vip]));
    assert!(!same.moves_flows_of(&hops));
    assert!(same.update(&[], routes(), &[]).depend_on_source(), "rules stay");
}

#[test]
fn default_rules_are_those_of_a_family_without_any() {
    let without = NetworkTables { rules: Arc::default(), ..tables(routes(), vec![]) };
    let hops = NextHops::default().update_all(&without);
    assert_eq!(hops.hop_from(ip(VIP), ip(CLIENT)).map(|hop| hop.interface), Some(A));
}

#[test]
fn routes_for_a_source_go_first_and_hide_the_network_from_others() {
    let from = |network: &str, source: &str, interface| Route {
        source: prefix(source),
        ..route(network, interface, None)
    };
    let routes = vec![
        route("::/0", A, None),
        from("::/0", "fd09::/64", B),
        route("2001:db8::/32", B, None),
        from("2001:db8::/32", "2001:db8:5::/48", B),
    ];
    let hops = NextHops::default().update_all(&tables(routes, vec![]));
    let exit = |src, dst| hops.hop_from(ip(src), ip(dst)).map(|hop| hop.interface);
    assert_eq!(exit("fd09::9", "2001:db9::1"), Some(B));
    assert_eq!(exit("fd08::9", "2001:db9::1"), Some(A));
    // The network has routes for other sources, so the next shorter prefix decides, as in Linux.
    assert_eq!(exit("fd08::9", "2001:db8::1"), Some(A));
    assert_eq!(exit("2001:db8:5::1", "2001:db8::1"), Some(B));
}

#[test]
fn routers_of_the_highest_preference_are_tried_first() {
    let router =
        |interface, preference| Route { preference, ..route("::/0", interface, Some(ip("fe80::1"))) };
    for routes in [[router(A, -1), router(B, 1)], [router(B, 1), router(A, -1)]] {
        let hops = NextHops::default().update_all(&tables(routes.to_vec(), vec![]));
        assert_eq!(hops.hop_to(ip("2001:db8::1")).map(|hop| hop.interface), Some(B));
    }
}

fn policy(priority: u32, destination: &str, effect: IpsecEffect) -> IpsecPolicy {
    let (source, destination) = ("0.0.0.0/0".parse().unwrap(), destination.parse().unwrap());
    IpsecPolicy { priority, source, destination, protocol: 0, interface: 0, effect }
}

#[test]
fn ipsec_policy_with_the_smallest_priority_decides() {
    let refusal = |policies: Vec<IpsecPolicy>| {
        let tables = NetworkTables { policies: policies.into(), ..tables(routes(), vec![]) };
        let hops = NextHops::default().update_all(&tables);
        let is_refused =
            hops.refusal(ip("10.1.0.1"), ip("10.1.0.9")).is_some_and(|why| why.contains("IPsec"));
        assert_eq!(hops.lookup(ip("10.1.0.9")) == Err(Unreachable::Ipsec), is_refused);
        is_refused
    };
    use IpsecEffect::{Block, Pass, Protect};
    let (all, near, far) = ("0.0.0.0/0", "10.1.0.0/24", "10.2.0.0/24");
    assert!(!refusal(vec![]));
    assert!(refusal(vec![policy(5, near, Protect)]) && refusal(vec![policy(5, near, Block)]));
    assert!(!refusal(vec![policy(5, far, Protect)]));
    assert!(!refusal(vec![policy(5, all, Protect), policy(3, near, Pass)]));
    assert!(refusal(vec![policy(5, all, Protect), policy(7, near, Pass)]));
    assert!(refusal(vec![policy(5, all, Pass), policy(5, near, Protect)]), "of two the safe one");
    assert!(!refusal(vec![IpsecPolicy { protocol: 50, ..policy(5, all, Protect) }]));
    assert!(!refusal(vec![IpsecPolicy { interface: B, ..policy(5, all, Protect) }]));
    assert!(refusal(vec![IpsecPolicy { interface: A, ..policy(5, all, Protect) }]));
    let other_source = IpsecPolicy { source: "10.3.0.0/16".parse().unwrap(), ..policy(5, all, Protect) };
    let tables = NetworkTables { policies: vec![other_source].into(), ..tables(routes(), vec![]) };
    assert_eq!(NextHops::default().update_all(&tables).refusal(ip("10.1.0.1"), ip("10.1.0.9")), None);
}

#[test]
fn policies_and_tunnels_of_routes_take_flows_off_their_ways() {
    let neighbours = vec![Neighbour { interface: A, ip: ip("10.1.0.9"), mac: [2; 6] }];
    let open = NetworkTables { neighbours, ..tables(routes(), vec![]) };
    let hops = NextHops::default().update_all(&open);
    assert!(hops.lookup(ip("10.1.0.9")).is_ok());
    let policies = vec![policy(5, "10.1.0.0/24", IpsecEffect::Protect)].into();
    let closed = hops.update_all(&NetworkTables { policies, ..open.clone() });
    assert!(closed.moves_flows_of(&hops));
    assert_eq!(closed.lookup(ip("10.1.0.9")), Err(Unreachable::Ipsec));
    let mut tunneled = routes();
    tunneled[0].hops[0].is_encapsulated = true;
    let closed = hops.update_all(&NetworkTables { routes: tunneled.into(), ..open.clone() });
    assert!(closed.moves_flows_of(&hops));
    assert_eq!(closed.lookup_on_link(ip("10.1.0.9")), Err(Unreachable::Encapsulated));
    assert!(closed.refusal_of(ip("10.1.0.9"), None).is_some_and(|why| why.contains("encapsulates")));
}

#[test]
fn policy_for_another_source_refuses_no_server() {
    let refusal = |source: &str, named: Option<&[IpAddr]>| {
        let of_source =
            IpsecPolicy { source: source.parse().unwrap(), ..policy(5, "0.0.0.0/0", IpsecEffect::Protect) };
        let tables = NetworkTables { policies: vec![of_source].into(), ..tables(routes(), vec![]) };
        NextHops::default().update_all(&tables).refusal_of(ip("10.1.0.9"), named)
    };
    let (own, other) = ([ip("10.1.0.1")], [ip("10.99.0.5")]);
    for named in [None, Some(&[][..]), Some(&own)] {
        assert_eq!(refusal("10.99.0.5/32", named), None, "{named:?}");
        assert!(refusal("0.0.0.0/0", named).is_some(), "{named:?}");
    }
    assert!(refusal("10.1.0.1/32", Some(&own)).is_some());
    assert!(refusal("10.99.0.5/32", Some(&other)).is_some(), "the server sees that address");
}

#[test]
fn servers_behind_an_interface_without_ethernet_are_refused_by_its_name() {
    let mut tables = tables(routes(), vec![]);
    tables.interfaces[1].mac = None;
    let hops = NextHops::default().update_all(&tables);
    assert!(hops.refusal_of(ip("10.2.0.9"), None).is_some_and(|why| why.contains("eth3")));
    assert_eq!((hops.refusal_of(ip("10.1.0.9"), None), hops.refusal_of(ip("fd00::1"), None)), (None, None));
    // A single next hop with Ethernet is enough.
    let mut routes = routes();
    routes[1].hops.push(RouteHop::by(A, Some(ip("10.1.0.3"))));
    tables.routes = routes.into();
    assert_eq!(NextHops::default().update_all(&tables).refusal_of(ip("10.2.0.9"), None), None);
}

#[test]
fn rules_that_select_by_more_than_addresses_are_named() {
    let rules = vec![
        RoutingRule { unknown: vec!["ipproto", "dport"], ..rule(100, 200) },
        RoutingRule { mark: Some((7, u32::MAX)), ..rule(101, 200) },
        RoutingRule { mark: Some((7, u32::MAX)), is_inverted: true, ..rule(102, 200) },
        RoutingRule { from: prefix("10.9.9.9/32"), ..rule(103, 200) },
    ];
    let named = NextHops::default().update_all(&tables(routes(), rules)).rules_not_followed();
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(named[0].contains("rule 100 ") && named[0].contains("ipproto, dport"));
    assert!(named[1].contains("rule 101 ") && named[1].contains("fwmark"));
}
