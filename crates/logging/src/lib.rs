//! The log. A separate thread writes lines from a queue, so that a stalled reader blocks no other
//! thread. If the queue is full, lines are dropped and counted. Once the reader continues, the log
//! reports the number of dropped lines.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod access;
mod filter;
mod line;
mod losses;
mod queue;
mod sink;
mod syslog;

pub use access::AccessWriter;
pub use queue::dropped_lines;
pub use sink::LogSink;

use std::backtrace::Backtrace;
use std::env::{self, VarError};
use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anstream::{AutoStream, ColorChoice};
use arc_swap::ArcSwap;
use convey_config::{LogLevel, LogOutput};
use convey_proxy::Contained;
use log::{Metadata, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;

use self::filter::{LogFilter, Variable};
use self::line::LineFormat;
use self::queue::LineQueue;

/// Maximum wait for the reader of the log when the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Current level, as an index of [`LogLevel::ALL`].
static LEVEL: AtomicUsize = AtomicUsize::new(LogLevel::Info as usize);

/// Current level of the log: less important lines are not written. `RUST_LOG` may set other levels
/// for modules.
pub fn level() -> LogLevel {
    LogLevel::ALL.get(LEVEL.load(Ordering::Relaxed)).copied().unwrap_or_default()
}

/// Log of the program. Clones share it.
#[derive(Debug, Clone)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Queue of the writer thread. `None` if the thread could not start. Lines are then written
    /// directly to standard error.
    queue: Option<Arc<LineQueue>>,
    style: ArcSwap<LogStyle>,
    /// Whether the log is written to a sink other than standard error.
    is_elsewhere: AtomicBool,
    /// Level from the command line.
    level: Option<LogLevel>,
    variable: Variable,
    wanted: Mutex<WantedLog>,
}

/// Log settings that may change at runtime.
#[derive(Debug, Default)]
struct WantedLog {
    /// Settings from the file.
    file: convey_config::LogConfig,
    /// Level that an operator has set at run time. It takes precedence over all other levels.
    said: Option<LogLevel>,
}

/// Level, filter and format of the log.
#[derive(Debug)]
struct LogStyle {
    level: LogLevel,
    filter: LogFilter,
    format: LineFormat,
}

impl Log {
    /// Starts the log on standard error. `level` comes from the command line and takes precedence
    /// over `RUST_LOG`, which takes precedence over the level in the file. The file applies once
    /// `Log::follow` is called.
    pub fn start(level: Option<LogLevel>) -> Log {
        let variable = match (level, env::var("RUST_LOG")) {
            (Some(_), _) | (None, Err(VarError::NotPresent)) => Variable::default(),
            (None, Ok(text)) => Variable::parse(&text),
            (None, Err(VarError::NotUnicode(text))) => Variable::parse(&text.to_string_lossy()),
        };
        let queue = LogSink::stderr().and_then(LineQueue::start);
        let queue = queue.inspect_err(|error| {
            to_stderr(&format!("convey: cannot start the thread that writes the log, so a stalled reader of the log will block convey: {error}\n"));
        });
        let style = LogStyle::new(&WantedLog::default(), level, &variable);
        let most = style.filter.most();
        let shared = Shared {
            queue: queue.ok(),
            style: ArcSwap::from_pointee(style),
            is_elsewhere: AtomicBool::new(false),
            level,
            variable,
            wanted: Mutex::default(),
        };
        let log = Log(Arc::new(shared));
        log.log_panics();
        // An error means that another logger is already set, which only happens in tests.
        let _ = log::set_boxed_logger(Box::new(log.clone()));
        log::set_max_level(most);
        log.0.variable.problems.iter().for_each(|problem| log::warn!("{problem}"));
        log
    }

