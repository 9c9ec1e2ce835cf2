//! What a user of the packet modes would tell: the real binary between real clients and real servers, each in a
//! network namespace of its own.
//!
//! Stories are told in passthrough and in DSR mode. They need root and some tools; where one is missing they are
//! reported as ignored, with the reason. `CONVEY_BIN` names another binary to test.
#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod drain;
mod failure;
mod flood;
mod host;
mod lab;
mod modes;
mod network;
mod reload;
mod scripts;
mod spread;
#[path = "../stories/support/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "shared with the stories of proxy mode")]
mod support;
mod transfer;

use std::process::ExitCode;

use convey::model::Mode;
use libtest_mimic::{Arguments, Trial};

/// A story that is told in each of the packet modes, by its name.
type Story = (&'static str, fn(Mode));

/// Makes a story's name of its function's.
macro_rules! stories {
    ($($story:ident),+ $(,)?) => { vec![$((stringify!($story), $story as fn(convey::model::Mode))),+] };
}
use stories;

/// Tools, and the Debian packages that have them.
const TOOLS: [(&str, &str); 8] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("ethtool", "ethtool"),
    ("iptables", "iptables"),
    ("nginx", "nginx-light"),
    ("curl", "curl"),
    ("wrk", "wrk"),
    ("iperf3", "iperf3"),
];

fn main() -> ExitCode {
    // Asked to be the process that holds a lab, and is killed.
    if std::env::args().nth(1).as_deref() == Some(lab::HOLD) {
        lab::hold();
    }
    let missing = missing();
    let modes = [Mode::Passthrough, Mode::Dsr];
    let rooms = [
        ("spread", spread::stories()),
        ("transfer", transfer::stories()),
        ("failure", failure::stories()),
        ("flood", flood::stories()),
        ("reload", reload::stories()),
        ("drain", drain::stories()),
        ("modes", modes::stories()),
        ("host", host::stories()),
        ("scripts", scripts::stories()),
    ];
    let mut trials: Vec<Trial> = lab::trials();
    for (room, stories) in rooms {
        for ((name, tell), mode) in stories.iter().flat_map(|story| modes.map(|mode| (*story, mode))) {
            let tell = move || {
                tell(mode);
                Ok(())
            };
            trials.push(Trial::test(format!("{}::{room}::{name}", mode.name()), tell));
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
