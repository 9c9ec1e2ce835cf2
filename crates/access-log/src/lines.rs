//! Lines between the data path and the writer thread: bounded, without waiting or wake-ups.

use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use convey_model::Timestamp;
use crossbeam_utils::CachePadded;

use super::{Format, LineWriter, Record, WantedOfResponse};

/// Length at which a batch of lines is complete.
const BATCH: usize = 64 << 10;

/// Maximum number of complete batches that wait: enough for 0.05 seconds at 900,000 connections per
/// second.
const MAX_BATCHES: usize = 256;

/// Number of places for lines. Threads beyond this number share places.
const SHARDS: usize = 64;

/// Number of threads that have written a line.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Sending end of the access log, for the data path. It is off until a caller of
/// [`AccessLog::follow`] and [`AccessLog::keep_one_in`] turns it on.
#[derive(Debug)]
pub struct AccessLog {
    /// Clock for the times in records.
    now: fn() -> Timestamp,
    /// Time of `Timestamp(0)`; `None` for a log that stays off.
    start: Option<Instant>,
    /// Wall-clock time of `Timestamp(0)`, in nanoseconds since 1970.
    wall_start: AtomicU64,
    /// Sampling rate: one record in `one_in` is kept, at random. 0 turns the log off.
    one_in: AtomicU32,
    /// Facts about responses that the format needs.
    wanted_of_response: ArcSwapOption<WantedOfResponse>,
    /// Lines of each thread, so that threads do not wait for one another.
    shards: OnceLock<Box<[CachePadded<Mutex<Shard>>]>>,
    /// Number of complete batches, of all shards and in the hands of the writer thread.
    waiting: AtomicUsize,
    lost: AtomicU64,
}

/// Receiving end of the access log, for the writer thread.
#[derive(Debug)]
pub struct LineReader {
    log: Arc<AccessLog>,
    /// Empty lines for the next exchange.
    spare: Vec<u8>,
}

/// Waiting lines of one thread.
#[derive(Debug, Default)]
struct Shard {
    /// `None` while the log is off.
    writer: Option<LineWriter>,
    /// Number of the format of `current`.
    generation: u64,
    current: Vec<u8>,
    /// Complete batches, oldest first.
    complete: Vec<Batch>,
}

#[derive(Debug)]
struct Batch {
    generation: u64,
    lines: Vec<u8>,
}

impl Default for AccessLog {
    /// Creates a log that stays off.
    fn default() -> AccessLog {
        AccessLog::new(Timestamp::default, None)
    }
}

