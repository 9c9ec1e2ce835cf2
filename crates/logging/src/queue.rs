//! Bounded queue of log lines, and the thread that writes them.

use std::mem::{replace, take};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use super::losses::{LossNotice, Losses};
use super::sink::LogSink;
use super::write_stderr;

/// Maximum size of all queued lines, in bytes. This is enough for some thousand lines, as many as
/// the loss of all servers of a large pool causes.
const MAX_WAITING: usize = 1 << 20;

/// Number of log lines that were dropped because the queue was full.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of log lines that have been dropped because the queue was full.
pub fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

#[derive(Debug, Default)]
pub(super) struct LineQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: Vec<u8>,
    /// Number of lines dropped since the writer thread last took lines from the queue. All queued
    /// lines are older than the dropped lines.
    dropped: u64,
    /// Pending change of the sink, with the number of queued bytes to write before the change.
    change: Option<(usize, SinkChange)>,
    /// Whether the thread is still writing lines that it has taken.
    writing: bool,
}

/// Change of the sink.
#[derive(Debug)]
enum SinkChange {
    /// Reopen the file.
    Reopen,
    /// Replace the sink.
    Replace(LogSink),
}

/// Work that the thread takes from the queue in one step.
struct Work {
    lines: Vec<u8>,
    /// Number of lines that were dropped after `lines`.
    dropped: u64,
    change: Option<SinkChange>,
}

