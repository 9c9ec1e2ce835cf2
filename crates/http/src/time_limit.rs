//! Time limit of a connection: one timer, which is reset only when it fires.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use convey_stream::PollClock;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

/// Maximum delay of a worker's coarse clock.
const LATE: u64 = 1_000_000_000;

/// Limits below this time go by the exact clock: a second more would be too late for them.
const EXACT_BELOW: Duration = Duration::from_secs(2);

/// Value of a coarse clock before its first update.
const NOT_UPDATED: u64 = u64::MAX;

/// Coarse clock of a worker, updated once a second, so that a request reads no clock for its
/// limits.
#[derive(Debug)]
pub(crate) struct CoarseClock {
    created: Instant,
    /// Time of the last update, in nanoseconds since the creation.
    updated: AtomicU64,
}

impl CoarseClock {
    /// Sets the clock to the present time. Call it once a second.
    pub(crate) fn update(&self) {
        self.updated.store(self.created.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the time after this duration, or a time up to one second later. Before the first
    /// update, and for durations below [`EXACT_BELOW`], the exact time.
    fn after(&self, duration: Duration) -> u64 {
        let latest = match self.updated.load(Ordering::Relaxed) {
            _ if duration < EXACT_BELOW => self.nanos(PollClock::now()),
            NOT_UPDATED => self.nanos(Instant::now()),
            nanos => nanos + LATE,
        };
        latest.saturating_add(duration.as_nanos() as u64)
    }

    /// Converts a time to nanoseconds since the creation.
    fn nanos(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.created).as_nanos() as u64
    }

    /// Converts nanoseconds since the creation to a time.
    fn instant(&self, nanos: u64) -> Instant {
        self.created + Duration::from_nanos(nanos)
    }
}

impl Default for CoarseClock {
    fn default() -> CoarseClock {
        CoarseClock { created: Instant::now(), updated: AtomicU64::new(NOT_UPDATED) }
    }
}

/// Deadline of a wait. A wait below two seconds ends in time, but for the length of a poll. A longer
/// wait never ends early, and may end up to a second late.
///
/// Each open connection has one, so it stores times as nanoseconds of the worker's clock: an
/// `Instant` would need twice the memory.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    until: u64,
    /// Time at which the timer fires, never after `until` has passed.
    fires: u64,
    timer: Pin<Box<Sleep>>,
    /// Waker of the task that the timer wakes when it fires; `None` before the first wait.
    woken: Option<Waker>,
    clock: Arc<CoarseClock>,
}

impl TimeLimit {
    /// Returns a limit that ends after this time.
    pub(crate) fn new(clock: &Arc<CoarseClock>, after: Duration) -> TimeLimit {
        let until = clock.after(after);
        let timer = Box::pin(sleep_until(clock.instant(until)));
        TimeLimit { until, fires: until, timer, woken: None, clock: clock.clone() }
    }

    /// Restarts the limit, which then ends after this time.
    pub(crate) fn renew(&mut self, after: Duration) {
        self.until = self.clock.after(after);
        self.hurry();
    }

    /// Ends the limit after this time, unless it ends earlier.
    pub(crate) fn shorten(&mut self, to: Duration) {
        let end = self.clock.nanos(Instant::now()).saturating_add(to.as_nanos() as u64);
        self.until = self.until.min(end);
        self.hurry();
    }

    /// Resets the timer if it fires after the end of the limit. If the limit moves to a later time,
    /// the timer is reset only when it fires. That costs less than a reset at each renewal.
    fn hurry(&mut self) {
        if self.until < self.fires {
            self.set_timer();
        }
    }

    fn set_timer(&mut self) {
        self.fires = self.until;
        self.timer.as_mut().reset(self.clock.instant(self.until));
    }

