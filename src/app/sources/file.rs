//! Configuration in a file of this host.

use std::path::{Path, PathBuf};

use convey_control::ConfigFile;

use super::ConfigSource;

/// Configuration file as a source.
pub(in crate::app) struct FileSource(PathBuf);

impl FileSource {
    /// Creates a source for the file at this path.
    pub(in crate::app) fn new(path: &Path) -> FileSource {
        FileSource(path.to_owned())
    }
}

impl ConfigSource for FileSource {
    fn file(&self) -> ConfigFile {
        ConfigFile::new(self.0.clone())
    }
}