impl AccessLog {
    /// Creates a log that is off. Its records use the clock `now`, which began at `start`.
    pub fn new(now: fn() -> Timestamp, start: Option<Instant>) -> AccessLog {
        AccessLog {
            now,
            start,
            wall_start: AtomicU64::new(0),
            one_in: AtomicU32::new(0),
            wanted_of_response: ArcSwapOption::empty(),
            shards: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Current time of the clock that records use.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Time `at` on the clock that records use.
    pub fn timestamp(&self, at: Instant) -> Timestamp {
        let since = self.start.map(|start| at.saturating_duration_since(start));
        Timestamp(since.unwrap_or_default().as_nanos() as u64)
    }

    /// Sets the wall-clock time of `Timestamp(0)`, counted from 1970. Times of later lines follow it.
    pub fn set_wall_start(&self, start: Duration) {
        self.wall_start.store(start.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Decides whether the caller should log a record. True if the log is on and the random sample
    /// includes this record. While the log is off, the call costs a single load.
    #[inline]
    pub fn chooses_one(&self) -> bool {
        match self.one_in.load(Ordering::Relaxed) {
            0 => false,
            1 => true,
            one_in => fastrand::u32(..one_in) == 0,
        }
    }

    /// Facts about responses that the format needs. `None` if it needs none.
    #[inline]
    pub fn wanted_of_response(&self) -> Option<Arc<WantedOfResponse>> {
        self.wanted_of_response.load_full()
    }

    /// Writes the line of the record that `make` returns, if the log is on and has room for lines.
    /// Never waits for the reader of the log.
    pub fn put<'a>(&self, make: impl FnOnce() -> Option<Record<'a>>) {
        let Some(shards) = self.shards.get().filter(|_| self.is_on()) else { return };
        let mut shard = lock(&shards[THREAD.with(|thread| *thread) % SHARDS]);
        let Shard { writer: Some(writer), current, .. } = &mut *shard else { return };
        if current.len() >= BATCH {
            // If there is no room, `make` is not called.
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(record) = make() else { return };
        let ended = Duration::from_nanos(self.wall_start.load(Ordering::Relaxed) + record.ended.0);
        writer.write(current, &record, ended);
        if current.len() >= BATCH {
            self.complete(&mut shard);
        }
    }

    /// Whether the log is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.one_in.load(Ordering::Relaxed) != 0
    }

    /// Sets the sampling to one record in `records`; 0 turns the log off.
    pub fn keep_one_in(&self, records: u32) {
        self.one_in.store(records, Ordering::Relaxed);
    }

    /// Sets the format of later lines; `None` if there is none to write. Lines of the format with
    /// this number are those after the call. Numbers only rise.
    pub fn follow(&self, generation: u64, format: Option<&Arc<Format>>) {
        let wanted = format.and_then(|format| format.wanted_of_response());
        self.wanted_of_response.store(wanted.map(Arc::new));
        let shards = || (0..SHARDS).map(|_| CachePadded::default()).collect();
        for shard in self.shards.get_or_init(shards) {
            let mut shard = lock(shard);
            if !shard.current.is_empty() && !self.complete(&mut shard) {
                self.lost.fetch_add(count_lines(&shard.current), Ordering::Relaxed);
                shard.current.clear();
            }
            shard.generation = generation;
            shard.writer = format.cloned().map(LineWriter::new);
        }
    }

    /// Adds `lines` to the number of lost records, because they could not be written.
    pub fn note_lost(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Number of lost records: dropped because there was no room, or not written.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Makes a batch of a shard's current lines. Returns whether there was room for it.
    fn complete(&self, shard: &mut Shard) -> bool {
        let more = |waiting| (waiting < MAX_BATCHES).then_some(waiting + 1);
        let has_room = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if has_room {
            let lines = mem::replace(&mut shard.current, Vec::with_capacity(BATCH + (BATCH >> 4)));
            shard.complete.push(Batch { generation: shard.generation, lines });
        }
        has_room
    }
}

impl LineReader {
    /// Creates a reader of this log's lines.
    pub fn new(log: Arc<AccessLog>) -> LineReader {
        LineReader { log, spare: Vec::new() }
    }

    /// Passes waiting lines up to the format with this number to `write`, in batches of whole lines.
    /// Returns the length of all lines. The caller must poll, because lines do not wake it.
    pub fn take(&mut self, generation: u64, mut write: impl FnMut(&[u8])) -> usize {
        let AccessLog { shards, waiting, .. } = &*self.log;
        let (threads, mut len) = (THREADS.load(Ordering::Relaxed), 0);
        for shard in shards.get().map_or(&[][..], |shards| shards).iter().take(threads) {
            self.spare.clear();
            let complete = lock(shard).take(generation, &mut self.spare);
            let batches = complete.iter().map(|batch| &batch.lines).chain([&self.spare]);
            for lines in batches.filter(|lines| !lines.is_empty()) {
                len += lines.len();
                write(lines);
            }
            waiting.fetch_sub(complete.len(), Ordering::Relaxed);
        }
        len
    }
}

impl Shard {
    /// Takes the complete batches up to this generation, and exchanges the current lines for the
    /// empty `lines`.
    fn take(&mut self, generation: u64, lines: &mut Vec<u8>) -> Vec<Batch> {
        if self.generation > generation {
            let later = self.complete.iter().take_while(|batch| batch.generation <= generation).count();
            return self.complete.drain(..later).collect();
        }
        mem::swap(&mut self.current, lines);
        mem::take(&mut self.complete)
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_with(format: &str) -> Arc<AccessLog> {
        let log = Arc::new(AccessLog::default());
        log.follow(1, Some(&Arc::new(Format::parse(format).unwrap())));
        log.keep_one_in(1);
        log
    }

    fn taken(log: &Arc<AccessLog>, generation: u64) -> String {
        let mut all = Vec::new();
        LineReader::new(log.clone()).take(generation, |lines| all.extend_from_slice(lines));
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn lines_without_writer_are_bounded_and_the_rest_is_counted() {
        let log = AccessLog::default();
        assert!(!log.chooses_one());
        log.put(|| panic!("it is off"));
        let log = log_with("json");
        let record = Record::sample();
        (0..100_000).filter(|_| log.chooses_one()).for_each(|_| log.put(|| Some(record.clone())));
        let lines = taken(&log, 1);
        assert_eq!(lines.lines().count() as u64 + log.lost(), 100_000);
        let room = (MAX_BATCHES + 1) * BATCH;
        assert!((room..room + MAX_BATCHES * 1_024).contains(&lines.len()), "{}", lines.len());
        log.put(|| Some(record.clone()));
        assert_eq!(taken(&log, 1).lines().count(), 1);
        log.keep_one_in(0);
        log.put(|| panic!("it is off"));
    }

    #[test]
    fn lines_of_a_new_format_wait_for_their_writer() {
        let log = log_with("{frontend}");
        log.put(|| Some(Record { frontend: "first", ..Record::sample() }));
        log.follow(2, Some(&Arc::new(Format::parse("next={frontend}").unwrap())));
        log.put(|| Some(Record { frontend: "second", ..Record::sample() }));
        assert_eq!(taken(&log, 1), "first\n");
        assert_eq!(taken(&log, 1), "");
        assert_eq!(taken(&log, 2), "next=second\n");
        log.follow(3, None);
        log.put(|| panic!("there is no format"));
    }

    #[test]
    fn a_sample_is_one_in_so_many() {
        let log = log_with("text");
        log.keep_one_in(10);
        let kept = (0..50_000).filter(|_| log.chooses_one()).count();
        assert!((4_500..5_500).contains(&kept), "{kept}");
        assert!(taken(&log, 1).is_empty() && log.lost() == 0);
    }
}
