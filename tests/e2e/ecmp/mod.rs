//! Several nodes announce one address to a router: fate of connections while nodes die, come back
//! and are upgraded, and servers are added. The long tests print the figures of
//! docs/guides/announce.md.

mod cluster;
mod connections;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::{Mutex, MutexGuard, PoisonError};

use convey_testkit::{Need, Process, binary, tests, wait_for};
use rustix::process::Signal;

use self::cluster::{Cluster, NODES};
pub(crate) use self::connections::serves_numbers;
use self::connections::{Broken, Connections};

const BIRD: Need = Need::Tool("bird", "bird2");
const MARKS: Need = Need::Kernel(5, 18, "marks of addresses");
const FILES: Need = Need::OpenFiles(11_000);

tests!("ecmp":
    dsr_connections_survive_the_death_and_return_of_nodes [Need::Namespaces, MARKS, BIRD, Need::NFT],
    dsr_keeps_10_000_connections_as_nodes_die_and_return [Need::Long, Need::Namespaces, MARKS, BIRD, Need::NFT, FILES],
    connections_of_passthrough_break_with_their_node [Need::Namespaces, MARKS, BIRD],
    connections_of_passthrough_break_among_10_000 [Need::Long, Need::Namespaces, MARKS, BIRD, FILES],
    the_demo_shows_a_balancer_that_dies_and_comes_back [Need::Long, Need::Namespaces, MARKS, BIRD, Need::NFT],
);

/// First port of the client's lasting connections, and of connections that only query a server's
/// name.
const LASTING: u16 = 20_000;
const ASKING: u16 = 40_000;

fn dsr_connections_survive_the_death_and_return_of_nodes() {
    print_dsr_results(600);
}

fn dsr_keeps_10_000_connections_as_nodes_die_and_return() {
    let _turn = turn();
    print_dsr_results(10_000);
}

fn connections_of_passthrough_break_with_their_node() {
    print_passthrough_results(600);
}

fn connections_of_passthrough_break_among_10_000() {
    let _turn = turn();
    print_passthrough_results(10_000);
}

/// Two of 10,000 connections at once need more open files than a process may have.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn the_demo_shows_a_balancer_that_dies_and_comes_back() {
    const LAST: &str = "the router sends to balancer 1 again";
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let file = File::create(&log).unwrap();
    let mut demo =
        Process::spawn(binary().args(["demo", "--ecmp"]).stdout(file.try_clone().unwrap()).stderr(file));
    let read = || fs::read_to_string(&log).unwrap();
    // Each second has a line.
    let mut lines = 0;
    while !read().contains(LAST) {
        lines = wait_for("another line of the demo", || {
            assert!(demo.ended().is_none(), "{}", read());
            Some(read().lines().count()).filter(|count| *count > lines)
        });
        assert!(lines < 100, "{}", read());
    }
    demo.signal(Signal::INT);
    assert_eq!(demo.wait().code(), Some(0));
    let seconds = read();
    // The client connects in the first second.
    let seconds: Vec<&str> = seconds.lines().filter(|line| line.contains(" open, ")).skip(1).collect();
    assert!(
        seconds.len() >= 20 && seconds.iter().all(|line| line.contains("200 open, 0 broken")),
        "{seconds:#?}"
    );
    let without_first = |line: &&&str| line.contains(" - 2 3 4 ");
    assert!(seconds.iter().filter(without_first).count() >= 5, "{seconds:#?}");
}

/// Prints a figure for the docs.
fn print_result(mode: &str, what: &str, broken: &[Broken], open: u16) {
    eprintln!("ecmp {mode}: {what}: {} of {open} broken", broken.len());
}

fn print_dsr_results(open: u16) {
    let mut cluster = Cluster::start("dsr", 3);
    let mut connections = Connections::open(&cluster.lab, LASTING, open);
    assert_eq!(connections.use_all(), []);
    let owners = owners(&cluster, open);

    let broken = kill(&mut cluster, 2, &mut connections);
    print_result("dsr", "a node dies", &broken, open);
    let of_others = broken.iter().filter(|broken| owners[&broken.port] != 2).count();
    assert!(of_others == 0 && broken.len() * 100 < usize::from(open), "{broken:?}");
    let moved = count_of(&owners, 2);
    eprintln!("ecmp dsr: it had {moved} of {open}");

    cluster.revive(2);
    let broken = use_until_announced(&cluster, &mut connections);
    print_result("dsr", "it is announced again", &broken, open);
    assert_eq!(broken, []);

    for node in 1..=NODES {
        cluster.upgrade(node);
        assert_eq!(connections.use_all(), []);
    }
    print_result("dsr", "all nodes are upgraded, one after the other", &[], open);

    add_a_server(&cluster, &mut connections, open);

    // Its flows, and flows of other nodes that the router moves, arrive at nodes without a record
    // of them.
    let broken = kill(&mut cluster, 3, &mut connections);
    print_result("dsr", "and then a node dies", &broken, open);
    let now = Connections::fetch(&cluster.lab, broken.iter().map(|broken| broken.port));
    let chosen_otherwise = broken.iter().filter(|broken| now[&broken.port] != broken.server).count();
    assert_eq!(
        chosen_otherwise,
        broken.len(),
        "only a client whose server is another one by now loses its connection"
    );
}

