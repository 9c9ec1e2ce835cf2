//! A list of servers in a file of this host. The command line says the rest.

use std::path::{Path, PathBuf};

use convey_config::ListSettings;
use convey_control::ConfigFile;

use super::ConfigSource;

/// The list.
pub(super) struct ListSource {
    path: PathBuf,
    settings: ListSettings,
}

impl ListSource {
    /// The list at this path.
    pub(super) fn new(path: &Path, settings: ListSettings) -> ListSource {
        ListSource { path: path.to_owned(), settings }
    }
}

impl ConfigSource for ListSource {
    fn file(&self) -> ConfigFile {
        ConfigFile { list: Some(self.settings), ..ConfigFile::new(self.path.clone()) }
    }
}
