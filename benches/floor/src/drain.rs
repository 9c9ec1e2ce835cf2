//! Drain at SIGTERM: an epoch that each poll of a connection compares, and a list of wakers for
//! connections that wait.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Poll, Waker};

use crate::worker;

/// Epoch of the connections that are served.
const SERVING: u32 = 0;

static EPOCH: AtomicU32 = AtomicU32::new(SERVING);

/// Wakers of the connections of one worker.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// Task that waits for the end of all connections.
    drain: Option<Waker>,
}

/// Whether the epoch differs from that of the connections.
pub(crate) fn has_begun() -> bool {
    EPOCH.load(Ordering::Relaxed) != SERVING
}

/// Begins the drain of this worker, and waits until its connections have ended.
pub(crate) async fn begin_and_wait() {
    EPOCH.store(SERVING + 1, Ordering::Relaxed);
    worker::with(|worker| worker.waiters.borrow().wake_all());
    poll_fn(|cx| worker::with(|worker| worker.waiters.borrow_mut().poll_empty(cx.waker()))).await;
}

impl Waiters {
    /// Adds a connection. Returns its number.
    pub(crate) fn add(&mut self, waker: &Waker) -> u32 {
        let number = self.free.pop().unwrap_or(self.wakers.len() as u32);
        if number as usize == self.wakers.len() {
            self.wakers.push(None);
        }
        self.wakers[number as usize] = Some(waker.clone());
        number
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(&mut self, number: u32) {
        self.wakers[number as usize] = None;
        self.free.push(number);
        if self.is_empty() {
            self.drain.take().inspect(Waker::wake_by_ref);
        }
    }

    fn wake_all(&self) {
        self.wakers.iter().flatten().for_each(Waker::wake_by_ref);
    }

    fn poll_empty(&mut self, waker: &Waker) -> Poll<()> {
        if self.is_empty() {
            return Poll::Ready(());
        }
        self.drain = Some(waker.clone());
        Poll::Pending
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.wakers.len()
    }
}
