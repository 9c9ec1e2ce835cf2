//! Sinks for log lines: standard error, standard output, a file, the journal, or syslog.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write, stderr, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use convey_config::LogOutput;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, open};
use rustix::io::Errno;

use super::syslog::SyslogSink;

/// Path of the journal's socket (systemd.journal-fields(7), "Native Journal Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Maximum length of a journal line, in bytes. Longer lines are truncated, because the journal's
/// socket accepts no datagram larger than its buffer.
const MAX_JOURNAL_LINE: usize = 32 << 10;

/// Upper bound for opening a file: a disk may never respond.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between checks whether to give up a stalled reader.
const STALL: Duration = Duration::from_secs(1);

/// Number of bytes that a pipe accepts without blocking once it is writable (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Destination of log lines.
#[derive(Debug)]
pub enum LogSink {
    /// Stream that convey did not open, such as standard error. It is never reopened.
    Stream(LogFile),
    /// File that convey opened.
    File {
        /// Path at which the file is reopened.
        path: PathBuf,
        /// The open file.
        lines: LogFile,
    },
    /// The journal of systemd.
    Journal {
        /// Unconnected socket for sending datagrams.
        socket: UnixDatagram,
        /// Path of the journal's socket.
        path: PathBuf,
    },
    /// A syslog service.
    Syslog(Box<SyslogSink>),
}

/// Open log file or stream, with the flag whether its last line is incomplete.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    is_torn: bool,
}

/// Number of lines that could not be written, and the reason.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) lines: u64,
    pub(super) error: io::Error,
}

impl fmt::Display for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogSink::Stream(_) => f.write_str("standard error or output"),
            LogSink::File { path, .. } => path.display().fmt(f),
            LogSink::Journal { .. } => f.write_str("the journal"),
            LogSink::Syslog(_) => f.write_str("syslog"),
        }
    }
}

impl From<File> for LogFile {
    fn from(file: File) -> LogFile {
        LogFile { file, is_torn: false }
    }
}

impl LogSink {
    /// Sink for standard error. The sink bypasses `std::io::Stderr`, whose lock would be held while
    /// the reader stalls.
    pub(super) fn stderr() -> io::Result<LogSink> {
        stream(stderr().as_fd())
    }

    /// Opens the configured sink. Waits at most two seconds for a file.
    pub fn open(output: &LogOutput) -> io::Result<LogSink> {
        match output {
            LogOutput::Stderr => LogSink::stderr(),
            LogOutput::Stdout => stream(stdout().as_fd()),
            LogOutput::Journal => journal(Path::new(JOURNAL)),
            LogOutput::Syslog(target) => Ok(LogSink::Syslog(Box::new(SyslogSink::open(target)?))),
            LogOutput::File(path) => {
                let lines = in_time(path.clone(), open_file)?.into();
                Ok(LogSink::File { path: path.clone(), lines })
            }
        }
    }

    /// Checks whether [`LogSink::open`] would succeed now. Does not create a missing file, because
    /// the file would belong to the user who runs the check.
    pub fn try_out(output: &LogOutput) -> io::Result<()> {
        match output {
            LogOutput::File(path) => in_time(path.clone(), try_to_open),
            output => LogSink::open(output).map(drop),
        }
    }

    /// Reopens a file, which log rotation may have moved. If the open fails, the old file stays in
    /// use. Returns true if the sink is a file, and false for other sinks, which are not reopened.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let LogSink::File { path, lines } = self else { return Ok(false) };
        *lines = open_file(path)?.into();
        Ok(true)
    }

    /// Writes lines. While the reader stalls, calls `gives_up` once per second, and stops writing
    /// if `gives_up` returns true.
    ///
    /// # Errors
    /// Lines were lost: the reader is gone or was given up, or the disk is full.
    pub(super) fn write(&mut self, lines: &[u8], gives_up: impl Fn() -> bool) -> Result<(), Lost> {
        match self {
            LogSink::Stream(out) => out.write(lines, PIECE, gives_up),
            LogSink::File { lines: out, .. } => out.write(lines, usize::MAX, gives_up),
            LogSink::Journal { socket, path } => send_to_journal(socket, path, lines),
            LogSink::Syslog(syslog) => syslog.write(lines, gives_up),
        }
    }
}

