//! What a user of the packet modes would tell: the real binary between real clients and real servers, each in a
//! network namespace of its own.
//!
//! Stories are told in passthrough and in DSR mode, by IPv4 and by IPv6, with open flows forwarded by the kernel and by a
//! worker; some with the driver of a virtual link. Unless `CONVEY_LONG` is set each is told in half of these ways, and long
//! ones are not. They need root and some tools; where one is missing they are reported as ignored, with the reason.
//! `CONVEY_BIN` names another binary to test.
#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod case;
mod config;
mod diagnose;
mod dns;
mod drain;
mod ends;
mod failure;
mod flood;
mod fragments;
mod host;
mod interfaces;
mod l2;
mod lab;
mod log;
mod loops;
mod mixed;
mod modes;
mod mtu;
mod network;
mod outlast;
mod ports;
mod raw;
mod reload;
mod rivals;
mod scarce;
mod scripts;
mod siege;
mod silence;
mod spoofed;
mod spread;
#[path = "../stories/support/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "shared with the stories of proxy mode")]
mod support;
mod takeover;
mod transfer;
mod udp;
mod xdp;

use std::process::ExitCode;

use convey::model::Offload;
use libtest_mimic::{Arguments, Trial};

use case::Case;
use support::Need;

/// Tools, and the Debian packages that have them.
const TOOLS: [(&str, &str); 13] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("ethtool", "ethtool"),
    ("iptables", "iptables"),
    ("nginx", "nginx-light"),
    ("curl", "curl"),
    ("wrk", "wrk"),
    ("iperf3", "iperf3"),
    ("dnsmasq", "dnsmasq-base"),
    ("dig", "bind9-dnsutils"),
    ("ping", "iputils-ping"),
    ("arping", "iputils-arping"),
    ("traceroute", "traceroute"),
];

fn main() -> ExitCode {
    // Asked to be the process that holds a lab, and is killed.
    if std::env::args().nth(1).as_deref() == Some(lab::HOLD) {
        lab::hold();
    }
    let missing = missing();
    let rooms = [
        ("spread", spread::stories()),
        ("transfer", transfer::stories()),
        ("failure", failure::stories()),
        ("flood", flood::stories()),
        ("scarce", scarce::stories()),
        ("siege", siege::stories()),
        ("silence", silence::stories()),
        ("spoofed", spoofed::stories()),
        ("reload", reload::stories()),
        ("drain", drain::stories()),
        ("ends", ends::stories()),
        ("modes", modes::stories()),
        ("ports", ports::stories()),
        ("host", host::stories()),
        ("rivals", rivals::stories()),
        ("interfaces", interfaces::stories()),
        ("scripts", scripts::stories()),
        ("dns", dns::stories()),
        ("fragments", fragments::stories()),
        ("mtu", mtu::stories()),
        ("diagnose", diagnose::stories()),
        ("l2", l2::stories()),
        ("log", log::stories()),
        ("loops", loops::stories()),
        ("mixed", mixed::stories()),
        ("takeover", takeover::stories()),
        ("outlast", outlast::stories()),
        ("xdp", xdp::stories()),
    ];
    let mut trials: Vec<Trial> = lab::trials();
    for (room, stories) in rooms {
        for story in stories {
            // Virtual links have XDP if they are prepared for it.
            let cases: Vec<Case> = Case::all()
                .filter(|case| (story.when)(*case) && (case.offload == Offload::Xdp) == (room == "xdp"))
                .collect();
            let has_typical = cases.iter().any(|case| case.is_typical());
            for case in cases {
                let name = format!("{case}::{room}::{}", story.name);
                let tell = move || {
                    (story.tell)(case);
                    Ok(())
                };
                let patience = (has_typical && !case.is_typical()).then_some(&Need::Long);
                let trial = Trial::test(name, tell);
                trials.push(match story.needs.iter().chain(patience).find_map(|need| need.missing()) {
                    Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
                    None => trial,
                });
            }
        }
    }
    let trials = trials.into_iter().map(|trial| match &missing {
        Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
        None => trial,
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// Why no story can be told here, if none can.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, for network namespaces".into());
    }
    let (tool, package) = TOOLS.iter().find(|(tool, _)| support::tool(tool).is_none())?;
    Some(format!("{tool} is not installed (Debian package {package})"))
}
