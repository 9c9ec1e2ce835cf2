//! Detects changes of a file's content, in whatever way the file is saved: written in place,
//! replaced by a rename, or swapped behind a symbolic link. Also covers included files and other
//! files that the configuration names.
//!
//! inotify reports changes in the directories of these files, and in the directories of symbolic
//! links on their paths (`folders`, `places`). convey reads a file after its writer has closed it
//! (`schedule`). On file systems without events, such as NFS, convey polls the files.

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

/// Watch that runs until it is dropped.
#[derive(Debug)]
pub struct Watch(Arc<WatchShared>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.update(|state, _| state.is_stopped = true);
    }
}

/// Content of the file before its first load.
pub struct FirstLook(WatchedFile);

impl FirstLook {
    /// Reads the file. Call this before the first load of the file, so that no change is missed.
    ///
    /// # Errors
    /// The path is relative, and the current directory no longer exists.
    pub fn new(path: &Path) -> io::Result<FirstLook> {
        Ok(FirstLook(WatchedFile::new(&std::path::absolute(path)?)))
    }
}

/// Calls `on_change` from its own thread after every change since `first` was read, at most 300 ms
/// after the writer has closed the file. Where inotify sends no events, the watch polls metadata
/// every 200 ms, and reads a file once its metadata are stable. The watch also polls overlayfs
/// every 2 s and other local file systems every 30 s, for changes that inotify does not report.
///
/// The watch compares the content of the file, of the included files, and of the `lists`. A file
/// that stays missing or empty is reported as one change. Changes in the folder `local_copy` are
/// ignored, because the code that saves files there requests the reload.
///
/// # Errors
/// No thread can be started.
pub fn watch(
    first: FirstLook,
    lists: NamedFiles,
    local_copy: Option<PathBuf>,
    on_change: impl Fn() + Send + 'static,
) -> io::Result<Watch> {
    let shared = Arc::new(WatchShared::new());
    lists.set_watch(&shared);
    let in_thread = Arc::clone(&shared);
    std::thread::Builder::new().name("config-watch".to_owned()).spawn(move || {
        // The code that loads certificates also raises this right. This thread only compares their
        // content.
        let _rights = RaisedRights::raise();
        WatchThread::new(in_thread, first.0, lists, local_copy).run(on_change);
    })?;
    Ok(Watch(shared))
}

#[cfg(test)]
mod tests;