impl LogFile {
    /// Writes lines, at most `piece` bytes per write. If the last line in the file is incomplete,
    /// ends that line first.
    fn write(&mut self, lines: &[u8], piece: usize, gives_up: impl Fn() -> bool) -> Result<(), Lost> {
        if self.is_torn {
            self.write_all(b"\n", piece, &gives_up).map_err(|(_, error)| lost(lines, error))?;
        }
        self.write_all(lines, piece, gives_up).map_err(|(rest, error)| lost(rest, error))
    }

    /// Writes all bytes. The error contains the part that was not written.
    fn write_all<'a>(
        &mut self,
        mut bytes: &'a [u8],
        piece: usize,
        gives_up: impl Fn() -> bool,
    ) -> Result<(), (&'a [u8], io::Error)> {
        while !bytes.is_empty() {
            // A pipe or terminal that another process has opened may be in blocking mode.
            let written = match piece < usize::MAX && !self.has_room() {
                true => Err(ErrorKind::WouldBlock.into()),
                false => self.file.write(&bytes[..bytes.len().min(piece)]),
            };
            match written {
                Ok(written) => {
                    self.is_torn = bytes.get(written.wrapping_sub(1)).is_some_and(|byte| *byte != b'\n');
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.has_room() && gives_up() {
                        return Err((bytes, ErrorKind::TimedOut.into()));
                    }
                }
                Err(error) => return Err((bytes, error)),
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        has_room(self.file.as_fd())
    }
}

/// Waits until a file or socket is writable, but at most one second. Returns false after a timeout,
/// otherwise true. After an error, the next write returns the error.
pub(super) fn has_room(file: BorrowedFd<'_>) -> bool {
    let patience = Timespec { tv_sec: STALL.as_secs() as i64, tv_nsec: 0 };
    let mut room = [PollFd::new(&file, PollFlags::OUT)];
    poll(&mut room, Some(&patience)) != Ok(0)
}

fn lost(lines: &[u8], error: io::Error) -> Lost {
    Lost { lines: lines.iter().filter(|byte| **byte == b'\n').count() as u64, error }
}

fn stream(descriptor: BorrowedFd<'_>) -> io::Result<LogSink> {
    Ok(LogSink::Stream(File::from(descriptor.try_clone_to_owned()?).into()))
}

fn journal(path: &Path) -> io::Result<LogSink> {
    let socket = UnixDatagram::unbound()?;
    // This connection only checks that the journal exists. The unconnected socket keeps working
    // after a restart of the journal.
    UnixDatagram::unbound()?.connect(path)?;
    Ok(LogSink::Journal { socket, path: path.to_owned() })
}

fn in_time<T: Send + 'static>(path: PathBuf, open: fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let (done, opened) = mpsc::sync_channel(1);
    thread::Builder::new().name("log-open".to_owned()).spawn(move || {
        let _ = done.send(open(&path));
    })?;
    opened.recv_timeout(OPEN_TIMEOUT).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Flags for opening a file. If the file is a pipe, the open does not wait for a reader.
const FLAGS: OFlags = OFlags::WRONLY.union(OFlags::APPEND).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn open_file(path: &Path) -> io::Result<File> {
    Ok(File::from(open(path, FLAGS | OFlags::CREATE, Mode::RUSR | Mode::WUSR | Mode::RGRP)?))
}

/// Checks that the file can be written, or can be created in its folder.
fn try_to_open(path: &Path) -> io::Result<()> {
    match open(path, FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => {
            let folder = path.parent().unwrap_or(path);
            Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
        }
        opened => Ok(opened.map(drop)?),
    }
}

/// Sends each line to the journal. A line may begin with a level, such as `<6>`.
fn send_to_journal(socket: &UnixDatagram, path: &Path, lines: &[u8]) -> Result<(), Lost> {
    let mut lost: Option<Lost> = None;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if let Err(error) = send_line_to_journal(socket, path, line) {
            lost = Some(Lost { lines: lost.map_or(1, |lost| lost.lines + 1), error });
        }
    }
    lost.map_or(Ok(()), Err)
}

