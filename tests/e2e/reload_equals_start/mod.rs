//! A process that reloads a configuration, or is upgraded to it, serves like a process that starts
//! with it. The test uses random pairs of configurations, of which the second is an edit of the
//! first. `CONVEY_SEED` selects a single pair.

mod generate;
mod seen;

use std::io::Write;
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Need, TestAuthority, TestHttpServer, TestNameServer, run, tests,
};
use fastrand::Rng;
use rustix::process::Signal;

use self::generate::{Choices, FAILING, HOSTS, NAMED};
use self::seen::{Seen, exercise};
use crate::names::{ForAaaa, answer_for_a};
use crate::upgrade::Upgraded;

tests!("reload_equals_start":
    reload_of_an_edited_configuration_serves_as_a_start_does,
    many_reloads_serve_as_starts_do [Need::Long],
    upgrades_to_edited_configurations_serve_as_starts_do [Need::Long],
);

/// A network with servers, a name and certificates.
struct Site {
    lab: Loopback,
    authority: TestAuthority,
    _servers: Vec<TestHttpServer>,
}

impl Site {
    fn new() -> Site {
        let lab = Loopback::new();
        let authority = TestAuthority::new("authority");
        HOSTS.iter().for_each(|name| authority.issue(&[name]).save(lab.directory(), name));
        let of = [("s0", 0), ("s1", 1), ("s2", FAILING), ("named", NAMED)];
        let servers = of.map(|(name, n)| {
            TestHttpServer::start(lab.server(n), move |request, stream| {
                let target = request.line.split(' ').nth(1).unwrap_or_default();
                let status = if n == FAILING && target == "/check" { 503 } else { 200 };
                let host = request.field("host").unwrap_or_default();
                let body = format!("{name} {target} {host}");
                write!(stream, "HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            })
        });
        answer_for_a(TestNameServer::addr(&lab), lab.server(NAMED).ip(), ForAaaa::SayNone);
        Site { lab, authority, _servers: servers.into() }
    }

    /// The observations of a process that starts with this configuration, and ends.
    fn started(&self, choices: &Choices) -> Seen {
        let mut balancer = BalancerProcess::start(&self.lab, choices);
        let seen = Seen::of(&balancer, choices, &self.authority);
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
        seen
    }
}

/// Seeds of the pairs: the one in the environment, or all of these.
fn seeds(all: std::ops::Range<u64>) -> Vec<u64> {
    let named = std::env::var("CONVEY_SEED").ok();
    named.map_or_else(|| all.collect(), |seed| vec![seed.parse().unwrap()])
}

fn pair(site: &Site, seed: u64) -> (Choices, Choices) {
    let mut random = Rng::with_seed(seed);
    let first = Choices::random(&site.lab, &mut random);
    let second = first.edited(&mut random);
    (first, second)
}

fn reload_of_an_edited_configuration_serves_as_a_start_does() {
    reloads_serve_as_starts_do(seeds(0..4));
}

fn many_reloads_serve_as_starts_do() {
    reloads_serve_as_starts_do(seeds(100..140));
}

fn reloads_serve_as_starts_do(seeds: Vec<u64>) {
    let site = Site::new();
    for seed in seeds {
        let (first, second) = pair(&site, seed);
        let mut balancer = BalancerProcess::start(&site.lab, &first);
        exercise(&balancer, &first, &site.authority);
        balancer.save(&second);
        let ran = run(balancer.command().arg("reload"));
        assert_eq!(ran.code, Some(0), "CONVEY_SEED={seed}: {ran:?}\n{second}");
        let reloaded = Seen::of(&balancer, &second, &site.authority);
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
        compare(seed, (&first, &second), &reloaded, &site.started(&second));
    }
}

fn upgrades_to_edited_configurations_serve_as_starts_do() {
    let site = Site::new();
    for seed in seeds(200..220) {
        let (first, second) = pair(&site, seed);
        let mut upgraded = Upgraded::start(&site.lab, &first);
        exercise(&upgraded.first, &first, &site.authority);
        upgraded.first.save(&second);
        upgraded.upgrade();
        assert_eq!(upgraded.first.wait(), 0);
        let seen = Seen::of(&upgraded.first, &second, &site.authority);
        let ran = run(Command::new("kill").arg(upgraded.first.stat("/process").to_string()));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        upgraded.wait_for_all();
        drop(upgraded);
        compare(seed, (&first, &second), &seen, &site.started(&second));
    }
}

fn compare(seed: u64, (first, second): (&Choices, &Choices), changed: &Seen, started: &Seen) {
    let differences = changed.differences(started);
    assert!(
        differences.is_empty(),
        "CONVEY_SEED={seed}: (changed, started)\n{}\n--- before\n{first}\n--- after\n{second}",
        differences.join("\n")
    );
}
