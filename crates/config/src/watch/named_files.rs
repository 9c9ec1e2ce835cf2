//! List of the files that a configuration names. The code that loads the configuration shares it
//! with the watch.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::shared::WatchShared;
use crate::file::access;
use crate::files::ReadFile;
use crate::pairs_before::PairsBefore;

/// Files that the configuration names (access lists, error pages, certificates), and folders of
/// such files. The code that loads the configuration sets the list. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct NamedFiles(Arc<Mutex<LastLoad>>);

/// Files of the last load of the configuration.
#[derive(Debug, Default)]
struct LastLoad {
    files: Vec<ReadFile>,
    /// The configuration and the files that it includes, with their contents.
    texts: Vec<(PathBuf, Vec<u8>)>,
    entries: EntryCounts,
    /// The certificates; `None` before the first load.
    pairs: Option<PairsBefore>,
    /// The watch of these files, if there is one.
    watch: Weak<WatchShared>,
}

/// Number of entries of each access list.
type EntryCounts = BTreeMap<PathBuf, usize>;

impl NamedFiles {
    /// Sets the files that a loaded configuration names. Returns the access lists that had entries
    /// before and are empty now, each with the former number of entries.
    pub fn set(&self, files: Vec<ReadFile>) -> BTreeMap<PathBuf, usize> {
        let count = |content: &Option<Vec<u8>>| {
            let text = String::from_utf8_lossy(content.as_deref().unwrap_or_default());
            access::entries(&text).count()
        };
        let access_lists = files.iter().filter(|file| file.is_access_list);
        let entries: EntryCounts =
            access_lists.map(|list| (list.path.clone(), count(&list.content))).collect();
        let mut emptied = self.update(|last| {
            last.files = files;
            std::mem::replace(&mut last.entries, entries.clone())
        });
        emptied.retain(|path, before| *before > 0 && entries.get(path) == Some(&0));
        emptied
    }

    /// Adds the files of a refused configuration to the files of the running one.
    pub fn add(&self, files: Vec<ReadFile>) {
        self.update(|last| {
            last.files.retain(|known| files.iter().all(|file| file.path != known.path));
            last.files.extend(files);
        });
    }

    /// Sets the configuration and the files that it includes, with the contents that were read,
    /// even if they have errors.
    pub fn set_texts(&self, texts: Vec<(PathBuf, Vec<u8>)>) {
        self.update(|last| last.texts = texts);
    }

    /// Sets the certificates of a loaded configuration.
    pub fn keep_pairs(&self, pairs: PairsBefore) {
        self.lock().pairs = Some(pairs);
    }

    /// Certificates of the last loaded configuration; `None` before the first load.
    pub fn pairs(&self) -> Option<PairsBefore> {
        self.lock().pairs.clone()
    }

    /// Paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().files.iter().map(|file| file.path.clone()).collect()
    }

    /// Sets the watch to notify of changes of this list.
    pub(super) fn set_watch(&self, watch: &Arc<WatchShared>) {
        self.lock().watch = Arc::downgrade(watch);
    }

    /// Returns the contents that were loaded since the last call, and forgets them.
    pub(super) fn take_loaded(&self) -> LoadedFiles {
        let (mut loaded, mut last) = (LoadedFiles::default(), self.lock());
        for ReadFile { path, content, .. } in &mut last.files {
            loaded.named.insert(path.clone());
            if let Some(content) = content.take() {
                loaded.add(path.clone(), content);
            }
        }
        for (path, content) in std::mem::take(&mut last.texts) {
            loaded.add(std::path::absolute(&path).unwrap_or(path), content);
        }
        loaded
    }

    /// Changes the list, and notifies the watch. Releases the lock before the notification, because
    /// the watch takes the same lock.
    fn update<T>(&self, change: impl FnOnce(&mut LastLoad) -> T) -> T {
        let mut last = self.lock();
        let changed = change(&mut last);
        let watch = last.watch.upgrade();
        drop(last);
        if let Some(watch) = watch {
            watch.update(|state, _| state.has_new_names = true);
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, LastLoad> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Contents of files at the time of a load.
#[derive(Default)]
pub(super) struct LoadedFiles {
    /// All files that the configuration names.
    pub(super) named: BTreeSet<PathBuf>,
    pub(super) contents: BTreeMap<PathBuf, Vec<u8>>,
}

impl LoadedFiles {
    fn add(&mut self, path: PathBuf, content: Vec<u8>) {
        match self.contents.entry(path) {
            Entry::Vacant(entry) => _ = entry.insert(content),
            // The file has changed between two reads of one load, so neither content counts as
            // loaded.
            Entry::Occupied(mut entry) if *entry.get() != content => entry.get_mut().clear(),
            Entry::Occupied(_) => {}
        }
    }
}
