//! What the control task asks of a way of forwarding.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use convey_config::Config;
use convey_snapshot::Snapshot;

/// A way of forwarding, when the frontends change.
pub trait DataPath {
    /// What [`DataPath::prepare`] got ready.
    type Ready;

    /// Operator-facing reason why `wanted` cannot replace `running` without a restart; `None` if it can.
    fn refuse(&self, running: &Config, wanted: &Config) -> Option<String>;

    /// Gets ready to serve exactly the frontends of `config`. On error nothing has changed; the text names what
    /// cannot be had, and why.
    fn prepare(&mut self, config: &Config) -> Result<Self::Ready, String>;

    /// Stops serving what is no longer wanted, sees `snapshot` and has it published by `publish`. Then it starts to serve what
    /// is new: so each connection meets a snapshot that knows its frontend. Returns what `publish` does.
    fn switch<T>(
        &mut self,
        ready: Self::Ready,
        snapshot: &Arc<Snapshot>,
        publish: impl FnOnce() -> T,
    ) -> impl Future<Output = T>;

    /// A snapshot is about to be published, of whatever configuration.
    fn see(&mut self, snapshot: &Arc<Snapshot>);

    /// Servers that packets cannot be sent to by the snapshot seen last, each with the reason in words for an operator. With `again`
    /// it tries once more to get what is missing.
    fn unreachable(&mut self, again: bool) -> UnreachableServers {
        let _ = again;
        UnreachableServers::default()
    }

    /// A snapshot of the same configuration was published: what drained may be gone from it.
    fn on_snapshot(&mut self, snapshot: &Snapshot);
}

/// Servers by address, each with the reason why packets cannot be sent to it.
pub type UnreachableServers = Arc<BTreeMap<IpAddr, String>>;
