//! Notices when the content of a file changes, however it is saved: written in place, replaced by a
//! rename, or swapped behind a symbolic link.

use std::collections::BTreeSet;
use std::fs;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::files;

/// Events this close together belong to one save.
const QUIET: Duration = Duration::from_millis(100);
/// Other files of the directory may keep it busy; the file is looked at this often all the same. Also how
/// long the file may be gone or empty before that counts as a change.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the end waits for a call of `on_change`, or for a disk.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watch {
    wake: SyncSender<()>,
    stopped: Arc<AtomicBool>,
    /// Disconnected once the thread is gone.
    gone: Receiver<()>,
}

/// Calls `on_change`, from a thread of its own, within a second of every change of the file's content
/// since this call. A file that stays missing or empty counts as one change. To miss nothing, begin
/// watching before the file is first loaded.
///
/// Dropping the [`Watch`] waits for a call of `on_change` that is under way, for a second at most.
///
/// # Errors
/// If the file's directory cannot be watched.
pub fn watch(path: &Path, on_change: impl Fn() + Send + 'static) -> notify::Result<Watch> {
    let path = path::absolute(path)?;
    // One waiting event is as good as many.
    let (wake, woken) = sync_channel(1);
    let sender = wake.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| only_read(event.kind)) {
            return;
        }
        let _ = sender.try_send(());
    })?;
    let mut watched = Watched { path, watcher, directories: BTreeSet::new(), is_blind: false };
    watched.follow()?;
    let content = watched.content();
    let stopped = Arc::new(AtomicBool::new(false));
    let events = Events { woken, stopped: stopped.clone() };
    let (alive, gone) = sync_channel(0);
    thread::Builder::new().name("config-watch".to_owned()).spawn(move || {
        let _alive: SyncSender<()> = alive;
        let _ = watched.run(&events, content, on_change);
    })?;
    Ok(Watch { wake, stopped, gone })
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        let _ = self.wake.try_send(());
        let _ = self.gone.recv_timeout(LAST_LOOK);
    }
}

/// What the thread waits for.
struct Events {
    woken: Receiver<()>,
    stopped: Arc<AtomicBool>,
}

/// The [`Watch`] was dropped.
struct Stopped;

/// Without this our own look at the file would be the next event.
fn only_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

impl Events {
    /// Waits for an event.
    fn next(&self) -> Result<(), Stopped> {
        let woken = self.woken.recv();
        self.unless_stopped(woken.map_err(|_| Stopped))
    }

    /// Waits for an event; `false` if there is none before the deadline.
    fn one_before(&self, deadline: Instant) -> Result<bool, Stopped> {
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Ok(false);
        }
        self.unless_stopped(match self.woken.recv_timeout(left) {
            Ok(()) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        })
    }

    fn unless_stopped<T>(&self, result: Result<T, Stopped>) -> Result<T, Stopped> {
        if self.stopped.load(Ordering::Acquire) { Err(Stopped) } else { result }
    }
}

/// The file, and the directories an event may come from.
struct Watched {
    path: PathBuf,
    watcher: RecommendedWatcher,
    directories: BTreeSet<PathBuf>,
    /// Whether the last look at the directories failed.
    is_blind: bool,
}

impl Watched {
    fn run(
        mut self,
        events: &Events,
        mut known: Option<Vec<u8>>,
        on_change: impl Fn(),
    ) -> Result<(), Stopped> {
        loop {
            events.next()?;
            let mut content = self.settled(events)?;
            if content.is_none() && known.is_some() {
                content = self.back(events)?;
            }
            if content != known {
                known = content;
                on_change();
            }
        }
    }

    /// The content once nothing has happened for a moment.
    fn settled(&mut self, events: &Events) -> Result<Option<Vec<u8>>, Stopped> {
        let deadline = now() + PATIENCE;
        while events.one_before(deadline.min(now() + QUIET))? {}
        // The save may have moved a link or a directory.
        let followed = self.follow();
        let was_blind = std::mem::replace(&mut self.is_blind, followed.is_err());
        if let Err(error) = followed
            && !was_blind
        {
            log::warn!("{}: changes may go unnoticed: {error}", self.path.display());
        }
        Ok(self.content())
    }

