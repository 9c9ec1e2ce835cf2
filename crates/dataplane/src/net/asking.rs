//! Schedule of neighbour queries. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use convey_model::{NeighbourKey, Timestamp, WantedNeighbour};

/// Minimum time between two queries for a neighbour, and maximum wait of a packet. The kernel
/// repeats a query by itself after a second, so an earlier query would have no effect.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of queries for clients per second. The kernel waits three seconds for an answer,
/// so an attacker who forges clients on the link can fill 600 entries of the kernel's table. The
/// usual table (`gc_thresh3`, 1,024 entries) then has space left for the host's own neighbours.
const CLIENTS: u64 = 200;

/// Time between two queries for clients at the maximum rate, in nanoseconds.
const STEP: u64 = 1_000_000_000 / CLIENTS;

/// Maximum number of client queries in immediate succession after a pause.
const BURST: u64 = 100;

/// Maximum number of waiting neighbours of one rank. Further ones evict the oldest.
const MAX_WAITING: usize = 256;

/// Minimum time that a query is remembered. The kernel gives up a query after three seconds.
const MEMORY: Duration = Duration::from_secs(4);

/// Maximum number of remembered queries in each of two generations.
const MAX_REMEMBERED: usize = 8_192;

/// Schedule of neighbour queries: neighbours that wait for a query, and recent queries.
///
/// Clients wait by rank, so that forged clients do not displace real ones: forged clients are
/// usually new, or were queried without an answer, but a real client retransmits its SYN or
/// datagram if it was not queried.
#[derive(Debug, Default)]
pub struct Asking {
    /// Waiting neighbours by rank, the oldest first, with the time when they were added.
    waiting: [VecDeque<(Timestamp, WantedNeighbour)>; RANKS],
    lately: HashMap<NeighbourKey, RecentQuery>,
    before: HashMap<NeighbourKey, RecentQuery>,
    /// Time at which `lately` became the current generation.
    since: Timestamp,
    /// Unused part of the time budget for client queries, in nanoseconds.
    left: u64,
    /// Time up to which the budget has been granted.
    given: Timestamp,
}

/// Rank of servers and routers, which are queried without a rate limit.
const UNLIMITED_RANK: usize = 0;
/// Rank of clients that have retransmitted their SYN or datagram and were not queried yet.
const AGAIN: usize = 1;
/// Rank of clients that are wanted for the first time.
const NEW: usize = 2;
/// Rank of clients that were queried and did not answer.
const IN_VAIN: usize = 3;
const RANKS: usize = 4;

/// Recent query for one neighbour.
#[derive(Debug, Clone, Copy)]
struct RecentQuery {
    /// Time at which the neighbour was last added.
    queued: Timestamp,
    queried: Option<Timestamp>,
    /// Whether the neighbour waits in the rank of retransmitting clients. It may be added there
    /// only once, so that a client with many retransmissions does not displace others.
    is_repeated_query: bool,
}

impl Asking {
    /// Adds a wanted neighbour, unless it was queried or added recently.
    pub fn want(&mut self, wanted: WantedNeighbour, now: Timestamp) {
        if now.since(self.since) >= MEMORY {
            self.before = std::mem::take(&mut self.lately);
            self.since = now;
        }
        let seen = self.seen(wanted);
        let is_lately = |at: Timestamp| now.since(at) < PERIOD;
        let is_enough = |seen: RecentQuery| match seen.queried {
            Some(queried) => is_lately(queried) || is_lately(seen.queued),
            None => is_lately(seen.queued) && (seen.is_repeated_query || !wanted.is_repeated),
        };
        if seen.is_some_and(is_enough) {
            return;
        }
        let queried = seen.and_then(|seen| seen.queried);
        let rank = match queried {
            _ if wanted.is_ours => UNLIMITED_RANK,
            Some(_) => IN_VAIN,
            None if wanted.is_repeated => AGAIN,
            None => NEW,
        };
        self.record(wanted, RecentQuery { queued: now, queried, is_repeated_query: wanted.is_repeated });
        let waiting = &mut self.waiting[rank];
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back((now, wanted));
    }

