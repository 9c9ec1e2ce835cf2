//! What the client does.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use convey::model::Mode;
use convey_lab::Role;
use convey_testkit::run;

use crate::measure::{self, Meter};
use crate::metric::{Metric, Sample, mean, percentiles};
use crate::peer::{Peer, Running};
use crate::site::{Site, client_threads, connections};
use crate::steady::{self, Task};
use crate::{http2, idle};

/// How long and how often.
pub(crate) struct LoadPlan {
    pub(crate) rounds: usize,
    /// Seconds of a load in a round; wrk counts in whole ones.
    seconds: u64,
    /// The same for the load at a constant rate, whose rarest latencies need many requests.
    steady_seconds: u64,
    /// At most so many, as the limit of open files allows.
    idle_connections: usize,
}

/// A load and what is looked at.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    kind: Kind,
    /// The columns of the table.
    pub(crate) metrics: &'static [Metric],
    /// What the chart shows beside the CPU of the machine.
    pub(crate) headline: Metric,
}

enum Kind {
    /// As fast as it goes: a request on every connection, and the next as soon as the answer is there.
    Busy { connections: u32, file: &'static str, keep_alive: bool },
    /// The same on some connections while many others are open and silent.
    BusyAmongIdle,
    /// Requests at a constant rate.
    Steady,
    /// Many clients, each of which pauses for a second between its requests.
    Pausing,
    /// As fast as it goes, by HTTP/2.
    Http2,
}

impl LoadPlan {
    pub(crate) const FULL: LoadPlan =
        LoadPlan { rounds: 5, seconds: 2, steady_seconds: 3, idle_connections: 10_000 };
    pub(crate) const QUICK: LoadPlan =
        LoadPlan { rounds: 2, seconds: 1, steady_seconds: 1, idle_connections: 10_000 };
    pub(crate) const SMOKE: LoadPlan =
        LoadPlan { rounds: 1, seconds: 1, steady_seconds: 1, idle_connections: 100 };

    /// Connections that are silent, in the load that has such.
    pub(crate) fn idle_connections(&self) -> usize {
        let possible = (connections() as usize).saturating_sub(2 * CONNECTIONS as usize);
        self.idle_connections.min(possible / 100 * 100)
    }
}

use Metric::{Balancer, Machine, Mean, Megabytes, Memory, P50, P99, P999, P9999, Requests};

/// All loads. The first tells the rate of the one at a constant rate.
pub(crate) const LOADS: [Load; 9] = [
    Load {
        name: "1 KB, keep-alive, 64 connections",
        kind: Kind::Busy { connections: 64, file: "1k", keep_alive: true },
        metrics: &[Requests, P99, Balancer, Machine, Memory],
        headline: Requests,
    },
    Load {
        name: "1 KB, keep-alive, 512 connections",
        kind: Kind::Busy { connections: 512, file: "1k", keep_alive: true },
        metrics: &[Requests, P99, Balancer, Machine, Memory],
        headline: Requests,
    },
    Load {
        name: "1 KB, a connection for every request, 64 at once",
        kind: Kind::Busy { connections: 64, file: "1k", keep_alive: false },
        metrics: &[Requests, P99, Balancer, Machine, Memory],
        headline: Requests,
    },
    Load {
        name: "16 KB, keep-alive, 64 connections",
        kind: Kind::Busy { connections: 64, file: "16k", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, Machine, Memory],
        headline: Requests,
    },
    Load {
        name: "1 MB, keep-alive, 8 connections",
        kind: Kind::Busy { connections: 8, file: "1m", keep_alive: true },
        metrics: &[Requests, Megabytes, P99, Balancer, Machine, Memory],
        headline: Megabytes,
    },
    Load {
        name: "1 KB, keep-alive, 64 connections among idle ones",
        kind: Kind::BusyAmongIdle,
        metrics: &[Requests, P99, Balancer, Machine, Memory],
        headline: Memory,
    },
    Load {
        name: "1 KB, keep-alive, half of HAProxy's peak rate",
        kind: Kind::Steady,
        metrics: &[Requests, P50, P99, P999, P9999, Balancer, Machine, Memory],
        headline: P9999,
    },
    Load {
        name: "1 KB, keep-alive, 1,000 clients that pause for a second",
        kind: Kind::Pausing,
        metrics: &[Requests, Mean, P50, P99, P999, Balancer, Machine, Memory],
        headline: Mean,
    },
    Load {
        name: "1 KB, HTTP/2, 16 connections of 10 streams",
        kind: Kind::Http2,
        metrics: &[Requests, P50, P99, P999, P9999, Balancer, Machine, Memory],
        headline: Requests,
    },
];

/// The loads with some of these words in their names, and the one that tells their rate; all if there are no words.
///
/// # Errors
/// Words are in no name.
pub(crate) fn chosen(words: &[String]) -> Result<Vec<&'static Load>> {
    let is_named = |load: &Load, words: &String| load.name.contains(words.as_str());
    if let Some(unknown) = words.iter().find(|words| !LOADS.iter().any(|load| is_named(load, words))) {
        let names: Vec<&str> = LOADS.iter().map(|load| load.name).collect();
        bail!("no load has {unknown:?} in its name; there are:\n  {}", names.join("\n  "));
    }
    let is_chosen = |load: &&Load| words.is_empty() || words.iter().any(|words| is_named(load, words));
    let mut loads: Vec<&'static Load> = LOADS.iter().filter(is_chosen).collect();
    if loads.iter().any(|load| matches!(load.kind, Kind::Steady)) && !is_chosen(&&LOADS[0]) {
        loads.insert(0, &LOADS[0]);
    }
    Ok(loads)
}

