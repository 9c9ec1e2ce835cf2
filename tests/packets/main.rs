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
#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

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
use convey_testkit::{Need, run_trials_in_turns, trial};
use libtest_mimic::Trial;

use case::{Case, Story};

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

fn main() -> ExitCode {
    // This process is the child that holds a lab until it is killed.
    if std::env::args().nth(1).as_deref() == Some(lab::HOLD) {
        lab::hold();
    }
    let rooms = [
        ("access", access::stories()),
        ("announce", announce::stories()),
        ("black_hole", black_hole::stories()),
        ("spread", spread::stories()),
        ("transfer", transfer::stories()),
        ("explain", explain::stories()),
        ("failure", failure::stories()),
        ("flood", flood::stories()),
        ("flows", flows::stories()),
        ("scarce", scarce::stories()),
        ("siege", siege::stories()),
        ("silence", silence::stories()),
        ("silent_servers", silent_servers::stories()),
        ("snat", snat::stories()),
        ("spoofed", spoofed::stories()),
        ("reload", reload::stories()),
        ("steering", steering::stories()),
        ("upgrade", upgrade::stories()),
        ("drain", drain::stories()),
        ("ends", ends::stories()),
        ("modes", modes::stories()),
        ("monitoring", monitoring::stories()),
        ("ports", ports::stories()),
        ("privileges", privileges::stories()),
        ("host", host::stories()),
        ("quic", quic::stories()),
        ("rivals", rivals::stories()),
        ("routing", routing::stories()),
        ("interfaces", interfaces::stories()),
        ("scripts", scripts::stories()),
        ("dns", dns::stories()),
        ("doctor_server", doctor_server::stories()),
        ("fragments", fragments::stories()),
        ("memory_limit", memory_limit::stories()),
        ("priority_tags", priority_tags::stories()),
        ("mtu", mtu::stories()),
        ("diagnose", diagnose::stories()),
        ("doctor_balancer", doctor_balancer::stories()),
        ("doctor_faults", doctor_faults::stories()),
        ("doctor_host", doctor_host::stories()),
        ("doctor_routes", doctor_routes::stories()),
        ("doctor_status", doctor_status::stories()),
        ("l2", l2::stories()),
        ("access_log", access_log::stories()),
        ("trace", trace::stories()),
        ("log", log::stories()),
        ("loops", loops::stories()),
        ("masquerade", masquerade::stories()),
        ("conntrack", conntrack::stories()),
        ("mixed", mixed::stories()),
        ("takeover", takeover::stories()),
        ("tunnel", tunnel::stories()),
        ("neighbours", neighbours::stories()),
        ("outlast", outlast::stories()),
        ("xdp", xdp::stories()),
    ];
    let mut rooms: Vec<_> = rooms.map(|(room, stories)| trials_of(room, stories).into_iter()).into();
    rooms.push(lab::trials().into_iter());
    // In turn, because floods are in few modules, and the other tests wait for them.
    let mut trials = Vec::new();
    while !rooms.is_empty() {
        rooms.retain_mut(|room| room.next().map(|trial| trials.push(trial)).is_some());
    }
    run_trials_in_turns(trials)
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

fn trials_of(room: &str, stories: Vec<Story>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for story in stories {
        // Virtual links have XDP if they are prepared for it.
        let cases: Vec<Case> = Case::all()
            .filter(|case| (story.when)(*case) && (case.offload == Offload::Xdp) == (room == "xdp"))
            .filter(|case| !OF_TYPICAL_CASES.contains(&room) || case.is_typical())
            .collect();
        let first = case::first(&cases, story.name);
        let opposite = first.and_then(|first| case::opposite(&cases, first));
        for case in cases {
            let name = format!("{case}::{room}::{}", story.name);
            let patience = match case {
                _ if first == Some(case) => None,
                _ if opposite == Some(case) => Some(&Need::Long),
                _ => Some(&Need::All),
            };
            let needs = patience.into_iter().chain(story.needs).chain(needs_of(room, case)).copied();
            let needs: Vec<Need> = needs.collect();
            trials.push(trial(name, needs, move || {
                let _turn = turns::begin();
                (story.tell)(case);
            }));
        }
    }
    trials
}
