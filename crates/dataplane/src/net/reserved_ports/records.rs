//! Records of the ports that each process has added to the reserved ports.
//!
//! Each process has a record, a file on which it holds a lock. The kernel releases the lock when
//! the process ends, however it ends, and processes in any PID namespace can test the lock. If
//! other processes hand over ports, they write all ports of the record to a second file. The second
//! file is replaced atomically, so that no port is lost if a process is killed while it writes.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::geteuid;

use crate::net::PortRanges;

/// Socket option `SO_NETNS_COOKIE` of `asm-generic/socket.h` (Linux 5.14).
const NAMESPACE_COOKIE: libc::c_int = 71;

/// Interval between attempts to lock the directory, and maximum number of attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const MAX_LOCK_TRIES: u32 = 100;

/// Maximum number of records of ended processes in other network namespaces; the least recently
/// changed records are removed first. No process can release the ports of a namespace that no
/// longer exists, and processes in other namespaces cannot detect that it is gone.
const MAX_STALE: usize = 256;

/// Maximum length of a record in bytes.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Prefix of the file names of all records.
const RECORD: &str = "reserved-ports.ns-";

/// Suffix of the file that replaces a record when other processes have handed over ports.
const HANDED: &str = ".handed";
/// Suffix of the replacing file while it is being written.
const NEW: &str = ".new";

/// Records in this network namespace. Other processes wait while this value exists, because it
/// holds a lock.
pub(super) struct PortRecords {
    directory: PathBuf,
    /// Prefix of the file names of this namespace's records.
    prefix: String,
    boot: String,
    /// Records of running processes.
    live: Vec<PortRecord>,
    /// Records of processes that have ended.
    stale: Vec<PortRecord>,
    /// Record of this process, if it is about to end.
    ended: Option<PortRecord>,
    _lock: File,
}

/// Record of one process.
#[derive(Debug)]
pub(super) struct PortRecord {
    path: PathBuf,
    /// File of the record. In the record of this process, this descriptor holds the lock.
    file: File,
    wanted: PortRanges,
    added: PortRanges,
}

/// Ports that a record lists.
#[derive(Debug, Default, PartialEq, Eq)]
struct RecordedPorts {
    /// Ports that the process needs.
    wanted: PortRanges,
    /// Ports in `wanted` that were not reserved before the process added them.
    added: PortRanges,
}

/// Directory of this user's records: the user's own directory if root has created it, for a convey
/// that switched to this user; otherwise `of_all`.
pub(super) fn directory(of_all: &Path) -> PathBuf {
    let own = of_all.join(geteuid().as_raw().to_string());
    if own.is_dir() { own } else { of_all.to_owned() }
}

/// Creates the directory of all records, and the directory of another user in it.
pub(super) fn prepare_for(of_all: &Path, user: u32, group: u32) -> io::Result<()> {
    make(of_all)?;
    // Other users must be able to reach their own directories.
    fs::set_permissions(of_all, Permissions::from_mode(0o711))?;
    let own = of_all.join(user.to_string());
    make(&own)?;
    lchown(own, Some(user), Some(group))
}

