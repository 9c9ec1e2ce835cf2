//! Content of a watched file, and of its included files: detects changes since the last look.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::places::FilePlaces;
use super::schedule::LookKind;
use crate::{files, include};

/// Checks that read a file after a change of its metadata. They take longer than two seconds, the
/// resolution of times in some file systems.
const READING_LOOKS: u32 = 12;
/// Number of looks with changing metadata after which a file is read all the same.
const MAX_RESTLESS_LOOKS: u32 = 5;
/// Number of looks after which a missing or empty file counts as a change. Some programs unlink or
/// truncate it before they write it anew.
const ABSENT_LOOKS: u32 = 2;

/// A file and its included files, as last seen.
pub(super) struct WatchedFile {
    pub(super) path: PathBuf,
    /// Whether the file may include others.
    includes: bool,
    /// Patterns of the files that it includes.
    patterns: Vec<String>,
    pub(super) stamps: Stamps,
    /// Looks without a difference since then.
    looks: u32,
    /// Consecutive looks with a difference each.
    restless: u32,
    /// Content that was reported last.
    pub(super) known: Content,
}

/// Metadata that change with each save: device, inode, length, and the time of the last change in
/// nanoseconds. `None` without a file.
pub(super) type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Metadata of the file and of each file that it includes.
pub(super) type Stamps = Vec<(PathBuf, Stamp)>;

/// Contents of the files; `None` for a file that is empty or missing.
pub(super) type Content = Vec<(PathBuf, Option<Vec<u8>>)>;

impl WatchedFile {
    /// Reads the file as it is now.
    pub(super) fn new(path: &Path) -> WatchedFile {
        let mut watched = WatchedFile::unseen(path);
        watched.patterns = watched.patterns_now();
        watched.stamps = watched.stamps_now();
        watched.known = watched.content_now();
        watched
    }

    /// A file that the configuration names, with the content that was loaded.
    pub(super) fn named(path: &Path, content: Option<Vec<u8>>) -> WatchedFile {
        // A file that has changed since it was loaded differs from this.
        let known = vec![(path.to_owned(), content.filter(|content| !content.is_empty()))];
        WatchedFile { includes: false, known, ..WatchedFile::unseen(path) }
    }

    pub(super) fn unseen(path: &Path) -> WatchedFile {
        let (patterns, stamps, known) = Default::default();
        WatchedFile { path: path.to_owned(), includes: true, patterns, stamps, looks: 0, restless: 0, known }
    }

    /// Makes the contents that were loaded the known ones. Returns whether one of them differs: the
    /// next look reads the files then, even if their metadata stay the same.
    pub(super) fn set_loaded(&mut self, loaded: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
        let mut differs = false;
        for (path, known) in &mut self.known {
            let Some(content) = loaded.get(path) else { continue };
            let content = Some(content).filter(|content| !content.is_empty());
            if known.as_ref() != content {
                *known = content.cloned();
                (self.looks, differs) = (0, true);
            }
        }
        differs
    }

    /// Polls the file; returns whether there is new content.
    pub(super) fn look(&mut self) -> bool {
        let stamps = self.stamps_now();
        if stamps != self.stamps {
            (self.stamps, self.looks, self.restless) = (stamps, 0, self.restless + 1);
            if self.restless < MAX_RESTLESS_LOOKS {
                return false;
            }
        }
        self.restless = 0;
        self.looks = self.looks.saturating_add(1);
        self.looks <= READING_LOOKS && self.read()
    }

    /// Reads the file after an event that reports it as whole; returns whether there is new
    /// content.
    pub(super) fn look_at_whole(&mut self) -> bool {
        let stamps = self.stamps_now();
        self.restless = 0;
        if stamps != self.stamps {
            (self.stamps, self.looks) = (stamps, 0);
        }
        self.read()
    }

    /// Polls the file, or reads it as a whole one, depending on `kind`.
    pub(super) fn look_as(&mut self, kind: LookKind) -> bool {
        match kind {
            LookKind::Poll => self.look(),
            LookKind::Whole => self.look_at_whole(),
        }
    }

    /// Whether the file has changed lately, so that polling checks it again soon.
    pub(super) fn is_active(&self) -> bool {
        self.looks <= READING_LOOKS
    }

    /// Whether the last look has found other metadata than the one before.
    pub(super) fn has_just_changed(&self) -> bool {
        self.looks == 0
    }

    /// Places in which a change shows.
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
            // A file that is no longer included is not missing.
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

    /// Whether a file is missing or empty that was not when the content was reported last.
    fn lacks(&self, content: &Content) -> bool {
        let is_there =
            |of: &Content, path: &Path| of.iter().any(|(file, text)| file == path && text.is_some());
        self.path_is_empty(content)
            || self.known.iter().any(|(file, text)| text.is_some() && !is_there(content, file))
    }

    fn path_is_empty(&self, content: &Content) -> bool {
        content.first().is_none_or(|(_, text)| text.is_none())
    }

    /// The file, and its included files.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        [self.path.clone()].into_iter().chain(include::files(&self.path, &self.patterns).unwrap_or_default())
    }

    pub(super) fn stamps_now(&self) -> Stamps {
        self.files().map(|file| (file.clone(), stamp(&file))).collect()
    }

    fn content_now(&self) -> Content {
        self.files().map(|file| (file.clone(), content(&file))).collect()
    }

    /// Current patterns; a file that is missing for a moment keeps its patterns.
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
