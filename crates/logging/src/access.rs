//! Writer of the access log. A thread polls for lines every 50 ms, so that the data path never has
//! to wake it.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use convey_access_log::{AccessLog, Format, LineReader};
use convey_model::Timestamp;
use convey_pacing::LogLimit;

use super::sink::{LogSink, Lost};
use super::{FLUSH_TIMEOUT, now as wall_clock};

/// Interval between polls for lines.
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// Minimum interval between log lines about lost records.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Number of bytes in a poll after which the writer polls again at once.
const BUSY: usize = 1 << 21;

/// Access log, with its writer thread once the log is turned on.
#[derive(Debug, Clone)]
pub struct AccessWriter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    log: Arc<AccessLog>,
    commands: Mutex<Commands>,
    /// Number of pending commands that replace or close the sink.
    pending_changes: Arc<AtomicU32>,
}

#[derive(Debug, Default)]
struct Commands {
    /// `None`: no writer thread runs.
    sender: Option<Sender<WriterCommand>>,
    /// Number of the last format.
    generation: u64,
}

#[derive(Debug)]
enum WriterCommand {
    /// Writes lines of the format with this number.
    Follow(u64, WantedSink),
    /// Reopens the file.
    Reopen,
    /// Sends a notification once all waiting lines are written.
    Flush(SyncSender<()>),
}

/// Sink of the lines of a format.
#[derive(Debug)]
enum WantedSink {
    New(LogSink),
    Unchanged,
    /// The log is off.
    None,
}

impl AccessWriter {
    /// Creates a writer that is turned off. `now` is the clock for the times in records, which began
    /// at `start`.
    pub fn new(now: fn() -> Timestamp, start: Instant) -> AccessWriter {
        let log = Arc::new(AccessLog::new(now, Some(start)));
        AccessWriter(Arc::new(Inner { log, commands: Mutex::default(), pending_changes: Arc::default() }))
    }

    /// Sending end of the log, for the data path.
    pub fn log(&self) -> Arc<AccessLog> {
        self.0.log.clone()
    }

    /// Turns the log on: one in `one_in` records is written, in this format. If `sink` is set, it
    /// replaces the current sink.
    ///
    /// # Errors
    /// The writer thread cannot be started. No lines are written then.
    pub fn turn_on(&self, format: Format, sink: Option<LogSink>, one_in: u32) -> io::Result<()> {
        let Inner { log, commands, pending_changes } = &*self.0;
        let mut commands = commands.lock().unwrap_or_else(PoisonError::into_inner);
        if commands.sender.is_none() {
            let (sender, receiver) = mpsc::channel();
            let writer = Writer::new(log.clone(), pending_changes.clone());
            thread::Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&receiver))?;
            commands.sender = Some(sender);
        }
        pending_changes.fetch_add(u32::from(sink.is_some()), Ordering::Relaxed);
        let sink = sink.map_or(WantedSink::Unchanged, WantedSink::New);
        set_wall_start(log);
        commands.follow(log, Some(&Arc::new(format)), sink);
        log.keep_one_in(one_in);
        Ok(())
    }

    /// Turns the log off.
    pub fn turn_off(&self) {
        let Inner { log, commands, pending_changes } = &*self.0;
        log.keep_one_in(0);
        let mut commands = commands.lock().unwrap_or_else(PoisonError::into_inner);
        if commands.sender.is_some() {
            pending_changes.fetch_add(1, Ordering::Relaxed);
            commands.follow(log, None, WantedSink::None);
        }
    }

    /// Reopens the log file. Does nothing if the sink is not a file.
    pub fn reopen(&self) {
        self.send(WriterCommand::Reopen);
    }

    /// Waits until all waiting lines are written, but at most one second. Logs the number of lost
    /// lines.
    pub fn flush(&self) {
        let (done, is_done) = mpsc::sync_channel(1);
        if self.send(WriterCommand::Flush(done)) {
            let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
        }
        match self.0.log.lost() {
            0 => {}
            lost => log::warn!("{lost} lines of the access log were lost since the start"),
        }
    }

    /// Sends a command. Returns false if no writer thread runs.
    fn send(&self, command: WriterCommand) -> bool {
        let commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.sender.as_ref().is_some_and(|commands| commands.send(command).is_ok())
    }
}

impl Commands {
    /// Sets the format of later lines, and the sink to which the writer thread writes them.
    fn follow(&mut self, log: &AccessLog, format: Option<&Arc<Format>>, sink: WantedSink) {
        self.generation += 1;
        log.follow(self.generation, format);
        if let Some(commands) = &self.sender {
            let _ = commands.send(WriterCommand::Follow(self.generation, sink));
        }
    }
}

/// State of the writer thread.
struct Writer {
    log: Arc<AccessLog>,
    lines: LineReader,
    /// Number of the format whose lines the thread writes. Lines of a later format wait for the
    /// command that sets their sink.
    generation: u64,
    out: Output,
}

/// Sink of the writer thread.
struct Output {
    log: Arc<AccessLog>,
    pending_changes: Arc<AtomicU32>,
    /// `None` while the log is off.
    sink: Option<LogSink>,
    failing: Failing,
}

/// State of write failures, for log lines about them.
#[derive(Debug)]
struct Failing {
    /// Number of lost lines since the last success.
    lost: u64,
    log_limit: LogLimit<Timestamp>,
    is_reported: bool,
    /// Whether the writer has given up the current reader, because the reader stalled.
    is_stalled: bool,
}

