//! Queue of TCP connections that are beyond their client's share of a frontend. They wait until the
//! share has room again. The length of the queue is bounded, so that the process keeps descriptors
//! for other clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use convey_model::{Prefix, fits};

/// Maximum number of clients for which one call of `ShareQueue::call_next` recomputes the number of
/// connections.
const MAX_ASKED_AGAIN: usize = 16;

/// Waiting connections of all clients.
#[derive(Debug, Default)]
pub(crate) struct ShareQueue {
    queues: Mutex<ShareQueues>,
    len: AtomicU64,
}

#[derive(Debug, Default)]
struct ShareQueues {
    frontends: HashMap<u32, FrontendQueues>,
    tickets: u64,
}

/// Waiting connections of one frontend: one queue for each client.
#[derive(Debug, Default)]
struct FrontendQueues {
    queues: HashMap<Prefix, ClientQueue>,
    /// Waiting clients by rank: the client with the fewest connections is first. A share is a
    /// threshold for the number of connections, so if the first client has no room, no other client
    /// has room.
    order: BTreeMap<Rank, Prefix>,
}

/// Rank of a client: the number of its connections at the frontend, and the ticket of its first
/// waiting connection.
type Rank = (u32, u64);

/// Waiting connections of one client at a frontend, by ticket.
#[derive(Debug, Default)]
struct ClientQueue {
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// Rank of this client in `FrontendQueues::order`.
    rank: Rank,
}

/// Place of a waiting connection in the queue. The drop removes the connection.
#[derive(Debug)]
pub(crate) struct Waiting {
    queue: Arc<ShareQueue>,
    frontend: u32,
    client: Prefix,
    ticket: u64,
    call: Arc<Notify>,
}

impl ShareQueue {
    /// Adds a connection to the queue. Returns `None` if the queue is full, or if the client has
    /// used up its share of the queue.
    ///
    /// `left` is the number of further connections that the process may have; the queue may hold at
    /// most as many. `has` returns the number of the client's connections at the frontend.
    pub(crate) fn enter(
        self: &Arc<Self>,
        frontend: u32,
        client: Prefix,
        left: u64,
        has: impl FnOnce() -> u32,
    ) -> Option<Waiting> {
        let mut queues = self.queues();
        let room = left.saturating_sub(self.len.load(Ordering::Relaxed));
        if room == 0 || !fits(queues.len(frontend, client), room) {
            return None;
        }
        // Increments `len` before `has` counts the client's connections. So a thread that ends one
        // of them after the count sees that a connection waits.
        self.len.fetch_add(1, Ordering::SeqCst);
        queues.tickets += 1;
        let (ticket, call) = (queues.tickets, Arc::default());
        let waiting = Waiting { queue: self.clone(), frontend, client, ticket, call };
        queues.add(&waiting, has());
        Some(waiting)
    }

