//! Packet modes as users see them: the real binary between real clients and real servers, each in a
//! network namespace of its own.
//!
//! Tests run in passthrough and in DSR mode, by IPv4 and by IPv6, with open flows forwarded by the
//! kernel and by a worker; some with the driver of a virtual link. Unless `CONVEY_LONG` is set,
//! each runs in one of these cases, which vary by test, and long ones are skipped. With `1` each
//! also runs in the opposite case, with `only` in the opposite case alone, with `all` in every
//! case. They need root, and the tools that each names; a test whose tool is missing is reported as
//! ignored, with the reason. `CONVEY_BIN` names another binary to test.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod access_log;
mod announce;
mod black_hole;
mod case;
mod config;
mod conntrack;
mod diagnose;
mod dns;
mod doctor_balancer;
mod doctor_faults;
mod doctor_host;
mod doctor_routes;
mod doctor_server;
mod doctor_status;
mod drain;
mod ends;
mod explain;
mod failure;
mod flood;
mod flows;
mod fragments;
mod host;
mod interfaces;
mod l2;
mod lab;
mod log;
mod loops;
mod masquerade;
mod memory_limit;
mod mixed;
mod modes;
mod monitoring;
mod mtu;
mod neighbours;
mod network;
mod outlast;
mod ports;
mod priority_tags;
mod privileges;
mod quic;
mod raw;
mod reload;
mod rivals;
mod routing;
mod scarce;
mod scripts;
mod siege;
mod silence;
mod silent_servers;
mod slow_download;
mod snat;
mod spoofed;
mod spread;
mod steering;
mod takeover;
mod trace;
mod transfer;
mod tunnel;
mod turns;
mod udp;
mod upgrade;
mod xdp;

use std::process::ExitCode;

use convey_model::Offload;
use convey_testkit::{Need, run_trials_in_turns, trial_in_turn};
use libtest_mimic::Trial;

use case::{Case, PacketTest};

/// Modules whose tests depend neither on the family by itself nor on the offload.
const OF_TYPICAL_CASES: &[&str] = &[
    "access_log",
    "diagnose",
    "dns",
    "doctor_balancer",
    "doctor_faults",
    "doctor_host",
    "doctor_routes",
    "doctor_server",
    "doctor_status",
    "explain",
    "steering",
];

/// Module whose tests wait longest, with little else to do: they begin first, beside the floods.
const LONGEST: &str = "doctor_server";

fn main() -> ExitCode {
    // This process is the child that holds a lab until it is killed.
    if std::env::args().nth(1).as_deref() == Some(lab::HOLD) {
        lab::hold();
    }
    let rooms = [
        ("access", access::tests()),
        ("announce", announce::tests()),
        ("black_hole", black_hole::tests()),
        ("spread", spread::tests()),
        ("transfer", transfer::tests()),
        ("explain", explain::tests()),
        ("failure", failure::tests()),
        ("flood", flood::tests()),
        ("flows", flows::tests()),
        ("scarce", scarce::tests()),
        ("siege", siege::tests()),
        ("silence", silence::tests()),
        ("silent_servers", silent_servers::tests()),
        ("snat", snat::tests()),
        ("spoofed", spoofed::tests()),
        ("reload", reload::tests()),
        ("steering", steering::tests()),
        ("upgrade", upgrade::tests()),
        ("drain", drain::tests()),
        ("ends", ends::tests()),
        ("modes", modes::tests()),
        ("monitoring", monitoring::tests()),
        ("ports", ports::tests()),
        ("privileges", privileges::tests()),
        ("host", host::tests()),
        ("quic", quic::tests()),
        ("rivals", rivals::tests()),
        ("routing", routing::tests()),
        ("interfaces", interfaces::tests()),
        ("scripts", scripts::tests()),
        ("dns", dns::tests()),
        ("doctor_server", doctor_server::tests()),
        ("fragments", fragments::tests()),
        ("memory_limit", memory_limit::tests()),
        ("priority_tags", priority_tags::tests()),
        ("mtu", mtu::tests()),
        ("diagnose", diagnose::tests()),
        ("doctor_balancer", doctor_balancer::tests()),
        ("doctor_faults", doctor_faults::tests()),
        ("doctor_host", doctor_host::tests()),
        ("doctor_routes", doctor_routes::tests()),
        ("doctor_status", doctor_status::tests()),
        ("l2", l2::tests()),
        ("access_log", access_log::tests()),
        ("trace", trace::tests()),
        ("log", log::tests()),
        ("loops", loops::tests()),
        ("masquerade", masquerade::tests()),
        ("conntrack", conntrack::tests()),
        ("mixed", mixed::tests()),
        ("takeover", takeover::tests()),
        ("tunnel", tunnel::tests()),
        ("neighbours", neighbours::tests()),
        ("outlast", outlast::tests()),
        ("xdp", xdp::tests()),
    ];
    let (trials, floods) = in_order(&rooms);
    run_trials_in_turns(trials, floods)
}

