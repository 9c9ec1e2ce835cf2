//! Distribution of health checks over time: connections that the servers' host accepts, in windows
//! of 100 ms.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::site::Site;

const WINDOW: Duration = Duration::from_millis(100);

/// Health checks in a window.
pub(crate) struct Spread {
    mean: f64,
    p99: f64,
    highest: f64,
}

impl Spread {
    /// Counts connections for this time, in which only health checks connect.
    pub(crate) fn measure(site: &Site, time: Duration) -> Spread {
        let windows = (time.as_millis() / WINDOW.as_millis()) as u32;
        let mut counts = site.servers.enter(|| count(windows));
        counts.sort_by(f64::total_cmp);
        Spread {
            mean: counts.iter().sum::<f64>() / counts.len() as f64,
            p99: counts[counts.len() * 99 / 100],
            highest: counts[counts.len() - 1],
        }
    }

    /// Cells of a table.
    pub(crate) fn cells(&self) -> String {
        let Spread { mean, p99, highest } = self;
        format!("{mean:.1} | {p99:.0} | {highest:.0} | {:.2} | {:.2}", p99 / mean, highest / mean)
    }
}

/// Connections in each window. A window that ended late counts as if it had ended in time.
fn count(windows: u32) -> Vec<f64> {
    let begun = Instant::now();
    let (mut before, mut at) = (accepted(), begun);
    let window = |n| {
        sleep((begun + WINDOW * n).saturating_duration_since(Instant::now()));
        let (now, time) = (accepted(), Instant::now());
        let rate = (now - before) as f64 / (time - at).as_secs_f64();
        (before, at) = (now, time);
        rate * WINDOW.as_secs_f64()
    };
    (1..=windows).map(window).collect()
}

/// Connections that listeners of this thread's network namespace have accepted.
fn accepted() -> u64 {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "PassiveOpens").unwrap().1.parse().unwrap()
}
