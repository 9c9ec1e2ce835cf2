//! Interfaces that packets use only later, and interfaces that are made anew.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use convey_dataplane::testing::GuardKind;
use convey_dataplane::{Guard, Selection};
use convey_lab::{INTERFACE, Role};
use convey_model::Interface;
use convey_testkit::{TcpServer, clock, connect, ping, wait_for};

use crate::case::{Case, Family, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::flood::forge;
use crate::network::{Network, PORT};
use crate::raw::Wire;

pub(crate) fn tests() -> Vec<PacketTest> {
    // In DSR there are no replies to capture.
    let mut tests = tests![when Case::is_passthrough =>
        a_reload_may_put_a_server_behind_another_interface [NGINX],
        an_interface_that_is_made_anew_is_captured_again [NGINX],
    ];
    // The family makes no difference.
    tests.extend(tests![when |case| {
            case.is_passthrough() && case.is_cached() && case.family == Family::V4
        } =>
        workers_forward_on_an_interface_that_takes_no_more_programs [NGINX],
    ]);
    // Each family and each offload, but not all combinations: a test takes some seconds.
    tests.extend(floods(tests![when |case| {
            case.is_passthrough() && case.is_cached() == (case.family == Family::V6)
        } =>
        clients_are_served_while_others_are_forged_on_the_link,
    ]));
    tests
}

/// The second link between the balancer and server 1, on either side.
pub(crate) const LINK: &str = "back";

fn a_reload_may_put_a_server_behind_another_interface(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx_on(1, (case.family.any(), PORT).into());
    network.balance(&Config { passthrough: snat(case.family), ..Config::new(1) });
    assert_eq!(network.fetch(1).unwrap(), "s1");
    assert_eq!(logged(&network, "forwarding packets on"), 1);
    link(&network);
    use_link(&network);
    assert!(passed(&network) > 0, "over the second link");
    let means = if case.is_cached() { "tc (tcx)" } else { "worker" };
    assert_eq!(logged(&network, &format!("on back (open flows: by {means})")), 1);
}

fn an_interface_that_is_made_anew_is_captured_again(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx_on(1, (case.family.any(), PORT).into());
    link(&network);
    network.balance_with(&through_link(case));
    network.wait_for_health(1, true);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    let held = descriptors(&network);
    for times in 1..=2 {
        ip(&network, Role::Balancer, &format!("link del {LINK}"));
        wait_for("it to be missed", || (logged(&network, "interface back is gone") == times).then_some(()));
        network.wait_for_health(1, false);
        link(&network);
        network.wait_for_health(1, true);
        wait_for("an answer", || (network.fetch(1).ok()? == "s1").then_some(()));
        assert_eq!(logged(&network, "now forwarding packets on back"), times);
        assert_eq!(network.fetch(1).unwrap(), "s1");
        assert_eq!(descriptors(&network), held, "programs, maps and what attaches them");
    }
}

fn workers_forward_on_an_interface_that_takes_no_more_programs(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx_on(1, (case.family.any(), PORT).into());
    network.balance(&Config { passthrough: snat(case.family), ..Config::new(1) });
    link(&network);
    // Linux takes 63. Convey's guard will be the last.
    let _others: Vec<Guard> = (0..62).map(|_| idle_guard(&network)).collect();
    use_link(&network);
    assert_eq!(network.stat(&format!("/packets/offload/{LINK}")), "worker");
    assert_eq!(logged(&network, "every packet received on back goes through a worker"), 1);
    // A clsact qdisc, the alternative to tcx, would outlive a killed process.
    let queues = network.lab.run(Role::Balancer, "tc", &["qdisc", "show", "dev", LINK]).unwrap();
    assert!(!queues.contains("clsact"), "{queues}");
}

/// A thousand nonexistent addresses a second are forged, all on the balancer's link. Four clients
/// are new to the balancer and send no ARP request or neighbour solicitation, since they have its
/// Ethernet address already. Each is served within 5 seconds, plus the time that an open connection
/// takes for an answer meanwhile: that measures how busy this machine is.
fn clients_are_served_while_others_are_forged_on_the_link(case: Case) {
    const CLIENTS: [u8; 4] = [1, 3, 4, 5];
    const WITHIN: Duration = Duration::from_secs(5);
    let mut network = Network::new(case, 5, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let (vip, mac) = (network.vip(), Role::Balancer.mac().map(|byte| format!("{byte:02x}")).join(":"));
    let forged = if case.family == Family::V4 { "198.18.0.0/15" } else { "2001:2::/64" };
    ip(&network, Role::Balancer, &format!("route add {forged} dev {INTERFACE}"));
    for client in CLIENTS.map(Role::Client) {
        ip(&network, client, &format!("neigh replace {} lladdr {mac} dev {INTERFACE}", vip.ip()));
        let address = case.family.address(client);
        ip(&network, Role::Balancer, &format!("neigh flush to {address}"));
    }
    let mut open = network.inside(Role::Client(2), || connect(vip));
    let (sent, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut wire, mut random) =
                (network.inside(Role::Client(2), Wire::open), fastrand::Rng::with_seed(7));
            while !is_over.load(Relaxed) && sent.fetch_add(1, Relaxed) < 30_000 {
                wire.send(&forge(vip, &mut random));
                thread::sleep(Duration::from_micros(900));
            }
        });
        wait_for("the forged to be in everybody's way", || (sent.load(Relaxed) > 2_500).then_some(()));
        let served = CLIENTS.map(|client| {
            let begin = clock();
            let serve = move || ping(&mut connect(vip)).map(|()| begin.elapsed());
            let network = &network;
            scope.spawn(move || network.inside(Role::Client(client), serve))
        });
        let mut longest = Duration::ZERO;
        while served.iter().any(|client| !client.is_finished()) {
            let begin = clock();
            ping(&mut open).unwrap();
            longest = longest.max(begin.elapsed());
        }
        let served = served.map(|client| client.join().map_err(|_| "not served"));
        is_over.store(true, Relaxed);
        let is_in_time = |took: &Duration| *took <= WITHIN + longest;
        assert!(
            served.iter().all(|served| matches!(served, Ok(Ok(took)) if is_in_time(took))),
            "{served:?}, an open connection {longest:?}"
        );
        eprintln!("{case}: {} forged, served within {served:?}", sent.load(Relaxed));
    });
}

