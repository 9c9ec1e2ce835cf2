//! Finds the directories and paths to watch for changes of a file: the file itself, symbolic links
//! on its path, and files that match include patterns.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use glob::{MatchOptions, Pattern};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};

use super::schedule::LOOK_EVERY;
use crate::include::{MAX_FILES, has_wildcards};

/// Maximum number of symbolic links on the path of a file, as in Linux.
const MAX_LINKS: u32 = 40;

/// Polling interval for files on local file systems. inotify reports most changes there. It reports
/// neither writes through `mmap`, nor writes through another name of the file, nor mounts over a
/// directory.
const LOCAL_POLL: Duration = Duration::from_secs(30);

/// Polling interval for files on overlayfs: inotify does not report changes of a lower layer.
const OVERLAY_POLL: Duration = Duration::from_secs(2);

/// File systems (`statfs(2)`) that only this kernel changes, so inotify reports the changes. On
/// other file systems (NFS, CIFS, FUSE, 9p, virtiofs, /proc), files may change without an event.
const LOCAL: [u32; 17] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x3153_464a, // JFS
    0x3434,      // NILFS
    0x5265_4973, // ReiserFS
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
    0x9660,      // ISO 9660
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // NTFS
];

const OVERLAY: u32 = 0x794c_7630;

/// Device number and inode number.
pub(super) type InodeId = (u64, u64);

/// Directory to watch, or a file that is a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FolderToWatch {
    pub(super) id: InodeId,
    /// Whether saves would be missed without this watch. Other directories are watched only because
    /// they may be renamed.
    pub(super) is_needed: bool,
}

/// Paths and directories to watch for changes of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FilePlaces {
    /// Paths of links, directories and files; no path contains a symbolic link before its last
    /// part.
    pub(super) paths: BTreeSet<PathBuf>,
    /// Directories with patterns: each name that matches the pattern is watched.
    pub(super) listed: Vec<(PathBuf, Pattern)>,
    /// Directories to watch.
    pub(super) folders: BTreeMap<PathBuf, FolderToWatch>,
}

impl FilePlaces {
    /// Adds the paths and directories to watch for a file or directory.
    pub(super) fn add(&mut self, path: &Path) {
        let found = self.walk(path);
        if let Some(folder) = found.filter(|found| found.is_dir()) {
            let all = ["*", ".*"].into_iter().filter_map(|pattern| Pattern::new(pattern).ok());
            self.listed.extend(all.map(|pattern| (folder.clone(), pattern)));
            self.need(&folder);
        }
    }

    /// Adds the paths and directories to watch for an include pattern in the file at `path`.
    pub(super) fn add_pattern(&mut self, path: &Path, pattern: &str) {
        let mut bases = vec![path.parent().unwrap_or(Path::new("")).to_owned()];
        let mut literal = PathBuf::new();
        for part in Path::new(pattern).components() {
            let name = part.as_os_str();
            let wanted = Some(name.to_string_lossy()).filter(|name| has_wildcards(name));
            let Some(wanted) = wanted.and_then(|name| Pattern::new(&name).ok()) else {
                literal.push(name);
                continue;
            };
            let folders = bases.iter().filter_map(|base| self.walk(&base.join(&literal)));
            let folders: BTreeSet<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
            bases = folders.iter().flat_map(|folder| matching(folder, &wanted)).take(MAX_FILES + 1).collect();
            for folder in folders {
                self.need(&folder);
                self.listed.push((folder, wanted.clone()));
            }
            literal = PathBuf::new();
        }
        for base in bases {
            self.walk(&base.join(&literal));
        }
    }

