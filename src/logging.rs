//! The log: lines go to a queue that one thread writes to standard error. So a reader that stalls stalls nobody: what the
//! queue has no room for is dropped, counted, and told of as soon as the reader goes on.

use std::backtrace::Backtrace;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr};
use std::mem::take;
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use std::{env, fmt};

use env_logger::{Builder, Env, Target};
use log::LevelFilter;
use rustix::event::{PollFd, PollFlags, poll};

/// How many bytes of lines may wait: some thousand lines, which is what the loss of all servers of a large pool makes.
const MAX_WAITING: usize = 1 << 20;
/// How long the end of the program waits for a reader.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Lines that nobody will read.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// How many lines of the log were dropped so far.
pub fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// The log of a program.
#[derive(Debug)]
pub struct Log {
    /// `None` if there is no thread to write it: then everybody writes to standard error.
    queue: Option<Arc<Queue>>,
}

impl Log {
    /// Starts it. One line an event: time, level, text. `RUST_LOG` chooses what is shown.
    pub fn start() -> Log {
        let queue = Arc::new(Queue::default());
        // The demo's live line may stand where the event goes.
        let clear = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
        let mut builder = Builder::from_env(Env::default().default_filter_or("info"));
        builder.format(move |buffer, record| {
            let level = record.level();
            let style = buffer.default_level_style(level);
            let time = buffer.timestamp_millis();
            writeln!(buffer, "{clear}{time} {style}{level:<5}{style:#} {}", record.args())
        });
        // It tells of every directory that is gone, on whose account the file is looked at anyway.
        builder.filter_module("notify", LevelFilter::Error);
        if std::env::var_os("RUST_LOG_STYLE").is_none() {
            // Of a queue it cannot know whether a terminal is behind it.
            builder.write_style(anstream::AutoStream::choice(&stderr()).into());
        }
        let queue = match writer(queue.clone()) {
            Ok(()) => {
                builder.target(Target::Pipe(Box::new(Lines(queue.clone()))));
                tell_of_panics(queue.clone());
                Some(queue)
            }
            Err(error) => {
                eprintln!("convey: a reader of the log that stalls will stall convey: {error}");
                None
            }
        };
        builder.init();
        Log { queue }
    }

    /// Says why the program ends, as a line of its own without time and level.
    pub fn say(&self, line: impl fmt::Display) {
        match &self.queue {
            Some(queue) => queue.put_last(format!("{line}\n").as_bytes()),
            None => eprintln!("{line}"),
        }
    }

    /// Waits until all lines are written, for a second at most.
    pub fn flush(&self) {
        if let Some(queue) = &self.queue {
            queue.flush(LAST_WORDS);
        }
    }
}

/// Starts the thread that writes. Not through `std::io::Stderr`, whose lock it would hold while the reader stalls.
fn writer(queue: Arc<Queue>) -> io::Result<()> {
    let out = File::from(stderr().as_fd().try_clone_to_owned()?);
    thread::Builder::new().name("log".to_owned()).spawn(move || queue.write_to(out))?;
    Ok(())
}

/// A panic ends the program. The queue has what led to it, so the panic is told there.
fn tell_of_panics(queue: Arc<Queue>) {
    panic::set_hook(Box::new(move |panic| {
        queue.put_last(words_of(panic).as_bytes());
        queue.flush(LAST_WORDS);
    }));
}

/// The same as Rust's own hook says.
fn words_of(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let payload = panic.payload();
    let why = payload.downcast_ref::<&str>().copied();
    let why = why.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("Box<dyn Any>");
    let words = format!("\nthread '{thread}' panicked{place}:\n{why}\n");
    match env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted != "0") {
        true => format!("{words}stack backtrace:\n{}\n", Backtrace::force_capture()),
        false => words,
    }
}

/// Where the logger writes: one whole line each time.
struct Lines(Arc<Queue>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines on their way to the reader.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Lines dropped since the last that was taken; while there are any, the others of the queue are older.
    dropped: u64,
    /// Whether the thread is at work on what it took.
    writing: bool,
}

