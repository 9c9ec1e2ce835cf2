//! Finds the folders and paths in which a change of a file shows: its own, those of symbolic links
//! on the way to it, and those that patterns list.

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

/// Most symbolic links on the way to a file, as in Linux.
const MAX_LINKS: u32 = 40;

/// Time between two checks of a file of which inotify reports every change but a few: writes
/// through
/// `mmap` or through another name of the file, and mounts over a folder.
const LOCAL_POLL: Duration = Duration::from_secs(30);

/// Time between two checks of a file of overlayfs: inotify does not report changes of a lower
/// layer.
const OVERLAY_POLL: Duration = Duration::from_secs(2);

/// File systems (`statfs(2)`) that only this kernel changes: inotify reports it. On any other
/// (NFS, CIFS, FUSE, 9p, virtiofs, /proc) files may change without an event.
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

/// Device and inode.
pub(super) type InodeId = (u64, u64);

/// Folder to watch, or a file that is a mount of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FolderToWatch {
    pub(super) id: InodeId,
    /// Whether saves would go unnoticed without a watch. Other folders matter only when they are
    /// renamed themselves.
    pub(super) is_needed: bool,
}

/// Places in which a change of a file shows.
#[derive(Debug, Default)]
pub(super) struct FilePlaces {
    /// Links, folders and files, without links on the way to them.
    pub(super) paths: BTreeSet<PathBuf>,
    /// Folders in which every name that the pattern matches counts.
    pub(super) listed: Vec<(PathBuf, Pattern)>,
    /// Folders that contain these paths.
    pub(super) folders: BTreeMap<PathBuf, FolderToWatch>,
}

impl FilePlaces {
    /// Adds the places of a file or folder.
    pub(super) fn add(&mut self, path: &Path) {
        let found = self.walk(path);
        if let Some(folder) = found.filter(|found| found.is_dir()) {
            let all = ["*", ".*"].into_iter().filter_map(|pattern| Pattern::new(pattern).ok());
            self.listed.extend(all.map(|pattern| (folder.clone(), pattern)));
            self.need(&folder);
        }
    }

    /// Adds the places of the files that a pattern beside the file at `path` includes.
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

    /// Follows a path to its end, and returns it without links; `None` if there is nothing.
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
                    // Folders directly below the root are hardly ever renamed, and busy.
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

    /// Polling interval of the file while inotify reports nothing.
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

/// Polling interval for a type of file system.
fn poll_interval(kind: u32) -> Duration {
    match kind {
        OVERLAY => OVERLAY_POLL,
        kind if LOCAL.contains(&kind) => LOCAL_POLL,
        _ => LOOK_EVERY,
    }
}

/// Inode at a path, not of the target of a link.
pub(super) fn inode_at(path: &Path) -> Option<InodeId> {
    fs::symlink_metadata(path).ok().map(|found| id(&found))
}

fn id(found: &Metadata) -> InodeId {
    (found.dev(), found.ino())
}

/// Whether a file is mounted by itself, as containers do it: writers outside open it in another
/// folder.
fn is_mount(path: &Path) -> bool {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Puts the parts of a path on a stack, the first on top.
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
