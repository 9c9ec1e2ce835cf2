//! The kernel's flow cache: the kernel runs its programs on one packet after another
//! (`BPF_PROG_TEST_RUN`), and each result is compared with the forwarding core. Other tests attach
//! the programs to interfaces.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../balancer/mod.rs"]
mod balancer;
#[path = "../flow_cache/cases.rs"]
mod cases;
mod counters;
#[path = "../flow_cache/ends.rs"]
mod ends;
mod filter;
mod flood;
mod hits;
mod kernel;
mod live;
mod map;
mod misses;
mod programs;
#[path = "../flow_cache/tunnels.rs"]
mod tunnels;
mod twin;

use std::process::ExitCode;

use convey_testkit::{Need, run_trials, trials};

/// A test, with the name in reports.
type NamedTest = (&'static str, fn());

/// Names each test after its function.
macro_rules! tests {
    ($($test:ident),+ $(,)?) => { vec![$((stringify!($test), $test as _)),+] };
}
use tests;

fn main() -> ExitCode {
    let tests: Vec<NamedTest> = [
        map::tests(),
        hits::tests(),
        programs::tests(),
        misses::tests(),
        counters::tests(),
        filter::tests(),
        flood::tests(),
    ]
    .concat();
    let programs = Need::Other(kernel::missing);
    let mut all = trials(tests, &[programs]);
    let attached = [programs, Need::Namespaces, Need::TC, Need::ETHTOOL, Need::Kernel(6, 6, "tcx")];
    all.extend(trials(live::tests(), &attached));
    run_trials(all)
}