    /// The content of a file that has none: perhaps it was unlinked or truncated only to be written anew.
    fn back(&mut self, events: &Events) -> Result<Option<Vec<u8>>, Stopped> {
        let deadline = now() + PATIENCE;
        let mut content = None;
        while content.is_none() && events.one_before(deadline)? {
            content = self.settled(events)?;
        }
        Ok(content)
    }

    /// `None` if there is nothing to load.
    fn content(&self) -> Option<Vec<u8>> {
        files::read(&self.path).ok().filter(|content| !content.is_empty())
    }

    /// Watches the directories that matter now, anew: another one may be in the place of each.
    fn follow(&mut self) -> notify::Result<()> {
        for directory in std::mem::take(&mut self.directories) {
            // It is no longer watched if it was removed.
            let _ = self.watcher.unwatch(&directory);
        }
        directories_on_the_way(&self.path, MAX_LINKS, &mut self.directories);
        self.directories
            .iter()
            .try_for_each(|directory| self.watcher.watch(directory, RecursiveMode::NonRecursive))
    }
}

/// Links followed before giving up, as many as Linux follows.
const MAX_LINKS: u32 = 40;

/// The directory of the file and of every symbolic link that leads to it: an event in one of them tells
/// of any change. In place of one that does not exist, the nearest above it that does.
fn directories_on_the_way(path: &Path, links: u32, found: &mut BTreeSet<PathBuf>) {
    let Some(directory) = path.ancestors().skip(1).find(|ancestor| ancestor.is_dir()) else { return };
    found.insert(directory.to_owned());
    if links == 0 {
        return;
    }
    for place in path.ancestors() {
        if let (Ok(target), Some(parent)) = (fs::read_link(place), place.parent()) {
            directories_on_the_way(&parent.join(target), links - 1, found);
            found.insert(parent.to_owned());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "watching a file is all shell; its timing is the system's")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc::channel;

    use tempfile::TempDir;

    use super::*;

    /// A configuration in a directory of its own, and every change somebody was told of.
    struct Story {
        directory: TempDir,
        told: Receiver<Option<String>>,
        _watch: Watch,
    }

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
            let watch = watch(&path, move || {
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

        /// Somebody is told within a second, just once so far, and finds `text`; `None`: no file.
        fn is_told_of(&self, text: Option<&str>) {
            let found = self.told.recv_timeout(Duration::from_secs(1)).expect("told within a second");
            assert_eq!(found.as_deref(), text);
        }

        /// Nobody is told of anything, although the file was looked at.
        fn is_told_nothing(&self) {
            let told = self.told.recv_timeout(3 * QUIET);
            assert_eq!(told, Err(RecvTimeoutError::Timeout));
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
        story.is_told_nothing();
        story.write(CONFIG, "two");
        story.is_told_of(Some("two"));
        story.next_told_is("three");
    }

    #[test]
    fn a_program_that_truncates_before_it_writes_reloads_once() {
        let story = Story::with_file();
        story.write(CONFIG, "");
        story.is_told_nothing();
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
        story.is_told_nothing();
        story.write(CONFIG, "one");
        story.is_told_nothing();
        let file = fs::File::options().append(true).open(story.at(CONFIG)).expect("there");
        file.set_modified(std::time::UNIX_EPOCH).expect("writable");
        story.is_told_nothing();
        story.next_told_is("two");
    }

    #[test]
    fn a_directory_that_is_never_quiet_does_not_hold_a_save_up() {
        let story = Story::with_file();
        let (stop, stopped) = channel::<()>();
        let noise = story.at("etc/log");
        let noisy = thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                fs::write(&noise, "noise").expect("writable");
            }
        });
        story.next_told_is("two");
        drop(stop);
        noisy.join().expect("no panic");
    }

    #[test]
    fn a_file_that_stays_away_is_told_once_and_so_is_its_return() {
        let story = Story::with_file();
        fs::remove_file(story.at(CONFIG)).expect("there");
        story.is_told_of(None);
        story.write("etc/other.toml", "unrelated");
        story.is_told_nothing();
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
    fn nobody_is_told_after_the_watch_was_dropped() {
        let Story { directory, told, _watch: watch } = Story::with_file();
        drop(watch);
        fs::write(directory.path().join(CONFIG), "two").expect("writable");
        assert!(told.recv().is_err(), "the thread is gone, and what it would tell with");
    }
}
