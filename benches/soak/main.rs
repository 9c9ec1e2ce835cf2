//! Soak test: TCP clients and servers that send, stop reading, shut down one side or reset, and UDP
//! clients that leave without notice, while the configuration is reloaded and a name gets other
//! addresses. At the end no descriptor and no memory may be left in use, and every gauge of
//! connections must be 0.
//!
//!     cargo bench --bench soak -- [--seconds N] [--seed N]
#![allow(clippy::disallowed_methods, reason = "it measures time, and its threads can be made")]

mod act;
mod datagrams;
mod server;
mod setup;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use clap::Parser;
use convey_testkit::{
    BalancerProcess, Fds, Loopback, TcpServer, TestNameServer, UdpServer, clock, raise_file_limit,
};
use fastrand::Rng;
use serde_json::Value;

use act::Tally;
use setup::{SERVERS, is_at_rest, named_vip};

/// Loads convey with everything at once and shows that nothing is left of it.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench soak --")]
struct Options {
    /// How long
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Seed of the clients' choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Argument that cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Concurrent TCP clients.
const CLIENTS: u64 = 24;

/// Concurrent UDP clients.
const UDP_CLIENTS: u64 = 8;

/// Idle pipes that a worker keeps for the next bulk transfer.
const PIPES_KEPT: usize = 64;

/// Memory growth that is allowed: allocators do not return every page.
const SLACK: u64 = 4 * 1024 * 1024;

fn main() -> ExitCode {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--test") || !asked("--bench") {
        println!("soak: nothing to test; `cargo bench --bench soak` soaks");
        return ExitCode::SUCCESS;
    }
    raise_file_limit();
    let options = Options::parse();
    let Err(reason) = catch_unwind(|| soak(&options)) else { return ExitCode::SUCCESS };
    // The panic has printed the reason already, but before convey's log, which may be long.
    let reason = reason.downcast_ref::<String>().map(String::as_str);
    eprintln!("soak: {}", reason.unwrap_or("failed, see above"));
    ExitCode::FAILURE
}

fn soak(options: &Options) {
    let lab = Loopback::new();
    let _servers: Vec<TcpServer> = (1..=SERVERS).map(|n| server::start(lab.server(n))).collect();
    let _udp_servers: Vec<UdpServer> = (1..=SERVERS).map(|n| datagrams::start(lab.server(n))).collect();
    let names = TestNameServer::start(&lab, &ALL);
    let balancer = BalancerProcess::start(&lab, &setup::usual(&lab));
    println!(
        "| | seconds | connections | resets by clients | by servers | GB | clients of UDP | datagrams asked | answered | reloads | sockets | pipes | memory, MiB |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let start = Usage::of(&balancer);
    start.report("start", 0, &Tally::default(), 0);
    let soak = Soak { lab: &lab, names, balancer, base: start.fds };
    // Resources kept for later connections (pipes, pages of the allocator) are in use after the
    // first half.
    let warmth = options.seconds / 2;
    let warm = soak.load(options.seed, warmth);
    let main = soak.load(options.seed + 1, options.seconds - warmth);
    assert!(main.memory <= warm.memory + SLACK, "memory grew from {} to {}", warm.memory, main.memory);
    println!("nothing is left");
}

/// Addresses of the name at the end.
const ALL: [u8; SERVERS as usize] = [1, 2, 3];

/// convey, and the servers around it.
struct Soak<'a> {
    lab: &'a Loopback,
    names: TestNameServer<'a>,
    balancer: BalancerProcess,
    /// Descriptors at the start.
    base: Fds,
}

impl Soak<'_> {
    /// Runs clients for a time, restores the usual configuration, and waits until all connections
    /// have ended. Returns the usage after that.
    fn load(&self, seed: u64, seconds: u64) -> Usage {
        let before = self.balancer.stats();
        let over = AtomicBool::new(false);
        let (tally, reloads) = thread::scope(|scope| {
            let spawn = |n, act: fn(&Loopback, &mut Rng, &mut Tally)| {
                let (over, lab) = (&over, self.lab);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(n));
                    let mut tally = Tally::default();
                    while !over.load(Ordering::Relaxed) {
                        act(lab, &mut random, &mut tally);
                    }
                    tally
                })
            };
            let clients: Vec<_> = (0..CLIENTS)
                .map(|n| spawn(n, connect))
                .chain((CLIENTS..CLIENTS + UDP_CLIENTS).map(|n| spawn(n, fetch)))
                .collect();
            let reloads = self.disturb(&mut Rng::with_seed(seed), Duration::from_secs(seconds));
            over.store(true, Ordering::Relaxed);
            let tallies =
                clients.into_iter().map(|client| client.join().expect("every client got what it should"));
            (tallies.fold(Tally::default(), Tally::and), reloads)
        });
        self.names.answer(&ALL);
        self.balancer.save(&setup::usual(self.lab));
        convey_testkit::wait_for("the usual configuration and no connection", || {
            is_at_rest(self.lab, &self.balancer.stats()).then_some(())
        });
        let kept = 2 * PIPES_KEPT * available_parallelism().map_or(1, usize::from);
        let given_back = |fds: Fds| fds.sockets == self.base.sockets && fds.pipes <= self.base.pipes + kept;
        let state = convey_testkit::wait_for("the descriptors to be given back", || {
            Some(Usage::of(&self.balancer)).filter(|state| given_back(state.fds))
        });
        Counted { before, after: self.balancer.stats() }.check(&tally);
        state.report("then", seconds, &tally, reloads);
        state
    }

    /// Changes the configuration and the addresses of the name, and starts and stops a UDP server.
    /// Returns the number of reloads.
    fn disturb(&self, random: &mut Rng, time: Duration) -> u32 {
        let end = clock() + time;
        let mut reloads = 0;
        let mut unsteady = None;
        while clock() < end {
            self.balancer.save(&setup::other(self.lab, random));
            reloads += 1;
            let some: Vec<u8> = ALL.into_iter().filter(|_| random.bool()).collect();
            self.names.answer(if some.is_empty() { &ALL } else { &some });
            unsteady = match unsteady {
                None => Some(datagrams::start(self.lab.server(SERVERS + 1))),
                Some(_) => None,
            };
            thread::sleep(Duration::from_millis(random.u64(100..1_000)).min(end - clock().min(end)));
        }
        reloads
    }
}