/// Reloads to the server's address on the second link, and checks that clients are served over it.
fn use_link(network: &Network) {
    network.save_with(&through_link(network.case));
    wait_for("the link to be used", || {
        (logged(network, "now forwarding packets on back") == 1).then_some(())
    });
    network.wait_for_health(1, true);
    for _ in 0..10 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
}

/// Number of BPF objects that the balancer holds.
fn descriptors(network: &Network) -> usize {
    let directory = format!("/proc/{}/fd", network.convey(|convey| convey.id()));
    let files = fs::read_dir(directory).unwrap().filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    files.filter(|file| file.to_string_lossy().contains("bpf")).count()
}

/// A program without effect on the balancer's end of the second link.
fn idle_guard(network: &Network) -> Guard {
    let nothing = Selection { frontends: BTreeSet::new(), draining: BTreeSet::new(), replies: None };
    let back = Interface { mac: None, ..Interface::ethernet(0, LINK, [0; 6], vec![]) };
    network.inside(Role::Balancer, || Guard::of_kind(GuardKind::Tcx, &nothing, &[back]).unwrap())
}

/// Makes the second link. Packets of the server to the balancer take it.
pub(crate) fn link(network: &Network) {
    let family = network.case.family;
    let [ours, theirs] = addresses(family);
    let server = network.lab.namespace(Role::Server(1));
    ip(network, Role::Balancer, &format!("link add {LINK} type veth peer name {LINK} netns {server}"));
    let (len, nodad) = match family {
        Family::V4 => (24, ""),
        Family::V6 => (64, " nodad"),
    };
    for (role, address) in [(Role::Balancer, ours), (Role::Server(1), theirs)] {
        ip(network, role, &format!("addr add {address}/{len} dev {LINK}{nodad}"));
        ip(network, role, &format!("link set {LINK} up"));
    }
    let balancer = family.address(Role::Balancer);
    ip(network, Role::Server(1), &format!("route replace {balancer} via {ours} dev {LINK}"));
}

/// Addresses of the balancer and of the server on the second link.
fn addresses(family: Family) -> [&'static str; 2] {
    match family {
        Family::V4 => ["10.99.0.1", "10.99.0.2"],
        Family::V6 => ["fd99::1", "fd99::2"],
    }
}

/// The server's address on the second link.
pub(crate) fn theirs(family: Family) -> std::net::IpAddr {
    addresses(family)[1].parse().unwrap()
}

/// A configuration whose server is at the end of the second link. Servers see the balancer's
/// address on the first.
pub(crate) fn through_link(case: Case) -> String {
    let family = case.family;
    let config = Config { passthrough: snat(family), ..Config::new(1) };
    let [_, server] = addresses(family);
    let place = |ip: &str| std::net::SocketAddr::new(ip.parse().unwrap(), PORT).to_string();
    let usual = family.address(Role::Server(1)).to_string();
    config.text(case).replace(&place(&usual), &place(server))
}

pub(crate) fn snat(family: Family) -> &'static str {
    format!("snat_addresses = [\"{}\"]", family.address(Role::Balancer)).leak()
}

/// Bytes that the balancer has received over the second link.
fn passed(network: &Network) -> u64 {
    let file = format!("/sys/class/net/{LINK}/statistics/rx_bytes");
    network.lab.run(Role::Balancer, "cat", &[&file]).unwrap().trim().parse().unwrap()
}

fn logged(network: &Network, text: &str) -> usize {
    network.log(Role::Balancer).matches(text).count()
}

pub(crate) fn ip(network: &Network, role: Role, arguments: &str) {
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    network.lab.run(role, "ip", &arguments).unwrap();
}
