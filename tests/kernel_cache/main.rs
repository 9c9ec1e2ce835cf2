//! The kernel's flow cache, its programs run by the kernel on one packet after another (`BPF_PROG_TEST_RUN`), and held
//! against the forwarding core; and once attached to interfaces.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../balancer/mod.rs"]
mod balancer;
mod filter;
mod flood;
mod handshake;
mod hits;
mod kernel;
#[path = "../packet_io/lab.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod lab;
mod live;
mod map;
mod misses;
mod twin;

use std::process::ExitCode;

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
    let missing = kernel::missing();
    let stories: Vec<Story> = [
        map::stories(),
        hits::stories(),
        handshake::stories(),
        misses::stories(),
        filter::stories(),
        flood::stories(),
    ]
    .concat();
    let mut trials: Vec<_> = trials_of(stories, missing.as_deref()).collect();
    let missing =
        missing.or_else(|| lab::missing(&["ip", "tc", "ethtool"])).or_else(|| lab::older_than(6, 6, "tcx"));
    trials.extend(trials_of(live::stories(), missing.as_deref()));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
