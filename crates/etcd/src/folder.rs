//! Revisions on disk. Each revision has its own directory. The symbolic link `current` points to
//! the revision in use, and `good` to the last accepted revision. Links are replaced by a rename,
//! so a reader always finds a complete revision.
//!
//! The name of a directory is the number of the revision. If a directory with other files has this
//! name, a suffix is added: `9`, `9.1`, `9.2`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::{MAIN_FILE, Revision};

const CURRENT: &str = "current";
const GOOD: &str = "good";

/// Directory with the revisions of one etcd address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionFolder(PathBuf);

impl RevisionFolder {
    /// Refers to the directory at this path, without creating it.
    pub fn new(path: PathBuf) -> RevisionFolder {
        RevisionFolder(path)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of the configuration file in use.
    pub fn main_file(&self) -> PathBuf {
        self.0.join(CURRENT).join(MAIN_FILE)
    }

    /// Writes a revision to disk, and puts it in use. Only the current user may read it, because it
    /// may contain private keys.
    ///
    /// # Errors
    /// The revision cannot be written. The previous one stays in use.
    pub fn use_revision(&self, revision: &Revision) -> io::Result<()> {
        let name = self.name_for(revision);
        let folder = self.0.join(&name);
        if !folder.exists() {
            // A partly written revision is removed, so that failures do not fill the disk.
            write(&folder, &revision.files).inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
        }
        self.lead(CURRENT, &name)?;
        self.remove_others();
        Ok(())
    }

    /// Accepts the revision in use, and removes all other revisions.
    ///
    /// # Errors
    /// The link cannot be created.
    pub fn accept(&self) -> io::Result<()> {
        let name = self.name(CURRENT).ok_or(ErrorKind::NotFound)?;
        self.lead(GOOD, &name)?;
        self.remove_others();
        Ok(())
    }

    /// Puts the last accepted revision in use again. Returns its number; `None` if no revision was
    /// accepted.
    ///
    /// # Errors
    /// The link cannot be created.
    pub fn go_back(&self) -> io::Result<Option<i64>> {
        let Some(name) = self.name(GOOD) else { return Ok(None) };
        if self.name(CURRENT).as_ref() != Some(&name) {
            self.lead(CURRENT, &name)?;
        }
        Ok(number(&name))
    }

    /// Whether this revision is in use although it was neither accepted nor rolled back. This means
    /// that the process that put it in use has failed or crashed.
    pub fn was_left_unaccepted(&self, revision: &Revision) -> bool {
        let good = self.name(GOOD);
        good.is_some() && self.name(CURRENT) != good && self.current().as_ref() == Some(revision)
    }

    /// Revision in use; `None` if there is none, or if its directory was modified.
    pub fn current(&self) -> Option<Revision> {
        self.read(&self.name(CURRENT)?)
    }

    fn read(&self, name: &str) -> Option<Revision> {
        let mut files = BTreeMap::new();
        read_below(&self.0.join(name), "", &mut files).ok()?;
        Some(Revision { number: number(name)?, files })
    }

    /// Changes the owner and the group of the directory and its content.
    ///
    /// # Errors
    /// This process does not have the permission.
    pub fn change_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        give_below(&self.0, uid, gid)
    }

    /// Unused directory name for a revision. Revision numbers of etcd are not unique: a number may
    /// occur again after etcd has lost its data, or after a key was deleted.
    fn name_for(&self, revision: &Revision) -> String {
        let mut names = (0_u32..).map(|nth| match nth {
            0 => revision.number.to_string(),
            nth => format!("{}.{nth}", revision.number),
        });
        let is_free =
            |name: &String| !self.0.join(name).exists() || self.read(name).as_ref() == Some(revision);
        names.find(is_free).expect("a name is free")
    }

    /// Removes all revisions to which no link points. Errors are ignored, because leftover
    /// directories do no harm.
    fn remove_others(&self) {
        let kept = [CURRENT, GOOD].map(|link| fs::read_link(self.0.join(link)).ok());
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_revision = name.to_str().and_then(number).is_some();
            if is_revision && kept.iter().flatten().all(|kept| kept.as_os_str() != name) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Name of the directory to which a link points; `None` if it is not a revision.
    fn name(&self, link: &str) -> Option<String> {
        let name = fs::read_link(self.0.join(link)).ok()?.to_str()?.to_owned();
        (number(&name).is_some() && self.0.join(&name).join(MAIN_FILE).is_file()).then_some(name)
    }

    fn lead(&self, link: &str, to: &str) -> io::Result<()> {
        let new = self.0.join(format!(".{link}"));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => symlink(to, &new)?,
        }
        fs::rename(&new, self.0.join(link))?;
        File::open(&self.0)?.sync_all()
    }
}

/// Revision number in the name of a directory; `None` for other names.
fn number(name: &str) -> Option<i64> {
    let (number, nth) = name.split_once('.').unwrap_or((name, "0"));
    nth.parse::<u32>().ok()?;
    number.parse().ok()
}

/// Writes files and syncs them to disk, so that they survive a crash of the host.
fn write(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(folder)?;
    let mut folders = BTreeSet::from([folder.to_owned()]);
    for (path, content) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        builder.create(parent)?;
        folders.extend(parent.ancestors().take_while(|above| *above != folder).map(Path::to_owned));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(content)?;
        file.sync_all()?;
    }
    folders.iter().try_for_each(|folder| File::open(folder)?.sync_all())
}

