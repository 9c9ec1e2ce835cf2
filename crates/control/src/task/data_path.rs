//! Interface between the control task and the data path.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use convey_config::Config;
use convey_snapshot::Snapshot;
use thiserror::Error;

/// Reason why a configuration cannot be applied; operator-facing message.
#[derive(Debug, Error)]
pub enum ConfigRefusal {
    /// The data path lacks a resource. The text names the resource and the reason.
    #[error("{0}")]
    Resource(String),
    /// The addresses of this host cannot be read.
    #[error("cannot list this host's addresses: {0}")]
    OwnAddresses(#[source] io::Error),
}

impl From<String> for ConfigRefusal {
    fn from(missing: String) -> ConfigRefusal {
        ConfigRefusal::Resource(missing)
    }
}

/// Data path, notified when frontends change.
pub trait DataPath {
    /// Result of [`DataPath::prepare`].
    type Ready;

    /// Operator-facing reason why `wanted` cannot replace `running` without a restart; `None` if it
    /// can.
    fn refuse(&self, running: &Config, wanted: &Config) -> Option<String>;

    /// Prepares to serve exactly the frontends of `config`. On error nothing has changed.
    ///
    /// # Errors
    /// A resource is missing, such as a free address.
    fn prepare(&mut self, config: &Config) -> Result<Self::Ready, ConfigRefusal>;

    /// Stops serving the removed frontends, takes `snapshot`, and calls `publish`. New frontends
    /// are served only after that, so that each connection finds its frontend in the snapshot.
    /// Returns the result of `publish`.
    fn switch<T>(
        &mut self,
        ready: Self::Ready,
        snapshot: &Arc<Snapshot>,
        publish: impl FnOnce() -> T,
    ) -> impl Future<Output = T>;

    /// Takes a snapshot that is about to be published, of any configuration.
    fn see(&mut self, snapshot: &Arc<Snapshot>);

    /// Servers that the data path cannot send packets to with its latest snapshot, each with an
    /// operator-facing reason. With `again`, it retries to get the missing resources.
    fn unreachable(&mut self, again: bool) -> UnreachableServers {
        let _ = again;
        UnreachableServers::default()
    }

    /// Notifies that a snapshot of the same configuration was published: draining frontends and
    /// servers may be gone from it.
    fn on_snapshot(&mut self, snapshot: &Snapshot);
}

/// Servers by address, each with the reason why packets cannot be sent to it.
pub type UnreachableServers = Arc<BTreeMap<IpAddr, String>>;