    /// Returns the neighbour to query now; `None` if no query is due. Drops neighbours that have
    /// waited for too long.
    pub fn next(&mut self, now: Timestamp) -> Option<WantedNeighbour> {
        let time = now.0.saturating_sub(self.given.0);
        (self.left, self.given) = (self.left.saturating_add(time).min(BURST * STEP), now);
        for rank in 0..RANKS {
            let (lately, waiting) = (&self.lately, &mut self.waiting[rank]);
            let is_over = |since: Timestamp| now.since(since) >= PERIOD;
            while waiting.front().is_some_and(|(since, _)| is_over(*since)) {
                waiting.pop_front();
            }
            // A neighbour may wait in two ranks, after a retransmitted SYN.
            let was_asked = |wanted: &WantedNeighbour| {
                let queried = lately.get(&wanted.key()).and_then(|seen| seen.queried);
                queried.is_some_and(|queried| !is_over(queried))
            };
            while waiting.back().is_some_and(|(_, wanted)| was_asked(wanted)) {
                waiting.pop_back();
            }
            // Among clients, prefer the newest, because its packets can still wait the longest.
            let next = match rank {
                UNLIMITED_RANK => waiting.pop_front(),
                _ if self.left < STEP => None,
                _ => waiting.pop_back(),
            };
            let Some((queued, wanted)) = next else { continue };
            if rank != UNLIMITED_RANK {
                self.left -= STEP;
            }
            self.record(wanted, RecentQuery { queued, queried: Some(now), is_repeated_query: false });
            return Some(wanted);
        }
        None
    }

    /// Time until the next call of `next` is useful; `None` if no neighbour waits.
    pub fn pause(&self) -> Option<Duration> {
        let is_idle = self.waiting.iter().all(VecDeque::is_empty);
        (!is_idle).then_some(Duration::from_nanos(STEP))
    }

    fn record(&mut self, wanted: WantedNeighbour, seen: RecentQuery) {
        let key = wanted.key();
        if self.lately.len() < MAX_REMEMBERED || self.lately.contains_key(&key) {
            self.lately.insert(key, seen);
        }
    }

