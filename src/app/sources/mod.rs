//! Where a whole configuration comes from. Each source is one implementation of [`ConfigSource`], and one file of this folder.

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

/// The list: every source of a configuration has one line. A source that is not on this host keeps its files below `state_dir`.
pub(super) fn of(options: &Options, state_dir: &Path) -> Box<dyn ConfigSource> {
    match options.origin() {
        ConfigOrigin::File(path) => Box::new(FileSource::new(path)),
        ConfigOrigin::List(path, settings) => Box::new(ListSource::new(path, settings)),
        ConfigOrigin::Etcd(address) => Box::new(EtcdSource::new(address.clone(), state_dir)),
    }
}

/// The source for a look at the configuration: a source that is not on this host puts its files
/// into `folder`, which nobody keeps.
pub(super) fn to_check(options: &Options, folder: &Path) -> Box<dyn ConfigSource> {
    match options.origin() {
        ConfigOrigin::Etcd(address) => Box::new(EtcdSource::to_check(address.clone(), folder)),
        ConfigOrigin::File(_) | ConfigOrigin::List(..) => of(options, folder),
    }
}

/// Where a whole configuration comes from.
///
/// A start and each reload load a file of this host. A source on this host says which file that is, and convey watches it.
/// Any other source fetches its files into a folder, and asks for the reloads itself.
pub(super) trait ConfigSource {
    /// The file to load. With `brought_into` it is in the folder of a source that is not on this host.
    fn file(&self) -> ConfigFile;

    /// Where the source is, if it is not on this host.
    fn address(&self) -> Option<String> {
        None
    }

    /// Puts `file` in place before it is loaded. The process has as many threads afterwards as before.
    ///
    /// # Errors
    /// There is no configuration to start with: words for an operator.
    fn fetch(&self, _file: &ConfigFile) -> Result<Fetched, String> {
        Ok(Fetched::default())
    }

    /// Gives the files, and the folders that [`ConfigSource::fetch`] has `made`, to the user that convey becomes.
    ///
    /// # Errors
    /// This process may not: words for an operator.
    fn give_to(&self, _made: &[PathBuf], _owner: (u32, u32)) -> Result<(), String> {
        Ok(())
    }

    /// Asks for a reload whenever the source has changed, in a thread of its own, until [`RemoteState::end_comes`]. The configuration
    /// that was loaded is in force.
    fn follow(self: Box<Self>, _with: FollowedWith) {}
}

/// What came of a fetch.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// What an operator should know, a line each.
    pub(super) remarks: Vec<String>,
    /// The folders that were missing.
    pub(super) made: Vec<PathBuf>,
}

/// What a source needs while it is followed.
#[derive(Clone)]
pub(super) struct FollowedWith {
    /// Where reloads are asked for.
    pub(super) requests: mpsc::Sender<OperatorRequest>,
    /// What `/stats` tells of the source.
    pub(super) state: Arc<RemoteState>,
}