/// Adds a fourth server. Open connections stay; of later clients, only its share moves.
fn add_a_server(cluster: &Cluster, connections: &mut Connections, open: u16) {
    let asking = || ASKING..ASKING + open / 5;
    let before = Connections::fetch(&cluster.lab, asking());
    // Otherwise, they would stay with their server.
    cluster.wait_until_forgotten(asking());
    cluster.configure(4);
    let broken = connections.use_all();
    print_result("dsr", "a fourth server is added", &broken, open);
    assert_eq!(broken, []);
    let after = Connections::fetch(&cluster.lab, asking());
    let moved = |to_it: bool| {
        before.iter().filter(|(port, server)| after[port] != **server && (after[port] == 4) == to_it).count()
    };
    let (to_it, elsewhere, all) = (moved(true), moved(false), before.len());
    eprintln!(
        "ecmp dsr: of {all} clients {to_it} get the new server by now, and {elsewhere} another of the old ones"
    );
    assert!((all / 5..=all * 3 / 10).contains(&to_it), "a quarter of {all}: {to_it}");
    assert!(elsewhere * 20 < all, "{elsewhere} of {all}");
}

fn print_passthrough_results(open: u16) {
    let mut cluster = Cluster::start("passthrough", 3);
    let mut connections = Connections::open(&cluster.lab, LASTING, open);
    let owners_before = owners(&cluster, open);
    for node in 1..=NODES {
        cluster.upgrade(node);
        assert_eq!(connections.use_all(), []);
    }
    print_result("passthrough", "all nodes are upgraded, one after the other", &[], open);

    let broken = kill(&mut cluster, 2, &mut connections);
    print_result("passthrough", "a node dies", &broken, open);
    let of_it = broken.iter().filter(|broken| owners_before[&broken.port] == 2).count();
    eprintln!("ecmp passthrough: {of_it} of these were on it; the router has moved the others");
    assert_eq!(of_it, count_of(&owners_before, 2), "nobody else knows them");

    let left = u16::try_from(connections.len()).unwrap();
    cluster.revive(2);
    let broken = use_until_announced(&cluster, &mut connections);
    print_result("passthrough", "it is announced again", &broken, left);
    drop(connections);

    // A router whose buckets stay where they are.
    cluster.spread_by_buckets(&[1, 2, 3, 4]);
    let mut connections = Connections::open(&cluster.lab, ASKING, open);
    let owners = owners(&cluster, open);
    cluster.kill(2);
    cluster.spread_by_buckets(&[1, 3, 4]);
    let mut broken = connections.use_all();
    broken.extend(connections.use_all());
    print_result("passthrough", "a node dies behind a router with resilient hashing", &broken, open);
    assert!(broken.iter().all(|broken| owners[&broken.port] == 2), "{broken:?}");
    assert_eq!(broken.len(), count_of(&owners, 2));
}

/// Kills a node. Uses all connections at once, and again when the router spreads clients over the
/// others. Returns the broken ones.
fn kill(cluster: &mut Cluster, node: u8, connections: &mut Connections) -> Vec<Broken> {
    cluster.kill(node);
    let mut broken = connections.use_all();
    let others: Vec<u8> = (1..=NODES).filter(|other| *other != node).collect();
    cluster.wait_for_nodes(&others);
    broken.extend(connections.use_all());
    broken
}

/// Uses all connections until the router sends clients to all nodes, and once more. Returns the
/// broken ones.
fn use_until_announced(cluster: &Cluster, connections: &mut Connections) -> Vec<Broken> {
    let mut broken = Vec::new();
    wait_for("all nodes to be announced", || {
        broken.extend(connections.use_all());
        (cluster.lab.next_hops().unwrap().len() == usize::from(NODES)).then_some(())
    });
    broken.extend(connections.use_all());
    broken
}

/// Node of each client port. Checks that each connection is on one node.
fn owners(cluster: &Cluster, open: u16) -> BTreeMap<u16, u8> {
    let mut owners = BTreeMap::new();
    for node in 1..=NODES {
        let ports = cluster.ports_of_flows(node);
        assert!(ports.len() * 8 > usize::from(open), "node {node} has {} of {open}", ports.len());
        owners.extend(ports.into_iter().map(|port| (port, node)));
    }
    owners
}

fn count_of(owners: &BTreeMap<u16, u8>, node: u8) -> usize {
    owners.values().filter(|owner| **owner == node).count()
}
