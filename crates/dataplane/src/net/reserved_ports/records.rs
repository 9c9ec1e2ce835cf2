//! Records of the ports that each process has added to the reserved ones: a file for each process,
//! which holds a lock on it. A lock ends with its process, however that ends, and is visible from
//! any other PID namespace. A second file beside the locked one lists the ports that other
//! processes hand to a running process. It is replaced atomically, so that a process that is killed
//! meanwhile loses nothing.

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

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`, from Linux 5.14.
const NAMESPACE_COOKIE: libc::c_int = 71;

/// Interval between attempts to lock the directory, and their number.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const MAX_LOCK_TRIES: u32 = 100;

/// Most records of processes that are gone, of all network namespaces together; the least recently
/// changed ones are removed. No process gives back the ports of a namespace that is gone, and no
/// other process can detect that.
const MAX_STALE: usize = 256;

/// Upper bound for the length of a record.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Prefix of the names of all records.
const RECORD: &str = "reserved-ports.ns-";

/// Suffix of a file that replaces a record: all ports that its process has added by now.
const HANDED: &str = ".handed";
/// Suffix of such a file while it is written.
const NEW: &str = ".new";

/// Records of this network namespace. Other processes wait while this value exists.
pub(super) struct PortRecords {
    directory: PathBuf,
    /// Prefix of the names of their files.
    prefix: String,
    boot: String,
    /// Records of running processes.
    live: Vec<PortRecord>,
    /// Records of processes that are gone.
    stale: Vec<PortRecord>,
    /// Record of this process, which is about to end.
    ended: Option<PortRecord>,
    _lock: File,
}

/// Record of one process.
#[derive(Debug)]
pub(super) struct PortRecord {
    path: PathBuf,
    /// The file; locked if the record is ours.
    file: File,
    wanted: PortRanges,
    added: PortRanges,
}

/// Ports in a record.
#[derive(Debug, Default, PartialEq, Eq)]
struct RecordedPorts {
    /// Ports that the process needs.
    wanted: PortRanges,
    /// Ports of these that were not reserved before.
    added: PortRanges,
}

/// Directory of this user's records: a directory of its own if root has made one, as for a convey
/// that has switched to another user.
pub(super) fn directory(of_all: &Path) -> PathBuf {
    let own = of_all.join(geteuid().as_raw().to_string());
    if own.is_dir() { own } else { of_all.to_owned() }
}

/// Creates such a directory.
pub(super) fn prepare_for(of_all: &Path, user: u32, group: u32) -> io::Result<()> {
    make(of_all)?;
    // Other users need access to their own directories in it.
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
    /// Opens the records in a directory, which is created if necessary.
    ///
    /// # Errors
    /// The directory or a file in it belongs to another user or may be written by others; or
    /// another process keeps it locked for seconds.
    pub(super) fn open(directory: &Path) -> io::Result<PortRecords> {
        make(directory)?;
        let metadata = fs::symlink_metadata(directory)?;
        if !metadata.is_dir() || !is_ours(&metadata) {
            return Err(io::Error::other("it is no directory that only this user can write to"));
        }
        let lock = open(&directory.join("reserved-ports.lock"), true)?;
        let mut looks = 0;
        while !try_lock(&lock)? {
            looks += 1;
            if looks > MAX_LOCK_TRIES {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "another process has it locked"));
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
            // before it added ports.
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
        forget_oldest(self.forget_empty(others)?)
    }

    /// Removes records of other network namespaces without ports to give back: records of another
    /// boot, or of a process that was killed before it added ports. Returns the others.
    fn forget_empty(&self, records: Vec<DirEntry>) -> io::Result<Vec<DirEntry>> {
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

    /// Reserved ports (in `now`) that were added by processes that are gone. A record with ports
    /// that are not reserved is ignored: its process was killed before it added them, or the list
    /// was overwritten.
    pub(super) fn orphans(&self, now: &PortRanges) -> PortRanges {
        let stale = self.stale.iter().map(|record| &record.added);
        let there = stale.filter(|added| added.without(now).is_empty());
        there
            .chain(self.ended.as_ref().map(|own| &own.added))
            .fold(PortRanges::default(), |all, one| all.with(one))
    }

    /// Ports that each of the running processes needs.
    pub(super) fn wanted(&self) -> Vec<PortRanges> {
        self.live.iter().map(|record| record.wanted.clone()).collect()
    }

    /// Creates a record for this process.
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

    /// Treats a record of this process, which is about to end, as one of a process that is gone.
    pub(super) fn give_up(&mut self, own: &PortRecord) -> io::Result<()> {
        let at = self.live.iter().position(|record| record.path == own.path);
        let at = at.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its record is gone"))?;
        self.ended = Some(self.live.swap_remove(at));
        Ok(())
    }

    /// Removes the records of processes that are gone. Their ports in `handed` become those of the
    /// other processes, which have to give them back.
    pub(super) fn hand_on(&mut self, handed: &[PortRanges]) -> io::Result<()> {
        for (record, more) in self.live.iter_mut().zip(handed).filter(|(_, more)| !more.is_empty()) {
            record.added = record.added.with(more);
            record.replace(&self.boot)?;
        }
        self.stale.drain(..).chain(self.ended.take()).for_each(|record| record.remove());
        Ok(())
    }
}

impl PortRecord {
    /// Removes the file.
    pub(super) fn remove(&self) {
        // The record is empty or was handed on already, so it has no effect on a process that finds
        // it. Without it the other files belong to no record.
        remove(&self.path);
    }

    /// Replaces the ports that another process has added. Its own file stays, because that process
    /// holds it locked.
    fn replace(&self, boot: &str) -> io::Result<()> {
        let new = beside(&self.path, NEW);
        // Left by a process that was killed.
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

/// Appends a suffix to the path.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(end);
    path.into()
}

/// Parses a record; `None` if it is of another boot.
fn parse(text: &str, boot: &str) -> Option<RecordedPorts> {
    let mut lines = text.split('\n');
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let is_now = value("boot")? == boot;
    let (wanted, added) = (value("wanted")?.parse().ok()?, value("added")?.parse().ok()?);
    is_now.then_some(RecordedPorts { wanted, added })
}

/// Removes the least recently changed records of killed processes in other network namespaces, if
/// there are too many.
fn forget_oldest(records: Vec<DirEntry>) -> io::Result<()> {
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

/// Identifies the thread's network namespace by a number that no other namespace gets before the
/// next boot. The kernel reuses the inode of its file, unlike this number.
fn namespace() -> io::Result<u64> {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    #[expect(unsafe_code, reason = "no crate has this option")]
    // SAFETY: the kernel writes at most `len` bytes to `cookie`, which has as many.
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
        false => Err(io::Error::other(format!("{} is not a file of this user alone", path.display()))),
    }
}

/// Whether only this user can write to it.
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
