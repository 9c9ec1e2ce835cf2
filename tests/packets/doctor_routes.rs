//! `convey doctor` on the balancer: servers that packet modes must not send to, and routes that
//! convey does not follow.

use std::collections::BTreeSet;

use convey_lab::{INTERFACE, Role};

use crate::case::{Case, Family, PacketTest, tests};
use crate::doctor_balancer::Patient;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        ipsec_policy_for_a_server_is_named[NGINX],
        policy_rule_that_selects_by_a_mark_is_named[NGINX],
        way_that_differs_from_the_kernels_is_named[NGINX],
    ]
}

fn ipsec_policy_for_a_server_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    patient.is_well();
    let (any, server) = (case.family.any(), patient.network.address(Role::Server(1)).ip());
    let policy = format!("src {any}/0 dst {server} dir out");
    patient.ip(Role::Balancer, &format!("xfrm policy add {policy} tmpl proto esp mode transport"));
    let finding = patient.has("server-way");
    let seen = finding["seen"].as_str().unwrap();
    assert!(seen.contains("pool/s1") && seen.contains("IPsec"), "{finding:#}");
    patient.ip(Role::Balancer, &format!("xfrm policy delete {policy}"));
    patient.is_well();
    patient.serves();
}

fn policy_rule_that_selects_by_a_mark_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    patient.is_well();
    let rule = format!("{}rule", six(case));
    patient.ip(Role::Balancer, &format!("{rule} add priority 700 fwmark 7 lookup 200"));
    let finding = patient.has("policy-rule");
    assert!(finding["seen"].as_str().unwrap().contains("policy rule 700"), "{finding:#}");
    patient.ip(Role::Balancer, &format!("{rule} del priority 700"));
    patient.is_well();
    patient.serves();
}

/// The kernel has a router for this user's packets to the server, which is the server itself.
fn way_that_differs_from_the_kernels_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    patient.is_well();
    let (six, server) = (six(case), patient.network.address(Role::Server(1)).ip());
    let route = format!("{server} via {server} dev {INTERFACE} table 200");
    patient.ip(Role::Balancer, &format!("{six}route add {route}"));
    patient.ip(Role::Balancer, &format!("{six}rule add priority 700 uidrange 0-0 lookup 200"));
    let (_, json) = patient.examine();
    let findings = json["findings"].as_array().unwrap();
    let found: BTreeSet<&str> = findings.iter().map(|one| one["check"].as_str().unwrap()).collect();
    assert_eq!(found, BTreeSet::from(["policy-rule", "route-differs"]), "{json:#}");
    let difference = findings.iter().find(|one| one["check"] == "route-differs").unwrap();
    let seen = difference["seen"].as_str().unwrap();
    assert!(seen.contains(&format!("and the router {server}, but packet modes send them through")), "{seen}");
    patient.ip(Role::Balancer, &format!("{six}rule del priority 700"));
    patient.is_well();
    patient.serves();
}

/// The option of `ip` for the family.
fn six(case: Case) -> &'static str {
    if case.family == Family::V6 { "-6 " } else { "" }
}
