//! Schedules checks of watched files. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use glob::{MatchOptions, Pattern};

/// Interval between polls of a file that has changed lately, or that inotify cannot watch.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time without events before a reported file is read, because one save causes several events.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum delay of a check while events keep coming.
const MAX_BURST: Duration = Duration::from_secs(1);
/// Time without writes after which a file is read although a writer still has it open.
const QUIET_WRITER: Duration = Duration::from_secs(3);
/// Maximum wait for a writer that keeps writing.
const MAX_WRITE: Duration = Duration::from_secs(30);
/// Interval between reads of a file that its writer has kept changing for more than [`MAX_WRITE`].
const ENDLESS_WRITER_READ_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of open files whose writers convey waits for at the same time.
const MAX_OPEN_WRITES: usize = 1_024;

/// Hidden files match only a pattern that begins with a dot.
const LIKE_A_SHELL: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Id of a watched file. The files that it includes have the same id.
pub(super) type FileId = u64;

/// Change of a file, as inotify reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileChange {
    /// A process opened the file.
    Opened,
    /// The path appeared: a link, or a file that a process is about to write.
    Created,
    /// A writer changed the file, and still has it open.
    Modified,
    /// The owner, mode or times of the file changed.
    Attributes,
    /// The file is complete: a writer closed it, or a rename put it in place.
    Whole,
    /// The path was removed or renamed.
    Gone,
}

/// How to check a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckKind {
    /// Compare metadata before reading, because a save may be in progress.
    Poll,
    /// Read the file: an event has reported it as complete.
    Whole,
}

/// Schedule of the next check of each watched file.
#[derive(Debug, Default)]
pub(super) struct CheckSchedule {
    files: BTreeMap<FileId, FilePlan>,
    /// Watched files that an event about each path concerns.
    paths: HashMap<PathBuf, BTreeSet<FileId>>,
    /// Per directory: glob patterns, each with the watched file that is checked when a matching
    /// name changes.
    listed: HashMap<PathBuf, Vec<(Pattern, FileId)>>,
    /// Paths that a writer has open.
    writes: BTreeMap<PathBuf, OpenWrite>,
    /// Paths that appeared in the current burst of events, and that a writer may open.
    created: BTreeSet<PathBuf>,
    /// Paths that were removed or renamed since the last call of `take_removed`.
    removed: BTreeSet<PathBuf>,
    burst: Option<Burst>,
    reload_is_pending: bool,
}

#[derive(Debug)]
struct FilePlan {
    next_poll: Duration,
    poll_every: Duration,
    /// Whether an event has reported the file since its last check.
    is_reported: bool,
    paths: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

/// Series of events in short succession.
#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Duration,
    last: Duration,
}

impl Burst {
    fn due(self) -> Duration {
        (self.last + SETTLE).min(self.first + MAX_BURST)
    }
}

#[derive(Debug)]
struct OpenWrite {
    /// Time of the first write, or of the last read while the write is endless.
    first: Duration,
    last: Duration,
    /// Whether the write has taken longer than [`MAX_WRITE`]. Checks of other files do not wait for
    /// it.
    is_endless: bool,
}

impl OpenWrite {
    fn due(&self) -> Duration {
        match self.is_endless {
            true => self.first + ENDLESS_WRITER_READ_EVERY,
            false => (self.last + QUIET_WRITER).min(self.first + MAX_WRITE),
        }
    }
}

impl CheckSchedule {
    /// Adds a file. Its first check is due immediately.
    pub(super) fn add(&mut self, id: FileId, now: Duration) {
        let (paths, folders) = Default::default();
        let (next_poll, poll_every) = (now, LOOK_EVERY);
        self.files.insert(id, FilePlan { next_poll, poll_every, is_reported: false, paths, folders });
    }

    /// Removes a file from the schedule.
    pub(super) fn remove(&mut self, id: FileId) {
        self.remove_places(id);
        self.files.remove(&id);
        self.remove_unwatched_writes();
    }

