//! What stories of operators share: commands that speak to a convey that runs, and who answers its clients.

use std::collections::BTreeSet;

use convey_testkit::{BalancerProcess, Loopback, Ran, ask, run};

/// Runs a command that speaks to this convey.
pub(crate) fn tell(balancer: &BalancerProcess, line: &str) -> Ran {
    run(balancer.command().args(line.split(' ')))
}

/// The same, and it succeeds.
pub(crate) fn told(balancer: &BalancerProcess, line: &str) -> String {
    let ran = tell(balancer, line);
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    ran.stdout
}

/// Who answers 20 clients.
pub(crate) fn who_answers(lab: &Loopback) -> BTreeSet<String> {
    (0..20).map(|_| ask(lab.vip(), "/").unwrap().1).collect()
}

/// These names.
pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
