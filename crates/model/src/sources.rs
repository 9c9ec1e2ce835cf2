//! Counts per source of a frontend: open connections, and the rate of new ones. Pure.
//!
//! All threads that serve the frontend share one table, so the counts are exact. Each lock covers a
//! few entries, and is held only while a connection begins, opens or closes. Memory is bounded:
//! forged sources do not increase it.

mod bucket;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Limits, Prefix, Timestamp};
use bucket::Bucket;

/// Number of entries in a set of the table. Each source maps to two sets, and a new source gets an
/// entry in the emptier one, so that both are rarely full.
const WAYS: usize = 8;

/// Number of sets under one lock.
const SETS: usize = 128;

const SHARDS: usize = 128;

/// Counts of a frontend's sources.
#[derive(Debug)]
pub struct Sources {
    /// Shards of the table; each is allocated at its first use.
    shards: Box<[Mutex<Box<[Set]>>]>,
    hasher: RandomState,
    v4_prefix: u8,
    v6_prefix: u8,
    uncounted: AtomicU64,
}

type Set = [SourceEntry; WAYS];

/// Entry of a source. The entry can be reused if the source has no open connection and its token
/// bucket is full.
#[derive(Debug, Clone, Copy, Default)]
struct SourceEntry {
    source: u128,
    open: u32,
    bucket: Bucket,
}

/// Limit because of which a source may not begin a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// The source is at its limit of open connections.
    Connections,
    /// The source has exceeded its rate of new connections.
    Rate,
}

/// Counted connection of a source. Dropping this value counts the connection as closed.
#[derive(Debug)]
pub struct CountedSource {
    sources: Arc<Sources>,
    client: IpAddr,
}

impl Sources {
    /// Maximum number of sources that a frontend counts at once.
    pub const CAPACITY: usize = SHARDS * SETS * WAYS;

    /// Creates an empty table. The limits set the prefix lengths of sources.
    pub fn new(limits: &Limits) -> Sources {
        Sources {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            v4_prefix: limits.ipv4_prefix,
            v6_prefix: limits.ipv6_prefix,
            uncounted: AtomicU64::new(0),
        }
    }

    /// Whether these limits have the prefix lengths of this table.
    pub fn fit(&self, limits: &Limits) -> bool {
        (self.v4_prefix, self.v6_prefix) == (limits.ipv4_prefix, limits.ipv6_prefix)
    }

    /// Source that a client belongs to. An IPv4-mapped address counts as IPv4.
    pub fn source_of(&self, client: IpAddr) -> Prefix {
        let client = client.to_canonical();
        Prefix::of(client, if client.is_ipv4() { self.v4_prefix } else { self.v6_prefix })
    }

    /// Takes a token of the client's source for a new connection. [`Sources::opened`] then counts
    /// the connection as open.
    ///
    /// # Errors
    /// The source exceeds a limit. No token is taken.
    pub fn begin(&self, client: IpAddr, limits: &Limits, now: Timestamp) -> Result<(), Excess> {
        let mut located = self.locate(client);
        located.begin(limits, now, &self.uncounted)
    }

    /// Returns the result that [`Sources::begin`] would return, without taking a token.
    ///
    /// # Errors
    /// Same errors as [`Sources::begin`].
    pub fn may_begin(&self, client: IpAddr, limits: &Limits, now: Timestamp) -> Result<(), Excess> {
        let mut located = self.locate(client);
        let known = located.find().map(|place| *located.entry(place)).unwrap_or_default();
        known.check_connections(limits)?;
        if known.may_begin_now(limits, now) == Some(0) { Err(Excess::Rate) } else { Ok(()) }
    }

    /// Number of connections that the client's source may begin now within its rate; `None`: any
    /// number.
    pub fn left_of_rate(&self, client: IpAddr, limits: &Limits, now: Timestamp) -> Option<u32> {
        let mut located = self.locate(client);
        let known = located.find().map(|place| *located.entry(place)).unwrap_or_default();
        known.may_begin_now(limits, now)
    }

    /// Takes a token like [`Sources::begin`], and counts the connection as open until the returned
    /// value is dropped. `None` if the connection may begin, but is not counted because the table
    /// is full.
    ///
    /// # Errors
    /// Same errors as [`Sources::begin`].
    pub fn begin_counted(
        self: &Arc<Self>,
        client: IpAddr,
        limits: &Limits,
        now: Timestamp,
    ) -> Result<Option<CountedSource>, Excess> {
        let mut located = self.locate(client);
        located.begin(limits, now, &self.uncounted)?;
        let is_counted = located.opened(&self.uncounted);
        Ok(is_counted.then(|| CountedSource { sources: self.clone(), client }))
    }

