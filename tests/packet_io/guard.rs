//! The guard, of either kind, with the host's own stack beside it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use convey_dataplane::net::Netlink;
use convey_dataplane::testing::{GuardKind, Replies};
use convey_dataplane::{Guard, Selection};
use convey_model::Interface;
use convey_testkit::{PATIENCE, TestNamespace, wait_for};
use socket2::Socket;

use super::packet::{TestFrame, endpoint, packet, send};
use super::tcp::{accept, connecting, refused};
use super::tests;

/// A test that runs with each kind of guard, by its name.
pub(crate) type GuardTest = (&'static str, fn(GuardKind));

/// All tests, with one kind of guard.
pub(crate) fn tests(kind: GuardKind) -> impl Iterator<Item = (String, impl FnOnce() + Send + 'static)> {
    let tests = tests![
        the_host_does_not_answer_clients_of_a_frontend,
        the_host_does_not_answer_replies_of_servers,
        ranges_of_ports_and_servers_without_a_port_are_guarded,
        programs_on_the_balancer_still_reach_the_servers,
        a_reload_changes_what_is_guarded,
        an_interface_that_is_made_anew_is_guarded_anew_and_others_throughout,
        new_connections_at_a_draining_frontend_go_to_the_host,
        flood_at_a_draining_frontend_uses_bounded_memory_and_cuts_nothing,
        a_guard_is_gone_when_its_process_is_killed,
    ];
    with(kind, tests)
}

/// The tests, with one kind of guard.
pub(crate) fn with(
    kind: GuardKind,
    tests: Vec<GuardTest>,
) -> impl Iterator<Item = (String, impl FnOnce() + Send + 'static)> {
    tests.into_iter().map(move |(name, test)| (format!("{}::{name}", name_of(kind)), move || test(kind)))
}

/// The argument that makes this program hold a guard.
pub(crate) const HOLD: &str = "hold-guard";

/// A balancer with the VIP 10.78.0.1, and another machine, 10.78.0.2, which is client and server.
struct Pair {
    balancer: TestNamespace,
    other: TestNamespace,
}

impl Pair {
    fn new() -> Pair {
        let pair = Pair { balancer: TestNamespace::new(), other: TestNamespace::new() };
        pair.link();
        pair
    }

    fn link(&self) {
        let Pair { balancer, other } = self;
        balancer.link(("front", "02:00:00:00:00:0b"), other, ("eth0", "02:00:00:00:00:0c"));
        balancer.ip("addr add 10.78.0.1/24 dev front");
        other.ip("addr add 10.78.0.2/24 dev eth0");
    }

    /// Makes the balancer's interface anew.
    fn relink(&self) {
        self.balancer.ip("link del front");
        self.link();
    }

    fn guard(&self, kind: GuardKind, selection: &Selection) -> Guard {
        self.balancer.enter(|| load(kind, selection, "front"))
    }

    /// Waits until clients of the frontend are answered, after the end of the guard or of its
    /// process. The kernel closes a dead process's descriptors before it can be waited for, but
    /// frees the link of a program a little later.
    fn wait_until_unguarded(&self) {
        let is_answered = || (!self.unanswered("10.78.0.2:0", "10.78.0.1:80")).then_some(());
        wait_for("clients of the frontend to be answered", is_answered);
    }

    /// Waits until a connection to the balancer is answered, by a reset of the host's.
    fn wait_for_answer(&self, from: &str, to: &str) {
        self.other.enter(|| {
            let connection = connecting(from, to);
            wait_for(&format!("an answer of {to}"), || (!is_open(&connection)).then_some(()));
        });
    }

    /// Whether a connection to the balancer gets no answer. Answers on a veth arrive in the order
    /// of the questions, so the test waits for a refusal of a later connection to an unguarded,
    /// closed port.
    fn unanswered(&self, from: &str, to: &str) -> bool {
        self.other.enter(|| {
            let connection = connecting(from, to);
            assert!(refused("10.78.0.1:9"), "the stack answers what is not guarded");
            is_open(&connection)
        })
    }
}

/// Whether a connection has neither succeeded nor failed yet.
fn is_open(connection: &Socket) -> bool {
    connection.take_error().unwrap().is_none() && connection.peer_addr().is_err()
}

fn selection(frontend: &str) -> Selection {
    let replies = Replies {
        servers: [endpoint("10.78.0.2:8000")].into(),
        snat_addresses: ["10.78.0.1".parse().unwrap()].into(),
        snat_ports: 33768..=61000,
    };
    Selection { frontends: [endpoint(frontend)].into(), draining: [].into(), replies: Some(replies) }
}

/// Name of a kind in the tests' names.
fn name_of(kind: GuardKind) -> &'static str {
    match kind {
        GuardKind::Tcx => "tcx",
        GuardKind::Nftables => "nftables",
    }
}

