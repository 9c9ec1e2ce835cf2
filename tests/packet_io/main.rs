//! The sockets, the guard and the netlink side of the packet modes, with real kernels' networks: each test makes
//! network namespaces of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guard;
mod lab;
mod netlink;
mod object;
mod relay;
mod sockets;

use std::process::ExitCode;

use convey::dataplane::GuardKind;
use libtest_mimic::{Arguments, Trial};

/// A test, by the name it is reported with.
type Story = (&'static str, fn());

/// Makes a story's name of its function's.
macro_rules! stories {
    ($($story:ident),+ $(,)?) => { vec![$((stringify!($story), $story as _)),+] };
}
use stories;

fn main() -> ExitCode {
    // Asked to be the process that holds a guard, and is killed.
    if let [_, hold, kind, namespace, interface] = &std::env::args().collect::<Vec<_>>()[..]
        && hold == guard::HOLD
    {
        guard::hold(kind, namespace, interface);
        return ExitCode::SUCCESS;
    }
    let networks = lab::missing(&["ip", "ethtool"]);
    let tcx = networks.clone().or_else(lab::tcx_missing);
    let nftables = lab::missing(&["ip", "nft"]);
    let mut trials = Vec::new();
    trials.extend(trials_of(relay::stories(), networks.as_deref()));
    trials.extend(trials_of(sockets::stories(), networks.as_deref()));
    trials.extend(trials_of(netlink::stories(), networks.as_deref()));
    trials.extend(trials_of(guard::stories(GuardKind::Tcx), tcx.as_deref()));
    trials.extend(trials_of(guard::stories(GuardKind::Nftables), nftables.as_deref()));
    trials.extend(trials_of(object::stories(), object::missing().as_deref()));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The stories as trials; ignored, with the reason, if something they need is missing.
fn trials_of<N: Into<String>, F: FnOnce() + Send + 'static>(
    stories: impl IntoIterator<Item = (N, F)>,
    missing: Option<&str>,
) -> impl Iterator<Item = Trial> {
    stories.into_iter().map(move |(name, story)| {
        let trial = Trial::test(name, move || {
            story();
            Ok(())
        });
        match missing {
            Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
            None => trial,
        }
    })
}
