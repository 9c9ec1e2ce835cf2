//! What convey costs with as much configured as large sites have, each size ten times that before it: mode passthrough, every server
//! answered by one nginx of another network namespace, and probed.
//!
//!     sudo -E env PATH="$PATH" cargo bench --bench size -- [--smoke]

#![allow(clippy::disallowed_methods, reason = "it measures time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod site;

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use convey_testkit::{Need, raise_file_limit};

use self::site::{Running, Site};

/// Measures the start, a reload, a change by an operator, memory and rest.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench size --")]
struct Options {
    /// The smallest size alone: shows that it works
    #[arg(long)]
    smoke: bool,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// So much is configured.
#[derive(Debug, Clone, Copy)]
struct Size {
    frontends: usize,
    backends: usize,
    servers: usize,
}

const SIZES: [Size; 3] = [
    Size { frontends: 100, backends: 10, servers: 1_000 },
    Size { frontends: 1_000, backends: 100, servers: 10_000 },
    Size { frontends: 10_000, backends: 1_000, servers: 100_000 },
];

/// Changes by an operator, one after the other.
const CHANGES: u32 = 20;
/// How long convey is left alone to see what it costs at rest.
const REST: Duration = Duration::from_secs(10);
/// Rest has come when two such times cost alike, or after so many of them.
const SETTLING: Duration = Duration::from_secs(3);
const SETTLINGS: usize = 40;

fn main() -> ExitCode {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--test") || !asked("--bench") {
        println!("size: nothing to test; `cargo bench --bench size` measures");
        return ExitCode::SUCCESS;
    }
    let needs = [Need::Namespaces, Need::NGINX, Need::CURL, Need::NFT];
    if let Some(missing) = needs.iter().find_map(|need| need.missing()) {
        eprintln!("size: {missing}");
        return ExitCode::FAILURE;
    }
    raise_file_limit();
    let sizes = if Options::parse().smoke { &SIZES[..1] } else { &SIZES[..] };
    println!(
        "| frontends | backends | servers | `check` s | serves after s | all backends ready s | memory MB | a server, KB | CPU at rest, % of a \
         core | reload of one server, s | an operator's change, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for size in sizes {
        println!("{}", row(*size));
    }
    ExitCode::SUCCESS
}

fn row(Size { frontends, backends, servers }: Size) -> String {
    let site = Site::new();
    let file = site.write(frontends, backends, servers);
    let check = time(|| site.check());
    let begun = Instant::now();
    let mut running = Running::start(&site);
    running.wait_for("healthz");
    let serves = begun.elapsed();
    running.wait_for("readyz");
    let ready = begun.elapsed();
    settle(&running);
    let (memory, before) = (running.memory_kb(), running.cpu());
    std::thread::sleep(REST);
    let rest = (running.cpu() - before).as_secs_f64() / REST.as_secs_f64() * 100.0;
    let text = fs::read_to_string(&file).unwrap();
    let one = text.replacen("weight = 1", "weight = 7", 1);
    assert_ne!(one, text, "one server is to change");
    let reload = time(|| {
        fs::write(&file, one).unwrap();
        running.wait_for_log("reload: backend b0");
    });
    let change = time(|| (0..CHANGES).for_each(|n| running.take_out("b0/s1", n % 2 == 0))) / CHANGES;
    format!(
        "| {frontends} | {backends} | {servers} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} | {rest:.1} | {:.2} | {:.1} |",
        check.as_secs_f64(),
        serves.as_secs_f64(),
        ready.as_secs_f64(),
        memory as f64 / 1024.0,
        memory as f64 / servers as f64,
        reload.as_secs_f64(),
        change.as_secs_f64() * 1000.0
    )
}

/// Waits until every server was probed, as the CPU tells: a probe that finds what the one before found costs little.
fn settle(running: &Running) {
    let mut last = Duration::ZERO;
    for _ in 0..SETTLINGS {
        let before = running.cpu();
        std::thread::sleep(SETTLING);
        let cost = running.cpu() - before;
        if last > Duration::ZERO
            && cost.abs_diff(last) * 5 < last.max(Duration::from_millis(100))
            && cost < SETTLING / 2
        {
            return;
        }
        last = cost;
    }
    eprintln!("size: it has not come to rest, and the next figures are too large");
}

fn time(what: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    what();
    begun.elapsed()
}
