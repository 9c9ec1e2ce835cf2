//! Loads that clients put on a peer.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use convey_lab::Role;
use convey_testkit::{TlsSettings, clock, run};

use crate::compared::Compared;
use crate::http::{LARGE, SMALL};
use crate::loads::LOADS;
use crate::measure::{self, Meter};
use crate::metric::{Metric, Sample, mean, percentiles};
use crate::mixed::MIX;
use crate::peer::{Peer, Running};
use crate::site::{Site, client_threads, connections};
use crate::steady::{self, Task};
use crate::streams::{self, Asks};
use crate::{http2, idle, mixed, resumed};

/// Durations and sizes of the loads.
pub(crate) struct LoadPlan {
    pub(crate) rounds: usize,
    /// Seconds of a load in a round; wrk takes whole seconds.
    seconds: u64,
    /// Seconds of the load at a constant rate, whose rarest latencies need many requests.
    steady_seconds: u64,
    /// Most idle connections, as the limit of open files allows.
    idle_connections: usize,
}

/// A load, and the metrics to show for it.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Columns of the table.
    pub(crate) metrics: &'static [Metric],
    /// Metric of the chart beside the CPU of the machine.
    pub(crate) headline: Metric,
    /// Comparisons with this load.
    pub(crate) put: Put,
}

/// Set of comparisons that a load is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Modes,
    Tls,
    Http3,
    Files,
}

