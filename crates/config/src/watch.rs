//! Notices when the content of a file changes, however it is saved: written in place, replaced by a rename, or swapped
//! behind a symbolic link. It looks at the file's metadata, and reads the file when that has changed. The same goes for the
//! files that it includes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::file::access;
use crate::files::{self, ReadFile};
use crate::include;
use crate::pairs_before::PairsBefore;
use crate::rights::RaisedRights;

/// From one look to the next. A changed file is read once it has stayed the same for so long: the save is over then.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks after a change of the metadata that read the file: longer than the two seconds by which some file systems tell times.
const READING_LOOKS: u32 = 12;
/// A file whose metadata changes at each of so many looks is read all the same.
const MAX_RESTLESS_LOOKS: u32 = 5;
/// A file that is missing or empty for so many looks counts as a change. Some programs unlink or truncate it before they
/// write it anew.
const ABSENT_LOOKS: u32 = 2;

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watch {
    _stop: Sender<()>,
}

/// The files that a configuration names (access lists, error pages, certificates), and folders of them. The code that loads the configuration lists them.
#[derive(Debug, Clone, Default)]
pub struct NamedFiles {
    files: Arc<Mutex<Vec<ReadFile>>>,
    entries: Arc<Mutex<Entries>>,
    /// The certificates of the configuration that was loaded last; `None` before the first.
    pairs: Arc<Mutex<Option<PairsBefore>>>,
}

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

    /// Watches what is new in it, and no longer what is gone.
    fn follow(&self, watched: &mut Vec<WatchedFile>, brought_into: Option<&Path>) {
        let mut lists = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|watched| lists.iter().any(|list| list.path == watched.path));
        for ReadFile { path, content, .. } in &mut *lists {
            let content = content.take();
            if brought_into.is_some_and(|folder| path.starts_with(folder)) {
                continue;
            }
            if watched.iter().all(|watched| watched.path != *path) {
                // A file that has changed since it was loaded differs from this.
                let known = vec![(path.clone(), content.filter(|content| !content.is_empty()))];
                watched.push(WatchedFile { includes: false, known, ..WatchedFile::unseen(path) });
            }
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

/// Calls `on_change` from a thread of its own, within a second of every change since the `first` look. It looks at the
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
    let FirstLook(mut watched) = first;
    let (stop, stopped) = channel();
    thread::Builder::new().name("config-watch".to_owned()).spawn(move || {
        // Certificates are read with the rights of the code that loads them. This thread only compares.
        let _rights = RaisedRights::raise();
        let mut others = Vec::new();
        while !is_stopped(&stopped) {
            lists.follow(&mut others, brought_into.as_deref());
            let changed = others.iter_mut().filter_map(|other| other.look().then_some(())).count();
            if (brought_into.is_none() && watched.look()) || changed > 0 {
                on_change();
            }
        }
    })?;
    Ok(Watch { _stop: stop })
}

/// Waits for the next look; whether the [`Watch`] was dropped.
fn is_stopped(stopped: &Receiver<()>) -> bool {
    stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout)
}

/// The file, and those that it includes, as they were last seen.
struct WatchedFile {
    path: PathBuf,
    /// Whether it may include others.
    includes: bool,
    /// What it includes.
    patterns: Vec<String>,
    stamps: Stamps,
    /// Looks since then that saw the same.
    looks: u32,
    /// Looks in a row that saw something else each.
    restless: u32,
    /// The content that was last told of.
    known: Content,
}

/// What of a file changes with each save: device, inode, length, and the time of the last change in nanoseconds. `None`
/// without a file.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Those of the file and of each file that it includes.
type Stamps = Vec<(PathBuf, Stamp)>;

/// What they hold; `None` of a file in which there is nothing to load.
type Content = Vec<(PathBuf, Option<Vec<u8>>)>;

impl WatchedFile {
    /// As it is now.
    fn new(path: &Path) -> WatchedFile {
        let mut watched = WatchedFile::unseen(path);
        watched.patterns = watched.patterns_now();
        watched.stamps = watched.stamps_now();
        watched.known = watched.content_now();
        watched
    }

    fn unseen(path: &Path) -> WatchedFile {
        let (patterns, stamps, known) = Default::default();
        WatchedFile { path: path.to_owned(), includes: true, patterns, stamps, looks: 0, restless: 0, known }
    }

    /// Whether there is a new content.
    fn look(&mut self) -> bool {
        let stamps = self.stamps_now();
        if stamps != self.stamps {
            (self.stamps, self.looks, self.restless) = (stamps, 0, self.restless + 1);
            if self.restless < MAX_RESTLESS_LOOKS {
                return false;
            }
        }
        self.restless = 0;
        self.looks = self.looks.saturating_add(1);
        if self.looks > READING_LOOKS {
            return false;
        }
        let patterns = self.patterns_now();
        if patterns != self.patterns {
            self.patterns = patterns;
            self.stamps = self.stamps_now();
            // Nobody misses what is no longer included.
            let (stamps, main) = (&self.stamps, &self.path);
            self.known.retain(|(file, _)| file == main || stamps.iter().any(|(other, _)| other == file));
        }
        let content = self.content_now();
        let is_new = content != self.known && (!self.lacks(&content) || self.looks == ABSENT_LOOKS);
        if is_new {
            self.known = content;
        }
        is_new
    }

    /// Whether a file is missing or empty that was not when it was last told of.
    fn lacks(&self, content: &Content) -> bool {
        let is_there =
            |of: &Content, path: &Path| of.iter().any(|(file, text)| file == path && text.is_some());
        self.path_is_empty(content)
            || self.known.iter().any(|(file, text)| text.is_some() && !is_there(content, file))
    }

    fn path_is_empty(&self, content: &Content) -> bool {
        content.first().is_none_or(|(_, text)| text.is_none())
    }

    /// The file, and those that it includes.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        [self.path.clone()].into_iter().chain(include::files(&self.path, &self.patterns).unwrap_or_default())
    }

    fn stamps_now(&self) -> Stamps {
        self.files().map(|file| (file.clone(), stamp(&file))).collect()
    }

    fn content_now(&self) -> Content {
        self.files().map(|file| (file.clone(), content(&file))).collect()
    }

    /// Those of a file that is away for a moment stay.
    fn patterns_now(&self) -> Vec<String> {
        match content(&self.path).filter(|_| self.includes) {
            Some(content) => include::patterns(&String::from_utf8_lossy(&content)),
            None => self.patterns.clone(),
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}

fn content(path: &Path) -> Option<Vec<u8>> {
    let read = if path.is_dir() { files::list(path) } else { files::read(path) };
    read.ok().filter(|content| !content.is_empty())
}

#[cfg(test)]
mod tests;
