//! Writer of the access log. A thread polls for records every 50 ms, so that the data path never
//! has to wake it.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use convey_access_log::{AccessLog, Format, Record, Records};
use convey_model::Timestamp;
use convey_pacing::LogLimit;

use super::sink::{LogSink, Lost};
use super::{FLUSH_TIMEOUT, now as wall_clock};

/// Interval between polls for records.
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// Size of one write, in bytes.
const BATCH: usize = 1 << 16;

/// Minimum interval between log lines about lost records.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Maximum number of records written before the next poll for commands.
const MAX_AT_ONCE: usize = 1 << 14;

/// Access log, with its writer thread once the log is turned on.
#[derive(Debug, Clone)]
pub struct AccessWriter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    log: Arc<AccessLog>,
    commands: Mutex<Option<Sender<WriterCommand>>>,
    /// Number of pending commands that replace or close the sink.
    pending_changes: Arc<AtomicU32>,
}

#[derive(Debug)]
enum WriterCommand {
    /// Sets the format, and replaces the sink if a new one is given. `None` turns the log off.
    Follow(Option<(Format, Option<LogSink>)>),
    /// Reopens the file.
    Reopen,
    /// Sends a notification once all queued records are written.
    Flush(SyncSender<()>),
}

impl AccessWriter {
    /// Creates a writer that is turned off. `now` is the clock for the times in records.
    pub fn new(now: fn() -> Timestamp) -> AccessWriter {
        let log = Arc::new(AccessLog::new(now));
        AccessWriter(Arc::new(Inner { log, commands: Mutex::default(), pending_changes: Arc::default() }))
    }

    /// Sending end of the queue, for the data path.
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
        if commands.is_none() {
            let (sender, receiver) = mpsc::channel();
            let (log, records, pending_changes) = (log.clone(), log.records(), pending_changes.clone());
            let writer = Writer { log, records, pending_changes, out: None, failing: Failing::default() };
            thread::Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&receiver))?;
            *commands = Some(sender);
        }
        if let Some(commands) = &*commands {
            pending_changes.fetch_add(u32::from(sink.is_some()), Ordering::Relaxed);
            let _ = commands.send(WriterCommand::Follow(Some((format, sink))));
        }
        log.keep_one_in(one_in);
        Ok(())
    }

    /// Turns the log off.
    pub fn turn_off(&self) {
        self.0.log.keep_one_in(0);
        let commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(commands) = &*commands {
            self.0.pending_changes.fetch_add(1, Ordering::Relaxed);
            let _ = commands.send(WriterCommand::Follow(None));
        }
    }

    /// Reopens the log file. Does nothing if the sink is not a file.
    pub fn reopen(&self) {
        self.send(WriterCommand::Reopen);
    }

    /// Waits until all queued records are written, but at most one second. Logs the number of lost
    /// records.
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
        commands.as_ref().is_some_and(|commands| commands.send(command).is_ok())
    }
}

/// State of the writer thread.
struct Writer {
    log: Arc<AccessLog>,
    records: Records,
    pending_changes: Arc<AtomicU32>,
    /// Format and sink. `None` while the log is off.
    out: Option<(Format, LogSink)>,
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
    fn run(mut self, commands: &Receiver<WriterCommand>) {
        loop {
            let is_all = self.write_queued();
            let command = match self.out {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => commands.recv_timeout(if is_all { WRITE_EVERY } else { Duration::ZERO }),
            };
            match command {
                Ok(command) => self.execute(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn execute(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Follow(wanted) => {
                // Write earlier lines to the earlier sink first.
                self.write_queued();
                let before = self.out.take();
                if wanted.as_ref().is_none_or(|(_, sink)| sink.is_some()) {
                    self.pending_changes.fetch_sub(1, Ordering::Relaxed);
                    self.failing = Failing::default();
                }
                self.out = wanted.and_then(|(format, sink)| {
                    let sink = sink.or_else(|| before.map(|(_, sink)| sink))?;
                    Some((format, sink))
                });
            }
            WriterCommand::Reopen => {
                let Some((_, sink)) = &mut self.out else { return };
                match sink.reopen() {
                    Ok(true) => log::info!("SIGUSR1: access log file reopened"),
                    Ok(false) => {}
                    Err(error) => log::error!(
                        "cannot reopen the access log file: {error}; convey continues to write to the old file"
                    ),
                }
            }
            WriterCommand::Flush(done) => {
                self.write_queued();
                let _ = done.send(());
            }
        }
    }

    /// Writes queued records. Returns whether none is left to write. Records that are queued while
    /// the log is off wait for the command that turns it on: the data path sees earlier than this
    /// thread that the log is on.
    fn write_queued(&mut self) -> bool {
        if self.out.is_none() {
            return true;
        }
        let mut lines = String::new();
        let (now, wall) = (self.log.now(), wall_clock());
        for _ in 0..MAX_AT_ONCE {
            let Some(record) = self.records.next() else {
                self.write(&mut lines);
                return true;
            };
            if let Some((format, _)) = &self.out {
                format.write(&mut lines, &record, wall_time(&record, now, wall));
            }
            if lines.len() >= BATCH {
                self.write(&mut lines);
            }
        }
        self.write(&mut lines);
        false
    }

    fn write(&mut self, lines: &mut String) {
        let Some((_, sink)) = self.out.as_mut().filter(|_| !lines.is_empty()) else { return lines.clear() };
        let pending_changes = || self.pending_changes.load(Ordering::Relaxed) > 0;
        if self.failing.is_stalled && pending_changes() {
            self.log.note_lost(lines.lines().count() as u64);
            return lines.clear();
        }
        match sink.write(lines.as_bytes(), pending_changes) {
            Ok(()) => self.failing.is_over(),
            Err(lost) => {
                self.log.note_lost(lost.lines);
                self.failing.report_lost(&lost, self.log.now());
            }
        }
        lines.clear();
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

/// Wall-clock time at which the record's connection ended.
fn wall_time(record: &Record, now: Timestamp, wall: SystemTime) -> SystemTime {
    wall.checked_sub(now.since(record.ended)).unwrap_or(wall)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use convey_access_log::Termination;
    use convey_config::LogOutput;
    use convey_model::{Mode, Protocol};

    use super::*;

    fn record() -> Record {
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
            frontend: "web".into(),
            backend: "app".into(),
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
    fn record_queued_before_the_writer_follows_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let log = Arc::new(AccessLog::default());
        let (records, pending_changes) = (log.records(), Arc::default());
        let mut writer =
            Writer { log: log.clone(), records, pending_changes, out: None, failing: Failing::default() };
        log.keep_one_in(1);
        log.put(|| Some(record()));
        assert!(writer.write_queued());
        writer.pending_changes.fetch_add(1, Ordering::Relaxed);
        let sink = LogSink::open(&LogOutput::File(path.clone())).unwrap();
        writer.execute(WriterCommand::Follow(Some((Format::parse("{client_addr}").unwrap(), Some(sink)))));
        assert!(writer.write_queued());
        assert_eq!(fs::read_to_string(path).unwrap(), "10.0.0.7:5000\n");
    }
}