/// A guard of one interface of the thread's network namespace.
pub(crate) fn load(kind: GuardKind, selection: &Selection, interface: &str) -> Guard {
    Guard::of_kind(kind, selection, &named(&[interface])).unwrap()
}

/// Interfaces of the thread's network namespace.
pub(crate) fn named(names: &[&str]) -> Vec<Interface> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let table = runtime.block_on(async { Netlink::open().unwrap().table().await.unwrap() });
    table.interfaces.into_iter().filter(|interface| names.contains(&interface.name.as_str())).collect()
}

fn ranges_of_ports_and_servers_without_a_port_are_guarded(kind: GuardKind) {
    let pair = Pair::new();
    let mut guarded = selection("10.78.0.1:80");
    guarded.frontends.extend((2000..=2010).map(|port| endpoint(&format!("10.78.0.1:{port}"))));
    let replies = guarded.replies.as_mut().unwrap();
    replies.servers = [endpoint("10.78.0.2:0")].into();
    let _guard = pair.guard(kind, &guarded);
    for (port, is_guarded) in
        [(1999, false), (2000, true), (2005, true), (2010, true), (2011, false), (80, true)]
    {
        let is_unanswered = pair.unanswered("10.78.0.2:0", &format!("10.78.0.1:{port}"));
        assert_eq!(is_unanswered, is_guarded, "{port}");
    }
    for (from, to, is_guarded) in [(8000, 40_000, true), (21_000, 61_000, true), (8000, 33_767, false)] {
        let is_unanswered = pair.unanswered(&format!("10.78.0.2:{from}"), &format!("10.78.0.1:{to}"));
        assert_eq!(is_unanswered, is_guarded, "{from} -> {to}");
    }
}

fn the_host_does_not_answer_clients_of_a_frontend(kind: GuardKind) {
    let pair = Pair::new();
    pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:80"); // without a guard it does
    let guard = pair.guard(kind, &selection("10.78.0.1:80"));
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:80"));
    pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:81");

    let _listener = pair.balancer.enter(|| TcpListener::bind("0.0.0.0:80").unwrap());
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:80"), "the frontend is ours, whoever listens");

    drop(_listener);
    drop(guard);
    pair.wait_until_unguarded();
}

fn the_host_does_not_answer_replies_of_servers(kind: GuardKind) {
    let pair = Pair::new();
    let _guard = pair.guard(kind, &selection("10.78.0.1:80"));
    assert!(pair.unanswered("10.78.0.2:8000", "10.78.0.1:33768"));
    assert!(pair.unanswered("10.78.0.2:8000", "10.78.0.1:61000"));
    pair.wait_for_answer("10.78.0.2:8000", "10.78.0.1:33767"); // not a port of ours
    pair.wait_for_answer("10.78.0.2:8001", "10.78.0.1:40000"); // not a server

    let _listener = pair.balancer.enter(|| TcpListener::bind("0.0.0.0:40001").unwrap());
    assert!(pair.unanswered("10.78.0.2:8000", "10.78.0.1:40001"), "a listener has no part in it");
}

