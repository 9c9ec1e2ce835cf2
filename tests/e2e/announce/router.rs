//! A router with BIRD, and the routes that it learns from this host.

use std::fs;
use std::path::PathBuf;

use convey_testkit::{BalancerProcess, Loopback, Process, TcpServer, TestNamespace, wait_for};

use super::bird::bird;
use super::{announcing, ip};

/// Addresses of this host and its router in the shipped files.
const OWN: &str = "192.0.2.2";
const ROUTER: &str = "192.0.2.1";
const VIP: &str = "198.51.100.1";

/// The file that convey ships for a routing daemon.
pub(super) fn shipped(daemon: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging").join(daemon).join("convey.conf")
}

/// Test of a router that has a route to the address while convey can serve. `speak` starts the
/// daemons that announce it to the router.
pub(super) fn sends_clients_here_while_a_server_is_up(speak: impl FnOnce(&Loopback) -> Vec<Process>) {
    let lab = Loopback::new();
    let router = TestNamespace::new();
    ip(&format!("link add uplink type veth peer name downlink netns {}", router.name()));
    ip(&format!("addr add {OWN}/24 dev uplink"));
    ip("link set uplink up");
    router.ip(&format!("addr add {ROUTER}/24 dev downlink"));
    router.ip("link set downlink up");
    let _here = speak(&lab);
    let theirs = lab.directory().join("router.conf");
    fs::write(&theirs, OF_ROUTER).unwrap();
    let _there = bird(router.command("bird"), &theirs, &lab.directory().join("there"));

    let server = TcpServer::named("a", lab.server(1));
    let mut balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
    let knows = || router.ip("route show").contains(&format!("{VIP} via {OWN} dev downlink"));
    let wait = |what: &str, expected| wait_for(what, || (knows() == expected).then_some(()));
    wait("the router to know the address", true);
    // A BGP session may end once more after it has begun, and withdraw the address.
    let asked = router
        .exec(&format!("curl -sS --fail --retry 20 --retry-delay 1 --retry-all-errors http://{VIP}:8080/"));
    assert_eq!(asked, "a");
    drop(server);
    wait("the router to forget the address without a server", false);
    let _server = TcpServer::named("a", lab.server(1));
    wait("the router to know the address again", true);
    balancer.signal(rustix::process::Signal::TERM);
    wait("the router to forget the address of a convey that stops", false);
    assert_eq!(balancer.wait(), 0);
}

/// Counterpart of the shipped files, for the router.
const OF_ROUTER: &str = "
router id 192.0.2.1;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol bfd { interface \"*\" { interval 300 ms; }; }
protocol bgp balancer {
    local 192.0.2.1 as 65000;
    neighbor 192.0.2.2 as 65001;
    connect retry time 1;
    connect delay time 1;
    error wait time 1, 1;
    bfd on;
    ipv4 { import all; export none; };
}
";
