//! Notices when the content of a file changes, however it is saved: written in place, replaced by a rename, or swapped
//! behind a symbolic link. The same goes for the files that it includes, and for those that the configuration names.
//!
//! inotify reports changes in the folders of these files and of the links on the way to them (`folders`, `places`). A file is
//! read once its writer has closed it (`schedule`). Where inotify is blind, as on NFS, the files are polled.

mod folders;
mod places;
mod schedule;
mod shared;
mod thread;
mod watched_file;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use self::shared::WatchShared;
use self::thread::WatchThread;
use self::watched_file::WatchedFile;
use crate::file::access;
use crate::files::ReadFile;
use crate::pairs_before::PairsBefore;
use crate::rights::RaisedRights;

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watch(Arc<WatchShared>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.update(|state, _| state.is_stopped = true);
    }
}

/// The files that a configuration names (access lists, error pages, certificates), and folders of them. The code that loads the configuration lists them.
#[derive(Debug, Clone, Default)]
pub struct NamedFiles {
    files: Arc<Mutex<Vec<ReadFile>>>,
    /// The configuration and the files that it includes, as they were loaded last.
    texts: Arc<Mutex<Texts>>,
    entries: Arc<Mutex<Entries>>,
    /// The certificates of the configuration that was loaded last; `None` before the first.
    pairs: Arc<Mutex<Option<PairsBefore>>>,
    /// The watch of these files, once there is one.
    watch: Arc<Mutex<Weak<WatchShared>>>,
}

/// Files with their content.
type Texts = Vec<(PathBuf, Vec<u8>)>;

/// How many entries each file had when the configuration was last loaded.
type Entries = BTreeMap<PathBuf, usize>;

impl NamedFiles {
    /// The configuration was loaded, and these are all. Returns which of them are empty now, and how many entries they had.
    pub fn set(&self, lists: Vec<ReadFile>) -> Entries {
        let count = |content: &Option<Vec<u8>>| {
            let text = String::from_utf8_lossy(content.as_deref().unwrap_or_default());
            access::entries(&text).count()
        };
        let access_lists = lists.iter().filter(|file| file.is_access_list);
        let entries: Entries = access_lists.map(|list| (list.path.clone(), count(&list.content))).collect();
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = lists;
        self.notify_watch();
        let mut known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut emptied = std::mem::replace(&mut *known, entries);
        emptied.retain(|path, before| *before > 0 && known.get(path) == Some(&0));
        emptied
    }

    /// It was not: those of the one that runs are watched, too.
    pub fn add(&self, lists: Vec<ReadFile>) {
        let mut all = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| lists.iter().all(|list| list.path != known.path));
        all.extend(lists);
        drop(all);
        self.notify_watch();
    }

    /// Sets the configuration and the files that it includes as they were read, also if something is
    /// wrong with them.
    pub fn set_texts(&self, texts: Vec<(PathBuf, Vec<u8>)>) {
        *self.texts.lock().unwrap_or_else(PoisonError::into_inner) = texts;
        self.notify_watch();
    }

    fn notify_watch(&self) {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(watch) = watch {
            watch.update(|state, _| state.has_new_names = true);
        }
    }

    /// Remembers the certificates of a configuration that was loaded.
    pub fn keep_pairs(&self, pairs: PairsBefore) {
        *self.pairs.lock().unwrap_or_else(PoisonError::into_inner) = Some(pairs);
    }

    /// The certificates that were loaded last; `None`: nothing was.
    pub fn pairs(&self) -> Option<PairsBefore> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where they are.
    pub fn paths(&self) -> Vec<PathBuf> {
        let lists = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        lists.iter().map(|list| list.path.clone()).collect()
    }

    /// Takes the contents that were loaded since the last call.
    fn take_loaded(&self) -> LoadedFiles {
        let mut loaded = LoadedFiles::default();
        for ReadFile { path, content, .. } in &mut *self.files.lock().unwrap_or_else(PoisonError::into_inner)
        {
            loaded.named.insert(path.clone());
            if let Some(content) = content.take() {
                loaded.add(path.clone(), content);
            }
        }
        let texts = std::mem::take(&mut *self.texts.lock().unwrap_or_else(PoisonError::into_inner));
        for (path, content) in texts {
            loaded.add(std::path::absolute(&path).unwrap_or(path), content);
        }
        loaded
    }
}

/// Files as a load has read them.
#[derive(Default)]
struct LoadedFiles {
    /// All files that the configuration names.
    named: BTreeSet<PathBuf>,
    contents: BTreeMap<PathBuf, Vec<u8>>,
}

impl LoadedFiles {
    fn add(&mut self, path: PathBuf, content: Vec<u8>) {
        match self.contents.entry(path) {
            Entry::Vacant(entry) => _ = entry.insert(content),
            // The file has changed between two reads of one load: no content is the loaded one.
            Entry::Occupied(mut entry) if *entry.get() != content => entry.get_mut().clear(),
            Entry::Occupied(_) => {}
        }
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
    *lists.watch.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared);
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
