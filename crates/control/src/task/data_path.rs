//! Interface between the control task and the data path.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use convey_config::Config;
use convey_snapshot::Snapshot;
use thiserror::Error;

/// Operator-facing reason why a configuration cannot be applied.
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

/// Data path, which serves the frontends and is notified of changes.
pub trait DataPath {
    /// Resources that [`DataPath::prepare`] has acquired.
    type Ready;

    /// Operator-facing reason why `wanted` cannot replace `running` without a restart; `None` if no
    /// restart is needed.
    fn refuse(&self, running: &Config, wanted: &Config) -> Option<String>;

    /// Prepares to serve exactly the frontends of `config`. On error, nothing has changed.
    ///
    /// # Errors
    /// A resource is missing, such as a free address.
    fn prepare(&mut self, config: &Config) -> Result<Self::Ready, ConfigRefusal>;

    /// Stops serving the removed frontends, takes `snapshot`, and calls `publish`. Then serves new
    /// frontends, so that each connection finds its frontend in the snapshot. Returns the result of
    /// `publish`.
    fn switch<T>(
        &mut self,
        ready: Self::Ready,
        snapshot: &Arc<Snapshot>,
        publish: impl FnOnce() -> T,
    ) -> impl Future<Output = T>;

    /// Receives a snapshot that is about to be published, of the running or a new configuration.
    fn see(&mut self, snapshot: &Arc<Snapshot>);

    /// Servers of the latest snapshot to which the data path cannot send packets, each with an
    /// operator-facing reason. With `again`, the data path tries again to get missing resources.
    fn unreachable(&mut self, again: bool) -> UnreachableServers {
        let _ = again;
        UnreachableServers::default()
    }

    /// Notifies that a snapshot of the same configuration was published. Frontends and servers that
    /// were draining may be gone.
    fn on_snapshot(&mut self, snapshot: &Snapshot);
}

/// Operator-facing reasons why packets cannot be sent to servers, by the address of the server.
pub type UnreachableServers = Arc<BTreeMap<IpAddr, String>>;
