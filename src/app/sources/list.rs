//! List of servers in a file of this host, with settings from the command line.

use std::path::{Path, PathBuf};

use convey_config::ListSettings;
use convey_control::ConfigFile;

use super::ConfigSource;

/// List of servers as a source.
pub(super) struct ListSource {
    path: PathBuf,
    settings: ListSettings,
}

impl ListSource {
    /// Creates a source for the list at this path.
    pub(super) fn new(path: &Path, settings: ListSettings) -> ListSource {
        ListSource { path: path.to_owned(), settings }
    }
}

impl ConfigSource for ListSource {
    fn file(&self) -> ConfigFile {
        ConfigFile { list: Some(self.settings), ..ConfigFile::new(self.path.clone()) }
    }
}
