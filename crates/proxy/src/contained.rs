//! Containment of panics: a panic in one connection ends only the task of that connection. The
//! program's panic hook calls [`Contained::is_polled`] to recognize such panics.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use convey_stream::PollClock;
use pin_project_lite::pin_project;

static PANICS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether the thread is polling a contained future. The value is set only during a poll, so a
    /// task may move to another thread between two polls.
    static IS_POLLED: Cell<bool> = const { Cell::new(false) };
}

pin_project! {
    /// Future of one connection, which runs as its own task. A panic unwinds only this task.
    #[derive(Debug)]
    pub struct Contained<F> {
        #[pin]
        future: F,
    }
}

/// Marks the thread while it polls a contained future or runs contained code. The mark also stays
/// while a panic unwinds the future.
struct PollMark {
    before: bool,
}

impl Contained<()> {
    /// Whether this thread is polling a contained future or running contained code.
    pub fn is_polled() -> bool {
        IS_POLLED.get()
    }

    /// Runs code of a connection that is being dropped, and catches its panic.
    pub fn run(code: impl FnOnce()) {
        let _mark = PollMark::set();
        // The program's panic hook has already logged the panic.
        let _ = catch_unwind(AssertUnwindSafe(code));
    }

    /// Counts a panic of a connection.
    pub fn count_panic() {
        PANICS.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of connections whose tasks have panicked in this process.
    pub fn panics() -> u64 {
        PANICS.load(Ordering::Relaxed)
    }
}

impl<F> Contained<F> {
    /// Contains the panics of a future.
    pub fn new(future: F) -> Contained<F> {
        Contained { future }
    }
}

impl<F: Future> Future for Contained<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let (_mark, _clock) = (PollMark::set(), PollClock::begin());
        self.project().future.poll(context)
    }
}

impl PollMark {
    fn set() -> PollMark {
        PollMark { before: IS_POLLED.replace(true) }
    }
}

impl Drop for PollMark {
    fn drop(&mut self) {
        IS_POLLED.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_contained_task_leaves_other_tasks_and_the_mark_intact() {
        let other = tokio::spawn(Contained::new(async {
            tokio::task::yield_now().await;
            Contained::is_polled()
        }));
        let panics = tokio::spawn(Contained::new(async { panic!("expected by a test") }));
        assert!(panics.await.unwrap_err().is_panic());
        assert!(!Contained::is_polled());
        assert!(other.await.unwrap());
        let mut was_marked = false;
        Contained::run(|| {
            was_marked = Contained::is_polled();
            panic!("expected by a test");
        });
        assert!(was_marked && !Contained::is_polled());
        assert_eq!(size_of::<Contained<[u8; 100]>>(), 100, "it costs a connection no memory");
    }
}
