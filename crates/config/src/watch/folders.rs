//! Watches directories with inotify, through the crate `notify`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use log::{debug, warn};
use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};
use notify::{Config, ErrorKind, Event, INotifyWatcher, RecursiveMode, Watcher};

use super::places::{FolderToWatch, InodeId, inode_at};
use super::schedule::FileChange;
use super::shared::WatchShared;

/// Maximum number of watched directories. Files in other directories are polled.
const MAX_WATCHED_FOLDERS: usize = 4_096;

/// Directories that inotify watches.
pub(super) struct WatchedFolders {
    watcher: Option<INotifyWatcher>,
    /// The thread of `notify` has a clone: a count of 1 shows that the thread has ended.
    thread: Arc<()>,
    watched: BTreeMap<PathBuf, InodeId>,
    /// Inodes of the watched directories.
    inodes: BTreeSet<InodeId>,
    has_warned: bool,
}

/// Result of [`WatchedFolders::watch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WatchOutcome {
    /// Whether a directory that is needed cannot be watched.
    pub(super) lacks_one: bool,
    /// Whether the watch of at least one directory has just begun. Changes in that directory before
    /// its watch began may have been missed.
    pub(super) has_new: bool,
}

impl WatchedFolders {
    /// Starts inotify without directories. If inotify is not available, no directory can be
    /// watched.
    pub(super) fn new(shared: &Arc<WatchShared>) -> WatchedFolders {
        let (thread, watched, inodes) = (Arc::new(()), BTreeMap::new(), BTreeSet::new());
        let mut folders = WatchedFolders { watcher: None, thread, watched, inodes, has_warned: false };
        folders.start(shared);
        folders
    }

    /// Starts inotify unless it is running.
    pub(super) fn start(&mut self, shared: &Arc<WatchShared>) {
        if self.is_running() {
            return;
        }
        self.watched.clear();
        self.inodes.clear();
        // `INotifyWatcher::drop` would panic, because its thread has ended.
        std::mem::forget(self.watcher.take());
        if thread::Builder::new().spawn(|| ()).is_err() {
            self.warn("cannot start a thread");
            return;
        }
        let (in_thread, shared) = (Arc::clone(&self.thread), Arc::clone(shared));
        let handler = move |event: notify::Result<Event>| {
            let _ = &in_thread;
            handle(&shared, event);
        };
        match INotifyWatcher::new(handler, Config::default()) {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => self.warn(&error.to_string()),
        }
        if self.watcher.is_some() && !self.is_running() {
            self.warn("cannot start a thread");
        }
    }

    /// Whether inotify is running.
    pub(super) fn is_running(&self) -> bool {
        self.watcher.is_some() && Arc::strong_count(&self.thread) > 1
    }

    /// Starts to watch these directories, unless they are watched already.
    pub(super) fn watch(&mut self, folders: &BTreeMap<PathBuf, FolderToWatch>) -> WatchOutcome {
        let mut outcome = WatchOutcome::default();
        for (path, folder) in folders {
            match self.watched.get(path) {
                Some(id) if *id == folder.id => continue,
                Some(_) => self.unwatch(path),
                None => {}
            }
            let is_watched = self.watch_one(path, *folder);
            outcome.has_new |= is_watched;
            outcome.lacks_one |= !is_watched && folder.is_needed;
        }
        outcome
    }