impl Queue {
    /// Never waits for the reader.
    fn put(&self, line: &[u8]) {
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

    /// The same for why the program ends, for which there is always room.
    fn put_last(&self, lines: &[u8]) {
        self.lock().waiting.extend_from_slice(lines);
        self.changed.notify_all();
    }

    /// Takes what waits, and how many lines were dropped after it.
    fn take(&self) -> (Vec<u8>, u64) {
        let mut state = self.lock();
        state.writing = false;
        self.changed.notify_all();
        let mut state = self
            .changed
            .wait_while(state, |state| state.waiting.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        (take(&mut state.waiting), take(&mut state.dropped))
    }

    fn flush(&self, patience: Duration) {
        let is_busy = |state: &mut State| state.writing || !state.waiting.is_empty();
        // Whether the time was enough makes no difference: the program ends.
        drop(self.changed.wait_timeout_while(self.lock(), patience, is_busy));
    }

    fn write_to(&self, mut out: impl Write + AsFd) {
        loop {
            let (lines, dropped) = self.take();
            if dropped > 0 {
                log::warn!("{dropped} lines of the log were dropped here: nobody read them in time");
            }
            let lost = write_all(&mut out, &lines).iter().filter(|byte| **byte == b'\n').count();
            DROPPED.fetch_add(lost as u64, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all, waiting for the reader as long as it takes; returns what nobody is there to read.
fn write_all<'a>(out: &mut (impl Write + AsFd), mut lines: &'a [u8]) -> &'a [u8] {
    while !lines.is_empty() {
        match out.write(lines) {
            Ok(written) => lines = &lines[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Somebody we share it with has made it so.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(out, PollFlags::OUT)], None);
            }
            Err(_) => break,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read, pipe};
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use rustix::pipe::fcntl_getpipe_size;

    use super::*;

    fn started() -> (Arc<Queue>, PipeReader) {
        let queue = Arc::new(Queue::default());
        let (reader, writer) = pipe().unwrap();
        let (writing, out) = (queue.clone(), File::from(OwnedFd::from(writer)));
        thread::spawn(move || writing.write_to(out));
        (queue, reader)
    }

    #[test]
    fn lines_come_out_in_their_order_and_all_by_the_time_the_program_ends() {
        let (queue, mut reader) = started();
        let lines: Vec<String> = (0..100).map(|n| format!("line {n}\n")).collect();
        lines.iter().for_each(|line| queue.put(line.as_bytes()));
        queue.flush(Duration::from_secs(20));
        let mut read = vec![0; lines.concat().len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), lines.concat());
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_but_neither_time_nor_memory_nor_the_order_of_the_others() {
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

    /// Set in the process that panics.
    const PANICS: &str = "CONVEY_TEST_PANICS";

    #[test]
    fn a_panic_is_told_and_waits_a_second_at_most_for_who_reads_it() {
        if env::var_os(PANICS).is_some() {
            let _log = Log::start();
            let panicked = thread::Builder::new().name("worker".into()).spawn(|| panic!("out of luck"));
            assert!(panicked.unwrap().join().is_err());
            std::process::exit(7);
        }
        let run = |stderr: PipeWriter| {
            let mut command = Command::new(env::current_exe().unwrap());
            let name = "a_panic_is_told_and_waits_a_second_at_most_for_who_reads_it";
            command.args([&format!("logging::tests::{name}"), "--exact", "--nocapture"]);
            command.env(PANICS, "1").env_remove("RUST_BACKTRACE").stdout(Stdio::null()).stderr(stderr);
            command.spawn().unwrap()
        };
        let (mut reader, writer) = pipe().unwrap();
        assert_eq!(run(writer).wait().unwrap().code(), Some(7));
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        assert!(told.contains("thread 'worker' panicked at src/logging.rs:"), "{told}");
        assert!(told.ends_with(":\nout of luck\n"), "{told}");

        let (_reader, mut writer) = pipe().unwrap();
        let full = vec![0; fcntl_getpipe_size(&writer).unwrap()];
        writer.write_all(&full).unwrap();
        let mut child = run(writer);
        for _ in 0..2_000 {
            if let Some(status) = child.try_wait().unwrap() {
                return assert_eq!(status.code(), Some(7));
            }
            thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("it waits for who reads nothing");
    }

    #[test]
    fn why_the_program_ends_is_said_even_if_lines_were_dropped() {
        let queue = Queue::default();
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
