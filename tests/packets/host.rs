//! The machine that convey runs on: its own network stack beside the traffic, and what stays when convey ends.

use std::net::TcpStream;

use aya::programs::{SchedClassifier, TcAttachType};
use convey::demo::lab::{INTERFACE, Lab, Role};
use rustix::process::Signal;

use crate::case::{Case, Story, stories};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::support::{run, wait_for};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        the_host_sends_no_reset_of_its_own,
        programs_on_the_balancer_reach_the_servers,
        nothing_stays_attached_after_a_kill,
    ]
}

/// Counts what the stack of a machine sends. What convey sends on packet sockets does not come past here. Health
/// checks may end with a reset; theirs are other ports, in DSR all that are no frontend's.
fn reset_rules(case: Case) -> String {
    let forwarded = if case.is_dsr() { "80" } else { "{ 80, 33768-61000 }" };
    format!(
        "table inet resets {{ chain output {{ type filter hook output priority 0; \
         tcp sport {forwarded} tcp flags & rst == rst counter; }}; }}"
    )
}

/// How many resets the balancer's own stack has sent since [`count_resets`].
pub(crate) fn resets(lab: &Lab) -> u64 {
    let text = lab.run(Role::Balancer, "nft", &["list", "table", "inet", "resets"]).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

/// Begins counting them.
pub(crate) fn count_resets(lab: &Lab, case: Case) {
    lab.run(Role::Balancer, "nft", &[&reset_rules(case)]).unwrap();
}

fn the_host_sends_no_reset_of_its_own(case: Case) {
    let mut network = Network::new(case, 1, 1);
    count_resets(&network.lab, case);
    assert!(network.ask(1).is_err());
    let before = resets(&network.lab);
    assert!(before > 0, "without convey it does");
    let _server = network.nginx(1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    for _ in 0..50 {
        assert_eq!(network.ask(1).unwrap(), "s1");
    }
    assert_eq!(resets(&network.lab), before);
}

fn programs_on_the_balancer_reach_the_servers(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    let url = format!("http://{}/", network.address(Role::Server(1)));
    for _ in 0..20 {
        let ran = run(network.lab.command(Role::Balancer, "curl").args(["-sS", "-m", "5", &url]));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "s1\n"), "{ran:?}");
        assert_eq!(network.ask(1).unwrap(), "s1");
    }
}

fn nothing_stays_attached_after_a_kill(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::new(1));
    let attached = |network: &Network| {
        let query = || SchedClassifier::query_tcx(INTERFACE, TcAttachType::Ingress).unwrap().1;
        network.inside(Role::Balancer, query)
    };
    assert!(!attached(&network).is_empty(), "the guard is a program");
    network.convey(|convey| convey.signal(Signal::KILL));
    wait_for("the balancer to end", || network.convey(|convey| convey.ended()));
    wait_for("its programs to be gone", || attached(&network).is_empty().then_some(()));
    let rules = network.lab.run(Role::Balancer, "nft", &["list", "ruleset"]).unwrap();
    assert_eq!(rules, "");
    // The host's stack answers again.
    let refused = network.inside(Role::Client(1), || TcpStream::connect(network.vip()).unwrap_err());
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}