    /// Applies the settings of the file. If `sink` is set, it replaces the current sink.
    pub fn follow(&self, wanted: &convey_config::LogConfig, sink: Option<LogSink>) {
        let Shared { queue, is_elsewhere, wanted: wants, .. } = &*self.0;
        if let (Some(queue), Some(sink)) = (queue, sink) {
            queue.replace(sink);
        }
        is_elsewhere.store(wanted.output != LogOutput::Stderr, Ordering::Relaxed);
        let mut wants = wants.lock().unwrap_or_else(PoisonError::into_inner);
        wants.file = wanted.clone();
        self.restyle(&wants);
    }

    /// Sets or removes an operator's override of the level. With `None`, the command line,
    /// `RUST_LOG` and the file apply again.
    pub fn set_level(&self, said: Option<LogLevel>) {
        let mut wants = self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut wants.said, said) != said {
            self.restyle(&wants);
        }
    }

    fn restyle(&self, wanted: &WantedLog) {
        let Shared { style, level, variable, .. } = &*self.0;
        let next = LogStyle::new(wanted, *level, variable);
        log::set_max_level(next.filter.most());
        LEVEL.store(next.level as usize, Ordering::Relaxed);
        style.store(Arc::new(next));
    }

    /// Reopens the log file. Does nothing if the sink is not a file.
    pub fn reopen(&self) {
        if let Some(queue) = &self.0.queue {
            queue.reopen();
        }
    }

    /// Writes the reason why the program ends, on a line of its own. If the log is not on standard
    /// error, the reason is also written to standard error.
    pub fn log_exit_reason(&self, line: impl fmt::Display) {
        let words = self.0.style.load().format.exit_line(&line, now());
        match &self.0.queue {
            Some(queue) => queue.put_last(words.as_bytes()),
            None => to_stderr(&words),
        }
        if self.0.is_elsewhere.load(Ordering::Relaxed) {
            write_stderr(&format!("{line}\n"));
        }
    }

    /// Waits until all lines are written, but at most one second.
    pub fn flush(&self) {
        if let Some(queue) = &self.0.queue {
            queue.flush(FLUSH_TIMEOUT);
        }
    }

    /// Installs a hook that logs panics. A panic in the task of a connection ends only this task,
    /// and is counted. Any other panic ends the program, because all connections need the thread
    /// that panicked.
    fn log_panics(&self) {
        if self.0.queue.is_some() {
            let log = self.clone();
            panic::set_hook(Box::new(move |panic| {
                log.log_exit_reason(panic_message(panic).trim_end());
                if Contained::is_polled() {
                    Contained::count_panic();
                    log::error!("this panic ends one connection; all other connections continue");
                } else {
                    log.flush();
                    std::process::abort();
                }
            }));
        }
    }
}

impl log::Log for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.style.load().filter.allows(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let style = self.0.style.load();
        if !style.filter.allows(record.metadata()) {
            return;
        }
        let line = style.format.line(record, now());
        match &self.0.queue {
            Some(queue) => queue.put(line.as_bytes()),
            None => to_stderr(&line),
        }
    }

    fn flush(&self) {}
}

impl LogStyle {
    fn new(wanted: &WantedLog, level: Option<LogLevel>, variable: &Variable) -> LogStyle {
        let WantedLog { file: wanted, said } = wanted;
        let level = said.or(level).or(variable.level).unwrap_or(wanted.level);
        let is_stderr = wanted.output == LogOutput::Stderr;
        let format = LineFormat {
            format: wanted.format,
            has_level_prefix: matches!(wanted.output, LogOutput::Journal | LogOutput::Syslog(_))
                || is_stderr && is_journal(stderr()),
            has_colours: is_stderr && has_colours(),
            clear: if is_stderr && stderr().is_terminal() { "\r\x1b[K" } else { "" },
        };
        LogStyle { level, filter: LogFilter::new(level, variable), format }
    }
}