    /// Waits until the limit is over.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The timer wakes this task, and has not fired: a poll of it would take a lock.
        let is_known = self.woken.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_known && self.clock.nanos(PollClock::now()) < self.fires {
            return Poll::Pending;
        }
        while self.poll_timer(cx).is_ready() {
            if self.clock.nanos(Instant::now()) >= self.until {
                return Poll::Ready(());
            }
            self.set_timer();
        }
        if !is_known {
            self.woken = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Polls the timer. tokio's budget of a task does not apply: without budget, the timer would
    /// return `Pending` and not store the waker, so it would never wake the task.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut unconstrained(self.timer.as_mut())).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::task::consume_budget;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shortened_time_limit_never_ends_later() {
        for (first, shortened, expected) in [(60, 1, 1), (1, 60, 1)] {
            let began = Instant::now();
            let mut time_limit = TimeLimit::new(&Arc::default(), Duration::from_secs(first));
            time_limit.shorten(Duration::from_secs(shortened));
            poll_fn(|cx| time_limit.poll_over(cx)).await;
            assert_eq!(began.elapsed().as_secs(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_below_two_seconds_is_exact() {
        let clock = Arc::new(CoarseClock::default());
        clock.update();
        sleep(Duration::from_millis(900)).await;
        for (limit, ends) in [(150, 150..=160), (1_999, 1_999..=2_009), (2_000, 2_000..=3_000)] {
            let began = Instant::now();
            let mut time_limit = TimeLimit::new(&clock, Duration::from_secs(60));
            time_limit.renew(Duration::from_millis(limit));
            poll_fn(|cx| time_limit.poll_over(cx)).await;
            let took = began.elapsed().as_millis();
            assert!(ends.contains(&took), "{limit} ms took {took} ms");
            clock.update();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_wakes_a_task_that_polls_it_often() {
        let began = Instant::now();
        let mut time_limit = TimeLimit::new(&Arc::default(), Duration::from_secs(60));
        let over = async {
            for second in [5, 20, 10] {
                time_limit.renew(Duration::from_secs(second));
                assert!(
                    timeout(Duration::from_secs(4), poll_fn(|cx| time_limit.poll_over(cx))).await.is_err()
                );
            }
            poll_fn(|cx| time_limit.poll_over(cx)).await;
        };
        let ticks = async {
            for _ in 0..100 {
                sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = over => {}
            () = ticks => panic!("the task was not woken"),
        }
        assert_eq!(began.elapsed().as_secs(), 8 + 10);
    }

    /// Uses up tokio's budget of the current task.
    fn spend_budget(cx: &mut Context<'_>) {
        while pin!(consume_budget()).poll(cx).is_ready() {}
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_ends_for_a_task_that_has_spent_its_budget() {
        for is_renewed in [false, true] {
            let began = Instant::now();
            let mut time_limit = TimeLimit::new(&Arc::default(), Duration::from_secs(2));
            if is_renewed {
                // The timer fires after two seconds, and is then set to the end of the limit.
                time_limit.renew(Duration::from_secs(3));
                assert!(
                    timeout(Duration::from_secs(1), poll_fn(|cx| time_limit.poll_over(cx))).await.is_err()
                );
            }
            // The timer is polled for the first time, and when it fires.
            let mut polls = 0;
            let over = poll_fn(|cx| {
                polls += 1;
                if polls <= 2 {
                    spend_budget(cx);
                }
                time_limit.poll_over(cx)
            });
            timeout(Duration::from_secs(60), over).await.expect("it is over");
            assert_eq!(began.elapsed().as_secs(), 2 + u64::from(is_renewed));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewed_time_limit_ends_at_its_last_value() {
        for (first, second) in [(5, 20), (20, 5)] {
            let began = Instant::now();
            let mut time_limit = TimeLimit::new(&Arc::default(), Duration::from_secs(first));
            time_limit.renew(Duration::from_secs(second));
            poll_fn(|cx| time_limit.poll_over(cx)).await;
            assert_eq!(began.elapsed().as_secs(), second);
        }
    }
}