pub(crate) enum Kind {
    /// Full speed: a request on every connection, and the next as soon as the answer is there.
    Busy { connections: u32, file: &'static str, keep_alive: bool },
    /// Full speed on some connections while many others are open and silent.
    BusyAmongIdle,
    /// Requests at a constant rate.
    Steady,
    /// Many clients that each pause for a second between requests.
    Pausing,
    /// Full speed with HTTP/2.
    Http2,
    /// TLS connections that resume an earlier session, with a request each.
    Resumed,
    /// Files of several sizes at once.
    Mixed,
    /// Full speed with the bench's own clients.
    Streams { connections: usize, asks: Asks, file: (&'static str, usize) },
    /// Idle connections up to this number, each after one request.
    Idle { connections: usize },
}

impl LoadPlan {
    pub(crate) const FULL: LoadPlan =
        LoadPlan { rounds: 5, seconds: 2, steady_seconds: 3, idle_connections: 10_000 };
    /// Plan of a full run of the budget. The kernel samples at its tick whether a program runs in user
    /// space, so the small parts of a request need many ticks.
    pub(crate) const BUDGET: LoadPlan = LoadPlan { rounds: 7, seconds: 3, ..LoadPlan::FULL };
    pub(crate) const QUICK: LoadPlan =
        LoadPlan { rounds: 2, seconds: 1, steady_seconds: 1, idle_connections: 10_000 };
    pub(crate) const SMOKE: LoadPlan =
        LoadPlan { rounds: 1, seconds: 1, steady_seconds: 1, idle_connections: 100 };

    /// Number of silent connections in this load.
    pub(crate) fn idle_connections(&self) -> usize {
        let possible = (connections() as usize).saturating_sub(2 * CONNECTIONS as usize);
        self.idle_connections.min(possible / 100 * 100)
    }
}

/// Loads with some of these words in their names, and the load that sets their rate; all loads
/// without words.
///
/// # Errors
/// A word is in no name.
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

/// Connections of loads without a number of their own.
const CONNECTIONS: u32 = 64;

/// Connections of the load whose latencies are compared most often elsewhere.
pub(crate) const FEW: u32 = 50;

/// Clients that pause. They send one after the other, spread evenly over the second.
const PAUSING_CLIENTS: usize = 1000;

impl Load {
    /// Whether a comparison has this load.
    pub(crate) fn is_of(&self, compared: Compared) -> bool {
        let mode = compared.mode();
        let put = match compared {
            Compared::Mode(_) | Compared::Budget => Put::Modes,
            Compared::Tls => Put::Tls,
            Compared::Http3 => Put::Http3,
            Compared::Files => Put::Files,
        };
        self.put == put
            && match self.kind {
                _ if compared.is_budget() => self.is_in_budget(),
                Kind::Pausing => !mode.is_http() && mode.is_proxied(),
                Kind::Http2 | Kind::Resumed => mode.is_http(),
                _ => true,
            }
    }

    /// Whether a peer takes part. Peers that differ only in how they forward long bodies skip loads
    /// without long bodies.
    pub(crate) fn is_for(&self, compared: Compared, peer: Peer) -> bool {
        let is_for_bulk = matches!(peer, Peer::HaproxySplice | Peer::NginxUnbuffered);
        match self.kind {
            Kind::Http2 if matches!(peer, Peer::Floor(_)) => false,
            _ if peer == Peer::NginxPlain => matches!(self.kind, Kind::Pausing),
            // They are there for their latencies.
            _ if compared.is_plain_http() && matches!(peer, Peer::ApacheHttp | Peer::Caddy) => {
                self.is_closed_loop()
            }
            Kind::Pausing | Kind::Http2 | Kind::Resumed => !is_for_bulk,
            Kind::Streams { .. } | Kind::Idle { .. } => true,
            Kind::Busy { file, .. } if self.put == Put::Tls => !is_for_bulk || file == "1m",
            _ => compared.mode().is_http() || peer != Peer::NginxHttp,
        }
    }

    /// Whether the load is short responses at full speed. Fifty connections cost what 64 do.
    fn is_in_budget(&self) -> bool {
        matches!(self.kind, Kind::Busy { connections, file, .. } if file != LARGE.0 && connections != FEW)
    }

    /// Whether the load is short responses at full speed on connections that stay open.
    fn is_closed_loop(&self) -> bool {
        matches!(self.kind, Kind::Busy { file, keep_alive: true, .. } if file == SMALL.0)
    }

    /// Whether the metric of interest is the latency that a peer adds to that of a server.
    pub(crate) fn is_about_added_latency(&self) -> bool {
        matches!(self.kind, Kind::Pausing)
    }

    /// Whether the load is files of several sizes at once.
    pub(crate) fn is_mixed(&self) -> bool {
        matches!(self.kind, Kind::Mixed)
    }

    /// Whether the load is the small files of the mixed load alone.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.kind, Kind::Busy { connections, file, .. } if (connections, file) == MIX[0])
    }

    /// Runs the load on a peer. `rate` is the constant rate in requests per second.
    pub(crate) fn run(
        &self,
        site: &Site,
        through: &Running,
        plan: &LoadPlan,
        rate: Option<f64>,
    ) -> Result<Sample> {
        let (seconds, small) = (plan.seconds, SMALL.0);
        match self.kind {
            Kind::Busy { connections, file, keep_alive } => {
                let requests = Http { connections, file, keep_alive };
                // The small files have one client thread, as in the mixed load.
                let threads = if self.is_alone() { 1 } else { client_threads() };
                busy(site, through, seconds, (threads, requests))
            }
            Kind::BusyAmongIdle => {
                let open = || idle::open(&through.peer.targets(), plan.idle_connections());
                let _idle = site.lab.enter(Role::Client(1), open)?.context("opening idle connections")?;
                let requests = Http { connections: CONNECTIONS, file: small, keep_alive: true };
                busy(site, through, seconds, (client_threads(), requests))
            }
            Kind::Steady => {
                let rate = rate.context("no rate is known")?;
                let duration = Duration::from_secs(plan.steady_seconds);
                let connections = CONNECTIONS as usize;
                constant(site, through, Task { connections, rate, duration, warm_up: 0.1 })
            }
            Kind::Pausing => {
                // In the first second each client sends its first request.
                let duration = Duration::from_secs(plan.steady_seconds + 1);
                let warm_up = 1.0 / duration.as_secs_f64();
                let rate = PAUSING_CLIENTS as f64;
                constant(site, through, Task { connections: PAUSING_CLIENTS, rate, duration, warm_up })
            }
            Kind::Http2 => http2(site, through, seconds),
            Kind::Resumed => resumed(site, through, seconds),
            Kind::Mixed => at_once(site, through, seconds),
            Kind::Streams { connections, asks, file } => {
                let task = streams::Task { connections, asks, file, duration: Duration::from_secs(seconds) };
                streams(site, through, task)
            }
            Kind::Idle { connections } => {
                idle_streams(site, through, connections.min(plan.idle_connections()))
            }
        }
    }
}

/// Requests of wrk.
struct Http<'a> {
    connections: u32,
    file: &'a str,
    keep_alive: bool,
}

/// Runs wrk with a number of threads, and a script that reports numbers.
fn busy(site: &Site, through: &Running, seconds: u64, requests: (usize, Http<'_>)) -> Result<Sample> {
    let meter = Meter::start(&through.processes)?;
    let numbers = numbers(&said(&mut wrk(&["wrk"], site, through, seconds, requests)?)?)?;
    sample(through, meter, numbers)
}

/// Runs a wrk for each size of files. The sample has the requests of the first, and the bytes and
/// errors of all. The other clients get a core only if no other process wants it (sched(7)): they
/// share the machine with the server, and the first client must wait for the server, not for them.
fn at_once(site: &Site, through: &Running, seconds: u64) -> Result<Sample> {
    let wrks = MIX.iter().enumerate().map(|(at, &(connections, file))| {
        let program: &[&str] = if at == 0 { &["wrk"] } else { &["chrt", "--idle", "0", "wrk"] };
        wrk(program, site, through, seconds, (1, Http { connections, file, keep_alive: true }))
    });
    let wrks = wrks.collect::<Result<Vec<Command>>>()?;
    let meter = Meter::start(&through.processes)?;
    let all = mixed::at_once(wrks, |mut wrk| numbers(&said(&mut wrk)?))?;
    let mut first = *all.first().context("a mix has a first")?;
    for [_, _, bytes, errors, ..] in &all[1..] {
        first[2] += bytes;
        first[3] += errors;
    }
    sample(through, meter, first)
}

/// Command of a wrk with a number of threads, with these words in front.
fn wrk(
    program: &[&str],
    site: &Site,
    through: &Running,
    seconds: u64,
    (threads, requests): (usize, Http<'_>),
) -> Result<Command> {
    let (program, words) = program.split_first().context("there is a program")?;
    let Http { connections, file, keep_alive } = requests;
    let targets: Vec<String> = through.peer.targets().iter().map(ToString::to_string).collect();
    let mut wrk = site.lab.command(Role::Client(1), program);
    wrk.args(words);
    wrk.env("TARGETS", targets.join(" "));
    wrk.args(["--threads", &threads.to_string()]);
    wrk.args(["--connections", &connections.to_string(), "--duration", &format!("{seconds}s")]);
    wrk.args(["--timeout", "1s", "--script"]).arg(script(site)?);
    if !keep_alive {
        wrk.args(["--header", "Connection: close"]);
    }
    let scheme = if through.compared.is_tls() { "https" } else { "http" };
    wrk.arg(format!("{scheme}://{}/{file}", targets[0]));
    Ok(wrk)
}

/// Builds a sample from the numbers of wrk and the meter of the machine.
fn sample(through: &Running, meter: Meter<'_>, numbers: [u64; 9]) -> Result<Sample> {
    let used = meter.stop()?;
    let [requests, elapsed, bytes, errors, mean, latency @ ..] = numbers;
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
        idle_connection: None,
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

/// Parses the script's line in the output of wrk.
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
        bytes: outcome.answered * SMALL.1 as u64,
        latency: percentiles(&outcome.latencies),
        mean: mean(&outcome.latencies),
        balancer: (!through.processes.is_empty()).then_some(used.processes),
        machine: used.machine,
        memory: memory(through)?,
        idle_connection: None,
    })
}

fn http2(site: &Site, through: &Running, seconds: u64) -> Result<Sample> {
    let meter = Meter::start(&through.processes)?;
    let is_tls = through.compared.is_tls();
    let targets = if is_tls { through.peer.targets() } else { through.peer.http2_targets() };
    let outcome = http2::fetch(site, (&targets, is_tls), seconds)?;
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
        idle_connection: None,
    })
}

