//! Cost of convey with configurations as large as large sites have, each size ten times the one
//! before: mode passthrough, with one nginx in another network namespace for all servers, and
//! health checks. Then as many frontends of mode proxy as possible.
//!
//!     sudo -E env PATH="$PATH" cargo bench --bench size -- [--smoke]

#![allow(clippy::disallowed_methods, reason = "it measures time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod checks;
mod death;
mod frontends;
mod running;
mod site;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use convey_testkit::{Need, raise_file_limit};

use self::checks::Spread;
use self::death::Deaths;
use self::running::Running;
use self::site::{INTERVAL, Site};

/// Measures the start, a reload, a change by an operator, memory, rest, health checks and the death
/// of a server.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench size --")]
struct Options {
    /// The smallest size alone: shows that it works
    #[arg(long)]
    smoke: bool,
    /// Argument that cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Size of a configuration.
#[derive(Debug, Clone, Copy)]
struct Size {
    mode: &'static str,
    frontends: usize,
    backends: usize,
    servers: usize,
}

const SIZES: [Size; 3] = [
    Size { mode: "passthrough", frontends: 100, backends: 10, servers: 1_000 },
    Size { mode: "passthrough", frontends: 1_000, backends: 100, servers: 10_000 },
    Size { mode: "passthrough", frontends: 10_000, backends: 1_000, servers: 100_000 },
];

/// Changes by an operator, in sequence.
const CHANGES: u32 = 20;
/// Deaths of a server, in sequence.
const DEATHS: usize = 5;
/// Time without any event, to measure the CPU at rest.
const REST: Duration = Duration::from_secs(10);
/// Interval for detecting rest: two intervals with equal CPU, or a maximum of intervals.
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
    tables(Options::parse().smoke);
    ExitCode::SUCCESS
}

fn tables(is_smoke: bool) {
    println!(
        "| frontends | backends | servers | `check` s | serves after s | all backends ready s | memory MB | a server, KB | CPU at rest, % of a \
         core | reload of one server, s | an operator's change, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut of_health = Vec::new();
    for size in if is_smoke { &SIZES[..1] } else { &SIZES[..] } {
        let [costs, health] = rows(*size, is_smoke);
        println!("{costs}");
        of_health.push(health);
    }
    println!(
        "\n| servers | checks in 100 ms: mean | p99 | highest | p99 to the mean | highest to the mean | a death is logged after ms: median | \
         highest | the last client is refused after ms: median | highest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|\n{}\n", of_health.join("\n"));
    println!("{}", frontends::table(is_smoke));
}

/// A convey that has started, and its startup time.
struct Start<'a> {
    running: Running<'a>,
    file: PathBuf,
    check: Duration,
    serves: Duration,
    ready: Duration,
}

impl Start<'_> {
    fn of(site: &Site, size: Size) -> Start<'_> {
        let file = site.write(size);
        let check = time(|| site.check());
        let begun = Instant::now();
        let mut running = Running::start(site);
        running.wait_for("healthz");
        let serves = begun.elapsed();
        running.wait_for("readyz");
        Start { running, file, check, serves, ready: begun.elapsed() }
    }
}

/// Cost of a size, and of its health checks.
fn rows(size: Size, is_smoke: bool) -> [String; 2] {
    let site = Site::new();
    let Start { running, file, check, serves, ready } = Start::of(&site, size);
    settle(&running);
    let memory = running.memory_kb();
    let rest = cpu_at_rest(&running);
    let round = Duration::from_secs(if is_smoke { 5 } else { INTERVAL.into() });
    let spread = Spread::measure(&site, round);
    let reload = reload_of_one_server(&running, &file);
    let change = change_by_operator(&running);
    let deaths = Deaths::measure(&running, if is_smoke { 2 } else { DEATHS });
    let Size { frontends, backends, servers, .. } = size;
    let costs = format!(
        "| {frontends} | {backends} | {servers} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} | {rest:.1} | {:.2} | {:.1} |",
        check.as_secs_f64(),
        serves.as_secs_f64(),
        ready.as_secs_f64(),
        memory as f64 / 1024.0,
        memory as f64 / servers as f64,
        reload.as_secs_f64(),
        change.as_secs_f64() * 1000.0
    );
    [costs, format!("| {servers} | {} | {} |", spread.cells(), deaths.cells())]
}

/// CPU at rest in percent of a core.
fn cpu_at_rest(running: &Running) -> f64 {
    let before = running.cpu();
    std::thread::sleep(REST);
    (running.cpu() - before).as_secs_f64() / REST.as_secs_f64() * 100.0
}

/// Time from saving the file with another weight to the log line.
fn reload_of_one_server(running: &Running, file: &Path) -> Duration {
    let text = fs::read_to_string(file).unwrap();
    let one = text.replacen("weight = 1", "weight = 7", 1);
    assert_ne!(one, text, "one server is to change");
    time(|| {
        fs::write(file, one).unwrap();
        running.wait_for_log("reload: backend b0");
    })
}

/// Time of one change of several.
fn change_by_operator(running: &Running) -> Duration {
    time(|| (0..CHANGES).for_each(|n| running.take_out("b0/s1", n % 2 == 0))) / CHANGES
}

/// Waits until every server was checked, judging by the CPU: a check with the same outcome as the
/// one before costs little.
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