/// Connections of the loads that have no number of their own.
const CONNECTIONS: u32 = 64;

/// Clients that pause. They ask one after the other, evenly spread over the second.
const PAUSING_CLIENTS: usize = 1000;

impl Load {
    /// Whether peers are loaded so in a mode.
    pub(crate) fn is_of(&self, mode: Mode) -> bool {
        match self.kind {
            Kind::Pausing => mode == Mode::Proxy,
            Kind::Http2 => mode.is_http(),
            _ => true,
        }
    }

    /// Whether a peer takes part. Those that differ in how they pass long bodies on do not, where there are none.
    pub(crate) fn is_for(&self, mode: Mode, peer: Peer) -> bool {
        let is_for_bulk = matches!(peer, Peer::HaproxySplice | Peer::NginxUnbuffered);
        match self.kind {
            Kind::Pausing | Kind::Http2 => !is_for_bulk,
            _ => mode.is_http() || peer != Peer::NginxHttp,
        }
    }

    /// Whether what counts is the latency that a peer adds to that of a server.
    pub(crate) fn is_about_added_latency(&self) -> bool {
        matches!(self.kind, Kind::Pausing)
    }

    /// Puts the load on a peer. `rate` is the constant rate in requests per second.
    pub(crate) fn run(
        &self,
        site: &Site,
        through: &Running,
        plan: &LoadPlan,
        rate: Option<f64>,
    ) -> Result<Sample> {
        let (seconds, small) = (plan.seconds, crate::http::SMALL.0);
        match self.kind {
            Kind::Busy { connections, file, keep_alive } => {
                busy(site, through, seconds, Http { connections, file, keep_alive })
            }
            Kind::BusyAmongIdle => {
                let open = || idle::open(&through.peer.targets(), plan.idle_connections());
                let _idle = site.lab.enter(Role::Client(1), open)?.context("opening idle connections")?;
                busy(site, through, seconds, Http { connections: CONNECTIONS, file: small, keep_alive: true })
            }
            Kind::Steady => {
                let rate = rate.context("no rate is known")?;
                let duration = Duration::from_secs(plan.steady_seconds);
                let connections = CONNECTIONS as usize;
                constant(site, through, Task { connections, rate, duration, warm_up: 0.1 })
            }
            Kind::Pausing => {
                // In the first second each client asks for the first time.
                let duration = Duration::from_secs(plan.steady_seconds + 1);
                let warm_up = 1.0 / duration.as_secs_f64();
                let rate = PAUSING_CLIENTS as f64;
                constant(site, through, Task { connections: PAUSING_CLIENTS, rate, duration, warm_up })
            }
            Kind::Http2 => http2(site, through, seconds),
        }
    }
}