fn resumed(site: &Site, through: &Running, seconds: u64) -> Result<Sample> {
    let target = *through.peer.targets().first().context("it has an address")?;
    let meter = Meter::start(&through.processes)?;
    let settings = || TlsSettings::trusting(&site.authority);
    let outcome = site.lab.enter(Role::Client(1), || resumed::run(target, settings, seconds))?;
    let used = meter.stop()?;
    Ok(Sample {
        requests: outcome.answered,
        errors: outcome.errors,
        elapsed: outcome.elapsed,
        bytes: outcome.answered * SMALL.1 as u64,
        latency: percentiles(&outcome.latencies),
        mean: mean(&outcome.latencies),
        balancer: (!through.processes.is_empty()).then_some(used.processes),
        machine: used.machine,
        memory: memory(through)?,
        idle_connection: None,
    })
}

/// Runs the bench's own clients, with HTTP/3 or with HTTP/2 within TLS, depending on the peer.
fn streams(site: &Site, through: &Running, task: streams::Task) -> Result<Sample> {
    let server = streams::Server::of(site, through.peer)?;
    let measure = || streams::run(&server, task, || Meter::start(&through.processes));
    let (outcome, meter) = site.lab.enter(Role::Client(1), measure)??;
    let used = meter.stop()?;
    Ok(Sample {
        requests: outcome.latencies.len() as u64,
        errors: outcome.errors,
        elapsed: outcome.elapsed,
        bytes: outcome.latencies.len() as u64 * task.file.1 as u64,
        latency: percentiles(&outcome.latencies),
        mean: mean(&outcome.latencies),
        balancer: Some(used.processes),
        machine: used.machine,
        memory: memory(through)?,
        idle_connection: None,
    })
}

/// Has the bench's own clients open connections, send a request on each, and keep them.
fn idle_streams(site: &Site, through: &Running, connections: usize) -> Result<Sample> {
    let server = streams::Server::of(site, through.peer)?;
    let before = measure::memory(&through.processes)?;
    let (meter, begun) = (Meter::start(&through.processes)?, clock());
    let held =
        || streams::hold(&server, connections, || Ok((meter.stop()?, measure::memory(&through.processes)?)));
    let (used, after) = site.lab.enter(Role::Client(1), held)??;
    let elapsed = begun.elapsed();
    Ok(Sample {
        requests: connections as u64,
        errors: 0,
        elapsed,
        bytes: (connections * SMALL.1) as u64,
        latency: percentiles(&[]),
        mean: mean(&[]),
        balancer: Some(used.processes),
        machine: used.machine,
        memory: Some(after),
        idle_connection: Some(after.saturating_sub(before) / connections as u64),
    })
}

fn memory(through: &Running) -> Result<Option<u64>> {
    (!through.processes.is_empty()).then(|| measure::memory(&through.processes)).transpose()
}