    /// Whether connections of this client wait at the frontend. New connections of the client must
    /// not overtake them.
    pub(crate) fn has(&self, frontend: u32, client: Prefix) -> bool {
        !self.is_empty() && self.queues().len(frontend, client) > 0
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Wakes the next waiting connection of a frontend, if its client has room. Called when the
    /// frontend has more room, or when the number of connections of `client` there has changed.
    ///
    /// `has` returns the number of a client's connections; `may` returns whether a client with this
    /// number of connections may have another one. The number of the first client in the queue is
    /// recomputed, because other clients of its network may have changed it.
    pub(crate) fn call_next(
        &self,
        frontend: u32,
        client: Prefix,
        has: impl Fn(Prefix) -> u32,
        may: impl Fn(u32) -> bool,
    ) {
        let mut queues = self.queues();
        let Some(at) = queues.frontends.get_mut(&frontend) else { return };
        if at.queues.contains_key(&client) {
            at.put(client, has(client));
        }
        for _ in 0..MAX_ASKED_AGAIN {
            let Some(((known, _), client)) =
                at.order.first_key_value().map(|(rank, client)| (*rank, *client))
            else {
                return;
            };
            let now = has(client);
            if now == known {
                if may(now) {
                    at.queues[&client].call_first();
                }
                return;
            }
            at.put(client, now);
        }
    }

    fn queues(&self) -> MutexGuard<'_, ShareQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShareQueues {
    fn len(&self, frontend: u32, client: Prefix) -> u32 {
        let queue = self.frontends.get(&frontend).and_then(|at| at.queues.get(&client));
        queue.map_or(0, |queue| queue.waiting.len() as u32)
    }

    fn add(&mut self, waiting: &Waiting, has: u32) {
        let at = self.frontends.entry(waiting.frontend).or_default();
        at.queues.entry(waiting.client).or_default().waiting.insert(waiting.ticket, waiting.call.clone());
        at.put(waiting.client, has);
    }

    fn remove(&mut self, waiting: &Waiting, has: Option<u32>) {
        let Some(at) = self.frontends.get_mut(&waiting.frontend) else { return };
        let Some(queue) = at.queues.get_mut(&waiting.client) else { return };
        queue.waiting.remove(&waiting.ticket);
        let has = has.unwrap_or(queue.rank.0);
        at.put(waiting.client, has);
        if at.queues.is_empty() {
            self.frontends.remove(&waiting.frontend);
        }
    }
}

impl FrontendQueues {
    /// Updates the rank of a client, after its first waiting connection or its number of
    /// connections has changed. Removes the client if no connection waits.
    fn put(&mut self, client: Prefix, has: u32) {
        let Some(queue) = self.queues.get_mut(&client) else { return };
        self.order.remove(&queue.rank);
        match queue.waiting.first_key_value() {
            Some((first, _)) => {
                queue.rank = (has, *first);
                self.order.insert(queue.rank, client);
            }
            None => drop(self.queues.remove(&client)),
        }
    }
}

impl ClientQueue {
    fn call_first(&self) {
        if let Some((_, call)) = self.waiting.first_key_value() {
            call.notify_one();
        }
    }
}

impl Waiting {
    /// Whether the connection is the first waiting connection of its client.
    pub(crate) fn is_first(&self) -> bool {
        let queues = self.queue.queues();
        let queue = queues.frontends.get(&self.frontend).and_then(|at| at.queues.get(&self.client));
        queue.is_some_and(|queue| queue.rank.1 == self.ticket)
    }

    /// Waits until the connection is woken by `call_next` or `call_behind`. A wake-up before this
    /// wait is not lost.
    pub(crate) async fn called(&self) {
        self.call.notified().await;
    }

    /// Moves the connection to the queue of another frontend. `has` returns the number of the
    /// client's connections there.
    pub(crate) fn move_to(&mut self, frontend: u32, has: impl FnOnce() -> u32) {
        if self.frontend != frontend {
            let queue = self.queue.clone();
            let mut queues = queue.queues();
            queues.remove(self, None);
            self.frontend = frontend;
            queues.add(self, has());
        }
    }

    /// Removes the connection from the queue, because convey serves it now. `has` returns the
    /// number of the client's connections.
    pub(crate) fn go_on(&self, has: impl FnOnce() -> u32) {
        let mut queues = self.queue.queues();
        let has = Some(has());
        queues.remove(self, has);
    }