impl Default for Failing {
    fn default() -> Failing {
        let log_limit = LogLimit::once_in(LOG_PERIOD);
        Failing { lost: 0, log_limit, is_reported: false, is_stalled: false }
    }
}

impl Writer {
    fn new(log: Arc<AccessLog>, pending_changes: Arc<AtomicU32>) -> Writer {
        let lines = LineReader::new(log.clone());
        let out = Output { log: log.clone(), pending_changes, sink: None, failing: Failing::default() };
        Writer { log, lines, generation: 0, out }
    }

    fn run(mut self, commands: &Receiver<WriterCommand>) {
        loop {
            let is_busy = self.write_waiting() > BUSY;
            let command = match self.out.sink {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => commands.recv_timeout(if is_busy { Duration::ZERO } else { WRITE_EVERY }),
            };
            match command {
                Ok(command) => self.execute(command),
                Err(RecvTimeoutError::Timeout) => set_wall_start(&self.log),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn execute(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Follow(generation, wanted) => {
                // Lines of the earlier format belong to the earlier sink.
                self.generation = generation.saturating_sub(1);
                self.write_waiting();
                self.generation = generation;
                self.out.follow(wanted);
            }
            WriterCommand::Reopen => self.out.reopen(),
            WriterCommand::Flush(done) => {
                self.write_waiting();
                let _ = done.send(());
            }
        }
    }

    /// Writes waiting lines. Returns their length.
    fn write_waiting(&mut self) -> usize {
        let Writer { lines, generation, out, .. } = self;
        lines.take(*generation, |lines| out.write(lines))
    }
}

impl Output {
    fn follow(&mut self, wanted: WantedSink) {
        let sink = match wanted {
            WantedSink::Unchanged => return,
            WantedSink::New(sink) => Some(sink),
            WantedSink::None => None,
        };
        self.pending_changes.fetch_sub(1, Ordering::Relaxed);
        (self.sink, self.failing) = (sink, Failing::default());
    }

    fn reopen(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        match sink.reopen() {
            Ok(true) => log::info!("SIGUSR1: access log file reopened"),
            Ok(false) => {}
            Err(error) => log::error!(
                "cannot reopen the access log file: {error}; convey continues to write to the old file"
            ),
        }
    }

    fn write(&mut self, lines: &[u8]) {
        let Some(sink) = &mut self.sink else { return };
        let pending_changes = || self.pending_changes.load(Ordering::Relaxed) > 0;
        if self.failing.is_stalled && pending_changes() {
            return self.log.note_lost(lines.iter().filter(|byte| **byte == b'\n').count() as u64);
        }
        match sink.write(lines, pending_changes) {
            Ok(()) => self.failing.is_over(),
            Err(lost) => {
                self.log.note_lost(lost.lines);
                self.failing.report_lost(&lost, self.log.now());
            }
        }
    }
}

impl Failing {
    fn report_lost(&mut self, Lost { lines, error }: &Lost, now: Timestamp) {
        self.lost += lines;
        self.is_stalled = error.kind() == ErrorKind::TimedOut;
        if self.log_limit.admit(now).is_some() {
            self.is_reported = true;
            log::error!("cannot write the access log: {error}; {} lines are lost so far", self.lost);
        }
    }

    fn is_over(&mut self) {
        self.is_stalled = false;
        if std::mem::take(&mut self.is_reported) {
            log::info!(
                "the access log can be written again; {} lines were lost",
                std::mem::take(&mut self.lost)
            );
        }
    }
}

/// Sets the wall-clock time of the log's clock, which steps of the system's clock change.
fn set_wall_start(log: &AccessLog) {
    let (now, wall) = (log.now(), wall_clock().duration_since(SystemTime::UNIX_EPOCH));
    let since_start = now.since(Timestamp::default());
    log.set_wall_start(wall.unwrap_or_default().saturating_sub(since_start));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use convey_access_log::{Record, Termination};
    use convey_config::LogOutput;
    use convey_model::{Mode, Protocol};

    use super::*;

    fn record() -> Record<'static> {
        Record {
            ended: Timestamp(0),
            total: Duration::ZERO,
            queued: None,
            connect: None,
            mode: Mode::Proxy,
            protocol: Protocol::Tcp,
            client: "10.0.0.7:5000".parse().unwrap(),
            proxy: None,
            listen: "10.0.0.1:80".parse().unwrap(),
            frontend: "web",
            backend: "app",
            server: None,
            bytes_rx: None,
            bytes_tx: None,
            retries: 0,
            termination: Termination::Closed,
            reason: None,
            tls: None,
            hello: None,
            request: None,
        }
    }

    #[test]
    fn line_put_before_the_writer_follows_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let log = Arc::new(AccessLog::default());
        let mut writer = Writer::new(log.clone(), Arc::new(AtomicU32::new(1)));
        log.follow(1, Some(&Arc::new(Format::parse("{client_addr}").unwrap())));
        log.keep_one_in(1);
        log.put(|| Some(record()));
        assert_eq!(writer.write_waiting(), 0);
        let sink = LogSink::open(&LogOutput::File(path.clone())).unwrap();
        writer.execute(WriterCommand::Follow(1, WantedSink::New(sink)));
        assert!(writer.write_waiting() > 0);
        assert_eq!(fs::read_to_string(path).unwrap(), "10.0.0.7:5000\n");
    }
}
