//! HTTP/2 load, without TLS by prior knowledge: h2load at full speed, with a process for each
//! target address.

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

/// Connections in total. Few connections carry many requests, as those of browsers do.
pub(crate) const CONNECTIONS: usize = 16;

/// Concurrent requests on each connection: 160 in total keep the cores busy, and every peer's
/// default limit allows them (100 or more for a connection).
pub(crate) const STREAMS: usize = 10;

/// Result of a run.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Requests that were answered with success.
    pub(crate) answered: u64,
    /// Requests that failed, were cut off, came too late, or had another answer. Requests in
    /// progress at the end do not count.
    pub(crate) errors: u64,
    /// Bytes received, frame headers included.
    pub(crate) bytes: u64,
    /// Latencies from request to answer, sorted.
    pub(crate) latencies: Vec<Duration>,
}

/// Requests the small file for a number of seconds, over connections to the targets in turn.
pub(crate) fn fetch(site: &Site, (targets, is_tls): (&[SocketAddr], bool), seconds: u64) -> Result<Outcome> {
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

/// Runs h2load to its end, and parses its output and log.
fn outcome(mut h2load: Command, log: PathBuf) -> Result<Outcome> {
    // h2load appends to an existing log.
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

/// Number from the summary: the one before " failed" in "requests: 5 total, 4 succeeded, 1 failed",
/// or the one in brackets before " total" in "traffic: 1.08MB (1137056) total".
fn number(summary: &str, line: &str, word: &str) -> Option<u64> {
    let line = summary.lines().find_map(|text| text.strip_prefix(line))?;
    let part = line.split(", ").find_map(|part| part.strip_suffix(word))?;
    part.rsplit(' ').next()?.trim_matches(['(', ')']).parse().ok()
}

/// Latency from a line of the log: start time, status, microseconds to the end of the answer.
fn latency(line: &str) -> Option<Duration> {
    let mut columns = line.split('\t');
    let (status, took) = (columns.nth(1)?, columns.next()?);
    status.starts_with('2').then(|| took.parse().map(Duration::from_micros).ok())?
}
