//! One node orders at a time, of all that share a store.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Lets one node at a time order certificates.
pub trait OrderLock {
    /// What its holder keeps; to drop it frees the lock.
    type Held;

    /// Takes the lock; `None`: another node has it.
    ///
    /// # Errors
    /// Nobody can tell.
    fn try_take(&self) -> io::Result<Option<Self::Held>>;
}

/// A lock on a file of the store. The kernel frees it when its holder ends, however that happens, and so does an NFS server (version 4)
/// when its lease is over. So it needs neither clocks that agree nor a guess of how long an order takes.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    owner: String,
}

/// The lock is held until this is dropped.
#[derive(Debug)]
pub struct HeldFile(#[expect(dead_code, reason = "to close it frees the lock")] File);

impl FileLock {
    /// On this file. `owner` is written into it, for operators.
    pub fn new(path: &Path, owner: &str) -> FileLock {
        FileLock { path: path.to_owned(), owner: owner.to_owned() }
    }
}

impl OrderLock for FileLock {
    type Held = HeldFile;

    fn try_take(&self) -> io::Result<Option<HeldFile>> {
        // The file stays: to remove it would give two nodes a lock each, on two files of one name.
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path);
        let mut file = opened
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                file.set_len(0)?;
                writeln!(file, "{}", self.owner)?;
                Ok(Some(HeldFile(file)))
            }
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(io::Error::other(format!("cannot lock {}: {error}", self.path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_who_ends_frees_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let [one, other] = ["node 1", "node 2"].map(|owner| FileLock::new(&path, owner));
        let held = one.try_take().unwrap();
        assert!(held.is_some() && other.try_take().unwrap().is_none());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "node 1\n");
        drop(held);
        assert!(other.try_take().unwrap().is_some());
    }
}
