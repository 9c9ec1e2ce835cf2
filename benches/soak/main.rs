//! A long time of everything at once: clients and servers that talk, stop reading, close one side or reset, while the
//! configuration is reloaded under them. In the end nothing may be left: no descriptor, no memory, no connection that
//! a gauge still counts.
//!
//!     cargo bench --bench soak -- [--seconds N] [--seed N]

mod act;
mod server;
#[path = "../../tests/stories/support/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "shared with the stories")]
#[allow(clippy::unwrap_used, reason = "a soak that cannot go on has failed")]
mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use clap::Parser;
use fastrand::Rng;
use serde_json::Value;

use act::Tally;
use support::{Balancer, Fds, Lab, Server, Setup, clock, raise_file_limit};

/// Loads convey with everything at once and shows that nothing is left of it.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench soak --")]
struct Options {
    /// How long
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// What the clients' choices follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Clients at the same time.
const CLIENTS: u64 = 24;

/// Servers, of which a reload may take away all but the first.
const SERVERS: u8 = 3;

/// Idle pipes that a worker keeps for the next bulk transfer.
const PIPES_KEPT: usize = 64;

/// Memory that may be more in the end: allocators do not give back each page.
const SLACK: u64 = 4 * 1024 * 1024;

fn main() -> ExitCode {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--test") || !asked("--bench") {
        println!("soak: nothing to test; `cargo bench --bench soak` soaks");
        return ExitCode::SUCCESS;
    }
    raise_file_limit();
    soak(&Options::parse());
    ExitCode::SUCCESS
}

