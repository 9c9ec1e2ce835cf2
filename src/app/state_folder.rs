//! Folders for state that outlasts the convey process. Only convey's user can access them.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

/// Ids of the user and the group that own a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileOwner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Creates a folder and its missing parents. Returns the created folders, outermost first.
///
/// # Errors
/// A folder cannot be created.
pub(super) fn make(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let mut missing: Vec<PathBuf> =
        missing.filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned).collect();
    missing.reverse();
    missing.iter().try_for_each(|folder| DirBuilder::new().mode(0o700).create(folder))?;
    Ok(missing)
}

/// Changes the owner of folders.
///
/// # Errors
/// This process lacks the right to do so.
pub(super) fn give(folders: &[PathBuf], owner: FileOwner) -> io::Result<()> {
    folders.iter().try_for_each(|folder| chown(folder, Some(owner.uid), Some(owner.gid)))
}