    fn watch_one(&mut self, path: &Path, folder: FolderToWatch) -> bool {
        let FolderToWatch { id, is_needed } = folder;
        if self.watched.len() >= MAX_WATCHED_FOLDERS {
            self.warn(&format!("more than {MAX_WATCHED_FOLDERS} folders"));
            return false;
        }
        // inotify reports a directory that is mounted twice only under one of its paths.
        if !self.is_running() || self.inodes.contains(&id) {
            return false;
        }
        let Some(watcher) = &mut self.watcher else { return false };
        match watcher.watch(path, RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.watched.insert(path.to_owned(), id);
                self.inodes.insert(id);
                true
            }
            Err(error) => {
                match lasting_reason(&error, path) {
                    Some(why) if is_needed => self.warn(&why),
                    _ => debug!("cannot watch {}: {error}", path.display()),
                }
                false
            }
        }
    }

    /// Logs, only once, that some files are polled.
    fn warn(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!("inotify cannot watch some files ({why}); convey polls these files 5 times a second");
        }
    }

    /// Renews the watches of directories that have ended without an event, for example because a
    /// file system was unmounted. The other watches lose no event. [`WatchedFolders::watch`]
    /// handles directories that were replaced.
    pub(super) fn renew(&mut self, folders: &BTreeMap<PathBuf, FolderToWatch>) {
        for path in folders.keys() {
            let id = self.watched.get(path);
            if id.is_none() || id != inode_at(path).as_ref() || !self.is_running() {
                continue;
            }
            let Some(watcher) = &mut self.watcher else { return };
            if watcher.watch(path, RecursiveMode::NonRecursive).is_err() {
                self.unwatch(path);
            }
        }
    }

    /// Ends the watches of a directory and of all directories below it.
    pub(super) fn unwatch_tree(&mut self, path: &Path) {
        let below: Vec<PathBuf> =
            self.watched.keys().filter(|folder| folder.starts_with(path)).cloned().collect();
        for folder in below {
            self.unwatch(&folder);
        }
    }

    /// Ends the watches of directories that are not `wanted`.
    pub(super) fn retain(&mut self, wanted: &BTreeSet<&Path>) {
        let unwanted = self.watched.keys().filter(|folder| !wanted.contains(folder.as_path()));
        for folder in unwanted.cloned().collect::<Vec<_>>() {
            self.unwatch(&folder);
        }
    }

    fn unwatch(&mut self, folder: &Path) {
        if let Some(id) = self.watched.remove(folder) {
            self.inodes.remove(&id);
        }
        if self.is_running()
            && let Some(watcher) = &mut self.watcher
        {
            // The watch may have ended already.
            let _ = watcher.unwatch(folder);
        }
    }
}

impl Drop for WatchedFolders {
    fn drop(&mut self) {
        if !self.is_running() {
            std::mem::forget(self.watcher.take());
        }
    }
}

/// Reason why a directory cannot be watched; `None` if the error does not last, for example because
/// the directory is gone.
fn lasting_reason(error: &notify::Error, path: &Path) -> Option<String> {
    match &error.kind {
        ErrorKind::MaxFilesWatch => Some("the limit fs.inotify.max_user_watches is reached".to_owned()),
        ErrorKind::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Some(format!("convey may not read {}", path.display()))
        }
        _ => None,
    }
}

/// Handles an event in the thread of `notify`.
fn handle(shared: &WatchShared, event: notify::Result<Event>) {
    match event {
        Ok(event) if !event.need_rescan() => {
            let Some(change) = file_change(&event.kind) else { return };
            let Some(path) = event.paths.first() else { return };
            if shared.with(|state, _| state.schedule.concerns(path, change)) {
                shared.update(|state, now| state.schedule.event(path, change, now));
            }
        }
        Ok(_) | Err(_) => shared.update(|state, now| state.schedule.lost_events(now)),
    }
}

