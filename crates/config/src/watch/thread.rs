//! Thread of a watch: checks files when they are due, and watches their directories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::folders::WatchedFolders;
use super::places::FilePlaces;
use super::schedule::{CheckKind, FileId, LOOK_EVERY};
use super::shared::{WatchShared, WatchTurn};
use super::watched_file::WatchedFile;
use super::{LoadedFiles, NamedFiles};

/// State that only the thread of the watch uses.
pub(super) struct WatchThread {
    shared: Arc<WatchShared>,
    named: NamedFiles,
    local_copy: Option<PathBuf>,
    files: BTreeMap<FileId, WatchedFile>,
    places: BTreeMap<FileId, FilePlaces>,
    folders: WatchedFolders,
    /// Files that are polled because one of their directories cannot be watched.
    lacking: BTreeSet<FileId>,
    /// Time of the next attempt to watch the directories of polled files.
    retry_at: Duration,
    next_id: FileId,
}

/// Interval between attempts to watch the directories of polled files.
const RETRY_EVERY: Duration = Duration::from_secs(30);

/// Maximum number of searches for the directories of one file in a row. If others create one
/// directory after the other meanwhile, polls find the rest.
const MAX_SEARCHES: u32 = 16;

/// Id of the configuration file.
const MAIN: FileId = 0;

impl WatchThread {
    pub(super) fn new(
        shared: Arc<WatchShared>,
        first: WatchedFile,
        named: NamedFiles,
        local_copy: Option<PathBuf>,
    ) -> WatchThread {
        let folders = WatchedFolders::new(&shared);
        let (files, places, lacking) = Default::default();
        let (retry_at, next_id) = (RETRY_EVERY, MAIN + 1);
        #[rustfmt::skip]
        let mut thread = WatchThread { shared, named, local_copy, files, places, folders, lacking, retry_at, next_id };
        if thread.local_copy.is_none() {
            thread.add(MAIN, first);
        }
        thread.follow();
        thread
    }

    /// Checks files until the watch is stopped.
    pub(super) fn run(mut self, on_change: impl Fn()) {
        while let Some(turn) = self.shared.wait() {
            if self.take_turn(turn) {
                on_change();
            }
        }
    }

    /// Does the work of one wake-up; returns whether to reload.
    fn take_turn(&mut self, turn: WatchTurn) -> bool {
        let gone = self.shared.with(|state, _| state.schedule.take_removed());
        gone.iter().for_each(|path| self.folders.unwatch_tree(path));
        let mut has_new_places = turn.has_new_names;
        if turn.has_new_names {
            self.follow();
        }
        let mut has_changed = false;
        for (id, kind) in turn.checks {
            let Some(file) = self.files.get_mut(&id) else { continue };
            let is_new = file.stamps.is_empty();
            has_changed |= file.check_as(kind);
            let (is_active, has_just_changed) = (file.is_active(), file.has_just_changed());
            self.shared.with(|state, now| state.schedule.schedule_next(id, is_active, now));
            let is_unreported = kind == CheckKind::Poll && has_just_changed && !is_new;
            if is_unreported && let Some(places) = self.places.get(&id) {
                self.folders.renew(&places.folders);
            }
            if is_unreported || kind == CheckKind::Whole {
                self.find_places(id);
                has_new_places = true;
            }
        }
        has_new_places |= self.retry();
        if has_new_places {
            let wanted = self.places.values().flat_map(|places| places.folders.keys());
            self.folders.retain(&wanted.map(PathBuf::as_path).collect());
        }
        self.shared.with(|state, _| {
            if has_changed {
                state.schedule.want_reload();
            }
            state.schedule.take_reload()
        })
    }

    /// Tries again to watch directories that could not be watched. Returns whether a retry was due.
    fn retry(&mut self) -> bool {
        let now = self.shared.with(|_, now| now);
        if self.lacking.is_empty() || now < self.retry_at {
            return false;
        }
        self.retry_at = now + RETRY_EVERY;
        self.folders.start(&self.shared);
        self.lacking.clone().into_iter().for_each(|id| self.find_places(id));
        true
    }

    /// Watches the files that the configuration names now, and stops watching other files. A reload
    /// may have read a file during a save, so a file is checked soon if the loaded content differs
    /// from the known content.
    fn follow(&mut self) {
        let LoadedFiles { named, mut contents } = self.named.take_loaded();
        let is_gone = |id: FileId, file: &WatchedFile| id != MAIN && !named.contains(&file.path);
        let files = self.files.iter();
        let gone: Vec<FileId> = files.filter(|(id, file)| is_gone(**id, file)).map(|(id, _)| *id).collect();
        for id in gone {
            self.files.remove(&id);
            self.places.remove(&id);
            self.lacking.remove(&id);
            self.shared.with(|state, _| state.schedule.remove(id));
        }
        let mut known = BTreeSet::new();
        for (id, file) in &mut self.files {
            if file.set_loaded(&contents) {
                self.shared.with(|state, now| state.schedule.poll_soon(*id, now));
            }
            if *id != MAIN {
                known.insert(file.path.clone());
            }
        }
        for path in named.difference(&known) {
            if self.local_copy.as_ref().is_some_and(|folder| path.starts_with(folder)) {
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            self.add(id, WatchedFile::named(path, contents.remove(path)));
        }
    }

    fn add(&mut self, id: FileId, file: WatchedFile) {
        self.files.insert(id, file);
        self.shared.with(|state, now| state.schedule.add(id, now));
        self.find_places(id);
    }

    /// Finds the paths of a file that may change, and watches their directories.
    fn find_places(&mut self, id: FileId) {
        if let Some(file) = self.files.get(&id) {
            self.watch_found(id, file.places());
        }
    }

    /// Watches the directories that a search has found. An event about a path that was not known yet
    /// is lost, so the search is repeated until it finds nothing new.
    fn watch_found(&mut self, id: FileId, mut places: FilePlaces) {
        for _ in 0..MAX_SEARCHES {
            self.watch_places(id, places);
            let Some(found) = self.files.get(&id).map(WatchedFile::places) else { return };
            if self.places.get(&id) == Some(&found) {
                return;
            }
            places = found;
        }
    }

    fn watch_places(&mut self, id: FileId, places: FilePlaces) {
        // The schedule needs the paths first: events arrive as soon as a directory is watched.
        let every = places.poll_every();
        self.shared.with(|state, _| {
            state.schedule.set_places(id, places.paths.iter().cloned(), &places.listed, every);
        });
        let outcome = self.folders.watch(&places.folders);
        self.places.insert(id, places);
        self.shared.with(|state, now| {
            if outcome.lacks_one {
                state.schedule.poll_every(id, LOOK_EVERY);
            }
            if outcome.has_new {
                state.schedule.poll_soon(id, now);
            }
        });
        if outcome.lacks_one {
            self.lacking.insert(id);
        } else {
            self.lacking.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::ReadFile;

    /// The folder of ordered certificates appears while the watch of a new configuration begins.
    #[test]
    fn folder_that_appears_between_search_and_watch_is_watched() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("acme/certificates");
        let path = folder.join("site.pem");
        let named = NamedFiles::default();
        named.set(vec![ReadFile { path, content: None, is_access_list: false, is_secret: true }]);
        let first = WatchedFile::new(&directory.path().join("convey.toml"));
        let mut watch = WatchThread::new(Arc::new(WatchShared::new()), first, named, None);
        let id = MAIN + 1;
        let before = watch.files[&id].places();
        fs::create_dir_all(&folder).unwrap();
        watch.watch_found(id, before);
        assert!(watch.places[&id].folders.contains_key(&folder));
    }
}