    fn seen(&self, wanted: WantedNeighbour) -> Option<RecentQuery> {
        let key = wanted.key();
        self.lately.get(&key).or(self.before.get(&key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;

    fn wanted(n: u32, is_ours: bool) -> WantedNeighbour {
        WantedNeighbour { interface: 2, ip: std::net::Ipv4Addr::from(n).into(), is_ours, is_repeated: false }
    }

    /// All neighbours to query at the time `now`, in nanoseconds.
    fn all(asking: &mut Asking, now: u64) -> Vec<WantedNeighbour> {
        std::iter::from_fn(|| asking.next(Timestamp(now))).collect()
    }

    #[test]
    fn a_neighbour_is_asked_for_once_a_second() {
        for is_ours in [true, false] {
            let mut asking = Asking::default();
            let mut queried = |at| {
                asking.want(wanted(1, is_ours), Timestamp(at));
                all(&mut asking, at).len()
            };
            let start = 10 * SECOND;
            let at = [0, 1, SECOND - 1, SECOND, SECOND + 1, 2 * SECOND].map(|after| queried(start + after));
            assert_eq!(at, [1, 0, 0, 1, 0, 1], "{is_ours}");
            assert_eq!(asking.pause(), None);
        }
    }

    #[test]
    fn a_scan_of_the_link_keeps_nobody_from_asking_for_servers() {
        let (mut asking, now) = (Asking::default(), 10 * SECOND);
        (0..65_536).for_each(|n| asking.want(wanted(n, false), Timestamp(now)));
        assert_eq!(all(&mut asking, now).len() as u64, BURST);
        assert!(asking.pause().is_some());
        asking.want(wanted(1 << 20, true), Timestamp(now));
        assert_eq!(all(&mut asking, now), [wanted(1 << 20, true)]);
    }

    #[test]
    fn neighbour_without_waiting_packets_is_not_queried() {
        let (mut asking, now) = (Asking::default(), 10 * SECOND);
        (0..1_000).for_each(|n| asking.want(wanted(n, false), Timestamp(now)));
        all(&mut asking, now);
        assert!(all(&mut asking, now + SECOND).is_empty());
        assert_eq!(asking.pause(), None);
    }

    /// Simulates an attack: every millisecond, a forged client at one of `addresses` random
    /// addresses is wanted. A real client sends its SYN at `begins` milliseconds, and retransmits
    /// it after one and after three seconds. Returns the time from the real client's first SYN to
    /// its query in milliseconds; `None` if it is not queried.
    fn attacked(addresses: u32, begins: u64, seed: u64) -> Option<u64> {
        let (mut asking, mut random) = (Asking::default(), fastrand::Rng::with_seed(seed));
        let (client, mut forged) = (wanted(u32::MAX, false), Vec::new());
        for ms in 0..begins + 5_000 {
            let now = Timestamp((60_000 + ms) * MS);
            let address = random.u32(..addresses);
            forged.push(address);
            asking.want(wanted(address, false), now);
            // The server retransmits its answers to all clients.
            if let Some(is_repeated_query) = forged.iter().rev().nth(1_000) {
                asking.want(wanted(*is_repeated_query, false), now);
            }
            if [0, 1_000, 3_000].map(|after| begins + after).contains(&ms) {
                asking.want(WantedNeighbour { is_repeated: ms > begins, ..client }, now);
            }
            while let Some(queried) = asking.next(now) {
                if queried.ip == client.ip {
                    return Some(ms - begins);
                }
            }
        }
        None
    }

    #[test]
    fn client_is_resolved_within_a_second_despite_forged_addresses() {
        for seed in 0..20 {
            for addresses in [250, 65_000, u32::MAX] {
                let after = attacked(addresses, 9_500 + 7 * seed, seed);
                assert!(after.is_some_and(|ms| ms <= 1_010), "{after:?} of {addresses}, seed {seed}");
            }
        }
    }

    #[test]
    fn frequent_sender_does_not_displace_other_clients() {
        let (mut asking, now) = (Asking::default(), Timestamp(10 * SECOND));
        let is_repeated_query = |n| WantedNeighbour { is_repeated: true, ..wanted(n, false) };
        let clients = [is_repeated_query(1), is_repeated_query(2)];
        asking.want(clients[0], now);
        (0..1_000).for_each(|_| asking.want(clients[1], now));
        (10..1_000).for_each(|n| asking.want(wanted(n, false), now));
        assert_eq!(all(&mut asking, now.0)[..2], [clients[1], clients[0]]);
    }

    #[test]
    fn neighbour_queries_are_limited_to_the_kernel_table_size() {
        let mut asking = Asking::default();
        let mut queried = 0;
        for ms in 0..3_000 {
            let now = (10_000 + ms) * MS;
            (0..50).for_each(|n| asking.want(wanted(ms as u32 * 50 + n, false), Timestamp(now)));
            queried += all(&mut asking, now).len();
        }
        assert!((600..=700).contains(&queried), "{queried}");
    }

    #[test]
    fn neighbour_query_memory_is_bounded() {
        let mut asking = Asking::default();
        for n in 0..100_000u32 {
            asking.want(wanted(n, false), Timestamp(10 * SECOND + u64::from(n) * SECOND / 10_000));
        }
        assert!(asking.lately.len() <= MAX_REMEMBERED && asking.before.len() <= MAX_REMEMBERED);
        assert!(asking.waiting.iter().all(|waiting| waiting.len() <= MAX_WAITING));
    }
}
