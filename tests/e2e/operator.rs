//! Helpers for tests of operators: commands for a running convey, and the names of the servers that
//! answer its clients.

use std::collections::BTreeSet;

use convey_testkit::{BalancerProcess, Loopback, Ran, fetch, run};

/// Runs a command for this convey.
pub(crate) fn run_command(balancer: &BalancerProcess, line: &str) -> Ran {
    run(balancer.command().args(line.split(' ')))
}

/// Runs a command successfully, and returns its output.
pub(crate) fn command_output(balancer: &BalancerProcess, line: &str) -> String {
    let ran = run_command(balancer, line);
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    ran.stdout
}

/// Names of the servers that answer 20 clients.
pub(crate) fn answering_servers(lab: &Loopback) -> BTreeSet<String> {
    (0..20).map(|_| fetch(lab.vip(), "/").unwrap().1).collect()
}

/// A set of names.
pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
