//! The configuration file, and the files that the configuration names.

use std::path::PathBuf;

use log::warn;

use convey_config::files::ReadFiles;
use convey_config::watch::NamedFiles;
use convey_config::{self as config, ListSettings, LoadError, Loaded, PairsBefore, Problem};
use convey_model::Mode;

/// Configuration file, and the settings for reading it.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Settings for a file that only lists servers; `None`: the file is a full configuration.
    pub list: Option<ListSettings>,
    /// Default mode of frontends, from the command line.
    pub mode: Option<Mode>,
    /// Files that the configuration names.
    pub lists: NamedFiles,
    /// Local folder with the copy of a configuration from another place, such as etcd; `None` for a
    /// local configuration.
    pub local_copy: Option<PathBuf>,
}

impl ConfigFile {
    /// Configuration file whose frontends are in proxy mode by default.
    pub fn new(path: PathBuf) -> ConfigFile {
        ConfigFile { path, list: None, mode: None, lists: NamedFiles::default(), local_copy: None }
    }

    /// Copy of this value in which `lists` is empty, as before the first load.
    #[must_use]
    pub fn unloaded(&self) -> ConfigFile {
        ConfigFile { lists: NamedFiles::default(), ..self.clone() }
    }

    /// Absolute path of the file.
    pub fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Errors of [`config::load`] and [`config::load_list`].
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let loaded = match self.list {
            Some(list) => self.load_list(list),
            None => self.load_with_lists(),
        };
        let loaded = self.with_source_paths(loaded)?;
        Ok(match self.mode {
            Some(mode) => loaded.with_default_mode(mode),
            None => loaded,
        })
    }

    /// Replaces the paths of local copies in problems by paths at the origin of the configuration,
    /// because operators edit the files there.
    fn with_source_paths(&self, loaded: Result<Loaded, LoadError>) -> Result<Loaded, LoadError> {
        let Some(folder) = self.path.parent().filter(|_| self.local_copy.is_some()) else { return loaded };
        let folder = format!("{}/", folder.display());
        let rename = |problems: &mut Vec<Problem>| {
            for problem in problems {
                problem.file = problem.file.replace(&folder, "");
                problem.message = problem.message.replace(&folder, "");
            }
        };
        match loaded {
            Ok(mut loaded) => {
                rename(&mut loaded.warnings);
                Ok(loaded)
            }
            Err(LoadError::Invalid(mut problems)) => {
                rename(&mut problems);
                Err(LoadError::Invalid(problems))
            }
            Err(other) => Err(other),
        }
    }

    fn load_list(&self, list: ListSettings) -> Result<Loaded, LoadError> {
        let mut read = ReadFiles::default();
        let loaded = config::load_list(&self.path, list, &mut read);
        self.lists.set_texts(read.texts);
        loaded
    }

    /// Loads the file, and stores in `lists` the files that the configuration names.
    fn load_with_lists(&self) -> Result<Loaded, LoadError> {
        let mut read = ReadFiles::default();
        let before = self.lists.pairs();
        let loaded = config::load_with_lists(&self.path, &mut read, before.as_ref());
        let ReadFiles { texts, named: lists } = read;
        self.lists.set_texts(texts);
        if let Ok(loaded) = &loaded {
            self.lists.keep_pairs(PairsBefore::of(&loaded.config));
            for (path, before) in self.lists.set(lists) {
                warn!(
                    "{} contains no networks now; before this reload, it contained {before}",
                    path.display()
                );
            }
        } else {
            self.lists.add(lists);
        }
        loaded
    }
}
