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

/// The files that a configuration names (access lists). The code that loads the configuration lists them.
#[derive(Debug, Clone, Default)]
pub struct NamedFiles {
    files: Arc<Mutex<Vec<ReadFile>>>,
    entries: Arc<Mutex<Entries>>,
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
        let entries: Entries = lists.iter().map(|list| (list.path.clone(), count(&list.content))).collect();
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

    /// Where they are.
    pub fn paths(&self) -> Vec<PathBuf> {
        let lists = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        lists.iter().map(|list| list.path.clone()).collect()
    }

    /// Watches what is new in it, and no longer what is gone.
    fn follow(&self, watched: &mut Vec<WatchedFile>) {
        let mut lists = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|watched| lists.iter().any(|list| list.path == watched.path));
        for ReadFile { path, content } in &mut *lists {
            let content = content.take();
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
/// counts as one change.
///
/// # Errors
/// If there is no thread to be had.
pub fn watch(
    first: FirstLook,
    lists: NamedFiles,
    on_change: impl Fn() + Send + 'static,
) -> io::Result<Watch> {
    let FirstLook(mut watched) = first;
    let (stop, stopped) = channel();
    thread::Builder::new().name("config-watch".to_owned()).spawn(move || {
        let mut others = Vec::new();
        while !is_stopped(&stopped) {
            lists.follow(&mut others);
            let changed = others.iter_mut().filter_map(|other| other.look().then_some(())).count();
            if watched.look() || changed > 0 {
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
    files::read(path).ok().filter(|content| !content.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A configuration in a directory of its own, and every change somebody was told of.
    struct Story {
        directory: TempDir,
        told: Receiver<Option<String>>,
        _watch: Watch,
    }

    /// A change is told sooner.
    const LONG_ENOUGH: Duration = Duration::from_secs(1);

    /// How long a machine that is busy with other things may take.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Where the configuration of a story is, in its directory.
    const CONFIG: &str = "etc/config.toml";

    impl Story {
        /// Begins with what `prepare` puts into the directory.
        fn begin(prepare: impl FnOnce(&Path)) -> Story {
            let directory = tempfile::tempdir().expect("a temporary directory");
            fs::create_dir(directory.path().join("etc")).expect("writable");
            prepare(directory.path());
            let (tell, told) = channel();
            let path = directory.path().join(CONFIG);
            let read = path.clone();
            let first = FirstLook::new(&path).expect("a directory");
            let watch = watch(first, NamedFiles::default(), move || {
                let _ = tell.send(fs::read_to_string(&read).ok());
            });
            Story { directory, told, _watch: watch.expect("the directory can be watched") }
        }

        fn with_file() -> Story {
            Story::begin(|root| fs::write(root.join(CONFIG), "one").expect("writable"))
        }

        fn at(&self, path: &str) -> PathBuf {
            self.directory.path().join(path)
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.at(path), text).expect("writable");
        }

        fn rename(&self, from: &str, to: &str) {
            fs::rename(self.at(from), self.at(to)).expect("writable");
        }

        /// Somebody is told, just once so far, and finds `text`; `None`: no file.
        fn is_told_of(&self, text: Option<&str>) {
            let found = self.told.recv_timeout(PATIENCE).expect("told");
            assert_eq!(found.as_deref(), text);
        }

        /// Nobody is told of anything meanwhile.
        fn is_told_nothing_for(&self, time: Duration) {
            assert_eq!(self.told.recv_timeout(time), Err(RecvTimeoutError::Timeout));
        }

        /// Nobody was told of anything before this save, which is told of.
        fn next_told_is(&self, text: &str) {
            self.write(CONFIG, text);
            self.is_told_of(Some(text));
        }
    }

    #[test]
    fn a_file_written_in_place_is_noticed() {
        let story = Story::with_file();
        story.write(CONFIG, "two");
        story.is_told_of(Some("two"));
        story.next_told_is("three");
    }

    #[test]
    fn a_file_replaced_by_a_rename_is_noticed_every_time() {
        let story = Story::with_file();
        for text in ["two", "three"] {
            story.write("etc/.config.toml.swp", text);
            story.rename("etc/.config.toml.swp", CONFIG);
            story.is_told_of(Some(text));
        }
    }

    #[test]
    fn an_editor_that_moves_the_old_file_away_first_reloads_once() {
        let story = Story::with_file();
        story.rename(CONFIG, "etc/config.toml~");
        story.is_told_nothing_for(LOOK_EVERY + LOOK_EVERY / 2);
        story.write(CONFIG, "two");
        story.is_told_of(Some("two"));
        story.next_told_is("three");
    }

    #[test]
    fn a_program_that_truncates_before_it_writes_reloads_once() {
        let story = Story::with_file();
        story.write(CONFIG, "");
        story.is_told_nothing_for(LOOK_EVERY + LOOK_EVERY / 2);
        story.next_told_is("two");
    }

    #[test]
    fn a_volume_that_swaps_a_link_to_the_directory_is_noticed_every_time() {
        let story = Story::begin(|root| {
            fs::create_dir(root.join("etc/v1")).expect("writable");
            fs::write(root.join("etc/v1/config.toml"), "one").expect("writable");
            symlink("v1", root.join("etc/..data")).expect("writable");
            symlink("..data/config.toml", root.join(CONFIG)).expect("writable");
        });
        for version in ["v2", "v3"] {
            fs::create_dir(story.at(&format!("etc/{version}"))).expect("writable");
            story.write(&format!("etc/{version}/config.toml"), version);
            symlink(version, story.at("etc/..tmp")).expect("writable");
            story.rename("etc/..tmp", "etc/..data");
            story.is_told_of(Some(version));
        }
        story.write("etc/v3/config.toml", "four");
        story.is_told_of(Some("four"));
    }

    #[test]
    fn a_link_into_another_directory_is_followed() {
        let story = Story::begin(|root| {
            for release in ["1", "2"] {
                fs::create_dir_all(root.join("releases").join(release)).expect("writable");
                fs::write(root.join("releases").join(release).join("c.toml"), release).expect("writable");
            }
            symlink("releases/1", root.join("current")).expect("writable");
            symlink("../current/c.toml", root.join(CONFIG)).expect("writable");
        });
        story.write("releases/1/c.toml", "edited");
        story.is_told_of(Some("edited"));
        symlink("releases/2", story.at("next")).expect("writable");
        story.rename("next", "current");
        story.is_told_of(Some("2"));
        story.write("releases/2/c.toml", "edited too");
        story.is_told_of(Some("edited too"));
    }

    #[test]
    fn what_does_not_change_the_content_is_not_told() {
        let story = Story::with_file();
        story.write("etc/other.toml", "unrelated");
        story.write(CONFIG, "one");
        story.is_told_nothing_for(LONG_ENOUGH);
        let file = fs::File::options().append(true).open(story.at(CONFIG)).expect("there");
        file.set_modified(std::time::UNIX_EPOCH).expect("writable");
        story.is_told_nothing_for(LONG_ENOUGH);
        story.next_told_is("two");
    }

    #[test]
    fn a_slow_save_is_told_once_it_is_over() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("config.toml");
        let mut watched = WatchedFile::unseen(&path);
        let mut file = fs::File::create(&path).expect("writable");
        for part in ["a", "slow", "save"] {
            file.write_all(part.as_bytes()).expect("writable");
            assert!(!watched.look(), "it has just changed");
        }
        assert!(watched.look());
        assert_eq!(watched.known, [(path, Some(b"aslowsave".to_vec()))]);
        assert!(!watched.look() && !watched.look(), "once");
    }

    #[test]
    fn a_save_that_changes_no_metadata_is_told() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("config.toml");
        fs::write(&path, "one").expect("writable");
        let mut watched = WatchedFile::unseen(&path);
        assert!(!watched.look() && watched.look());
        fs::write(&path, "two").expect("writable");
        // The file system tells times by the second.
        watched.stamps = watched.stamps_now();
        assert!(watched.look());
        assert_eq!(watched.known, [(path, Some(b"two".to_vec()))]);
    }

    #[test]
    fn a_file_that_changes_at_each_look_is_read_all_the_same() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("config.toml");
        let mut watched = WatchedFile::unseen(&path);
        let told = (1..=20).filter(|n| {
            fs::write(&path, "x".repeat(*n)).expect("writable");
            watched.look()
        });
        assert_eq!(told.collect::<Vec<_>>(), [5, 10, 15, 20]);
    }

    #[test]
    fn a_list_that_the_file_names_is_noticed_also_if_it_changed_since_it_was_loaded() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [config, list] = ["config.toml", "list.txt"].map(|name| directory.path().join(name));
        fs::write(&config, "same").expect("writable");
        let (lists, (tell, told)) = (NamedFiles::default(), channel());
        let first = FirstLook::new(&config).expect("a directory");
        let _watch = watch(first, lists.clone(), move || _ = tell.send(())).expect("it can be watched");
        fs::write(&list, "newer").expect("writable");
        lists.set(vec![ReadFile { path: list.clone(), content: Some(b"older".to_vec()) }]);
        told.recv_timeout(PATIENCE).expect("told of what came between");
        fs::write(&list, "newest").expect("writable");
        told.recv_timeout(PATIENCE).expect("told of a save");
        lists.set(vec![]);
        std::thread::sleep(LOOK_EVERY + LOOK_EVERY / 2);
        fs::write(&list, "nobody's").expect("writable");
        assert_eq!(told.recv_timeout(LONG_ENOUGH), Err(RecvTimeoutError::Timeout));
    }

    #[test]
    fn a_list_that_a_reload_finds_empty_is_told_with_what_it_had() {
        let read = |text: &str| vec![ReadFile { path: "list.txt".into(), content: Some(text.into()) }];
        let lists = NamedFiles::default();
        assert!(
            lists.set(read("# nobody yet\n")).is_empty() && lists.set(read("10.0.0.1\n::1\n")).is_empty()
        );
        assert_eq!(lists.set(read("# nobody\n")), Entries::from([("list.txt".into(), 2)]));
        assert!(lists.set(read("")).is_empty(), "once");
        lists.set(read("::1"));
        assert!(lists.set(vec![]).is_empty(), "nobody names it any more");
    }

    #[test]
    fn a_file_that_stays_away_is_told_once_and_so_is_its_return() {
        let story = Story::with_file();
        fs::remove_file(story.at(CONFIG)).expect("there");
        story.is_told_of(None);
        story.write("etc/other.toml", "unrelated");
        story.is_told_nothing_for(LONG_ENOUGH);
        story.next_told_is("one");
    }

    #[test]
    fn a_directory_that_is_replaced_is_found_again() {
        let story = Story::with_file();
        fs::remove_dir_all(story.at("etc")).expect("there");
        story.is_told_of(None);
        fs::create_dir(story.at("etc")).expect("writable");
        story.next_told_is("two");
        story.next_told_is("three");
    }

    #[test]
    fn files_that_are_included_are_watched_and_so_are_those_that_come_and_go() {
        const MAIN: &str = "include = ['conf.d/*.toml']";
        let story = Story::begin(|root| {
            fs::create_dir(root.join("etc/conf.d")).expect("writable");
            fs::write(root.join("etc/conf.d/a.toml"), "one").expect("writable");
            fs::write(root.join(CONFIG), MAIN).expect("writable");
        });
        for (path, text) in [("a", "two"), ("b", "new"), ("b", "newer")] {
            story.write(&format!("etc/conf.d/{path}.toml"), text);
            story.is_told_of(Some(MAIN));
        }
        story.write("etc/conf.d/.a.toml.swp", "an editor's");
        story.is_told_nothing_for(LONG_ENOUGH);
        fs::remove_file(story.at("etc/conf.d/b.toml")).expect("there");
        story.is_told_of(Some(MAIN));
        fs::create_dir(story.at("etc/other")).expect("writable");
        story.next_told_is("include = 'other/*'");
        story.write("etc/other/c", "three");
        story.is_told_of(Some("include = 'other/*'"));
    }

    #[test]
    fn an_included_file_that_is_truncated_before_it_is_written_reloads_once() {
        let story = Story::begin(|root| {
            fs::write(root.join("etc/a.toml"), "one").expect("writable");
            fs::write(root.join(CONFIG), "include = 'a.toml'").expect("writable");
        });
        story.write("etc/a.toml", "");
        story.is_told_nothing_for(LOOK_EVERY + LOOK_EVERY / 2);
        story.write("etc/a.toml", "two");
        story.is_told_of(Some("include = 'a.toml'"));
        story.is_told_nothing_for(LONG_ENOUGH);
    }

    #[test]
    fn nobody_is_told_after_the_watch_was_dropped() {
        let Story { directory, told, _watch: watch } = Story::with_file();
        drop(watch);
        fs::write(directory.path().join(CONFIG), "two").expect("writable");
        assert!(told.recv().is_err(), "the thread is gone, and what it would tell with");
    }
}
