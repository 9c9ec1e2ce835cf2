//! HTTP/2, without TLS by prior knowledge: h2load as fast as it goes, a process for each address to connect to.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use convey_lab::Role;
use convey_testkit::run;

use crate::http::SMALL;
use crate::site::{Site, client_threads};

/// Connections in all. Few carry many requests, as browsers' do.
pub(crate) const CONNECTIONS: usize = 16;

/// Requests at once on each of them: 160 in all keep the cores busy, and no peer's default allows fewer (100).
pub(crate) const STREAMS: usize = 10;

/// What a run has shown.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Requests that were answered with success.
    pub(crate) answered: u64,
    /// Requests that failed, were cut off, came too late, or had another answer. Not those under way at the end.
    pub(crate) errors: u64,
    /// What came, heads of frames included.
    pub(crate) bytes: u64,
    /// From request to answer, sorted.
    pub(crate) latencies: Vec<Duration>,
}

/// Asks for the small file for so many seconds, over connections to the targets in turn.
pub(crate) fn ask(site: &Site, (targets, is_tls): (&[SocketAddr], bool), seconds: u64) -> Result<Outcome> {
    let scheme = if is_tls { "https" } else { "http" };
    let share = |count: usize| count.div_ceil(targets.len()).to_string();
    let part = |(n, target): (usize, &SocketAddr)| {
        let log = site.path(&format!("h2load-{n}.log"));
        let mut h2load = site.lab.command(Role::Client(1), "h2load");
        h2load.args(["--clients", &share(CONNECTIONS), "--max-concurrent-streams", &STREAMS.to_string()]);
        h2load.args(["--threads", &share(client_threads()), "--duration", &seconds.to_string()]);
        h2load.arg("--log-file").arg(&log).arg(format!("{scheme}://{target}/{}", SMALL.0));
        (h2load, log)
    };
    let parts: Vec<(Command, PathBuf)> = targets.iter().enumerate().map(part).collect();
    let outcomes: Vec<Result<Outcome>> = thread::scope(|scope| {
        let asking: Vec<_> =
            parts.into_iter().map(|(h2load, log)| scope.spawn(move || outcome(h2load, log))).collect();
        asking.into_iter().map(|one| one.join().expect("it does not panic")).collect()
    });
    let mut all = Outcome::default();
    for one in outcomes {
        let one = one?;
        all.answered += one.answered;
        all.errors += one.errors;
        all.bytes += one.bytes;
        all.latencies.extend(one.latencies);
    }
    all.latencies.sort_unstable();
    Ok(all)
}

/// Runs h2load to its end, and reads what it has printed and logged.
fn outcome(mut h2load: Command, log: PathBuf) -> Result<Outcome> {
    // It appends to what is there.
    let _ = fs::remove_file(&log);
    let ran = run(&mut h2load);
    ensure!(ran.code == Some(0), "h2load failed: {}{}", ran.stdout, ran.stderr);
    let number = |line: &str, word: &str| {
        number(&ran.stdout, line, word).with_context(|| format!("h2load tells no {word:?}: {}", ran.stdout))
    };
    let log = fs::read_to_string(&log).context("the log of h2load")?;
    Ok(Outcome {
        answered: number("requests: ", " succeeded")?,
        errors: number("requests: ", " failed")?,
        bytes: number("traffic: ", " total")?,
        latencies: log.lines().filter_map(latency).collect(),
    })
}

/// A number of the summary: that before " failed" in "requests: 5 total, 4 succeeded, 1 failed", or, in brackets, that
/// before " total" in "traffic: 1.08MB (1137056) total".
fn number(summary: &str, line: &str, word: &str) -> Option<u64> {
    let line = summary.lines().find_map(|text| text.strip_prefix(line))?;
    let part = line.split(", ").find_map(|part| part.strip_suffix(word))?;
    part.rsplit(' ').next()?.trim_matches(['(', ')']).parse().ok()
}

/// A line of the log: when it began, status, microseconds to the end of the answer.
fn latency(line: &str) -> Option<Duration> {
    let mut columns = line.split('\t');
    let (status, took) = (columns.nth(1)?, columns.next()?);
    status.starts_with('2').then(|| took.parse().map(Duration::from_micros).ok())?
}