    /// Sets the paths whose events concern a file, and its polling interval. In `listed`
    /// directories, events of all names that match the pattern concern the file.
    pub(super) fn set_places(
        &mut self,
        id: FileId,
        paths: impl IntoIterator<Item = PathBuf>,
        listed: &[(PathBuf, Pattern)],
        poll_every: Duration,
    ) {
        self.remove_places(id);
        let Some(plan) = self.files.get_mut(&id) else { return };
        plan.poll_every = poll_every;
        plan.paths = paths.into_iter().collect();
        plan.folders = listed.iter().map(|(folder, _)| folder.clone()).collect();
        for path in &plan.paths {
            self.paths.entry(path.clone()).or_default().insert(id);
        }
        for (folder, pattern) in listed {
            self.listed.entry(folder.clone()).or_default().push((pattern.clone(), id));
        }
        self.remove_unwatched_writes();
    }

    /// Removes the open writes of files that are no longer watched, so that no check waits for
    /// them.
    fn remove_unwatched_writes(&mut self) {
        let (mut writes, mut created) = (std::mem::take(&mut self.writes), std::mem::take(&mut self.created));
        writes.retain(|path, _| !self.ids(path).is_empty());
        created.retain(|path| !self.ids(path).is_empty());
        (self.writes, self.created) = (writes, created);
    }

    /// Sets the polling interval of a file.
    pub(super) fn poll_every(&mut self, id: FileId, every: Duration) {
        if let Some(plan) = self.files.get_mut(&id) {
            plan.poll_every = every;
        }
    }

    /// Schedules a poll of a file within `LOOK_EVERY`: the file may have changed before its
    /// directory was watched.
    pub(super) fn poll_soon(&mut self, id: FileId, now: Duration) {
        if let Some(plan) = self.files.get_mut(&id) {
            plan.next_poll = plan.next_poll.min(now + LOOK_EVERY);
        }
    }