    /// Returns a token of the client's source, for a connection that was not opened after all.
    pub fn refund_token(&self, client: IpAddr, limits: &Limits) {
        let Some(rate) = limits.rate_per_source else { return };
        let mut located = self.locate(client);
        if let Some(place) = located.find() {
            located.entry(place).bucket.refund_token(rate);
        }
    }

    /// Counts a connection of the client as open, regardless of limits. Returns `false` if the
    /// connection is not counted, because all entries that could hold the source belong to sources
    /// with open connections.
    pub fn opened(&self, client: IpAddr) -> bool {
        self.locate(client).opened(&self.uncounted)
    }

    /// Like [`Sources::opened`], but the connection counts until the returned value is dropped.
    /// `None` if the connection is not counted.
    pub fn opened_counted(self: &Arc<Self>, client: IpAddr) -> Option<CountedSource> {
        self.opened(client).then(|| CountedSource { sources: self.clone(), client })
    }

    /// Counts a connection of the client as closed.
    pub fn closed(&self, client: IpAddr) {
        self.locate(client).closed();
    }

    /// Number of open connections of the client's source.
    pub fn open(&self, client: IpAddr) -> u32 {
        let mut located = self.locate(client);
        located.find().map_or(0, |place| located.entry(place).open)
    }

    /// Number of times that a source was not counted because the table was full.
    pub fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }

    fn locate(&self, client: IpAddr) -> Located<'_> {
        let source = match self.source_of(client).first() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let hash = self.hasher.hash_one(source) as usize;
        let mut shard = self.shards[hash % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.is_empty() {
            *shard = vec![[SourceEntry::default(); WAYS]; SETS].into();
        }
        Located { shard, sets: [hash / SHARDS, hash >> 32].map(|bits| bits % SETS), source }
    }
}

impl CountedSource {
    /// Whether the connection is counted in this table.
    pub fn is_in(&self, sources: &Arc<Sources>) -> bool {
        Arc::ptr_eq(&self.sources, sources)
    }
}

impl Drop for CountedSource {
    fn drop(&mut self) {
        self.sources.closed(self.client);
    }
}

impl SourceEntry {
    /// Returns an error if the source is at its limit of open connections.
    fn check_connections(&self, limits: &Limits) -> Result<(), Excess> {
        match limits.connections_per_source {
            Some(most) if self.open >= most => Err(Excess::Connections),
            _ => Ok(()),
        }
    }

    /// Number of connections that the source may begin now within its rate; `None`: any number.
    fn may_begin_now(&self, limits: &Limits, now: Timestamp) -> Option<u32> {
        let rate = limits.rate_per_source?;
        Some(self.bucket.tokens(rate, burst(limits, rate), now))
    }
}

/// Maximum number of new connections in a burst after a pause.
fn burst(limits: &Limits, rate: NonZeroU32) -> NonZeroU32 {
    limits.burst.unwrap_or(rate)
}

/// Location of a source: a locked shard, and the two sets that may contain the source.
struct Located<'a> {
    shard: MutexGuard<'a, Box<[Set]>>,
    sets: [usize; 2],
    source: u128,
}

/// Index of a set in the shard, and of an entry in the set.
type Place = (usize, usize);

