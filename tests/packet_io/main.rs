//! Sockets, guard and netlink of the packet modes, in networks of real kernels: each test makes
//! network namespaces of its own.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guard;
mod guard_frames;
mod guard_kinds;
mod lasting;
mod neighbours;
mod netlink;
mod next_hops;
mod object;
mod packet;
mod relay;
mod routing;
mod sockets;
mod tcp;

use std::process::ExitCode;

use convey_dataplane::testing::GuardKind;
use convey_testkit::{Need, run_trials, trials};

/// A test, by the name it is reported with.
type NamedTest = (&'static str, fn());

/// Names each test after its function.
macro_rules! tests {
    ($($test:ident),+ $(,)?) => { vec![$((stringify!($test), $test as _)),+] };
}
use tests;

fn main() -> ExitCode {
    // This process is the child that holds a guard until it is killed.
    if let [_, hold, kind, namespace, interface] = &std::env::args().collect::<Vec<_>>()[..]
        && hold == guard::HOLD
    {
        guard::hold(kind, namespace, interface);
        return ExitCode::SUCCESS;
    }
    let network = [Need::Namespaces, Need::ETHTOOL];
    let and = |need| [&network[..], &[need]].concat();
    let super_datagrams = Need::Kernel(6, 2, "UDP super-frames for packet sockets");
    let mut all = Vec::new();
    all.extend(trials(relay::tests(), &network));
    all.extend(trials(relay::tests_of_super_datagrams(), &and(super_datagrams)));
    all.extend(trials(sockets::tests(), &network));
    all.extend(trials(netlink::tests(), &network));
    all.extend(trials(neighbours::tests(), &network));
    all.extend(trials(routing::tests(), &network));
    all.extend(trials(lasting::tests(), &network));
    all.extend(trials(guard_frames::tests(), &network));
    for (kind, need) in [(GuardKind::Tcx, Need::Kernel(6, 6, "tcx")), (GuardKind::Nftables, Need::NFT)] {
        all.extend(trials(guard::tests(kind), &and(need)));
        all.extend(trials(guard_kinds::tests(kind), &and(need)));
    }
    all.extend(trials(object::tests(), &[Need::Other(object::missing)]));
    run_trials(all)
}
