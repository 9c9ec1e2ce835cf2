//! Where lines go: standard error or output, a file, or the journal.

use std::fs::File;
use std::io::{self, ErrorKind, Write, stderr, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, open};
use rustix::io::Errno;

use crate::config::LogOutput;

/// Where the journal takes lines (systemd.journal-fields(7), "Native Journal Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";

/// A longer line is cut: the journal's socket takes no more at once than its buffer.
const MAX_JOURNAL_LINE: usize = 32 << 10;

/// How long a file may take to be opened: a disk may never answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes whole lines.
#[derive(Debug)]
pub(crate) enum Outlet {
    /// Somebody else's: it is never reopened.
    Stream(File),
    /// A file of our own.
    File { path: PathBuf, file: File },
    /// The journal, by this socket at this path.
    Journal { socket: UnixDatagram, path: PathBuf },
}

impl Outlet {
    /// Standard error. Not through `std::io::Stderr`, whose lock it would hold while the reader stalls.
    pub(super) fn stderr() -> io::Result<Outlet> {
        stream(stderr().as_fd())
    }

    /// Opens what the configuration names; waits for a file for two seconds at most.
    pub(crate) fn open(output: &LogOutput) -> io::Result<Outlet> {
        match output {
            LogOutput::Stderr => Outlet::stderr(),
            LogOutput::Stdout => stream(stdout().as_fd()),
            LogOutput::Journal => journal(Path::new(JOURNAL)),
            LogOutput::File(path) => {
                let file = in_time(path.clone(), open_file)?;
                Ok(Outlet::File { path: path.clone(), file })
            }
        }
    }

    /// Whether [`Outlet::open`] would succeed now. Makes no file: it would belong to whoever asks.
    pub(crate) fn try_out(output: &LogOutput) -> io::Result<()> {
        match output {
            LogOutput::File(path) => in_time(path.clone(), try_to_open),
            output => Outlet::open(output).map(drop),
        }
    }

    /// Opens a file again: somebody may have moved it away. The old one stays if that fails. Returns whether there is one.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let Outlet::File { path, file } = self else { return Ok(false) };
        *file = open_file(path)?;
        Ok(true)
    }

    /// Writes lines, waiting for the reader as long as it takes; returns how many are lost, for nobody is there to read them.
    pub(super) fn write(&mut self, lines: &[u8]) -> u64 {
        let lost = match self {
            Outlet::Stream(file) | Outlet::File { file, .. } => write_all(file, lines),
            Outlet::Journal { socket, path } => {
                let all = lines.split_inclusive(|byte| *byte == b'\n');
                return all.filter(|line| !tell_journal(socket, path, line)).count() as u64;
            }
        };
        lost.iter().filter(|byte| **byte == b'\n').count() as u64
    }
}

fn stream(descriptor: BorrowedFd<'_>) -> io::Result<Outlet> {
    Ok(Outlet::Stream(File::from(descriptor.try_clone_to_owned()?)))
}

fn journal(path: &Path) -> io::Result<Outlet> {
    let socket = UnixDatagram::unbound()?;
    // Connecting tells whether it is there. A socket that is not connected outlives a restart of the journal.
    UnixDatagram::unbound()?.connect(path)?;
    Ok(Outlet::Journal { socket, path: path.to_owned() })
}

fn in_time<T: Send + 'static>(path: PathBuf, open: fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let (done, opened) = mpsc::sync_channel(1);
    thread::Builder::new().name("log-open".to_owned()).spawn(move || {
        let _ = done.send(open(&path));
    })?;
    opened.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Without waiting for a reader, if it is a pipe.
const FLAGS: OFlags = OFlags::WRONLY.union(OFlags::APPEND).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn open_file(path: &Path) -> io::Result<File> {
    Ok(File::from(open(path, FLAGS | OFlags::CREATE, Mode::RUSR | Mode::WUSR | Mode::RGRP)?))
}

/// The file can be written, or made in its folder.
fn try_to_open(path: &Path) -> io::Result<()> {
    match open(path, FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => {
            let folder = path.parent().unwrap_or(path);
            Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
        }
        opened => Ok(opened.map(drop)?),
    }
}

/// Sends one line; its level stands before it (`<6>`). Returns whether the journal has it.
fn tell_journal(socket: &UnixDatagram, path: &Path, line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (priority, text) = match line {
        [b'<', level @ b'0'..=b'7', b'>', text @ ..] => (*level as char, text),
        text => ('6', text),
    };
    if text.is_empty() {
        return true;
    }
    let mut message = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=convey\nMESSAGE=").into_bytes();
    message.extend_from_slice(&text[..text.len().min(MAX_JOURNAL_LINE)]);
    message.push(b'\n');
    socket.send_to(&message, path).is_ok()
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
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_written_anew_once_it_is_reopened() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("log"), directory.path().join("log.1"));
        let mut outlet = Outlet::open(&LogOutput::File(path.clone())).unwrap();
        assert_eq!(outlet.write(b"one\n"), 0);
        fs::rename(&path, &old).unwrap();
        outlet.write(b"two\n");
        assert!(outlet.reopen().unwrap());
        outlet.write(b"three\n");
        let read = |path| fs::read_to_string(path).unwrap();
        assert_eq!((read(&old), read(&path)), ("one\ntwo\n".to_owned(), "three\n".to_owned()));
    }

    #[test]
    fn a_file_that_cannot_be_had_is_an_error_and_a_reopen_that_fails_keeps_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert!(Outlet::open(&LogOutput::File(directory.path().join("none/log"))).is_err());
        assert!(Outlet::open(&LogOutput::File(directory.path().to_owned())).is_err());
        let mut outlet = Outlet::open(&LogOutput::File(path.clone())).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(outlet.reopen().is_err());
        assert_eq!(outlet.write(b"on\n"), 0);
    }

    #[test]
    fn trying_a_file_makes_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let tried = |path: &Path| Outlet::try_out(&LogOutput::File(path.to_owned())).is_ok();
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
        let mut outlet = journal(&path).unwrap();
        assert_eq!(outlet.write(b"<4>a=b\nplain\n"), 0);
        let heard = || {
            let mut buffer = [0; 99];
            let n = socket.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..n].to_vec()).unwrap()
        };
        assert_eq!(heard(), "PRIORITY=4\nSYSLOG_IDENTIFIER=convey\nMESSAGE=a=b\n");
        assert_eq!(heard(), "PRIORITY=6\nSYSLOG_IDENTIFIER=convey\nMESSAGE=plain\n");
        drop(socket);
        assert_eq!(outlet.write(b"lost\nlost\n"), 2);
    }
}