impl LineQueue {
    /// Starts the writer thread.
    pub(super) fn start(sink: LogSink) -> io::Result<Arc<LineQueue>> {
        let queue = Arc::new(LineQueue::default());
        let writing = queue.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_to(sink))?;
        Ok(queue)
    }

    /// Queues a line, or drops it if the queue is full. Never blocks.
    pub(super) fn put(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.dropped > 0 || state.waiting.len() + line.len() > MAX_WAITING {
            state.dropped += 1;
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.waiting.extend_from_slice(line);
        drop(state);
        self.changed.notify_all();
    }

    /// Queues the reason why the program ends, even if the queue is full.
    pub(super) fn put_last(&self, lines: &[u8]) {
        self.lock().waiting.extend_from_slice(lines);
        self.changed.notify_all();
    }

    /// Reopens the file once the lines that are queued now are written.
    pub(super) fn reopen(&self) {
        self.lock().change_with(|change| change.unwrap_or(SinkChange::Reopen));
        self.changed.notify_all();
    }

    /// Replaces the sink once the lines that are queued now are written.
    pub(super) fn replace(&self, sink: LogSink) {
        self.lock().change_with(|_| SinkChange::Replace(sink));
        self.changed.notify_all();
    }

    /// Waits until all lines are written, but at most `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let is_busy = |state: &mut QueueState| state.writing || !state.waiting.is_empty();
        // After a timeout, lines may be left. The program ends anyway.
        drop(self.changed.wait_timeout_while(self.lock(), patience, is_busy));
    }

    fn take(&self) -> Work {
        let mut state = self.lock();
        state.writing = false;
        self.changed.notify_all();
        let is_idle = |state: &mut QueueState| state.waiting.is_empty() && state.change.is_none();
        let mut state = self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        let (before, change) = state.change.take().unzip();
        let later = before.map_or_else(Vec::new, |before| state.waiting.split_off(before));
        // Dropped lines are newer than all queued lines.
        let dropped = if later.is_empty() { take(&mut state.dropped) } else { 0 };
        Work { lines: replace(&mut state.waiting, later), dropped, change }
    }

    fn write_to(&self, mut sink: LogSink) {
        let mut losses = Losses::default();
        loop {
            let Work { lines, dropped, change } = self.take();
            if dropped > 0 {
                log::warn!(
                    "{dropped} lines of the log were dropped here, because the reader of the log was too slow"
                );
            }
            let is_left = matches!(change, Some(SinkChange::Replace(_)));
            if !lines.is_empty() {
                let written = sink.write(&lines, || is_left || self.is_left());
                DROPPED.fetch_add(written.as_ref().map_or_else(|lost| lost.lines, |()| 0), Ordering::Relaxed);
                match losses.after(&written, &sink) {
                    Some(LossNotice::OnStderr(words)) => write_stderr(&words),
                    Some(LossNotice::InLog(words)) => log::error!("{words}"),
                    None => {}
                }
            }
            match change {
                None => {}
                Some(SinkChange::Replace(other)) => sink = other,
                Some(SinkChange::Reopen) => match sink.reopen() {
                    Ok(true) => log::info!("SIGUSR1: log file reopened"),
                    Ok(false) => {
                        log::info!("SIGUSR1: the log is not written to a file, so there is nothing to reopen")
                    }
                    Err(error) => {
                        log::error!(
                            "cannot reopen the log file: {error}; convey continues to write to the old file"
                        );
                    }
                },
            }
        }
    }

    /// Whether another sink will replace the current sink.
    fn is_left(&self) -> bool {
        matches!(self.lock().change, Some((_, SinkChange::Replace(_))))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Adds a change of the sink, which applies after the lines that are queued now. If another
    /// change is pending, `change` combines the two; they apply at the position of the pending
    /// change.
    fn change_with(&mut self, change: impl FnOnce(Option<SinkChange>) -> SinkChange) {
        let (before, pending) = self.change.take().unzip();
        self.change = Some((before.unwrap_or(self.waiting.len()), change(pending)));
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests")]
mod tests {
    use std::fs::File;
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::OwnedFd;

    use rustix::io::ioctl_fionread;

    use super::*;

    fn started() -> (Arc<LineQueue>, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        (LineQueue::start(LogSink::Stream(File::from(OwnedFd::from(writer)).into())).unwrap(), reader)
    }

    #[test]
    fn lines_keep_their_order_and_are_all_written_by_flush() {
        let (queue, mut reader) = started();
        let lines: Vec<String> = (0..100).map(|n| format!("line {n}\n")).collect();
        lines.iter().for_each(|line| queue.put(line.as_bytes()));
        queue.flush(Duration::from_secs(20));
        let mut read = vec![0; lines.concat().len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), lines.concat());
    }

    #[test]
    fn queued_lines_go_to_the_old_outlet_and_later_ones_elsewhere() {
        let (queue, mut old) = started();
        let (mut new, writer) = pipe().unwrap();
        queue.put(b"before\n");
        queue.replace(LogSink::Stream(File::from(OwnedFd::from(writer)).into()));
        queue.flush(Duration::from_secs(20));
        let mut read = String::new();
        old.read_to_string(&mut read).unwrap();
        assert_eq!(read, "before\n", "its end is closed");
        queue.put(b"after\n");
        let mut read = [0; 6];
        new.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"after\n");
    }

    #[test]
    fn lines_queued_after_a_reopen_go_to_the_new_outlet() {
        let queue = LineQueue::default();
        let (_reader, writer) = pipe().unwrap();
        queue.put(b"before\n");
        queue.reopen();
        queue.put(b"between\n");
        queue.replace(LogSink::Stream(File::from(OwnedFd::from(writer)).into()));
        queue.put(b"after\n");
        let work = queue.take();
        assert_eq!(work.lines, b"before\n");
        assert!(matches!(work.change, Some(SinkChange::Replace(_))));
        let work = queue.take();
        assert_eq!(work.lines, b"between\nafter\n");
        assert!(work.change.is_none());
    }

    #[test]
    fn stalled_reader_loses_lines_but_not_their_order() {
        let (queue, mut reader) = started();
        let line = |n: usize| format!("{n:0>1023}\n").into_bytes();
        let all = 4 * MAX_WAITING / 1024;
        (0..all).for_each(|n| queue.put(&line(n)));
        assert!(queue.lock().waiting.len() <= MAX_WAITING);
        assert!(queue.lock().dropped > 0);
        queue.flush(Duration::from_millis(1));

        let reading = thread::spawn(move || {
            let (mut line, mut read): (_, Vec<usize>) = (vec![0; 1024], vec![]);
            loop {
                reader.read_exact(&mut line).unwrap();
                match str::from_utf8(&line).unwrap().trim_end().parse() {
                    Ok(n) => read.push(n),
                    Err(_) => return read,
                }
            }
        });
        let end = [b"end".repeat(341).as_slice(), b"\n"].concat();
        assert_eq!(end.len(), 1024);
        queue.flush(Duration::from_secs(20));
        queue.put(&end);
        let read = reading.join().unwrap();
        assert!(read.is_sorted() && read[0] == 0 && read.len() < all, "{} of {all}", read.len());
    }

    #[test]
    fn an_outlet_whose_reader_stalls_is_left_for_another() {
        let (queue, _stalls) = started();
        let (new, writer) = pipe().unwrap();
        // This is more than the capacity of the pipe.
        (0..200).for_each(|_| queue.put(&[[b'a'; 1023].as_slice(), b"\n"].concat()));
        queue.replace(LogSink::Stream(File::from(OwnedFd::from(writer)).into()));
        queue.put(b"after\n");
        queue.flush(Duration::from_secs(20));
        assert_eq!(ioctl_fionread(&new).unwrap(), 6, "bytes in the new one");
    }

    #[test]
    fn why_the_program_ends_is_said_even_if_lines_were_dropped() {
        let queue = LineQueue::default();
        queue.put(&vec![b'a'; MAX_WAITING]);
        queue.put(b"dropped");
        queue.put_last(b"the end");
        assert!(queue.lock().waiting.ends_with(b"athe end"));
    }

    #[test]
    fn a_reader_that_is_gone_holds_nobody_up() {
        let (queue, reader) = started();
        drop(reader);
        let before = dropped_lines();
        queue.put(b"for nobody\n");
        queue.flush(Duration::from_secs(20));
        assert!(dropped_lines() > before);
    }
}
