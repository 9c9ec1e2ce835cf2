//! The guard that outlives its process, with the host's own stack beside it.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use convey_dataplane::net::Netlink;
use convey_dataplane::{LastingGuard, Terms};
use convey_testkit::{PATIENCE, wait_for};

use super::guard::named;
use super::guard_kinds::{Pair, client};
use super::packet::endpoint;
use super::tcp::accept;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        host_does_not_reply_while_the_guard_holds_or_after_a_kill,
        host_gets_new_connections_after_a_kill_and_finally_everything,
        after_a_stop_the_host_gets_what_begins_at_once,
        a_guard_that_was_never_in_force_leaves_nothing,
        draining_frontend_stays_guarded_and_a_removed_one_does_not,
    ]
}

const HANDLE: u32 = 0x00c0_7777;
const FRONTENDS: [&str; 3] = ["10.78.0.1:80", "[fd78::1]:80", "10.78.0.1:53/udp"];
const LONG: Duration = Duration::from_secs(600);

fn guard(pair: &Pair, terms: Terms) -> LastingGuard {
    pair.balancer.enter(|| {
        let mut guard = LastingGuard::new(HANDLE, terms);
        guard.cover(&FRONTENDS.map(endpoint).into(), &[].into(), &named(&["front"])).unwrap();
        guard
    })
}

/// Behaves like a killed process.
fn kill(guard: LastingGuard) {
    std::mem::forget(guard);
}

/// Number of attached guards.
fn filters(pair: &Pair) -> usize {
    pair.balancer.enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let index = named(&["front"])[0].index;
        let filters =
            runtime.block_on(async { Netlink::open().unwrap().ingress_filters(index).await.unwrap() });
        filters
            .iter()
            .filter(|filter| LastingGuard::is_filter(&filter.name) && filter.handle == HANDLE)
            .count()
    })
}

/// Number of packets that the host answers: first packets, and packets of a connection that is
/// under way.
fn answers(pair: &Pair) -> (usize, usize) {
    let under_way = FRONTENDS[..2].iter().map(|to| client(to).under_way()).collect::<Vec<_>>();
    (pair.answers(&FRONTENDS.map(client)), pair.answers(&under_way))
}

fn host_does_not_reply_while_the_guard_holds_or_after_a_kill() {
    let pair = Pair::new();
    let guard = guard(&pair, Terms { serves: LONG, lasts: LONG });
    assert_eq!(answers(&pair), (3, 2), "not in force yet");
    guard.lease().renew();
    assert_eq!(answers(&pair), (0, 0));
    let _listener = pair.balancer.enter(|| TcpListener::bind("0.0.0.0:80").unwrap());
    assert_eq!(answers(&pair), (0, 0), "the frontend is ours, whoever listens");
    kill(guard);
    assert_eq!(answers(&pair), (0, 0));
}

fn host_gets_new_connections_after_a_kill_and_finally_everything() {
    let pair = Pair::new();
    let guard = guard(&pair, Terms { serves: Duration::ZERO, lasts: LONG });
    guard.lease().renew();
    kill(guard);
    assert_what_begins_is_the_hosts(&pair);

    let pair = Pair::new();
    let guard = self::guard(&pair, Terms { serves: Duration::ZERO, lasts: Duration::ZERO });
    guard.lease().renew();
    kill(guard);
    assert_eq!(answers(&pair), (3, 2), "its time is over");
    assert_eq!(filters(&pair), 1, "it does nothing, but is there until somebody takes it away");
}

fn after_a_stop_the_host_gets_what_begins_at_once() {
    let pair = Pair::new();
    let guard = guard(&pair, Terms { serves: LONG, lasts: LONG });
    guard.lease().renew();
    pair.balancer.enter(|| drop(guard));
    assert_what_begins_is_the_hosts(&pair);
}

fn a_guard_that_was_never_in_force_leaves_nothing() {
    let pair = Pair::new();
    let guard = guard(&pair, Terms::default());
    assert_eq!(filters(&pair), 1);
    pair.balancer.enter(|| drop(guard));
    assert_eq!(filters(&pair), 0);
}

fn draining_frontend_stays_guarded_and_a_removed_one_does_not() {
    let pair = Pair::new();
    let mut guard = guard(&pair, Terms { serves: LONG, lasts: LONG });
    guard.lease().renew();
    let (moved, here) = ([endpoint("10.78.0.1:81")].into(), FRONTENDS.map(endpoint).into());
    let mut cover =
        |draining| pair.balancer.enter(|| guard.cover(&moved, draining, &named(&["front"])).unwrap());
    cover(&here);
    assert_what_begins_is_the_hosts(&pair);
    assert_eq!(pair.answers(&[client("10.78.0.1:81")]), 0);
    cover(&[].into());
    assert_eq!(answers(&pair), (3, 2));
    pair.balancer.enter(|| drop(guard));
}

/// Checks that the host refuses or accepts SYNs, and does not answer other packets.
fn assert_what_begins_is_the_hosts(pair: &Pair) {
    // A datagram might be of something under way; only who has the port gets it.
    assert_eq!(answers(pair), (2, 0));
    let listener = pair.balancer.enter(|| wait_for("the port", || TcpListener::bind("0.0.0.0:80").ok()));
    let to = "10.78.0.1:80".parse().unwrap();
    let _opened = pair.other.enter(|| TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let _accepted = accept(&listener);
}