impl Located<'_> {
    fn begin(&mut self, limits: &Limits, now: Timestamp, uncounted: &AtomicU64) -> Result<(), Excess> {
        let known = self.find();
        known.map(|place| *self.entry(place)).unwrap_or_default().check_connections(limits)?;
        let Some(rate) = limits.rate_per_source else { return Ok(()) };
        let Some(place) = known.or_else(|| self.enter(now, uncounted)) else { return Ok(()) };
        let burst = burst(limits, rate);
        if self.entry(place).bucket.take(rate, burst, now) { Ok(()) } else { Err(Excess::Rate) }
    }

    /// Counts a connection as open. Returns whether it is counted.
    fn opened(&mut self, uncounted: &AtomicU64) -> bool {
        let known = self.find();
        let Some(place) = known.or_else(|| self.enter(Timestamp::default(), uncounted)) else { return false };
        self.entry(place).open += 1;
        true
    }

    fn closed(&mut self) {
        if let Some(place) = self.find() {
            let open = &mut self.entry(place).open;
            *open = open.saturating_sub(1);
        }
    }

    /// Allocates an entry for a new source, and returns its place. Prefers a free entry in the
    /// emptier set; otherwise evicts the source with the fewest recent connections. Sources with
    /// open connections are not evicted. `None` if all entries of both sets belong to sources with
    /// open connections.
    fn enter(&mut self, now: Timestamp, uncounted: &AtomicU64) -> Option<Place> {
        let free = self.sets.into_iter().filter_map(|set| {
            let entries = &self.shard[set];
            let may_go = entries.iter().enumerate().filter(|(_, entry)| entry.open == 0);
            let way = may_go.min_by_key(|(_, entry)| entry.bucket.is_full_at())?.0;
            let in_use = entries.iter().filter(|entry| entry.open > 0).count();
            Some(((entries[way].bucket.is_full_at().max(now), in_use), (set, way)))
        });
        let Some((_, place)) = free.min_by_key(|(order, _)| *order) else {
            uncounted.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        *self.entry(place) = SourceEntry { source: self.source, ..SourceEntry::default() };
        Some(place)
    }

    fn find(&self) -> Option<Place> {
        let way = |set: usize| self.shard[set].iter().position(|entry| entry.source == self.source);
        self.sets.into_iter().find_map(|set| Some((set, way(set)?)))
    }

    fn entry(&mut self, (set, way): Place) -> &mut SourceEntry {
        &mut self.shard[set][way]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limits(connections: Option<u32>, rate: Option<u32>, burst: Option<u32>) -> Limits {
        let [rate_per_source, burst] = [rate, burst].map(|n| n.and_then(NonZeroU32::new));
        Limits { connections_per_source: connections, rate_per_source, burst, ..Limits::default() }
    }

    fn ip(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    #[test]
    fn connections_are_limited_for_each_source_separately() {
        let limits = limits(Some(2), None, None);
        let sources = Arc::new(Sources::new(&limits));
        let begin = |client| sources.begin_counted(ip(client), &limits, Timestamp(0));
        let (first, _second) = (begin(1).unwrap(), begin(1).unwrap());
        assert_eq!(begin(1).map(drop), Err(Excess::Connections));
        assert!(begin(2).is_ok());
        drop(first);
        assert!(begin(1).is_ok());
        assert_eq!((sources.open(ip(1)), sources.open(ip(2))), (1, 0));
    }

    #[test]
    fn raised_rate_applies_at_once_to_an_exhausted_source() {
        let (slow, fast) = (limits(None, Some(1), Some(100)), limits(None, Some(1_000), Some(10)));
        let sources = Sources::new(&slow);
        let begun =
            |limits, now| (0..200).filter(|_| sources.begin(ip(1), limits, Timestamp(now)).is_ok()).count();
        assert_eq!(
            [begun(&slow, SECOND), begun(&fast, SECOND), begun(&fast, SECOND + SECOND / 100)],
            [100, 0, 10]
        );
        assert_eq!(begun(&slow, SECOND + SECOND / 100), 99);
    }

    #[test]
    fn a_source_is_a_network_of_the_length_that_is_set() {
        let limits = Limits { ipv4_prefix: 24, ..limits(Some(1), None, None) };
        let sources = Sources::new(&limits);
        ["10.0.0.1", "2001:db8::1"].iter().for_each(|client| _ = sources.opened(client.parse().unwrap()));
        for (client, open) in [
            ("10.0.0.77", 1),
            ("::ffff:10.0.0.3", 1),
            ("10.0.1.1", 0),
            ("2001:db8::9:9", 1),
            ("2001:db8:0:1::1", 0),
        ] {
            assert_eq!(sources.open(client.parse().unwrap()), open, "{client}");
        }
        assert!(sources.fit(&limits) && !sources.fit(&Limits::default()));
    }

    #[test]
    fn forged_sources_do_not_evict_sources_with_open_connections() {
        let limits = limits(Some(1), Some(5), None);
        let sources = Sources::new(&limits);
        let clients = 0..1_000;
        clients.clone().for_each(|n| _ = sources.opened(ip(n)));
        for n in 0..500_000 {
            let _ = sources.begin(ip(1_000_000 + n), &limits, Timestamp(u64::from(n) * 1_000));
        }
        assert!(clients.clone().all(|n| sources.open(ip(n)) == 1));
        assert!(
            clients.clone().all(|n| sources.begin(ip(n), &limits, Timestamp(0)) == Err(Excess::Connections))
        );
        assert_eq!(size_of::<SourceEntry>() * Sources::CAPACITY, 4 << 20);
    }

    #[test]
    fn source_table_holds_nearly_all_sources_up_to_its_capacity() {
        for (open, most_uncounted) in [(65_536, 0), (98_304, 49), (Sources::CAPACITY as u32, 7_864)] {
            let sources = Sources::new(&limits(Some(1), None, None));
            (0..open).for_each(|n| _ = sources.opened(ip(n)));
            let uncounted = sources.uncounted();
            assert!(uncounted <= most_uncounted, "{uncounted} of {open}");
        }
    }

    #[test]
    fn returned_tokens_restore_the_rate_up_to_the_burst() {
        let limits = limits(None, Some(1), Some(2));
        let sources = Sources::new(&limits);
        let begin = || sources.begin(ip(1), &limits, Timestamp(SECOND));
        assert_eq!([begin(), begin(), begin()], [Ok(()), Ok(()), Err(Excess::Rate)]);
        sources.refund_token(ip(1), &limits);
        assert_eq!([begin(), begin()], [Ok(()), Err(Excess::Rate)]);
        // Returned tokens never exceed the burst.
        (0..9).for_each(|_| sources.refund_token(ip(1), &limits));
        assert_eq!([begin(), begin(), begin()], [Ok(()), Ok(()), Err(Excess::Rate)]);
    }

    #[test]
    fn source_without_room_is_admitted_and_counted() {
        let limits = limits(Some(1), None, None);
        let sources = Sources::new(&limits);
        let all = 2 * Sources::CAPACITY as u32;
        (0..all).for_each(|n| _ = sources.opened(ip(n)));
        let counted = (0..all).filter(|n| sources.open(ip(*n)) == 1).count() as u64;
        assert!(counted <= Sources::CAPACITY as u64 && counted + sources.uncounted() == u64::from(all));
        let free = (0..all).find(|n| sources.open(ip(*n)) == 0).unwrap();
        assert_eq!(sources.begin(ip(free), &limits, Timestamp(0)), Ok(()));
    }

    proptest! {
        /// Compares the table with a map of counts and a token bucket that is filled step by step.
        #[test]
        fn each_source_has_what_a_simple_model_says(
            connections in proptest::option::of(1..4_u32),
            rate in 1..2_000_u32,
            burst in 1..10_u32,
            steps in proptest::collection::vec((0..6_u32, 0..300_000_000_u64, any::<bool>()), 1..200),
        ) {
            let limits = limits(connections, Some(rate), Some(burst));
            let sources = Sources::new(&limits);
            // Number of open connections; content of the bucket in nanoseconds; time of the last
            // fill.
            let mut model: HashMap<u32, (u32, u64, u64)> = HashMap::new();
            let each = SECOND.div_ceil(rate.into());
            let mut now = 0;
            for (source, pause, begins) in steps {
                now += pause;
                let (open, left, filled) = model.entry(source).or_insert((0, each * u64::from(burst), 0));
                if !begins {
                    if *open > 0 {
                        *open -= 1;
                        sources.closed(ip(source));
                    }
                    continue;
                }
                *left = (*left + now - *filled).min(each * u64::from(burst));
                *filled = now;
                let expected = if connections.is_some_and(|most| *open >= most) {
                    Err(Excess::Connections)
                } else if *left < each {
                    Err(Excess::Rate)
                } else {
                    (*open, *left) = (*open + 1, *left - each);
                    Ok(())
                };
                let foreseen = sources.may_begin(ip(source), &limits, Timestamp(now));
                let tokens = sources.left_of_rate(ip(source), &limits, Timestamp(now));
                let found = sources.begin(ip(source), &limits, Timestamp(now));
                prop_assert_eq!(foreseen, found);
                prop_assert!((tokens == Some(0)) == (found == Err(Excess::Rate)) || found == Err(Excess::Connections));
                prop_assert_eq!(found, expected);
                if found.is_ok() {
                    sources.opened(ip(source));
                }
                prop_assert_eq!(sources.open(ip(source)), *open);
            }
        }
    }
}