/// With tcx also from ports of ours: ports that were in use before the guard, or that a program
/// binds explicitly.
fn programs_on_the_balancer_still_reach_the_servers(kind: GuardKind) {
    let pair = Pair::new();
    let _guard = pair.guard(kind, &selection("10.78.0.1:80"));
    let server = pair.other.enter(|| TcpListener::bind("10.78.0.2:8000").unwrap());
    let echo = thread::spawn(move || {
        let mut stream = accept(&server);
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let from = match kind {
        GuardKind::Tcx => "10.78.0.1:40000",
        GuardKind::Nftables => "10.78.0.1:33000",
    };
    pair.balancer.enter(|| {
        let connection = connecting(from, "10.78.0.2:8000");
        connection.set_nonblocking(false).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut stream = TcpStream::from(connection);
        stream.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    });
    echo.join().unwrap();
}

fn an_interface_that_is_made_anew_is_guarded_anew_and_others_throughout(kind: GuardKind) {
    let (pair, elsewhere, selection) = (Pair::new(), TestNamespace::new(), selection("10.78.0.1:80"));
    pair.balancer.link(("side", "02:00:00:00:01:0b"), &elsewhere, ("eth0", "02:00:00:00:01:0c"));
    let mut guard = pair.balancer.enter(|| Guard::of_kind(kind, &selection, &named(&["side"])).unwrap());
    pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:80");
    let mut cover = |names: &[&str]| pair.balancer.enter(|| guard.cover(&selection, &named(names)).unwrap());
    cover(&["side", "front"]);
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:80"));
    for _ in 0..2 {
        pair.relink();
        // nftables find it by its name, since Linux 6.16.
        if kind == GuardKind::Tcx {
            pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:80"); // nobody was told yet
        }
        cover(&["side", "front"]);
        assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:80"));
    }
    cover(&["side"]);
    pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:80");
}

fn a_reload_changes_what_is_guarded(kind: GuardKind) {
    let pair = Pair::new();
    let mut guard = pair.guard(kind, &selection("10.78.0.1:80"));
    guard.select(&selection("10.78.0.1:443")).unwrap();
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:443"));
    pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:80");
    guard.select(&Selection { replies: None, ..selection("10.78.0.1:443") }).unwrap();
    pair.wait_for_answer("10.78.0.2:8000", "10.78.0.1:40000"); // DSR has no replies
}

fn new_connections_at_a_draining_frontend_go_to_the_host(kind: GuardKind) {
    let pair = Pair::new();
    let drains = Selection { draining: [endpoint("10.78.0.1:80")].into(), ..selection("10.78.0.1:443") };
    let mut guard = pair.guard(kind, &selection("10.78.0.1:80"));
    let listener = pair.balancer.enter(|| TcpListener::bind("10.78.0.1:80").unwrap());
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:80"));
    guard.select(&drains).unwrap();
    pair.other.enter(|| {
        let mut client = TcpStream::connect_timeout(&"10.78.0.1:80".parse().unwrap(), PATIENCE).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut accepted = accept(&listener);
        client.write_all(b"hello").unwrap();
        accepted.read_exact(&mut [0; 5]).unwrap();
        accepted.write_all(b"world").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    });
    drop(listener);
    pair.wait_for_answer("10.78.0.2:0", "10.78.0.1:80"); // refused by the host
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:443"));
}

fn flood_at_a_draining_frontend_uses_bounded_memory_and_cuts_nothing(kind: GuardKind) {
    let pair = Pair::new();
    let drains = Selection { draining: [endpoint("10.78.0.1:80")].into(), ..selection("10.78.0.1:443") };
    let mut guard = pair.guard(kind, &selection("10.78.0.1:443"));
    guard.select(&drains).unwrap();
    let listener = pair.balancer.enter(|| TcpListener::bind("10.78.0.1:80").unwrap());
    let mut client = pair.other.enter(|| {
        let client = TcpStream::connect_timeout(&"10.78.0.1:80".parse().unwrap(), PATIENCE).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    });
    let mut accepted = accept(&listener);
    // More than the table has room for, of hosts without a route.
    let forged = |n: u32| format!("198.18.{}.{}:{}", n / 60_000, n % 250 + 1, n % 60_000 + 1);
    let mac = [2, 0, 0, 0, 0, 0x0b];
    let syns: Vec<TestFrame> = (0..70_000).map(|n| packet(mac, &forged(n), "10.78.0.1:80")).collect();
    send(&pair.other, "eth0", &syns);
    if kind == GuardKind::Nftables {
        let remembered = pair.balancer.exec("nft list ruleset").matches(" expires ").count();
        assert!((60_000..=65_536).contains(&remembered), "{remembered}");
    }
    client.write_all(b"hello").unwrap();
    accepted.read_exact(&mut [0; 5]).unwrap();
    accepted.write_all(b"world").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
}

fn a_guard_is_gone_when_its_process_is_killed(kind: GuardKind) {
    let pair = Pair::new();
    let mut holder = Holder::new(kind, &pair.balancer);
    assert!(pair.unanswered("10.78.0.2:0", "10.78.0.1:80"));
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    pair.wait_until_unguarded();
}

/// A process that holds a guard.
struct Holder(Child);

impl Holder {
    fn new(kind: GuardKind, balancer: &TestNamespace) -> Holder {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([HOLD, name_of(kind), balancer.name(), "front"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Holds a guard until its standard input ends.
pub(crate) fn hold(kind: &str, namespace: &str, interface: &str) {
    convey_testkit::join(namespace).unwrap();
    let kinds = [GuardKind::Tcx, GuardKind::Nftables];
    let kind = kinds.into_iter().find(|known| name_of(*known) == kind).unwrap();
    let _guard = load(kind, &selection("10.78.0.1:80"), interface);
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