    fn remove_places(&mut self, id: FileId) {
        let Some(plan) = self.files.get_mut(&id) else { return };
        for path in std::mem::take(&mut plan.paths) {
            if let Some(ids) = self.paths.get_mut(&path) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.paths.remove(&path);
                }
            }
        }
        for folder in std::mem::take(&mut plan.folders) {
            if let Some(ids) = self.listed.get_mut(&folder) {
                ids.retain(|(_, other)| *other != id);
                if ids.is_empty() {
                    self.listed.remove(&folder);
                }
            }
        }
    }

    /// Whether an event of inotify concerns a watched file.
    pub(super) fn concerns(&self, path: &Path, change: FileChange) -> bool {
        match change {
            FileChange::Opened => self.created.contains(path),
            _ => !self.ids(path).is_empty(),
        }
    }

    /// Processes an event of inotify.
    pub(super) fn event(&mut self, path: &Path, change: FileChange, now: Duration) {
        if !self.concerns(path, change) {
            return;
        }
        let ids = self.ids(path);
        match change {
            FileChange::Opened | FileChange::Modified => {
                self.created.remove(path);
                if self.wait_for_writer(path, now) {
                    return;
                }
            }
            FileChange::Created => {
                if self.created.len() < MAX_OPEN_WRITES {
                    self.created.insert(path.to_owned());
                }
            }
            FileChange::Attributes if self.writes.contains_key(path) => return,
            FileChange::Attributes => {}
            FileChange::Whole | FileChange::Gone => {
                self.created.remove(path);
                self.end_write(path, now);
            }
        }
        if change == FileChange::Gone && self.paths.contains_key(path) {
            self.removed.insert(path.to_owned());
        }
        self.report(ids, now);
    }

    /// Schedules polls of all files after a loss of events. A writer may be active without a known
    /// event, so a poll reads a file only once its metadata are stable.
    pub(super) fn lost_events(&mut self, now: Duration) {
        for plan in self.files.values_mut() {
            plan.is_reported = false;
            plan.next_poll = plan.next_poll.min(now + LOOK_EVERY);
        }
    }

    /// Records that a writer has a file open. Returns `false` if there are too many open files.
    fn wait_for_writer(&mut self, path: &Path, now: Duration) -> bool {
        if let Some(write) = self.writes.get_mut(path) {
            write.last = now;
        } else if self.writes.len() < MAX_OPEN_WRITES {
            let write = OpenWrite { first: now, last: now, is_endless: false };
            self.writes.insert(path.to_owned(), write);
        } else {
            return false;
        }
        true
    }

    /// Records that the writer of a file has closed it. If a burst has waited only for this writer,
    /// the burst starts again.
    fn end_write(&mut self, path: &Path, now: Duration) {
        let ended = self.writes.remove(path).is_some_and(|write| !write.is_endless);
        if ended
            && !self.is_held()
            && let Some(burst) = &mut self.burst
            && burst.due() <= now
        {
            burst.first = now;
        }
    }

    fn ids(&self, path: &Path) -> BTreeSet<FileId> {
        let mut ids = self.paths.get(path).cloned().unwrap_or_default();
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            let name = name.to_string_lossy();
            let patterns = self.listed.get(folder).into_iter().flatten();
            let matching = patterns.filter(|(pattern, _)| pattern.matches_with(&name, LIKE_A_SHELL));
            ids.extend(matching.map(|(_, id)| *id));
        }
        ids
    }

    /// Schedules a check of these files at the end of the burst.
    fn report(&mut self, ids: impl IntoIterator<Item = FileId>, now: Duration) {
        for id in ids {
            if let Some(plan) = self.files.get_mut(&id) {
                plan.is_reported = true;
                self.burst = Some(Burst { first: self.burst.map_or(now, |burst| burst.first), last: now });
            }
        }
    }

    /// Next time at which [`CheckSchedule::due`] may return something; `None` if nothing is
    /// planned.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let writes = self.writes.values().map(OpenWrite::due).min();
        if self.is_held() {
            return writes;
        }
        let polls = self.files.values().filter(|plan| !plan.is_reported).map(|plan| plan.next_poll).min();
        [writes, self.burst.map(Burst::due), polls].into_iter().flatten().min()
    }

    /// Whether a writer has a file open. A reload now would read an incomplete file.
    fn is_held(&self) -> bool {
        self.writes.values().any(|write| !write.is_endless)
    }

    /// Returns the files to check now, and how.
    pub(super) fn due(&mut self, now: Duration) -> Vec<(FileId, CheckKind)> {
        self.expire_writes(now);
        if self.is_held() {
            return Vec::new();
        }
        let is_settled = self.burst.is_some_and(|burst| burst.due() <= now);
        if is_settled {
            self.burst = None;
            self.created.clear();
        }
        let mut due = Vec::new();
        for (id, plan) in &mut self.files {
            if plan.is_reported && is_settled {
                plan.is_reported = false;
                due.push((*id, CheckKind::Whole));
            } else if !plan.is_reported && plan.next_poll <= now {
                due.push((*id, CheckKind::Poll));
            } else {
                continue;
            }
            plan.next_poll = now + LOOK_EVERY;
        }
        due
    }

    fn expire_writes(&mut self, now: Duration) {
        let mut expired = Vec::new();
        self.writes.retain(|path, write| {
            if write.due() > now {
                return true;
            }
            if !write.is_endless || write.last >= write.first {
                expired.push(path.clone());
            }
            (write.first, write.is_endless) = (now, true);
            // A writer without recent writes counts as if it had closed the file.
            write.last + QUIET_WRITER > now
        });
        for path in expired {
            let ids = self.ids(&path);
            self.report(ids, now);
            // The files have waited long enough, so the burst ends immediately.
            self.burst = self.burst.map(|burst| Burst { first: now.saturating_sub(MAX_BURST), ..burst });
        }
    }

    /// Returns the paths that were removed or renamed since the last call.
    pub(super) fn take_removed(&mut self) -> BTreeSet<PathBuf> {
        std::mem::take(&mut self.removed)
    }

    /// Schedules the next poll of a file after a check. `is_active`: the file has changed lately or
    /// is missing, so it is polled soon.
    pub(super) fn schedule_next(&mut self, id: FileId, is_active: bool, now: Duration) {
        if let Some(plan) = self.files.get_mut(&id) {
            let every = plan.poll_every;
            // All files are polled at the same times, so that the thread wakes up once for all of
            // them.
            let beats = now.as_nanos() / every.as_nanos().max(1) + 1;
            let beat = every.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX));
            plan.next_poll = if is_active || every <= LOOK_EVERY { now + LOOK_EVERY } else { beat };
        }
    }

    /// Requests a reload.
    pub(super) fn want_reload(&mut self) {
        self.reload_is_pending = true;
    }

    /// Whether a reload is due. It waits for the end of writes and of a burst of events.
    pub(super) fn is_reload_due(&self) -> bool {
        self.reload_is_pending && !self.is_held() && self.burst.is_none()
    }

    /// Returns `true` once for each reload that is due.
    pub(super) fn take_reload(&mut self) -> bool {
        let is_due = self.is_reload_due();
        self.reload_is_pending &= !is_due;
        is_due
    }
}

#[cfg(test)]
mod tests;
