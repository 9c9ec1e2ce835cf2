//! Proxy mode as the balancer sees it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::balancer::{Forwarding, Parts};
use crate::config::Config;
use crate::control::{DataPath, Events, Task};
use crate::proxy::{self, Descriptors, Workers};
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// The proxy's worker threads.
pub(super) struct ProxyPath(Workers);

impl Forwarding for ProxyPath {
    async fn start(parts: Parts<'_>) -> anyhow::Result<ProxyPath> {
        let addresses: usize = parts.config.frontends.iter().map(|frontend| frontend.listen.len()).sum();
        let listeners = (addresses * parts.cores) as u64;
        let shared = proxy::Shared {
            snapshot: parts.snapshot,
            failures: parts.failures,
            descriptors: Descriptors::share(parts.open_files.saturating_sub(listeners), parts.cores),
        };
        Ok(ProxyPath(Workers::start(parts.cores, &shared).context("cannot start the worker threads")?))
    }

    fn counters(config: &Config, cores: usize) -> usize {
        let _ = config;
        cores
    }

    fn packet_stats(&self) -> Option<Arc<PacketStats>> {
        None
    }

    async fn stop(task: Task<ProxyPath>, _events: Events, patience: Duration) {
        task.data_path.0.drain(patience).await;
    }
}

impl DataPath for ProxyPath {
    type Ready = proxy::Ready;

    fn prepare(&mut self, config: &Config) -> Result<proxy::Ready, String> {
        let listen = config.frontends.iter().flat_map(|frontend| frontend.listen.iter().copied()).collect();
        self.0.prepare(&listen).map_err(|error| error.to_string())
    }

    async fn switch<T>(
        &mut self,
        ready: proxy::Ready,
        _snapshot: &Snapshot,
        publish: impl FnOnce() -> T,
    ) -> T {
        self.0.close(&ready).await;
        let published = publish();
        self.0.open(ready);
        published
    }

    fn follow(&mut self, _snapshot: &Snapshot) {}
}
