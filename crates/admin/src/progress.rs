//! Progress of an API connection: whether its request has arrived, and whether its answer takes
//! long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

/// Time for a client to read the rest of a long answer after the answer has ended.
const TIME_TO_READ_END: Duration = Duration::from_secs(2);

/// Progress of a connection. The HTTP server and the handler of the request share it.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerProgress(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    has_arrived: AtomicBool,
    is_long: AtomicBool,
    ended: Notify,
}

impl AnswerProgress {
    /// Marks that the request has arrived.
    pub(super) fn mark_arrived(&self) {
        self.0.has_arrived.store(true, Ordering::Relaxed);
    }

    /// Whether the request has arrived.
    pub(super) fn has_arrived(&self) -> bool {
        self.0.has_arrived.load(Ordering::Relaxed)
    }

    /// Marks the answer as long until the returned guard is dropped. Until then, the connection
    /// stays open and does not count toward the limit on connections.
    pub(super) fn mark_long(&self) -> LongAnswer {
        self.0.is_long.store(true, Ordering::Relaxed);
        LongAnswer(self.0.clone())
    }

    /// Whether the answer is long and unfinished.
    pub(super) fn is_long(&self) -> bool {
        self.0.is_long.load(Ordering::Relaxed)
    }

    /// Waits until the connection must end: after `lifetime`, or later if a long answer is
    /// unfinished then.
    pub(super) async fn is_over(&self, lifetime: Duration) {
        sleep(lifetime).await;
        let mut was_long = false;
        loop {
            let ended = self.0.ended.notified();
            if !self.is_long() {
                break;
            }
            was_long = true;
            ended.await;
        }
        if was_long {
            sleep(TIME_TO_READ_END).await;
        }
    }
}

/// Guard of a long answer. Dropping the guard marks the end of the answer.
#[derive(Debug)]
pub(super) struct LongAnswer(Arc<Progress>);

impl Drop for LongAnswer {
    fn drop(&mut self) {
        self.0.is_long.store(false, Ordering::Relaxed);
        self.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_takes_long_outlasts_the_time_of_others() {
        let progress = AnswerProgress::default();
        progress.is_over(Duration::ZERO).await;
        let long = progress.mark_long();
        let waits = progress.clone();
        let is_over = tokio::spawn(async move { waits.is_over(Duration::ZERO).await });
        for _ in 0..20 {
            sleep(Duration::from_millis(1)).await;
            assert!(!is_over.is_finished());
        }
        drop(long);
        is_over.await.unwrap();
    }
}
