//! Configuration in etcd. `fetch` writes the newest revision to a folder before the start; `follow`
//! does so while the program runs.

mod follow;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use convey_control::ConfigFile;
use convey_etcd::{EtcdAddress, EtcdClient, EtcdFault, Revision, RevisionFolder};
use tokio::time::timeout;

use self::follow::Following;
use super::{ConfigSource, Fetched, FollowedWith};
use crate::app::state_folder::FileOwner;
use crate::app::{runtime, state_folder};

/// Upper bound for the time that a start waits for etcd.
const BRING_TIMEOUT: Duration = Duration::from_secs(10);

/// Environment variable that contains the password for etcd.
const PASSWORD: &str = "CONVEY_ETCD_PASSWORD";

/// Address of a configuration in etcd, and the folder for its files on this host.
#[derive(Debug, Clone)]
pub(super) struct EtcdSource {
    address: EtcdAddress,
    folder: RevisionFolder,
    password: Option<String>,
    /// Whether the folder keeps old revisions for a start without etcd.
    has_history: bool,
}

impl EtcdSource {
    /// Creates a source for the configuration at this address, with its folder below `state_dir`.
    pub(super) fn new(address: EtcdAddress, state_dir: &Path) -> EtcdSource {
        let folder = RevisionFolder::new(state_dir.join("etcd").join(address.folder_name()));
        EtcdSource { address, folder, password: std::env::var(PASSWORD).ok(), has_history: true }
    }

    /// Creates a source for a check of the configuration at this address. The files are written to
    /// `folder`.
    pub(super) fn to_check(address: EtcdAddress, folder: &Path) -> EtcdSource {
        EtcdSource { has_history: false, ..EtcdSource::new(address, folder) }
    }

    /// Fetches the newest revision, or falls back to the last good one. `file` is the path of the
    /// configuration in the folder. Returns warnings for operators, one per line.
    fn bring(&self, file: &ConfigFile) -> Result<Vec<String>, String> {
        let words = |error: io::Error| format!("cannot write in {}: {error}", self.folder.path().display());
        let revision = match self.read_aside() {
            Ok(revision) => revision,
            Err(fault) => return self.without(&fault, self.folder.go_back().map_err(words)?),
        };
        if self.folder.was_left_unaccepted(&revision)
            && let Some(used) = self.folder.go_back().map_err(words)?
        {
            let number = revision.number;
            return Ok(vec![format!(
                "the last start with revision {number} of {} failed, so convey uses revision {used}",
                self.address
            )]);
        }
        self.folder.use_revision(&revision).map_err(words)?;
        let Err(error) = file.load() else { return Ok(Vec::new()) };
        // If there is no good revision, the start reports the problems of the newest one.
        let used = self.folder.go_back().map_err(words)?;
        let remark = |used| {
            format!(
                "revision {} of {} is refused, so convey uses revision {used}: {error}",
                revision.number, self.address
            )
        };
        Ok(used.map(remark).into_iter().collect())
    }

    /// Falls back to the stored revision `good` because etcd fails. An error if there is none.
    fn without(&self, fault: &EtcdFault, good: Option<i64>) -> Result<Vec<String>, String> {
        let (address, folder) = (&self.address, self.folder.path().display());
        match good {
            Some(number) => Ok(vec![format!(
                "cannot read {address}, so convey uses the saved revision {number}: {fault}"
            )]),
            None if self.has_history => {
                Err(format!("cannot read {address}: {fault} (and {folder} has no saved revision)"))
            }
            None => Err(format!("cannot read {address}: {fault}")),
        }
    }

    /// Reads all files in a separate thread, and waits until the thread has ended.
    fn read_aside(&self) -> Result<Revision, EtcdFault> {
        let read = || {
            let runtime = runtime().map_err(|error| format!("{error:#}"))?;
            runtime.block_on(self.read_of_any())
        };
        let failed = |what: &str| Err(EtcdFault::Unreachable(what.to_owned()));
        thread::scope(|scope| {
            match thread::Builder::new().name("etcd".to_owned()).spawn_scoped(scope, read) {
                Ok(reader) => {
                    reader.join().unwrap_or_else(|_| failed("the thread that reads etcd has failed"))
                }
                Err(error) => failed(&format!("cannot start a thread that reads etcd: {error}")),
            }
        })
    }

    /// Tries one member after the other. Each gets an equal share of the time, so that even the
    /// last one is tried.
    async fn read_of_any(&self) -> Result<Revision, EtcdFault> {
        let members = &self.address.endpoints;
        let share = BRING_TIMEOUT / u32::try_from(members.len()).unwrap_or(u32::MAX);
        let mut faults = Vec::new();
        for (member, endpoint) in members.iter().enumerate() {
            let read = async { self.connect(member).await?.read().await };
            let late = |_| Err(format!("{endpoint}: no answer within {:.1} s", share.as_secs_f32()).into());
            match timeout(share, read).await.unwrap_or_else(late) {
                Err(EtcdFault::Unreachable(why)) => faults.push(why),
                answer => return answer,
            }
        }
        Err(EtcdFault::Unreachable(faults.join("; ")))
    }

    async fn connect(&self, member: usize) -> Result<EtcdClient, EtcdFault> {
        EtcdClient::connect(&self.address, self.password.as_deref(), member).await
    }
}

impl ConfigSource for EtcdSource {
    fn file(&self) -> ConfigFile {
        let local_copy = Some(self.folder.path().to_owned());
        ConfigFile { local_copy, ..ConfigFile::new(self.folder.main_file()) }
    }

    fn address(&self) -> Option<String> {
        Some(self.address.to_string())
    }

    fn fetch(&self, file: &ConfigFile) -> Result<Fetched, String> {
        let made = state_folder::make(self.folder.path()).map_err(|error| {
            format!("cannot create {} (--state-dir): {error}", self.folder.path().display())
        })?;
        Ok(Fetched { remarks: self.bring(file)?, made })
    }

    fn change_owner(&self, made: &[PathBuf], owner: FileOwner) -> Result<(), String> {
        let given =
            state_folder::give(made, owner).and_then(|()| self.folder.change_owner(owner.uid, owner.gid));
        given.map_err(|error| format!("{}: {error}", self.folder.path().display()))
    }

    fn follow(self: Box<Self>, with: FollowedWith) {
        Following::start(*self, with);
    }
}
