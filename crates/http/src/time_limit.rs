//! Time limit of a connection: one timer, which is reset only when it fires.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Maximum delay of a thread's coarse time.
const LATE: Duration = Duration::from_secs(1);

thread_local! {
    /// Coarse time of the thread, updated by [`tell_time`], so that a request reads no clock for
    /// its limits.
    static COARSE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Updates the coarse time of this thread. Call it once a second.
pub(crate) fn tell_time() {
    COARSE.set(Some(Instant::now()));
}

/// Deadline of a wait, up to a second late.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    until: Instant,
    timer: Pin<Box<Sleep>>,
}

impl TimeLimit {
    /// Returns a limit that ends after this time.
    pub(crate) fn new(after: Duration) -> TimeLimit {
        let until = present() + after;
        TimeLimit { until, timer: Box::pin(sleep_until(until)) }
    }

    /// Restarts the limit, which then ends after this time.
    pub(crate) fn renew(&mut self, after: Duration) {
        self.until = present() + after;
        // If the limit moves to a later time, the timer is reset only when it fires. That costs
        // less than a reset at each renewal.
        if self.until < self.timer.deadline() {
            self.timer.as_mut().reset(self.until);
        }
    }

    /// Ends the limit after this time, unless it ends earlier.
    pub(crate) fn shorten(&mut self, to: Duration) {
        self.until = self.until.min(Instant::now() + to);
        if self.until < self.timer.deadline() {
            self.timer.as_mut().reset(self.until);
        }
    }

    /// Waits until the limit is over.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if Instant::now() >= self.until {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.until);
        }
    }
}

/// Present time, or up to a second later.
fn present() -> Instant {
    COARSE.get().map_or_else(Instant::now, |told| told + LATE)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shortened_time_limit_never_ends_later() {
        for (first, shortened, expected) in [(60, 1, 1), (1, 60, 1)] {
            let began = Instant::now();
            let mut time_limit = TimeLimit::new(Duration::from_secs(first));
            time_limit.shorten(Duration::from_secs(shortened));
            poll_fn(|cx| time_limit.poll_over(cx)).await;
            assert_eq!(began.elapsed().as_secs(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewed_time_limit_ends_at_its_last_value() {
        for (first, second) in [(5, 20), (20, 5)] {
            let began = Instant::now();
            let mut time_limit = TimeLimit::new(Duration::from_secs(first));
            time_limit.renew(Duration::from_secs(second));
            poll_fn(|cx| time_limit.poll_over(cx)).await;
            assert_eq!(began.elapsed().as_secs(), second);
        }
    }
}
