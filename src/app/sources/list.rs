//! A list of servers in a file of this host. The command line says the rest.

use std::path::{Path, PathBuf};

use super::ConfigSource;
use crate::config::ListSettings;
use crate::control::ConfigFile;

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
