//! Cost of watching convey: proxy mode at full speed with and without readers of its statistics, in
//! turns in one run.
//!
//!     cargo bench --bench watch -- [--smoke]
#![allow(clippy::disallowed_methods, reason = "it measures time, and its threads can be made")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use convey_testkit::{BalancerProcess, Loopback, Nginx, Setup, binary, fetch, raise_file_limit, run, tool};
use serde_json::Value;

/// Measures requests a second with and without somebody who watches.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench --bench watch --")]
struct Options {
    /// One round of a second: shows that it works
    #[arg(long)]
    smoke: bool,
    /// Argument that cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Connections that wrk keeps busy.
const CONNECTIONS: &str = "64";
/// Servers without traffic, so that a status is as long as that of a large site.
const IDLE_SERVERS: u16 = 500;

/// Client that watches convey.
struct Watcher {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    Nobody,
    /// Polls each of these paths at an interval.
    Asks(&'static [&'static str], Duration),
    /// Several clients that poll these paths at an interval.
    Several(u8, &'static [&'static str], Duration),
    /// Reads an endless answer.
    Listens(&'static str),
}

const SECOND: Duration = Duration::from_secs(1);
/// Paths that a dashboard polls after it has been open for a while.
const DASHBOARD: &[&str] = &["/v1/status", "/v1/events?since=1000"];

/// Watchers to compare. The first is the baseline.
const WATCHERS: [Watcher; 6] = [
    Watcher { name: "nobody", kind: Kind::Nobody },
    Watcher { name: "`/v1/status` each second", kind: Kind::Asks(&["/v1/status"], SECOND) },
    Watcher { name: "a dashboard", kind: Kind::Asks(DASHBOARD, Duration::from_secs(2)) },
    Watcher { name: "ten dashboards", kind: Kind::Several(10, DASHBOARD, Duration::from_secs(2)) },
    Watcher { name: "`/v1/flows` each second", kind: Kind::Asks(&["/v1/flows"], SECOND) },
    Watcher { name: "`/v1/trace`, all of it", kind: Kind::Listens("/v1/trace") },
];

fn main() -> ExitCode {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--test") || !asked("--bench") {
        println!("watch: nothing to test; `cargo bench --bench watch` measures");
        return ExitCode::SUCCESS;
    }
    for (program, package) in [("wrk", "wrk"), ("nginx", "nginx-light")] {
        if tool(program).is_none() {
            eprintln!("watch: {program} is not installed (Debian package {package})");
            return ExitCode::FAILURE;
        }
    }
    raise_file_limit();
    let options = Options::parse();
    let (rounds, seconds) = if options.smoke { (1, 1) } else { (7, 4) };
    measure(rounds, seconds);
    ExitCode::SUCCESS
}

fn measure(rounds: usize, seconds: u64) {
    let lab = Loopback::new();
    let nginx = Nginx::start(&lab, "a", lab.server(1));
    fs::write(nginx.file("1k"), [b'x'; 1024]).expect("a file for nginx");
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let watchers: Vec<&Watcher> = WATCHERS.iter().filter(|watcher| watcher.is_possible(&balancer)).collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); watchers.len()];
    for round in 0..rounds {
        // The order rotates, so that no watcher always follows the same one.
        for turn in 0..watchers.len() {
            let at = (turn + round) % watchers.len();
            samples[at].push(watchers[at].while_watching(lab.stats(), || load(lab.vip(), seconds)));
        }
        eprintln!("watch: round {} of {rounds}", round + 1);
    }
    report(&watchers, &samples, &balancer);
}

fn setup(lab: &Loopback) -> String {
    let mut more = "[backends.idle]\n[backends.idle.health_check]\nkind = \"none\"\n".to_owned();
    for n in 0..IDLE_SERVERS {
        more += &format!("[backends.idle.servers.s{n}]\naddr = \"{}:{}\"\n", lab.ip(200), 1000 + n);
    }
    Setup::new(lab).server("a", lab.server(1), "").and(&more).to_string()
}

impl Watcher {
    /// Whether this convey has the path.
    fn is_possible(&self, balancer: &BalancerProcess) -> bool {
        let described: Value = serde_json::from_str(&balancer.page("/v1/openapi.json").1).expect("JSON");
        let is_there = |path: &str| described["paths"].get(path.split('?').next().unwrap_or(path)).is_some();
        match self.kind {
            Kind::Nobody => true,
            Kind::Asks(paths, _) | Kind::Several(_, paths, _) => paths.iter().all(|path| is_there(path)),
            Kind::Listens(path) => is_there(path),
        }
    }

    /// Runs `act` while this client watches.
    fn while_watching<T>(&self, stats: SocketAddr, act: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        let asks = |paths: &[&str], every: Duration| {
            while !over.load(Ordering::Relaxed) {
                for path in paths {
                    let (status, _) = fetch(stats, path).expect("convey answers who watches");
                    assert_eq!(status, 200, "{path}");
                }
                thread::park_timeout(every);
            }
        };
        thread::scope(|scope| {
            let watching: Vec<_> = match self.kind {
                Kind::Nobody => vec![],
                Kind::Asks(paths, every) => vec![scope.spawn(move || asks(paths, every))],
                Kind::Several(many, paths, every) => {
                    (0..many).map(|_| scope.spawn(move || asks(paths, every))).collect()
                }
                Kind::Listens(path) => vec![scope.spawn(|| listen(stats, path, &over))],
            };
            let done = act();
            over.store(true, Ordering::Relaxed);
            watching.iter().for_each(|watching| watching.thread().unpark());
            done
        })
    }
}

/// Reads an answer until the end of the run, and sends a new request when the answer ends.
fn listen(stats: SocketAddr, path: &str, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(stats).expect("the statistics address");
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {stats}\r\n\r\n").expect("a request");
        let mut buffer = vec![0; 64 << 10];
        while !over.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
}

/// Requests a second that wrk reaches.
fn load(vip: SocketAddr, seconds: u64) -> f64 {
    let mut wrk = Command::new("wrk");
    wrk.args(["-t", "1", "-c", CONNECTIONS, "-d", &format!("{seconds}s"), &format!("http://{vip}/1k")]);
    let ran = run(&mut wrk);
    assert!(!ran.stdout.contains("Non-2xx"), "{}", ran.stdout);
    let rate = ran.stdout.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    rate.and_then(|rate| rate.trim().parse().ok()).unwrap_or_else(|| panic!("no summary from wrk: {ran:?}"))
}

fn report(watchers: &[&Watcher], samples: &[Vec<f64>], balancer: &BalancerProcess) {
    println!(
        "| who watches | requests/s: median | lowest | highest | to nobody |\n|---|---:|---:|---:|---:|"
    );
    let sorted = |samples: &[f64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let median = |samples: &[f64]| sorted(samples)[samples.len() / 2];
    for (watcher, of) in watchers.iter().zip(samples) {
        let (all, middle) = (sorted(of), median(of));
        let ratio = middle / median(&samples[0]);
        println!(
            "| {} | {middle:.0} | {:.0} | {:.0} | {ratio:.3} |",
            watcher.name,
            all[0],
            all[all.len() - 1]
        );
    }
    let status = balancer.page("/v1/status").1.len();
    let size = fs::metadata(binary().get_program()).map_or(0, |binary| binary.len());
    println!(
        "\n{CONNECTIONS} connections, 1 KB, keep-alive; {IDLE_SERVERS} more servers: {} kB of status.",
        status / 1000
    );
    println!("The binary has {:.1} MB, with its symbols.", size as f64 / 1e6);
}