fn send_line_to_journal(socket: &UnixDatagram, path: &Path, line: &[u8]) -> io::Result<()> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (priority, text) = match line {
        [b'<', level @ b'0'..=b'7', b'>', text @ ..] => (*level as char, text),
        text => ('6', text),
    };
    if text.is_empty() {
        return Ok(());
    }
    let mut message = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=convey\nMESSAGE=").into_bytes();
    message.extend_from_slice(&text[..text.len().min(MAX_JOURNAL_LINE)]);
    message.push(b'\n');
    socket.send_to(&message, path).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, pipe};
    use std::os::fd::OwnedFd;

    use rustix::pipe::fcntl_setpipe_size;

    use super::*;

    fn never() -> bool {
        false
    }

    #[test]
    fn rotated_log_file_is_created_again_on_reopen() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("log"), directory.path().join("log.1"));
        let mut sink = LogSink::open(&LogOutput::File(path.clone())).unwrap();
        sink.write(b"one\n", never).unwrap();
        fs::rename(&path, &old).unwrap();
        sink.write(b"two\n", never).unwrap();
        assert!(sink.reopen().unwrap());
        sink.write(b"three\n", never).unwrap();
        let read = |path| fs::read_to_string(path).unwrap();
        assert_eq!((read(&old), read(&path)), ("one\ntwo\n".to_owned(), "three\n".to_owned()));
    }

    #[test]
    fn failed_open_is_an_error_and_a_failed_reopen_keeps_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert!(LogSink::open(&LogOutput::File(directory.path().join("none/log"))).is_err());
        assert!(LogSink::open(&LogOutput::File(directory.path().to_owned())).is_err());
        let mut sink = LogSink::open(&LogOutput::File(path.clone())).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(sink.reopen().is_err());
        sink.write(b"on\n", never).unwrap();
    }

    #[test]
    fn trying_a_file_makes_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let tried = |path: &Path| LogSink::try_out(&LogOutput::File(path.to_owned())).is_ok();
        assert!(tried(&path) && !path.exists());
        fs::write(&path, "line\n").unwrap();
        assert!(tried(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n");
        assert!(!tried(directory.path()) && !tried(&directory.path().join("none/log")));
    }

    #[test]
    fn the_journal_is_told_each_line_with_its_level() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        assert!(journal(&path).is_err(), "nobody is there");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut sink = journal(&path).unwrap();
        sink.write(b"<4>a=b\nplain\n", never).unwrap();
        let heard = || {
            let mut buffer = [0; 99];
            let n = socket.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..n].to_vec()).unwrap()
        };
        assert_eq!(heard(), "PRIORITY=4\nSYSLOG_IDENTIFIER=convey\nMESSAGE=a=b\n");
        assert_eq!(heard(), "PRIORITY=6\nSYSLOG_IDENTIFIER=convey\nMESSAGE=plain\n");
        drop(socket);
        assert_eq!(sink.write(b"lost\nlost\n", never).unwrap_err().lines, 2);
    }

    #[test]
    fn a_full_disk_costs_lines_that_are_counted() {
        let mut sink = LogSink::open(&LogOutput::File("/dev/full".into())).unwrap();
        let lost = sink.write(b"one\ntwo\n", never).unwrap_err();
        assert_eq!((lost.lines, lost.error.kind()), (2, ErrorKind::StorageFull));
    }

    #[test]
    fn stalled_reader_is_abandoned_and_later_text_starts_a_new_line() {
        let (mut reader, writer) = pipe().unwrap();
        // Use two pages: a pipe of one page counts as full once it contains a byte.
        let size = fcntl_setpipe_size(&writer, 8192).unwrap();
        let mut lines: LogFile = File::from(OwnedFd::from(writer)).into();
        // The end of the line exceeds the capacity of the pipe.
        let line = [vec![b'a'; size + 9], b"\nlost\n".to_vec()].concat();
        assert_eq!(lines.write(&line, PIECE, || true).unwrap_err().lines, 2);
        let mut read = vec![0; size];
        reader.read_exact(&mut read).unwrap();
        lines.write(b"next\n", PIECE, never).unwrap();
        drop(lines);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "\nnext\n");
    }
}