/// What wrk asks for.
struct Http<'a> {
    connections: u32,
    file: &'a str,
    keep_alive: bool,
}

/// wrk, with a script that reports numbers.
fn busy(site: &Site, through: &Running, seconds: u64, requests: Http<'_>) -> Result<Sample> {
    let Http { connections, file, keep_alive } = requests;
    let targets: Vec<String> = through.peer.targets().iter().map(ToString::to_string).collect();
    let mut wrk = site.lab.command(Role::Client(1), "wrk");
    wrk.env("TARGETS", targets.join(" "));
    wrk.args(["--threads", &client_threads().to_string()]);
    wrk.args(["--connections", &connections.to_string(), "--duration", &format!("{seconds}s")]);
    wrk.args(["--timeout", "1s", "--script"]).arg(script(site)?);
    if !keep_alive {
        wrk.args(["--header", "Connection: close"]);
    }
    wrk.arg(format!("http://{}/{file}", targets[0]));
    let meter = Meter::start(&through.processes)?;
    let text = said(&mut wrk)?;
    let used = meter.stop()?;
    let [requests, elapsed, bytes, errors, mean, latency @ ..] = numbers(&text)?;
    Ok(Sample {
        requests,
        errors,
        elapsed: Duration::from_micros(elapsed),
        bytes,
        latency: latency.map(Duration::from_micros),
        mean: Duration::from_micros(mean),
        balancer: (!through.processes.is_empty()).then_some(used.processes),
        machine: used.machine,
        memory: memory(through)?,
    })
}

fn script(site: &Site) -> Result<std::path::PathBuf> {
    site.configure("report.lua", include_str!("config/report.lua"), &[])
}

fn said(wrk: &mut Command) -> Result<String> {
    let ran = run(wrk);
    ensure!(ran.code == Some(0), "wrk failed: {}{}", ran.stdout, ran.stderr);
    Ok(ran.stdout)
}

/// The line of our script in what wrk has said.
fn numbers(text: &str) -> Result<[u64; 9]> {
    let line = text.lines().find_map(|line| line.strip_prefix("measured "));
    let numbers: Option<Vec<u64>> =
        line.and_then(|line| line.split(' ').map(|number| number.parse().ok()).collect());
    numbers.and_then(|numbers| numbers.try_into().ok()).with_context(|| format!("no report of wrk: {text}"))
}

fn constant(site: &Site, through: &Running, task: Task) -> Result<Sample> {
    let targets = through.peer.targets();
    let meter = Meter::start(&through.processes)?;
    let work = || steady::run(&targets, task);
    let outcome = site.lab.enter(Role::Client(1), work)??;
    let used = meter.stop()?;
    Ok(Sample {
        requests: outcome.answered,
        errors: outcome.errors,
        elapsed: outcome.elapsed,
        bytes: outcome.answered * crate::http::SMALL.1 as u64,
        latency: percentiles(&outcome.latencies),
        mean: mean(&outcome.latencies),
        balancer: (!through.processes.is_empty()).then_some(used.processes),
        machine: used.machine,
        memory: memory(through)?,
    })
}

fn http2(site: &Site, through: &Running, seconds: u64) -> Result<Sample> {
    let meter = Meter::start(&through.processes)?;
    let outcome = http2::ask(site, &through.peer.http2_targets(), seconds)?;
    let used = meter.stop()?;
    Ok(Sample {
        requests: outcome.answered,
        errors: outcome.errors,
        elapsed: Duration::from_secs(seconds),
        bytes: outcome.bytes,
        latency: percentiles(&outcome.latencies),
        mean: mean(&outcome.latencies),
        balancer: (!through.processes.is_empty()).then_some(used.processes),
        machine: used.machine,
        memory: memory(through)?,
    })
}

fn memory(through: &Running) -> Result<Option<u64>> {
    (!through.processes.is_empty()).then(|| measure::memory(&through.processes)).transpose()
}
