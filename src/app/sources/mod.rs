//! Sources of a whole configuration. Each source is one implementation of [`ConfigSource`], and one
//! file of this folder.

mod etcd;
mod file;
mod list;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use convey_admin::RemoteState;
use convey_cli::{ConfigOrigin, Options};
use convey_control::{ConfigFile, OperatorRequest};
use tokio::sync::mpsc;

use self::etcd::EtcdSource;
pub(super) use self::file::FileSource;
use self::list::ListSource;
use super::state_folder::FileOwner;

/// Source for the options: every kind of source has one line here. A remote source keeps its files
/// below `state_dir`.
pub(super) fn of(options: &Options, state_dir: &Path) -> Box<dyn ConfigSource> {
    match options.origin() {
        ConfigOrigin::File(path) => Box::new(FileSource::new(path)),
        ConfigOrigin::List(path, settings) => Box::new(ListSource::new(path, settings)),
        ConfigOrigin::Etcd(address) => Box::new(EtcdSource::new(address.clone(), state_dir)),
    }
}

/// Source for a check of the configuration: a remote source puts its files into `folder`, which is
/// temporary.
pub(super) fn to_check(options: &Options, folder: &Path) -> Box<dyn ConfigSource> {
    match options.origin() {
        ConfigOrigin::Etcd(address) => Box::new(EtcdSource::to_check(address.clone(), folder)),
        ConfigOrigin::File(_) | ConfigOrigin::List(..) => of(options, folder),
    }
}

/// Source of a whole configuration.
///
/// A start and each reload load a file of this host. A local source returns this file's path, and
/// convey watches the file. Any other source fetches its files into a folder, and requests reloads
/// itself.
pub(super) trait ConfigSource {
    /// File to load. With `brought_into` it is in the folder of a remote source.
    fn file(&self) -> ConfigFile;

    /// Address of the source, if it is remote.
    fn address(&self) -> Option<String> {
        None
    }

    /// Puts `file` in place before it is loaded. Leaves no thread behind.
    ///
    /// # Errors
    /// There is no configuration to start with: operator-facing message.
    fn fetch(&self, _file: &ConfigFile) -> Result<Fetched, String> {
        Ok(Fetched::default())
    }

    /// Gives the files, and the folders that [`ConfigSource::fetch`] has `made`, to the user that
    /// convey becomes.
    ///
    /// # Errors
    /// This process lacks the right: operator-facing message.
    fn give_to(&self, _made: &[PathBuf], _owner: FileOwner) -> Result<(), String> {
        Ok(())
    }

    /// Requests a reload whenever the source has changed, in a separate thread, until
    /// [`RemoteState::end_comes`]. The configuration that was loaded is in force.
    fn follow(self: Box<Self>, _with: FollowedWith) {}
}

/// Result of a fetch.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// Warnings for operators, a line each.
    pub(super) remarks: Vec<String>,
    /// Folders that were created.
    pub(super) made: Vec<PathBuf>,
}

/// State that a source needs while it is followed.
#[derive(Clone)]
pub(super) struct FollowedWith {
    /// Channel for reload requests.
    pub(super) requests: mpsc::Sender<OperatorRequest>,
    /// State of the source for `/stats`.
    pub(super) state: Arc<RemoteState>,
}
