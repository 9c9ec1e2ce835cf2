//! Slow start of a server that has returned. Pure.

use std::time::Duration;

use convey_model::{Timestamp, WHOLE};

/// Number of steps in which the share grows. Tables are rebuilt at each step.
const STEPS: u32 = 20;

/// First share of the weight, in percent. With a smaller share, the server might not be picked at
/// all.
const FIRST_PERCENT: u8 = 5;

/// Slow start of a server.
///
/// The share grows linearly with time, in twenty steps at multiples of a twentieth of the duration.
/// So the shares of servers that return together grow together, and their table is rebuilt once for
/// all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Warmup {
    since: Timestamp,
    next: Timestamp,
    percent: u8,
}

impl Warmup {
    /// Begins a slow start; returns `None` if the configured duration is zero.
    pub(crate) fn begin(slow_start: Duration, now: Timestamp) -> Option<Warmup> {
        Warmup { since: now, next: now, percent: FIRST_PERCENT }.on_time(slow_start, now)
    }

    /// Slow start that began in another process. [`Warmup::on_time`] computes the current share.
    pub(crate) fn known(since: Timestamp) -> Warmup {
        Warmup { since, next: since, percent: FIRST_PERCENT }
    }

    /// Time at which the slow start began.
    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    /// Share of its weight that the server has, in percent; below 100.
    pub(crate) fn percent(&self) -> u8 {
        self.percent
    }

    /// Time of the next step.
    pub(crate) fn due(&self) -> Timestamp {
        self.next
    }

    /// Advances the slow start to `now`; returns `None` if the slow start is over. `slow_start` is
    /// its whole duration.
    pub(crate) fn on_time(self, slow_start: Duration, now: Timestamp) -> Option<Warmup> {
        let (passed, whole) = (now.since(self.since), slow_start.as_nanos());
        if passed >= slow_start {
            return None;
        }
        let percent = (passed.as_nanos() * u128::from(WHOLE) / whole) as u8;
        let step = u64::try_from(whole / u128::from(STEPS)).unwrap_or(u64::MAX).max(1);
        let next = Timestamp((now.0 / step + 1).saturating_mul(step));
        Some(Warmup { next, percent: percent.max(FIRST_PERCENT), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const TEN: Duration = Duration::from_secs(10);

    /// Share in percent at each step, with the time since the beginning in tenths of a second.
    fn steps(begin: u64) -> Vec<(u64, u8)> {
        let mut warmup = Warmup::begin(TEN, Timestamp(begin));
        let mut steps = Vec::new();
        while let Some(now) = warmup {
            steps.push(((now.due().0 - begin) * 10 / SECOND, now.percent()));
            warmup = now.on_time(TEN, now.due());
        }
        steps
    }

    #[test]
    fn slow_start_share_grows_linearly_from_five_percent() {
        let steps = steps(7 * SECOND);
        assert_eq!(steps.len(), 20);
        assert_eq!(steps[..4], [(5, 5), (10, 5), (15, 10), (20, 15)]);
        assert_eq!(steps[18..], [(95, 90), (100, 95)]);
    }

    #[test]
    fn servers_that_come_back_a_little_apart_grow_at_the_same_moments() {
        let [a, b] = [7, 8].map(|tenths| Warmup::begin(TEN, Timestamp(tenths * SECOND / 10)).unwrap());
        assert_eq!((a.due(), b.due()), (Timestamp(SECOND), Timestamp(SECOND)));
    }

    #[test]
    fn a_time_of_zero_is_no_way_at_all() {
        assert_eq!(Warmup::begin(Duration::ZERO, Timestamp(5)), None);
        let warmup = Warmup::begin(TEN, Timestamp(0)).unwrap();
        assert_eq!(warmup.on_time(Duration::ZERO, Timestamp(1)), None, "it was taken out of the file");
        assert!(Warmup::begin(Duration::from_nanos(1), Timestamp(0)).is_some());
    }
}
