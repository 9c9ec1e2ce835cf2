//! A configuration in etcd. `fetch` puts the newest revision into its folder before the start; `follow` does so while the program runs.

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
use crate::app::{runtime, state_folder};

/// How long a start waits for etcd at most.
const BRING_TIMEOUT: Duration = Duration::from_secs(10);

/// The variable that holds the password.
const PASSWORD: &str = "CONVEY_ETCD_PASSWORD";

/// Where a configuration is in etcd, and on this host.
#[derive(Debug, Clone)]
pub(super) struct EtcdSource {
    address: EtcdAddress,
    folder: RevisionFolder,
    password: Option<String>,
    /// Whether its folder keeps revisions for a start without etcd.
    has_history: bool,
}

impl EtcdSource {
    /// The configuration at this address. It is kept below `state_dir`.
    pub(super) fn new(address: EtcdAddress, state_dir: &Path) -> EtcdSource {
        let folder = RevisionFolder::new(state_dir.join("etcd").join(address.folder_name()));
        EtcdSource { address, folder, password: std::env::var(PASSWORD).ok(), has_history: true }
    }

    /// The configuration at this address for a look at it. Its files are in `folder` meanwhile.
    pub(super) fn to_check(address: EtcdAddress, folder: &Path) -> EtcdSource {
        EtcdSource { has_history: false, ..EtcdSource::new(address, folder) }
    }

    /// Brings the newest revision, or else the last one that was good. `file` is what its folder holds. Returns what an operator should
    /// know, a line each.
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
                "the last start with revision {number} of {} has failed, {used} is used",
                self.address
            )]);
        }
        self.folder.use_revision(&revision).map_err(words)?;
        let Err(error) = file.load() else { return Ok(Vec::new()) };
        // Without a good one the start says what is wrong with this one.
        let used = self.folder.go_back().map_err(words)?;
        let remark = |used| {
            format!("revision {} of {} is refused, {used} is used: {error}", revision.number, self.address)
        };
        Ok(used.map(remark).into_iter().collect())
    }

    /// What there is without etcd, of which this revision was good.
    fn without(&self, fault: &EtcdFault, good: Option<i64>) -> Result<Vec<String>, String> {
        let (address, folder) = (&self.address, self.folder.path().display());
        match good {
            Some(number) => {
                Ok(vec![format!("{address} cannot be read, revision {number} of before is used: {fault}")])
            }
            None if self.has_history => {
                Err(format!("cannot read {address}: {fault} (and {folder} has none of before)"))
            }
            None => Err(format!("cannot read {address}: {fault}")),
        }
    }

    /// Reads all files in a thread that has ended by then.
    fn read_aside(&self) -> Result<Revision, EtcdFault> {
        let read = || {
            let runtime = runtime().map_err(|error| format!("{error:#}"))?;
            runtime.block_on(self.read_of_any())
        };
        let failed = |what: &str| Err(EtcdFault::Unreachable(what.to_owned()));
        thread::scope(|scope| {
            match thread::Builder::new().name("etcd".to_owned()).spawn_scoped(scope, read) {
                Ok(reader) => reader.join().unwrap_or_else(|_| failed("reading it has failed")),
                Err(error) => failed(&format!("no thread: {error}")),
            }
        })
    }

    /// Asks one member after the other. Each has its share of the time, so that the last one is asked, too.
    async fn read_of_any(&self) -> Result<Revision, EtcdFault> {
        let members = &self.address.endpoints;
        let share = BRING_TIMEOUT / u32::try_from(members.len()).unwrap_or(u32::MAX);
        let mut faults = Vec::new();
        for (member, (host, port)) in members.iter().enumerate() {
            let read = async { self.connect(member).await?.read().await };
            let late =
                |_| Err(format!("{host}:{port}: no answer within {:.1} s", share.as_secs_f32()).into());
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
        let brought_into = Some(self.folder.path().to_owned());
        ConfigFile { brought_into, ..ConfigFile::new(self.folder.main_file()) }
    }

    fn address(&self) -> Option<String> {
        Some(self.address.to_string())
    }

    fn fetch(&self, file: &ConfigFile) -> Result<Fetched, String> {
        let made = state_folder::make(self.folder.path()).map_err(|error| {
            format!("cannot make {} (--state-dir): {error}", self.folder.path().display())
        })?;
        Ok(Fetched { remarks: self.bring(file)?, made })
    }

    fn give_to(&self, made: &[PathBuf], owner: (u32, u32)) -> Result<(), String> {
        let given = state_folder::give(made, owner).and_then(|()| self.folder.give_to(owner));
        given.map_err(|error| format!("{}: {error}", self.folder.path().display()))
    }

    fn follow(self: Box<Self>, with: FollowedWith) {
        Following::start(*self, with);
    }
}
