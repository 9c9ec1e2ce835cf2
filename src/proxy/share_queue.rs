//! TCP connections of a client that has its share of a frontend's slots. They wait until the share has room again, in their
//! order, while the process has descriptors for others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::clients::fits;
use crate::model::Prefix;

/// Whose connections: the number of a frontend, and a client.
type Key = (u32, Prefix);

/// The connections of all clients that wait.
#[derive(Debug, Default)]
pub(super) struct ShareQueue {
    lines: Mutex<HashMap<Key, Line>>,
    len: AtomicU64,
}

/// The connections of one client that wait at a frontend.
#[derive(Debug, Default)]
struct Line {
    len: u32,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A place in the queue.
#[derive(Debug)]
pub(super) struct Waiting {
    queue: Arc<ShareQueue>,
    key: Key,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl ShareQueue {
    /// Has one more connection wait. `left` is how many more connections the process may have: those that wait are at most
    /// as many, and one client has its share of them.
    pub(super) fn enter(self: &Arc<Self>, frontend: u32, client: Prefix, left: u64) -> Option<Waiting> {
        let (key, mut lines) = ((frontend, client), self.lines());
        let room = left.saturating_sub(self.len.load(Ordering::Relaxed));
        let has = lines.get(&key).map_or(0, |line| line.len);
        (room > 0 && fits(has, room)).then(|| {
            let line = lines.entry(key).or_default();
            line.len += 1;
            self.len.fetch_add(1, Ordering::SeqCst);
            Waiting { queue: self.clone(), key, turn: line.turn.clone() }
        })
    }

    /// Whether connections of this client wait: nobody gets past them.
    pub(super) fn has(&self, frontend: u32, client: Prefix) -> bool {
        !self.is_empty() && self.lines().contains_key(&(frontend, client))
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Key, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Waits until it is the first of its client. It is for as long as what this returns is held.
    pub(super) async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut lines = self.queue.lines();
        self.queue.len.fetch_sub(1, Ordering::SeqCst);
        match lines.get_mut(&self.key) {
            Some(line) if line.len > 1 => line.len -= 1,
            _ => drop(lines.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn client(n: u8) -> Prefix {
        Prefix::of([192, 0, 2, n].into(), 32)
    }

    #[test]
    fn those_who_wait_leave_descriptors_for_others_and_each_other() {
        let queue = Arc::new(ShareQueue::default());
        let mut waiting = Vec::new();
        let mut add = |n, left| queue.enter(1, client(n), left).map(|place| waiting.push(place)).is_some();
        // Each that waits is one that is no longer left.
        let alone = (0..1_000).filter(|n| add(1, 1_000_u64.saturating_sub(*n))).count();
        assert!((400..500).contains(&alone), "{alone}");
        assert!(add(2, 1_000 - alone as u64), "another client");
        assert!(!add(2, alone as u64), "as many as are left");
        drop(waiting);
        assert!(queue.is_empty() && queue.lines().is_empty());
    }

    #[test]
    fn connections_of_one_client_take_turns() {
        let queue = Arc::new(ShareQueue::default());
        let [first, second] = [(); 2].map(|()| queue.enter(1, client(1), 100).unwrap());
        assert!(queue.has(1, client(1)) && !queue.has(2, client(1)) && !queue.has(1, client(2)));
        let turn = first.turn().now_or_never().unwrap();
        assert!(second.turn().now_or_never().is_none());
        drop((turn, first));
        assert!(second.turn().now_or_never().is_some());
        drop(second);
        assert!(!queue.has(1, client(1)));
    }
}
