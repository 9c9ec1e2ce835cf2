//! Sources of a whole configuration. Each source is an implementation of [`ConfigSource`] in a file
//! of this folder.

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

/// Creates the source that the options select. A remote source keeps its files below `state_dir`. A
/// new kind of source needs one line here.
pub(super) fn of(options: &Options, state_dir: &Path) -> Box<dyn ConfigSource> {
    match options.origin() {
        ConfigOrigin::File(path) => Box::new(FileSource::new(path)),
        ConfigOrigin::List(path, settings) => Box::new(ListSource::new(path, settings)),
        ConfigOrigin::Etcd(address) => Box::new(EtcdSource::new(address.clone(), state_dir)),
    }
}

/// Creates a source for a check of the configuration. A remote source writes its files to `folder`,
/// which is temporary.
pub(super) fn to_check(options: &Options, folder: &Path) -> Box<dyn ConfigSource> {
    match options.origin() {
        ConfigOrigin::Etcd(address) => Box::new(EtcdSource::to_check(address.clone(), folder)),
        ConfigOrigin::File(_) | ConfigOrigin::List(..) => of(options, folder),
    }
}

/// Source of a whole configuration.
///
/// convey always loads the configuration from a file on this host. For a local source, `file` is
/// that file, and convey watches it. A remote source fetches its files into a folder, and requests
/// reloads itself.
pub(super) trait ConfigSource {
    /// File to load. For a remote source, `local_copy` is set, and the file is in the folder of
    /// the source.
    fn file(&self) -> ConfigFile;

    /// Address of a remote source; `None` if the source is local.
    fn address(&self) -> Option<String> {
        None
    }

    /// Writes the newest configuration to `file`, which is loaded later. When this method returns,
    /// no thread of the source is running.
    ///
    /// # Errors
    /// There is no configuration to start with: operator-facing message.
    fn fetch(&self, _file: &ConfigFile) -> Result<Fetched, String> {
        Ok(Fetched::default())
    }

    /// Changes the owner of the files, and of the folders that [`ConfigSource::fetch`] has `made`,
    /// to the user that convey switches to.
    ///
    /// # Errors
    /// This process lacks the right: operator-facing message.
    fn change_owner(&self, _made: &[PathBuf], _owner: FileOwner) -> Result<(), String> {
        Ok(())
    }

    /// Requests a reload whenever the source has changed, in a separate thread, until
    /// [`RemoteState::wait_for_end`]. When this method is called, the loaded configuration is in
    /// force.
    fn follow(self: Box<Self>, _with: FollowedWith) {}
}

/// Result of a fetch.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// Warnings for operators, one per line.
    pub(super) remarks: Vec<String>,
    /// Folders that were created.
    pub(super) made: Vec<PathBuf>,
}

/// Channels and state that a source uses while it is followed.
#[derive(Clone)]
pub(super) struct FollowedWith {
    /// Channel for reload requests.
    pub(super) requests: mpsc::Sender<OperatorRequest>,
    /// State of the source for `/stats`.
    pub(super) state: Arc<RemoteState>,
}