fn file_change(kind: &EventKind) -> Option<FileChange> {
    Some(match kind {
        EventKind::Access(AccessKind::Open(_)) => FileChange::Opened,
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => FileChange::Whole,
        EventKind::Create(CreateKind::Folder) => FileChange::Whole,
        EventKind::Create(_) => FileChange::Created,
        EventKind::Modify(ModifyKind::Data(_)) => FileChange::Modified,
        EventKind::Modify(ModifyKind::Metadata(_)) => FileChange::Attributes,
        EventKind::Modify(ModifyKind::Name(RenameMode::To)) => FileChange::Whole,
        EventKind::Modify(ModifyKind::Name(RenameMode::From)) | EventKind::Remove(_) => FileChange::Gone,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use notify::event::Flag;

    use super::*;
    use crate::watch::schedule::CheckKind;

    #[test]
    fn overflow_of_the_queue_has_every_file_polled() {
        let shared = WatchShared::new();
        shared.update(|state, now| {
            state.schedule.add(7, now);
            state.schedule.set_places(7, [], &[], Duration::from_secs(86_400));
            state.schedule.due(now);
            state.schedule.schedule_next(7, false, now);
        });
        handle(&shared, Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan)));
        let turn = shared.wait().unwrap();
        assert_eq!(turn.checks, [(7, CheckKind::Poll)]);
    }

    #[test]
    fn folder_that_convey_may_not_read_is_a_reason_to_warn() {
        let reason = |error: ErrorKind| lasting_reason(&notify::Error::new(error), Path::new("/etc/a"));
        let denied = ErrorKind::Io(io::ErrorKind::PermissionDenied.into());
        assert_eq!(reason(denied).as_deref(), Some("convey may not read /etc/a"));
        assert!(reason(ErrorKind::MaxFilesWatch).is_some());
        for gone in [ErrorKind::PathNotFound, ErrorKind::Io(io::ErrorKind::NotADirectory.into())] {
            assert_eq!(reason(gone), None);
        }
    }

    #[test]
    fn folders_beyond_the_limit_are_not_watched() {
        let directory = tempfile::tempdir().unwrap();
        let shared = Arc::new(WatchShared::new());
        let mut folders = WatchedFolders::new(&shared);
        let wanted: BTreeMap<PathBuf, FolderToWatch> = (0..=MAX_WATCHED_FOLDERS)
            .map(|n| {
                let path = directory.path().join(format!("{n:05}"));
                fs::create_dir(&path).unwrap();
                let found = fs::metadata(&path).unwrap();
                (path, FolderToWatch { id: (found.dev(), found.ino()), is_needed: true })
            })
            .collect();
        assert_eq!(folders.watch(&wanted), WatchOutcome { lacks_one: true, has_new: true });
        assert_eq!(folders.watched.len(), MAX_WATCHED_FOLDERS);
        folders.retain(&wanted.keys().skip(1).map(PathBuf::as_path).collect());
        assert_eq!(
            folders.watch(&wanted.into_iter().skip(1).collect()),
            WatchOutcome { lacks_one: false, has_new: true }
        );
    }

    /// Lists the inotify watches of an inode, from all watchers of this process.
    fn kernel_watches(inode: u64) -> Vec<String> {
        let files = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let infos: Vec<String> = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        let of_inode = format!(" ino:{inode:x} ");
        let lines = infos.iter().flat_map(|info| info.lines()).filter(|line| line.contains(&of_inode));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn renewed_watch_of_a_folder_is_not_interrupted() {
        let directory = tempfile::tempdir().unwrap();
        let found = fs::metadata(directory.path()).unwrap();
        let shared = Arc::new(WatchShared::new());
        let mut folders = WatchedFolders::new(&shared);
        let folder = FolderToWatch { id: (found.dev(), found.ino()), is_needed: true };
        let wanted = BTreeMap::from([(directory.path().to_owned(), folder)]);
        folders.watch(&wanted);
        let before = kernel_watches(found.ino());
        assert!(before.len() <= 1, "overlayfs may show another inode: {before:?}");
        folders.renew(&wanted);
        assert_eq!(kernel_watches(found.ino()), before);
        assert_eq!(folders.watch(&wanted), WatchOutcome::default());
    }

    #[test]
    fn folder_that_was_replaced_is_watched_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("folder");
        let shared = Arc::new(WatchShared::new());
        let mut folders = WatchedFolders::new(&shared);
        let mut watch = || {
            let found = fs::metadata(&path).unwrap();
            let folder = FolderToWatch { id: (found.dev(), found.ino()), is_needed: true };
            folders.watch(&[(path.clone(), folder)].into())
        };
        fs::create_dir(&path).unwrap();
        assert_eq!(watch(), WatchOutcome { lacks_one: false, has_new: true });
        assert_eq!(watch(), WatchOutcome::default());
        fs::rename(&path, directory.path().join("old")).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(watch(), WatchOutcome { lacks_one: false, has_new: true });
    }
}