fn soak(options: &Options) {
    let lab = Lab::new();
    let _servers: Vec<Server> = (1..=SERVERS).map(|n| server::start(lab.server(n))).collect();
    let usual = setup(&lab, &[1; SERVERS as usize], false);
    let balancer = Balancer::start(&lab, &usual);
    println!(
        "| | seconds | connections | resets by clients | by servers | GB | reloads | sockets | pipes | memory, MiB |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let start = State::of(&balancer);
    start.tell("start", 0, &Tally::default(), 0);
    // What is kept for the next connections (pipes, pages of the allocator) is there after some load.
    let warmth = options.seconds.div_ceil(10);
    let warm = load(&lab, &balancer, &usual, start.fds, options.seed, warmth);
    let main = load(&lab, &balancer, &usual, start.fds, options.seed + 1, options.seconds - warmth);
    assert!(main.memory <= warm.memory + SLACK, "memory grew from {} to {}", warm.memory, main.memory);
    println!("nothing is left");
}

/// Clients for so long, then the usual configuration and the end of every connection; what there is then. `base` are
/// the descriptors at the start.
fn load(lab: &Lab, balancer: &Balancer, usual: &Setup, base: Fds, seed: u64, seconds: u64) -> State {
    let (end, over) = (clock() + Duration::from_secs(seconds), AtomicBool::new(false));
    let before = balancer.stats();
    let (tally, reloads) = thread::scope(|scope| {
        let client = |n| {
            let (over, vip) = (&over, lab.vip());
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(n));
                let mut tally = Tally::default();
                while !over.load(Ordering::Relaxed) {
                    act::any(vip, &mut random, &mut tally);
                }
                tally
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let mut random = Rng::with_seed(seed);
        let mut reloads = 0;
        while clock() < end {
            let weights = [random.u64(1..5), random.u64(0..5), random.u64(0..5)];
            balancer.save(&setup(lab, &weights, random.bool()));
            reloads += 1;
            thread::sleep(Duration::from_millis(random.u64(100..1_000)).min(end - clock().min(end)));
        }
        over.store(true, Ordering::Relaxed);
        let tallies =
            clients.into_iter().map(|client| client.join().expect("every client got what it should"));
        (tallies.fold(Tally::default(), Tally::and), reloads)
    });
    balancer.save(usual);
    support::wait_for("the usual configuration and no connection", || {
        is_at_rest(&balancer.stats()).then_some(())
    });
    let kept = 2 * PIPES_KEPT * available_parallelism().map_or(1, usize::from);
    let given_back = |fds: Fds| fds.sockets == base.sockets && fds.pipes <= base.pipes + kept;
    support::wait_for("the descriptors to be given back", || given_back(balancer.fds()).then_some(()));

    let after = balancer.stats();
    let number = |stats: &Value, name: &str| stats[name].as_u64().unwrap_or_default();
    let counted = |name: &str| number(&after, name) - number(&before, name);
    assert_eq!(counted("total_connections"), tally.connections, "connections counted");
    assert!(counted("total_bytes_tx") >= tally.received, "bytes that nobody counted");
    for reason in ["cut", "connect_failed", "no_server", "queue_timeout", "server_gone"] {
        assert_eq!(after["frontends"]["web"]["ended"][reason], 0, "{reason}: {after:#}");
    }
    let ended = |reason: &str| {
        let [after, before] =
            [&after, &before].map(|stats| number(&stats["frontends"]["web"]["ended"], reason));
        after - before
    };
    // A reset that comes while the receive window closes may be outside of it, and then the kernel drops it (RFC 9293,
    // section 3.10.7.4): such a connection is found to be idle.
    let (reset, idle) = (ended("client_reset"), ended("idle_timeout"));
    assert!(idle <= 1 + tally.resets / 1_000, "{idle} connections were idle");
    assert_eq!((reset + idle, ended("server_reset")), (tally.resets, tally.was_reset), "resets counted");
    if idle > 0 {
        println!("(of the resets by clients {idle} found by the idle timeout)");
    }
    let state = State::of(balancer);
    state.tell("then", seconds, &tally, reloads);
    state
}

/// The frontend and its servers; a weight of 0 leaves a server out. Another frontend comes and goes.
fn setup(lab: &Lab, weights: &[u64], second: bool) -> Setup {
    let weighted = (1..).zip(weights).filter(|(_, weight)| **weight > 0);
    // A connection that is blocked is looked at four times in its idle timeout.
    let setup = weighted.fold(Setup::new(lab).timeouts("idle = 20"), |setup, (n, weight)| {
        setup.server(&format!("s{n}"), lab.server(n), &format!("weight = {weight}"))
    });
    let frontend =
        format!("[frontends.second]\nlisten_addr = \"{}\"\nbackend = \"pool\"\n", lab.second_vip());
    if second { setup.and(&frontend) } else { setup }
}

/// Whether the usual configuration runs and every gauge of connections is at 0.
fn is_at_rest(stats: &Value) -> bool {
    fn idle(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter().all(|(name, value)| match name.as_str() {
                "current_connections" => *value == 0,
                _ => idle(value),
            }),
            _ => true,
        }
    }
    let servers = stats["backends"]["pool"]["servers"].as_object();
    let usual = servers.is_some_and(|servers| {
        servers.len() == usize::from(SERVERS) && servers.values().all(|server| server["weight"] == 1)
    });
    usual && stats["frontends"].get("second").is_none() && idle(stats)
}

/// What convey holds.
struct State {
    fds: Fds,
    memory: u64,
}

impl State {
    fn of(balancer: &Balancer) -> State {
        State { fds: balancer.fds(), memory: balancer.memory() }
    }

    fn tell(&self, when: &str, seconds: u64, tally: &Tally, reloads: u32) {
        let Fds { sockets, pipes } = self.fds;
        let (gigabytes, memory) = (tally.received as f64 / 1e9, self.memory as f64 / f64::from(1 << 20));
        let Tally { connections, resets, was_reset, .. } = tally;
        println!(
            "| {when} | {seconds} | {connections} | {resets} | {was_reset} | {gigabytes:.2} | {reloads} | {sockets} | {pipes} | {memory:.1} |"
        );
    }
}
