//! Notices when the content of a file changes, however it is saved: written in place, replaced by a rename, or swapped
//! behind a symbolic link. The same goes for the files that it includes, and for those that the configuration names.
//!
//! inotify reports changes in the folders of these files and of the links on the way to them (`folders`, `places`). A file is
//! read once its writer has closed it (`schedule`). Where inotify is blind, as on NFS, the files are polled.

mod folders;
mod named_files;
mod places;
mod schedule;
mod shared;
mod thread;
mod watched_file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::named_files::LoadedFiles;
pub use self::named_files::NamedFiles;
use self::shared::WatchShared;
use self::thread::WatchThread;
use self::watched_file::WatchedFile;
use crate::rights::RaisedRights;

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watch(Arc<WatchShared>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.update(|state, _| state.is_stopped = true);
    }
}

/// The file as it was seen first.
pub struct FirstLook(WatchedFile);

impl FirstLook {
    /// Looks at it. To miss nothing, look before the file is first loaded.
    ///
    /// # Errors
    /// If the current directory is gone, and the path is relative to it.
    pub fn new(path: &Path) -> io::Result<FirstLook> {
        Ok(FirstLook(WatchedFile::new(&std::path::absolute(path)?)))
    }
}

/// Calls `on_change` from a thread of its own after every change since the `first` look: 300 ms after the
/// writer has closed the file at the latest. Where inotify reports nothing, the watch polls metadata
/// every 200 ms and reads a file once they are stable. It polls overlayfs every 2 s and other local
/// file systems every 30 s, for changes that inotify does not report. It compares the
/// content of the file, of the files that it includes, and of the `lists` that it names. A file that stays missing or empty
/// counts as one change. It ignores the folder `brought_into`: the code that brings files
/// there asks for the reload.
///
/// # Errors
/// If there is no thread to be had.
pub fn watch(
    first: FirstLook,
    lists: NamedFiles,
    brought_into: Option<PathBuf>,
    on_change: impl Fn() + Send + 'static,
) -> io::Result<Watch> {
    let shared = Arc::new(WatchShared::new());
    lists.set_watch(&shared);
    let in_thread = Arc::clone(&shared);
    std::thread::Builder::new().name("config-watch".to_owned()).spawn(move || {
        // Certificates are read with the rights of the code that loads them. This thread only compares.
        let _rights = RaisedRights::raise();
        WatchThread::new(in_thread, first.0, lists, brought_into).run(on_change);
    })?;
    Ok(Watch(shared))
}

#[cfg(test)]
mod tests;
