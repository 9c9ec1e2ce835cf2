//! Lock between the nodes that share a store: only one node at a time orders certificates.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Lock that allows only one node at a time to order certificates.
pub trait OrderLock {
    /// Guard of the lock. Dropping it releases the lock.
    type Held;

    /// Takes the lock; `None` if another node has it.
    ///
    /// # Errors
    /// The state of the lock is unknown.
    fn try_take(&self) -> io::Result<Option<Self::Held>>;
}

/// Lock on a file of the store. The kernel releases the lock when its holder ends for any reason;
/// an NFS server (version 4) releases it when the holder's lease expires. So the lock needs neither
/// synchronized clocks nor an estimate of the duration of an order.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    owner: String,
}

/// Guard of the lock. The lock is held until the guard is dropped.
#[derive(Debug)]
pub struct HeldFile(#[expect(dead_code, reason = "to close it frees the lock")] File);

impl FileLock {
    /// Refers to the lock on this file. `owner` is written into the file as information for
    /// operators.
    pub fn new(path: &Path, owner: &str) -> FileLock {
        FileLock { path: path.to_owned(), owner: owner.to_owned() }
    }
}

impl OrderLock for FileLock {
    type Held = HeldFile;

    fn try_take(&self) -> io::Result<Option<HeldFile>> {
        // The file is never removed. Otherwise two nodes could each hold a lock on different files
        // of the same name.
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path);
        let mut file = opened.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot open {}: {error}", self.path.display()))
        })?;
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
    fn file_lock_has_one_holder_and_is_released_on_drop() {
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