fn connect(lab: &Loopback, random: &mut Rng, tally: &mut Tally) {
    let vip = if random.u8(..4) == 0 { named_vip(lab) } else { lab.vip() };
    act::any(vip, random, tally);
}

fn fetch(lab: &Loopback, random: &mut Rng, tally: &mut Tally) {
    datagrams::ask_some(lab.vip(), random, tally);
}

/// `/stats` before and after a load.
struct Counted {
    before: Value,
    after: Value,
}

impl Counted {
    /// Compares the counters with those of the clients.
    fn check(&self, tally: &Tally) {
        let tcp = |counter: &str| self.more("web", counter) + self.more("named", counter);
        assert_eq!(tcp("/total_connections"), tally.connections, "connections counted");
        assert!(tcp("/bytes_tx") >= tally.received, "bytes that nobody counted");
        for frontend in ["web", "named", "datagrams"] {
            for reason in ["cut", "connect_failed", "no_server", "queue_timeout", "server_gone"] {
                let ended = &self.after["frontends"][frontend]["ended"][reason];
                assert_eq!(*ended, 0, "{frontend}, {reason}: {:#}", self.after);
            }
        }
        // A reset that arrives while the receive window closes may be outside of it, and the kernel
        // drops it (RFC 9293, section 3.10.7.4): such a connection ends by the idle timeout.
        let (reset, idle) = (tcp("/ended/client_reset"), tcp("/ended/idle_timeout"));
        assert!(idle <= 1 + tally.resets / 1_000, "{idle} connections were idle");
        let resets = (reset + idle, tcp("/ended/server_reset"));
        assert_eq!(resets, (tally.resets, tally.was_reset), "resets counted");
        if idle > 0 {
            println!("(of the resets by clients {idle} found by the idle timeout)");
        }

        let udp = |counter: &str| self.more("datagrams", counter);
        // The flow of a UDP client that pauses for long may expire; then the client counts as a new
        // one.
        assert!(udp("/total_connections") >= tally.udp_clients, "clients of UDP that nobody counted");
        let drops = self.after["frontends"]["datagrams"]["drops"].as_object().expect("reasons");
        let dropped: u64 = drops.keys().map(|reason| udp(&format!("/drops/{reason}"))).sum();
        let taken = udp("/packets_rx");
        assert!(
            (taken..=taken + dropped).contains(&tally.asked),
            "{} datagrams asked, {taken} taken",
            tally.asked
        );
        assert!(udp("/packets_tx") >= tally.answered, "answers that nobody counted");
    }

    /// Growth of a counter of a frontend.
    fn more(&self, frontend: &str, counter: &str) -> u64 {
        let [after, before] = [&self.after, &self.before].map(|stats| {
            stats["frontends"][frontend].pointer(counter).and_then(Value::as_u64).expect("a counter")
        });
        after - before
    }
}

/// Descriptors and memory of convey.
struct Usage {
    fds: Fds,
    memory: u64,
}

impl Usage {
    fn of(balancer: &BalancerProcess) -> Usage {
        Usage { fds: balancer.fds_at_rest(), memory: balancer.memory() }
    }

    fn report(&self, when: &str, seconds: u64, tally: &Tally, reloads: u32) {
        let Fds { sockets, pipes } = self.fds;
        let (gigabytes, memory) = (tally.received as f64 / 1e9, self.memory as f64 / f64::from(1 << 20));
        let Tally { connections, resets, was_reset, udp_clients, asked, answered, .. } = tally;
        println!(
            "| {when} | {seconds} | {connections} | {resets} | {was_reset} | {gigabytes:.2} | {udp_clients} | {asked} | {answered} | {reloads} | {sockets} | {pipes} | {memory:.1} |"
        );
    }
}