/// Whether a stream is connected to the systemd journal. `JOURNAL_STREAM` contains the device and
/// inode of the journal's stream (systemd.exec(5)).
fn is_journal(stream: impl AsFd) -> bool {
    let Ok(found) = fstat(stream) else { return false };
    env::var("JOURNAL_STREAM").is_ok_and(|journal| journal == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Whether lines are coloured, by `RUST_LOG_STYLE`, or else by the kind of standard error. The
/// logging library cannot find out whether a terminal displays the lines, because they pass through
/// a queue.
fn has_colours() -> bool {
    match env::var("RUST_LOG_STYLE").as_deref() {
        Ok("always") => true,
        Ok("never") => false,
        _ => AutoStream::choice(&stderr()) != ColorChoice::Never,
    }
}

/// Writes to standard error. Ignores errors, because standard error may be full or closed.
fn to_stderr(words: &str) {
    let _ = stderr().write_all(words.as_bytes());
}

/// Writes to standard error, unless the write would block.
fn write_stderr(words: &str) {
    let stderr = stderr();
    let at_once = Timespec::default();
    if poll(&mut [PollFd::new(&stderr.as_fd(), PollFlags::OUT)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    {
        let _ = (&stderr).write_all(words.as_bytes());
    }
}

/// Message of a panic, in the format of Rust's default hook.
fn panic_message(panic: &PanicHookInfo<'_>) -> String {
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

#[expect(clippy::disallowed_methods, reason = "the time of a line of the log")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Read, pipe};
    use std::os::unix::process::ExitStatusExt;
    use std::pin::Pin;
    use std::process::{Command, Stdio};

    use rustix::pipe::fcntl_getpipe_size;
    use rustix::process::Signal;

    use super::*;

    /// Environment variable that makes the test's child process panic.
    const PANICS: &str = "CONVEY_TEST_PANICS";

    #[test]
    fn panic_is_logged_at_once_and_aborts_unless_a_connection_contains_it() {
        if let Some(kind) = env::var_os(PANICS) {
            let log = Log::start(None);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let panics = async { panic!("out of luck") };
            let one = thread::Builder::new().name("worker".into()).spawn(move || {
                let future: Pin<Box<dyn Future<Output = ()> + Send>> =
                    if kind == "connection" { Box::pin(Contained::new(panics)) } else { Box::pin(panics) };
                runtime.block_on(async { assert!(tokio::spawn(future).await.is_err()) });
            });
            one.unwrap().join().unwrap();
            log.flush();
            std::process::exit(if Contained::panics() == 1 { 7 } else { 8 });
        }
        let run = |stderr: PipeWriter, kind: &str| {
            let mut command = Command::new(env::current_exe().unwrap());
            let name = "panic_is_logged_at_once_and_aborts_unless_a_connection_contains_it";
            command.args([&format!("tests::{name}"), "--exact", "--nocapture"]);
            command.env(PANICS, kind).env_remove("RUST_BACKTRACE").stdout(Stdio::null()).stderr(stderr);
            command.spawn().unwrap()
        };
        let (mut reader, writer) = pipe().unwrap();
        assert_eq!(run(writer, "connection").wait().unwrap().code(), Some(7));
        let mut contained = String::new();
        reader.read_to_string(&mut contained).unwrap();
        assert!(
            contained.contains("out of luck\n") && contained.contains("all other connections continue"),
            "{contained}"
        );

        let (mut reader, writer) = pipe().unwrap();
        let aborted = run(writer, "worker").wait().unwrap();
        assert_eq!(aborted.signal(), Some(Signal::ABORT.as_raw()));
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        assert!(told.contains("thread 'worker' panicked at crates/logging/src/lib.rs:"), "{told}");
        assert!(told.ends_with(":\nout of luck\n"), "{told}");

        let (_reader, mut writer) = pipe().unwrap();
        let full = vec![0; fcntl_getpipe_size(&writer).unwrap()];
        writer.write_all(&full).unwrap();
        let mut child = run(writer, "worker");
        for _ in 0..2_000 {
            if let Some(status) = child.try_wait().unwrap() {
                return assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("it waits for who reads nothing");
    }
}
