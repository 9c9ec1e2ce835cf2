//! Number of trials that run at once: more of them while the machine has idle time, because most
//! trials wait most of the time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::clock;

/// Trials per core that run at once however busy the machine is.
const ALWAYS: usize = 2;

/// Trials per core that run at once on a machine with idle time.
const AT_MOST: usize = 6;

/// Interval for which idle time is measured. One more trial starts in each: only afterwards does
/// the measurement show how busy the trial is.
const INTERVAL: Duration = Duration::from_millis(200);

/// Share of the time of all cores that must be idle for one more trial.
const ENOUGH_IDLE: f64 = 0.25;

static PACE: (Mutex<Pace>, Condvar) =
    (Mutex::new(Pace { running: 0, always: ALWAYS, at_most: AT_MOST, last: None }), Condvar::new());

struct Pace {
    running: usize,
    /// Trials per core, as the constants.
    always: usize,
    at_most: usize,
    /// Time and idle time of all cores at the end of the last interval.
    last: Option<(Instant, Duration)>,
}

/// A running trial, until it is dropped.
pub(crate) struct Running;

/// Sets a constant number of trials per core, or lets it depend on idle time (`None`). Returns the
/// maximum number of trials that run at once.
pub(crate) fn set(a_core: Option<usize>) -> usize {
    let mut pace = lock();
    if let Some(a_core) = a_core {
        (pace.always, pace.at_most) = (a_core, a_core);
    }
    pace.at_most * cores()
}

/// Waits until one more trial may run.
pub(crate) fn begin() -> Running {
    let mut pace = lock();
    while !pace.has_room(cores(), clock(), idle_time()) {
        let waited = PACE.1.wait_timeout(pace, INTERVAL);
        pace = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    pace.running += 1;
    Running
}

impl Drop for Running {
    fn drop(&mut self) {
        lock().running -= 1;
        PACE.1.notify_one();
    }
}

impl Pace {
    /// Whether one more trial may run. `idle` is the idle time of all cores so far, if it is known.
    fn has_room(&mut self, cores: usize, now: Instant, idle: Option<Duration>) -> bool {
        let a_core = self.running / cores;
        a_core < self.always
            || (a_core < self.at_most && idle.is_some_and(|idle| self.was_idle(cores, now, idle)))
    }

    /// Whether an interval has just ended in which enough of the machine was idle.
    fn was_idle(&mut self, cores: usize, now: Instant, idle: Duration) -> bool {
        let (begin, before) = *self.last.get_or_insert((now, idle));
        let length = now - begin;
        if length < INTERVAL {
            return false;
        }
        self.last = Some((now, idle));
        let share = idle.saturating_sub(before).as_secs_f64() / (length.as_secs_f64() * cores as f64);
        // A longer time says little about the present.
        length < INTERVAL * 5 && share >= ENOUGH_IDLE
    }
}

/// Idle time of all cores since the machine started; `None` if it is unknown.
fn idle_time() -> Option<Duration> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds = uptime.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_secs_f64(seconds))
}

fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

fn lock() -> MutexGuard<'static, Pace> {
    PACE.0.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_trials_run_only_after_an_interval_with_idle_time() {
        let (cores, start, at) = (2, clock(), Duration::from_millis);
        let mut pace = Pace { running: 0, always: ALWAYS, at_most: AT_MOST, last: None };
        let mut has_room = |running: usize, now, idle| {
            pace.running = running;
            pace.has_room(cores, start + at(now), idle)
        };
        assert!(has_room(3, 0, None));
        assert!(!has_room(4, 0, None), "nothing is known");
        assert!(!has_room(4, 0, Some(at(0))));
        assert!(!has_room(4, 100, Some(at(200))), "it is too early");
        assert!(has_room(4, 200, Some(at(200))), "half of it was idle");
        assert!(!has_room(5, 250, Some(at(300))));
        assert!(!has_room(5, 400, Some(at(250))), "an eighth of it was idle");
        assert!(has_room(11, 600, Some(at(650))));
        assert!(!has_room(12, 800, Some(at(1_050))), "these are enough");
        assert!(!has_room(11, 9_000, Some(at(17_450))), "nothing was measured lately");
    }
}