    /// Wakes the first waiting connection of the same client.
    pub(crate) fn call_behind(&self) {
        let queues = self.queue.queues();
        if let Some(queue) = queues.frontends.get(&self.frontend).and_then(|at| at.queues.get(&self.client)) {
            queue.call_first();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queues = self.queue.queues();
        queues.remove(self, None);
        self.queue.len.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn client(n: u16) -> Prefix {
        let [high, low] = n.to_be_bytes();
        Prefix::of([192, 0, high, low].into(), 32)
    }

    /// Whether the connection was woken since the last check.
    fn is_called(waiting: &Waiting) -> bool {
        waiting.called().now_or_never().is_some()
    }

    #[test]
    fn waiting_connections_leave_descriptors_for_other_clients() {
        let queue = Arc::new(ShareQueue::default());
        let mut waiting = Vec::new();
        let mut add =
            |n, left| queue.enter(1, client(n), left, || 16).map(|place| waiting.push(place)).is_some();
        // Each waiting connection also uses one of the connections that are left.
        let alone = (0..1_000).filter(|n| add(1, 1_000_u64.saturating_sub(*n))).count();
        assert!((400..500).contains(&alone), "{alone}");
        assert!(add(2, 1_000 - alone as u64), "another client");
        assert!(!add(2, alone as u64), "as many as are left");
        drop(waiting);
        assert!(queue.is_empty() && queue.queues().frontends.is_empty());
    }

    #[test]
    fn connections_of_one_client_are_called_in_order_of_arrival() {
        let queue = Arc::new(ShareQueue::default());
        let [first, second] = [(); 2].map(|()| queue.enter(1, client(1), 100, || 16).unwrap());
        assert!(queue.has(1, client(1)) && !queue.has(2, client(1)) && !queue.has(1, client(2)));
        assert_eq!([&second, &first].map(Waiting::is_first), [false, true]);
        queue.call_next(1, client(9), |_| 16, |_| true);
        assert_eq!([&second, &first].map(is_called), [false, true]);
        first.go_on(|| 17);
        assert!(second.is_first());
        drop((first, second));
        assert!(!queue.has(1, client(1)));
    }

    #[test]
    fn ended_session_calls_the_waiting_client_with_fewest_connections() {
        let queue = Arc::new(ShareQueue::default());
        let enter = |n: u16| queue.enter(1, client(n), 10_000, || 2_000 - u32::from(n)).unwrap();
        let waiting: Vec<Waiting> = (0..1_000).map(enter).collect();
        let called = || waiting.iter().position(is_called);
        let has = |who| (0..1_000).find(|n| client(*n) == who).map_or(0, |n| 2_000 - u32::from(n));
        queue.call_next(1, client(9_999), has, |has| has <= 1_001);
        assert_eq!([called(), called()], [Some(999), None]);
        queue.call_next(1, client(9_999), has, |has| has <= 1_000);
        assert_eq!(called(), None, "nobody fits");
        // The ended connection belonged to a waiting client.
        let of_7 = |who| if who == client(7) { 16 } else { has(who) };
        queue.call_next(1, client(7), of_7, |has| has <= 16);
        assert_eq!([called(), called()], [Some(7), None]);
        queue.call_next(2, client(7), |_| 16, |_| true);
        assert_eq!(called(), None, "another frontend");
    }

    #[test]
    fn client_whose_network_has_freed_room_is_called_by_another_client() {
        let queue = Arc::new(ShareQueue::default());
        let waiting = queue.enter(1, client(1), 100, || 90).unwrap();
        queue.call_next(1, client(9), |_| 90, |has| has <= 50);
        assert!(!is_called(&waiting));
        queue.call_next(1, client(9), |_| 40, |has| has <= 50);
        assert!(is_called(&waiting));
    }

    #[test]
    fn waiting_connection_keeps_its_ticket_on_another_frontend() {
        let queue = Arc::new(ShareQueue::default());
        let mut waiting = [(); 2].map(|()| queue.enter(1, client(1), 100, || 16).unwrap());
        waiting.iter_mut().rev().for_each(|waiting| waiting.move_to(2, || 16));
        assert_eq!(waiting.each_ref().map(Waiting::is_first), [true, false]);
        queue.call_next(2, client(9), |_| 16, |_| true);
        assert_eq!(waiting.each_ref().map(is_called), [true, false]);
        assert!(!queue.has(1, client(1)) && queue.has(2, client(1)));
    }
}