/// Trials in the order in which they begin: the floods, then the longest, then one of each module in
/// turn, because tests of a module often need the same: a core, or time. Also returns the number of
/// floods, each of which runs in one case, or in two.
fn in_order(rooms: &[(&str, Vec<PacketTest>)]) -> (Vec<Trial>, usize) {
    let (mut trials, mut longest, mut others) = (Vec::new(), Vec::new(), vec![lab::trials().into_iter()]);
    let mut number = 0;
    for (room, tests) in rooms {
        let (floods, quiet): (Vec<_>, Vec<_>) = tests.iter().partition(|test| test.is_flood);
        number += floods.len();
        trials.extend(trials_of(room, floods));
        match *room {
            LONGEST => longest = trials_of(room, quiet),
            _ => others.push(trials_of(room, quiet).into_iter()),
        }
    }
    trials.append(&mut longest);
    while !others.is_empty() {
        others.retain_mut(|room| room.next().map(|trial| trials.push(trial)).is_some());
    }
    (trials, number)
}

/// Requirements of all tests in a module. The servers of DSR rewrite addresses by nftables, and
/// `xdp` switches offloads.
fn needs_of(room: &str, case: Case) -> &'static [Need] {
    match room {
        "xdp" if case.is_dsr() => &[Need::Namespaces, Need::ETHTOOL, Need::NFT],
        "xdp" => &[Need::Namespaces, Need::ETHTOOL],
        _ if case.is_dsr() => &[Need::Namespaces, Need::NFT],
        // Doctor reads the rules of nftables.
        "doctor_balancer" | "doctor_faults" | "doctor_host" | "doctor_routes" | "doctor_status"
        | "masquerade" => &[Need::Namespaces, Need::NFT],
        _ => &[Need::Namespaces],
    }
}

fn trials_of(room: &str, tests: Vec<&PacketTest>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &test in tests {
        // Virtual links have XDP if they are prepared for it.
        let cases: Vec<Case> = Case::all()
            .filter(|case| (test.when)(*case) && (case.offload == Offload::Xdp) == (room == "xdp"))
            .filter(|case| !OF_TYPICAL_CASES.contains(&room) || case.is_typical())
            .collect();
        let first = case::first(&cases, test.name);
        let opposite = first.and_then(|first| case::opposite(&cases, first));
        for case in cases {
            let name = format!("{case}::{room}::{}", test.name);
            let patience = match case {
                _ if first == Some(case) => None,
                _ if opposite == Some(case) => Some(&Need::Long),
                _ => Some(&Need::All),
            };
            let needs = patience.into_iter().chain(test.needs).chain(needs_of(room, case)).copied();
            let needs: Vec<Need> = needs.collect();
            let turn = move || turns::begin(test.is_flood);
            trials.push(trial_in_turn(name, needs, turn, move || (test.run)(case)));
        }
    }
    trials
}
