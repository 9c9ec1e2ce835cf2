//! The kernel's flow cache, its programs run by the kernel on one packet after another (`BPF_PROG_TEST_RUN`), and held
//! against the forwarding core. Nothing is attached to any interface.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../balancer/mod.rs"]
mod balancer;
mod filter;
mod flood;
mod hits;
mod kernel;
mod map;
mod misses;
mod twin;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test, by the name it is reported with.
type Story = (&'static str, fn());

/// Makes a story's name of its function's.
macro_rules! stories {
    ($($story:ident),+ $(,)?) => { vec![$((stringify!($story), $story as _)),+] };
}
use stories;

fn main() -> ExitCode {
    let missing = kernel::missing();
    let stories: Vec<Story> =
        [map::stories(), hits::stories(), misses::stories(), filter::stories(), flood::stories()].concat();
    let trials = stories.into_iter().map(|(name, story)| {
        let trial = Trial::test(name, move || {
            story();
            Ok(())
        });
        match &missing {
            Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
            None => trial,
        }
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