/// Creates a directory that only this user can access, unless it exists.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl PortRecords {
    /// Opens the records in a directory, and locks it. Creates the directory if necessary.
    ///
    /// # Errors
    /// If the directory or a file in it belongs to another user or other users can write to it, or
    /// if another process keeps the directory locked for seconds.
    pub(super) fn open(directory: &Path) -> io::Result<PortRecords> {
        make(directory)?;
        let metadata = fs::symlink_metadata(directory)?;
        if !metadata.is_dir() || !is_ours(&metadata) {
            return Err(io::Error::other("it is not a directory that only this user can write to"));
        }
        let lock = open(&directory.join("reserved-ports.lock"), true)?;
        let mut looks = 0;
        while !try_lock(&lock)? {
            looks += 1;
            if looks > MAX_LOCK_TRIES {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "another process has locked the directory",
                ));
            }
            thread::sleep(LOCK_PAUSE);
        }
        let mut records = PortRecords {
            directory: directory.to_owned(),
            prefix: format!("{RECORD}{}.", namespace()?),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            live: Vec::new(),
            stale: Vec::new(),
            ended: None,
            _lock: lock,
        };
        records.read()?;
        Ok(records)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut others = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with(&self.prefix) {
                if name.starts_with(RECORD) && !name.ends_with(HANDED) && !name.ends_with(NEW) {
                    others.push(entry);
                }
                continue;
            }
            if let Some(of) = name.strip_suffix(HANDED).or(name.strip_suffix(NEW)) {
                if !self.directory.join(of).try_exists()? {
                    let _ = fs::remove_file(entry.path());
                }
                continue;
            }
            let file = open(&entry.path(), false)?;
            // An unreadable record comes from a process that was killed while it wrote the record,
            // before it added any port.
            let first = self.contents(&file).unwrap_or_default();
            let handed = match open(&beside(&entry.path(), HANDED), false) {
                Ok(handed) => self.contents(&handed),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let RecordedPorts { wanted, added } = handed.unwrap_or(first);
            let is_stale = try_lock(&file)?;
            let record = PortRecord { path: entry.path(), file, wanted, added };
            if is_stale { self.stale.push(record) } else { self.live.push(record) }
        }
        remove_oldest(self.remove_empty(others)?)
    }

    /// Removes records of other network namespaces that list no ports to release: the record is
    /// from another boot, or its process was killed before it added ports. Returns the other
    /// records.
    fn remove_empty(&self, records: Vec<DirEntry>) -> io::Result<Vec<DirEntry>> {
        let mut left = Vec::new();
        for entry in records {
            let file = open(&entry.path(), false)?;
            let handed =
                open(&beside(&entry.path(), HANDED), false).ok().and_then(|file| self.contents(&file));
            let recorded = handed.or_else(|| self.contents(&file)).unwrap_or_default();
            if recorded.added.is_empty() && try_lock(&file)? {
                remove(&entry.path());
            } else {
                left.push(entry);
            }
        }
        Ok(left)
    }

    fn contents(&self, file: &File) -> Option<RecordedPorts> {
        let mut text = String::new();
        let _ = file.take(MAX_RECORD_BYTES).read_to_string(&mut text);
        parse(&text, &self.boot)
    }

    /// Directory of the records.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Ports in `now` that were added by processes that have ended.
    ///
    /// A record counts only if all of its ports are reserved. Otherwise its process was killed
    /// before it added the ports, or the list was overwritten.
    pub(super) fn orphans(&self, now: &PortRanges) -> PortRanges {
        let stale = self.stale.iter().map(|record| &record.added);
        let there = stale.filter(|added| added.without(now).is_empty());
        there
            .chain(self.ended.as_ref().map(|own| &own.added))
            .fold(PortRanges::default(), |all, one| all.with(one))
    }

    /// Ports that the running processes need, one set for each process.
    pub(super) fn wanted(&self) -> Vec<PortRanges> {
        self.live.iter().map(|record| record.wanted.clone()).collect()
    }

    /// Creates a locked record for this process.
    pub(super) fn create(&self, wanted: &PortRanges, added: &PortRanges) -> io::Result<PortRecord> {
        let name = format!("{}{}.{:08x}", self.prefix, std::process::id(), fastrand::u32(..));
        let path = self.directory.join(name);
        let file = options().create_new(true).open(&path)?;
        let record = PortRecord { path, file, wanted: wanted.clone(), added: added.clone() };
        let text = record.text(&self.boot);
        let written = try_lock(&record.file).and_then(|_| (&record.file).write_all(text.as_bytes()));
        written.inspect_err(|_| record.remove())?;
        Ok(record)
    }

    /// Treats this process's own record like the record of an ended process, because this process
    /// is about to end.
    pub(super) fn abandon(&mut self, own: &PortRecord) -> io::Result<()> {
        let at = self.live.iter().position(|record| record.path == own.path);
        let at = at.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the record of this process is missing")
        })?;
        self.ended = Some(self.live.swap_remove(at));
        Ok(())
    }

    /// Removes the records of ended processes. First adds `handed`, one set for each running
    /// process, to the records of the running processes, which must then release these ports.
    pub(super) fn pass_on_ports(&mut self, handed: &[PortRanges]) -> io::Result<()> {
        for (record, more) in self.live.iter_mut().zip(handed).filter(|(_, more)| !more.is_empty()) {
            record.added = record.added.with(more);
            record.replace(&self.boot)?;
        }
        self.stale.drain(..).chain(self.ended.take()).for_each(|record| record.remove());
        Ok(())
    }
}

impl PortRecord {
    /// Removes the files of the record.
    pub(super) fn remove(&self) {
        // The record comes first: it is empty or already handed on, so another process that finds
        // it is not misled. Without the record, the other files are ignored.
        remove(&self.path);
    }

    /// Writes the ports of another process's record to a replacing file. The record itself must
    /// stay, because its process holds the lock on it.
    fn replace(&self, boot: &str) -> io::Result<()> {
        let new = beside(&self.path, NEW);
        // Such a file may be left by a process that was killed.
        let _ = fs::remove_file(&new);
        let mut file = options().create_new(true).open(&new)?;
        file.write_all(self.text(boot).as_bytes())?;
        fs::rename(&new, beside(&self.path, HANDED))
    }

    fn text(&self, boot: &str) -> String {
        format!("boot {boot}\nwanted {}\nadded {}\n", self.wanted, self.added)
    }
}

/// Removes the files of a record.
fn remove(path: &Path) {
    for path in [path.to_owned(), beside(path, HANDED), beside(path, NEW)] {
        let _ = fs::remove_file(path);
    }
}

/// Path with a suffix appended to its file name.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(end);
    path.into()
}

/// Parses a record; `None` if it is from another boot or unreadable.
fn parse(text: &str, boot: &str) -> Option<RecordedPorts> {
    let mut lines = text.split('\n');
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let is_now = value("boot")? == boot;
    let (wanted, added) = (value("wanted")?.parse().ok()?, value("added")?.parse().ok()?);
    is_now.then_some(RecordedPorts { wanted, added })
}

/// Removes the least recently changed records of ended processes in other network namespaces, if
/// there are more than `MAX_STALE`.
fn remove_oldest(records: Vec<DirEntry>) -> io::Result<()> {
    if records.len() <= MAX_STALE {
        return Ok(());
    }
    let mut stale = Vec::new();
    for entry in records {
        let file = open(&entry.path(), false)?;
        if try_lock(&file)? {
            stale.push((file.metadata()?.modified()?, entry.path()));
        }
    }
    stale.sort_unstable();
    for (_, path) in stale.iter().take(stale.len().saturating_sub(MAX_STALE)) {
        remove(path);
    }
    Ok(())
}

/// Number that identifies the calling thread's network namespace. The kernel does not reuse the
/// number before the next boot, unlike the inode of the namespace's file.
fn namespace() -> io::Result<u64> {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    #[expect(unsafe_code, reason = "no crate has this option")]
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, which is `len` bytes long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            NAMESPACE_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let file = options().create(create).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() && is_ours(&metadata) {
        true => Ok(file),
        false => Err(io::Error::other(format!(
            "{} must be a file that belongs to this user, and that others cannot write",
            path.display()
        ))),
    }
}

/// Whether only this user can write to the file or directory.
fn is_ours(metadata: &fs::Metadata) -> bool {
    metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