    /// Follows a path and its symbolic links to the end. Returns the path without links; `None` if
    /// the target does not exist.
    fn walk(&mut self, path: &Path) -> Option<PathBuf> {
        let mut todo = Vec::new();
        push_parts(&mut todo, &std::path::absolute(path).ok()?);
        let (mut real, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = todo.pop() {
            if name == OsStr::new("..") {
                real.pop();
                continue;
            }
            let at = real.join(&name);
            self.paths.insert(at.clone());
            match fs::symlink_metadata(&at) {
                Ok(found) if found.is_symlink() => {
                    self.need(&real);
                    let target = fs::read_link(&at).ok()?;
                    if target.is_absolute() {
                        real = PathBuf::from("/");
                    }
                    push_parts(&mut todo, &target);
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                }
                Ok(found) if found.is_dir() => {
                    real = at;
                    // Directories directly below the root are busy, and hardly ever renamed.
                    if real.components().count() > 2 {
                        let id = id(&found);
                        self.folders.entry(real.clone()).or_insert(FolderToWatch { id, is_needed: false });
                    }
                }
                Ok(found) => {
                    self.need(&real);
                    if is_mount(&at) {
                        self.folders.insert(at.clone(), FolderToWatch { id: id(&found), is_needed: true });
                    }
                    return todo.is_empty().then_some(at);
                }
                Err(_) => {
                    self.need(&real);
                    return None;
                }
            }
        }
        Some(real)
    }

    fn need(&mut self, folder: &Path) {
        if let Some(known) = self.folders.get_mut(folder) {
            known.is_needed = true;
        } else if let Ok(found) = fs::symlink_metadata(folder) {
            let folder = folder.to_owned();
            self.folders.insert(folder, FolderToWatch { id: id(&found), is_needed: true });
        }
    }

    /// Polling interval of the file, unless events report changes.
    pub(super) fn poll_every(&self) -> Duration {
        let needed = self.folders.iter().filter(|(_, folder)| folder.is_needed);
        needed.map(|(path, _)| poll_every(path)).min().unwrap_or(LOOK_EVERY)
    }
}

fn poll_every(path: &Path) -> Duration {
    match statfs(path) {
        Ok(found) => poll_interval(found.f_type as u32),
        Err(_) => LOOK_EVERY,
    }
}

/// Polling interval for a type of file system (`statfs(2)`).
fn poll_interval(kind: u32) -> Duration {
    match kind {
        OVERLAY => OVERLAY_POLL,
        kind if LOCAL.contains(&kind) => LOCAL_POLL,
        _ => LOOK_EVERY,
    }
}

/// Inode at a path; `None` if the path does not exist. The inode of a symbolic link is that of the
/// link, not of its target.
pub(super) fn inode_at(path: &Path) -> Option<InodeId> {
    fs::symlink_metadata(path).ok().map(|found| id(&found))
}

fn id(found: &Metadata) -> InodeId {
    (found.dev(), found.ino())
}

/// Whether a file is a mount point, as in containers. Writers outside of the container open the
/// file in another directory.
fn is_mount(path: &Path) -> bool {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Pushes the parts of a path onto a stack, with the first part on top.
fn push_parts(todo: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev();
    let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    todo.extend(parts.map(|part| part.as_os_str().to_owned()));
}

fn matching(folder: &Path, pattern: &Pattern) -> Vec<PathBuf> {
    let shown = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_wanted = |name: &OsString| pattern.matches_with(&name.to_string_lossy(), shown);
    let names = entries.map(|entry| entry.file_name()).filter(is_wanted);
    names.map(|name| folder.join(name)).take(MAX_FILES + 1).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn poll_interval_depends_on_the_type_of_the_file_system() {
        for (kind, every) in [
            (0xef53, LOCAL_POLL),
            (0x0102_1994, LOCAL_POLL),
            (OVERLAY, OVERLAY_POLL),
            (0x6969, LOOK_EVERY),      // NFS
            (0xff53_4d42, LOOK_EVERY), // CIFS
            (0xfe53_4d42, LOOK_EVERY), // SMB2
            (0x6573_5546, LOOK_EVERY), // FUSE, virtiofs
            (0x0102_1997, LOOK_EVERY), // 9p
            (0x9fa0, LOOK_EVERY),      // proc
            (0, LOOK_EVERY),
        ] {
            assert_eq!(poll_interval(kind), every, "{kind:#x}");
        }
        assert_eq!(poll_every(Path::new("/proc/self/status")), LOOK_EVERY);
    }

    #[test]
    fn watched_folders_are_those_of_links_files_and_missing_paths() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("etc/v1")).unwrap();
        fs::create_dir_all(root.join("conf.d/site-1")).unwrap();
        symlink("v1", root.join("etc/..data")).unwrap();
        symlink("..data/c.toml", root.join("etc/c.toml")).unwrap();
        fs::write(root.join("etc/v1/c.toml"), "").unwrap();
        let mut places = FilePlaces::default();
        places.add(&root.join("etc/c.toml"));
        let needed = |places: &FilePlaces| -> Vec<PathBuf> {
            let needed = places.folders.iter().filter(|(_, folder)| folder.is_needed);
            needed.map(|(path, _)| path.strip_prefix(&root).unwrap().to_owned()).collect()
        };
        assert_eq!(needed(&places), ["etc", "etc/v1"].map(PathBuf::from));
        for path in ["etc/..data", "etc/c.toml", "etc/v1/c.toml", "etc", "etc/v1"] {
            assert!(places.paths.contains(&root.join(path)), "{path}");
        }
        assert!(places.folders.contains_key(&root), "its own renaming matters");

        let mut places = FilePlaces::default();
        places.add_pattern(&root.join("c.toml"), "conf.d/site-*/more/*.toml");
        assert_eq!(needed(&places), ["conf.d", "conf.d/site-1"].map(PathBuf::from), "`more` may come");
        assert!(places.paths.contains(&root.join("conf.d/site-1/more")));
        fs::create_dir(root.join("conf.d/site-1/more")).unwrap();
        fs::write(root.join("conf.d/site-1/more/a.toml"), "").unwrap();
        places.add_pattern(&root.join("c.toml"), "conf.d/site-*/more/*.toml");
        assert!(places.paths.contains(&root.join("conf.d/site-1/more/a.toml")));
        assert_eq!(needed(&places).len(), 3);
    }

    #[test]
    fn links_in_a_circle_end_the_walk() {
        let directory = tempfile::tempdir().unwrap();
        symlink("b", directory.path().join("a")).unwrap();
        symlink("a", directory.path().join("b")).unwrap();
        let mut places = FilePlaces::default();
        assert_eq!(places.walk(&directory.path().join("a")), None);
    }
}
