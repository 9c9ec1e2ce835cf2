//! Content of a watched file and of its included files. Detects changes since the last check.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::places::FilePlaces;
use super::schedule::CheckKind;
use crate::{files, include};

/// Number of checks that read a file after a change of its metadata. Together the checks take
/// longer than two seconds, the resolution of times in some file systems.
const READING_LOOKS: u32 = 12;
/// Number of consecutive checks with changed metadata after which a file is read although it is
/// still changing.
const MAX_RESTLESS_LOOKS: u32 = 5;
/// Number of checks after which a missing or empty file is reported as a change. Some programs
/// unlink or truncate a file before they write it again.
const ABSENT_LOOKS: u32 = 2;

/// A file and its included files, with the content that was seen last.
pub(super) struct WatchedFile {
    pub(super) path: PathBuf,
    /// Whether the file may include other files.
    includes: bool,
    /// Include patterns in the file.
    patterns: Vec<String>,
    pub(super) stamps: Stamps,
    /// Number of checks since the metadata changed last.
    checks: u32,
    /// Number of consecutive checks that each found changed metadata.
    restless: u32,
    /// Content that was reported or loaded last.
    pub(super) known: Content,
}

/// Metadata that change with each save: device, inode, length, and the time of the last change in
/// seconds and nanoseconds. `None` if there is no file.
pub(super) type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Metadata of the file and of each file that it includes.
pub(super) type Stamps = Vec<(PathBuf, Stamp)>;

/// Contents of the files; `None` for a file that is empty or missing.
pub(super) type Content = Vec<(PathBuf, Option<Vec<u8>>)>;

impl WatchedFile {
    /// Reads the current content of a file.
    pub(super) fn new(path: &Path) -> WatchedFile {
        let mut watched = WatchedFile::unseen(path);
        watched.patterns = watched.patterns_now();
        watched.stamps = watched.stamps_now();
        watched.known = watched.content_now();
        watched
    }

    /// A file that the configuration names, with the loaded content. The first check detects
    /// changes since the load.
    pub(super) fn named(path: &Path, content: Option<Vec<u8>>) -> WatchedFile {
        // The content is compared with the current file at the first check.
        let known = vec![(path.to_owned(), content.filter(|content| !content.is_empty()))];
        WatchedFile { includes: false, known, ..WatchedFile::unseen(path) }
    }

    pub(super) fn unseen(path: &Path) -> WatchedFile {
        let (patterns, stamps, known) = Default::default();
        WatchedFile { path: path.to_owned(), includes: true, patterns, stamps, checks: 0, restless: 0, known }
    }

    /// Sets the known contents to the loaded ones. Returns whether a loaded content was different
    /// from the known one. If so, the next check reads the files, even if their metadata are
    /// unchanged.
    pub(super) fn set_loaded(&mut self, loaded: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
        let mut differs = false;
        for (path, known) in &mut self.known {
            let Some(content) = loaded.get(path) else { continue };
            let content = Some(content).filter(|content| !content.is_empty());
            if known.as_ref() != content {
                *known = content.cloned();
                (self.checks, differs) = (0, true);
            }
        }
        differs
    }

    /// Polls the file: reads it if its metadata changed lately and are stable. Returns whether
    /// there is new content.
    pub(super) fn poll(&mut self) -> bool {
        let stamps = self.stamps_now();
        if stamps != self.stamps {
            (self.stamps, self.checks, self.restless) = (stamps, 0, self.restless + 1);
            if self.restless < MAX_RESTLESS_LOOKS {
                return false;
            }
        }
        self.restless = 0;
        self.checks = self.checks.saturating_add(1);
        self.checks <= READING_LOOKS && self.read()
    }

    /// Reads the file after an event that reports it as complete. Returns whether there is new
    /// content.
    pub(super) fn read_complete(&mut self) -> bool {
        let stamps = self.stamps_now();
        self.restless = 0;
        if stamps != self.stamps {
            (self.stamps, self.checks) = (stamps, 0);
        }
        self.read()
    }

    /// Checks the file in the way that `kind` requires. Returns whether there is new content.
    pub(super) fn check_as(&mut self, kind: CheckKind) -> bool {
        match kind {
            CheckKind::Poll => self.poll(),
            CheckKind::Whole => self.read_complete(),
        }
    }

    /// Whether the file has changed lately, so that it is polled again soon.
    pub(super) fn is_active(&self) -> bool {
        self.checks <= READING_LOOKS
    }

    /// Whether the last check found changed metadata.
    pub(super) fn has_just_changed(&self) -> bool {
        self.checks == 0
    }

    /// Paths and directories to watch for changes of the file.
    pub(super) fn places(&self) -> FilePlaces {
        let mut places = FilePlaces::default();
        self.files().for_each(|file| places.add(&file));
        self.patterns.iter().for_each(|pattern| places.add_pattern(&self.path, pattern));
        places
    }

    fn read(&mut self) -> bool {
        let patterns = self.patterns_now();
        if patterns != self.patterns {
            self.patterns = patterns;
            self.stamps = self.stamps_now();
            // A file that is no longer included does not count as missing.
            let (stamps, main) = (&self.stamps, &self.path);
            self.known.retain(|(file, _)| file == main || stamps.iter().any(|(other, _)| other == file));
        }
        let content = self.content_now();
        let is_new = content != self.known && (!self.lacks(&content) || self.checks == ABSENT_LOOKS);
        if is_new {
            self.known = content;
        }
        is_new
    }

    /// Whether a file is missing or empty now, and had content when it was reported last.
    fn lacks(&self, content: &Content) -> bool {
        let is_there =
            |of: &Content, path: &Path| of.iter().any(|(file, text)| file == path && text.is_some());
        self.path_is_empty(content)
            || self.known.iter().any(|(file, text)| text.is_some() && !is_there(content, file))
    }

    fn path_is_empty(&self, content: &Content) -> bool {
        content.first().is_none_or(|(_, text)| text.is_none())
    }

    /// Paths of the file and of its included files.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        [self.path.clone()].into_iter().chain(include::files(&self.path, &self.patterns).unwrap_or_default())
    }

    pub(super) fn stamps_now(&self) -> Stamps {
        self.files().map(|file| (file.clone(), stamp(&file))).collect()
    }

    fn content_now(&self) -> Content {
        self.files().map(|file| (file.clone(), content(&file))).collect()
    }

    /// Current include patterns. If the file is missing or empty at the moment, returns the former
    /// patterns.
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
