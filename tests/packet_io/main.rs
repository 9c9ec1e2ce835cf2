//! The sockets, the guard and the netlink side of the packet modes, with real kernels' networks: each test makes
//! network namespaces of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guard;
mod guard_kinds;
mod lab;
mod lasting;
mod netlink;
mod object;
mod packet;
mod relay;
mod sockets;

use std::process::ExitCode;

use convey::dataplane::GuardKind;
use lab::trials_of;
use libtest_mimic::Arguments;

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
    let tcx = networks.clone().or_else(|| lab::older_than(6, 6, "tcx"));
    let nftables = lab::missing(&["ip", "nft", "ethtool"]);
    let super_datagrams =
        networks.clone().or_else(|| lab::older_than(6, 2, "UDP super-frames for packet sockets"));
    let mut trials = Vec::new();
    trials.extend(trials_of(relay::stories(), networks.as_deref()));
    trials.extend(trials_of(relay::stories_of_super_datagrams(), super_datagrams.as_deref()));
    trials.extend(trials_of(sockets::stories(), networks.as_deref()));
    trials.extend(trials_of(netlink::stories(), networks.as_deref()));
    trials.extend(trials_of(lasting::stories(), networks.as_deref()));
    for (kind, missing) in [(GuardKind::Tcx, tcx), (GuardKind::Nftables, nftables)] {
        trials.extend(trials_of(guard::stories(kind), missing.as_deref()));
        trials.extend(trials_of(guard_kinds::stories(kind), missing.as_deref()));
    }
    trials.extend(trials_of(object::stories(), object::missing().as_deref()));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