fn read_below(folder: &Path, within: &str, files: &mut BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| ErrorKind::InvalidData)?;
        let path = format!("{within}{name}");
        match entry.file_type()?.is_dir() {
            true => read_below(&entry.path(), &format!("{path}/"), files)?,
            false => drop(files.insert(path, fs::read(entry.path())?)),
        }
    }
    Ok(())
}

fn give_below(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            give_below(&entry?.path(), uid, gid)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn revision(number: i64, text: &str) -> Revision {
        let files = [("config.toml", text), ("sites/a.toml", "a")];
        Revision { number, files: files.map(|(path, text)| (path.to_owned(), text.into())).into() }
    }

    #[test]
    fn the_last_good_revision_outlives_a_bad_one() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().join("etcd/one"));
        assert_eq!((revisions.current(), revisions.go_back().unwrap()), (None, None));
        revisions.use_revision(&revision(3, "three")).unwrap();
        assert_eq!(revisions.current(), Some(revision(3, "three")));
        assert_eq!(revisions.go_back().unwrap(), None, "nobody has accepted it yet");
        revisions.accept().unwrap();
        revisions.use_revision(&revision(9, "nine")).unwrap();
        assert_eq!(fs::read_to_string(revisions.main_file()).unwrap(), "nine");
        assert_eq!(revisions.go_back().unwrap(), Some(3));
        assert_eq!(fs::read_to_string(revisions.main_file()).unwrap(), "three");
        // The revision may be used again. Accepting a revision removes the others.
        revisions.use_revision(&revision(9, "nine, mended")).unwrap();
        revisions.accept().unwrap();
        assert_eq!(
            (revisions.current(), revisions.go_back().unwrap()),
            (Some(revision(9, "nine, mended")), Some(9))
        );
        assert_eq!(entries(&revisions), ["9.1", "current", "good"]);
    }

    fn entries(revisions: &RevisionFolder) -> Vec<String> {
        let entries = fs::read_dir(revisions.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn accepted_revision_survives_another_with_the_same_number() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().to_owned());
        revisions.use_revision(&revision(4, "good")).unwrap();
        revisions.accept().unwrap();
        // After etcd's data is deleted, revision numbers start again.
        revisions.use_revision(&revision(4, "broken")).unwrap();
        assert_eq!(revisions.current(), Some(revision(4, "broken")));
        assert_eq!(revisions.go_back().unwrap(), Some(4));
        assert_eq!(revisions.current(), Some(revision(4, "good")));
    }

    #[test]
    fn failed_write_of_a_revision_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().to_owned());
        revisions.use_revision(&revision(1, "good")).unwrap();
        let mut both = revision(2, "bad");
        both.files.insert("sites".to_owned(), Vec::new());
        assert!(revisions.use_revision(&both).is_err(), "it is a file and a folder");
        assert_eq!(
            (entries(&revisions), revisions.current()),
            (vec!["1".into(), "current".into()], Some(revision(1, "good")))
        );
    }

    #[test]
    fn refused_revisions_do_not_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().to_owned());
        revisions.use_revision(&revision(1, "good")).unwrap();
        revisions.accept().unwrap();
        for number in 2..9 {
            revisions.use_revision(&revision(number, "bad")).unwrap();
            revisions.go_back().unwrap();
        }
        revisions.use_revision(&revision(9, "bad")).unwrap();
        assert_eq!(entries(&revisions), ["1", "9", "current", "good"]);
    }

    #[test]
    fn a_revision_that_is_there_is_not_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().to_owned());
        revisions.use_revision(&revision(3, "three")).unwrap();
        revisions.accept().unwrap();
        let kept = File::open(revisions.main_file()).unwrap();
        revisions.use_revision(&revision(3, "three")).unwrap();
        let inode = |of: &File| std::os::unix::fs::MetadataExt::ino(&of.metadata().unwrap());
        assert_eq!(
            inode(&File::open(revisions.main_file()).unwrap()),
            inode(&kept),
            "a crash would have lost it"
        );
        assert_eq!(revisions.go_back().unwrap(), Some(3));
    }

    #[test]
    fn a_revision_that_nobody_has_accepted_is_known_by_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().to_owned());
        revisions.use_revision(&revision(1, "one")).unwrap();
        assert!(!revisions.was_left_unaccepted(&revision(1, "one")), "there is no other");
        revisions.accept().unwrap();
        assert!(!revisions.was_left_unaccepted(&revision(1, "one")));
        revisions.use_revision(&revision(2, "two")).unwrap();
        assert!(revisions.was_left_unaccepted(&revision(2, "two")));
        assert!(!revisions.was_left_unaccepted(&revision(3, "two")));
        revisions.go_back().unwrap();
        assert!(!revisions.was_left_unaccepted(&revision(2, "two")));
    }

    #[test]
    fn revision_folder_is_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().join("etcd"));
        revisions.use_revision(&revision(1, "")).unwrap();
        for (path, mode) in [("", 0o700), ("1", 0o700), ("1/config.toml", 0o600), ("1/sites", 0o700)] {
            let found = revisions.path().join(path).metadata().unwrap();
            assert_eq!(found.permissions().mode() & 0o777, mode, "{path}");
        }
    }

    #[test]
    fn a_folder_that_was_damaged_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let revisions = RevisionFolder::new(folder.path().to_owned());
        revisions.use_revision(&revision(1, "")).unwrap();
        revisions.accept().unwrap();
        fs::remove_file(revisions.main_file()).unwrap();
        assert_eq!((revisions.current(), revisions.go_back().unwrap()), (None, None));
    }
}
