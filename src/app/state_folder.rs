//! Folders for state that outlives convey. Only convey's user may enter them.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

/// Numbers of the user and the group that a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileOwner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Makes a folder and its missing parents. Returns the created folders, the outermost first.
///
/// # Errors
/// A folder cannot be made.
pub(super) fn make(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let missing = folder.ancestors().take_while(|folder| !folder.exists());
    let mut missing: Vec<PathBuf> =
        missing.filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned).collect();
    missing.reverse();
    missing.iter().try_for_each(|folder| DirBuilder::new().mode(0o700).create(folder))?;
    Ok(missing)
}

/// Gives folders to an owner.
///
/// # Errors
/// This process lacks the right.
pub(super) fn give(folders: &[PathBuf], owner: FileOwner) -> io::Result<()> {
    folders.iter().try_for_each(|folder| chown(folder, Some(owner.uid), Some(owner.gid)))
}
