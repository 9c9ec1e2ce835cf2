//! Applies changes of the configuration and of server health to both data paths.

use std::sync::Arc;

use convey_config::Config;
use convey_control::{ConfigRefusal, DataPath, UnreachableServers};
use convey_snapshot::Snapshot;

use super::Paths;
use crate::app::logs::ReadyLogs;
use crate::app::ownership::Ownership;
use crate::app::packet_path::PacketPath;
use crate::app::proxy_path::ProxyPath;
use crate::app::resources;
use crate::app::restart::{Started, without_packets};

/// Sockets, ownership and logs that were prepared for the next configuration.
pub(in crate::app) struct Ready {
    proxy: Option<convey_proxy::PreparedSockets>,
    ownership: Option<Ownership>,
    logs: ReadyLogs,
}

impl DataPath for Paths {
    type Ready = Ready;

    fn refuse(&self, running: &Config, wanted: &Config) -> Option<String> {
        let none = Default::default();
        let started = Started {
            proxies: self.proxy.is_some(),
            forwards: self.packets.is_some(),
            snat: self.packets.as_ref().and_then(PacketPath::snat),
            proxied: self.proxy.as_ref().map_or(&none, ProxyPath::listened),
        };
        match self.has_left_packets {
            true => started.refuse(&without_packets(running), &without_packets(wanted)),
            false => started.refuse(running, wanted),
        }
    }

    fn prepare(&mut self, config: &Config) -> Result<Self::Ready, ConfigRefusal> {
        let logs = self.logs.prepare(config)?;
        let ownership = self.packets.as_ref().map(|packets| packets.missing(config)).transpose()?;
        let new_owned = ownership.as_ref().map_or(0, Ownership::len);
        if self.packets.is_some()
            && let Some(refusal) = resources::missing_notes(config)
        {
            return Err(refusal.into());
        }
        let proxy = self.proxy.as_mut().map(|proxy| proxy.prepare(config, new_owned)).transpose()?;
        Ok(Ready { proxy, ownership, logs })
    }

    async fn switch<T>(
        &mut self,
        ready: Self::Ready,
        snapshot: &Arc<Snapshot>,
        publish: impl FnOnce() -> T,
    ) -> T {
        if let (Some(proxy), Some(ready)) = (&mut self.proxy, &ready.proxy) {
            proxy.close(ready, snapshot.timeouts.drain).await;
        }
        self.logs.switch(ready.logs);
        let sessions = self.take_over_from_predecessor(snapshot);
        self.see(snapshot);
        let published = publish();
        if let (Some(sessions), Some(proxy), Some(ready)) = (sessions, &mut self.proxy, ready.proxy) {
            proxy.open(ready, sessions);
        }
        if let (Some(packets), Some(ownership)) = (&mut self.packets, ready.ownership) {
            packets.own(ownership);
        }
        self.on_snapshot(snapshot);
        published
    }

    fn see(&mut self, snapshot: &Arc<Snapshot>) {
        if let Some(packets) = &mut self.packets {
            packets.see(snapshot);
        }
    }

    fn unreachable(&mut self, again: bool) -> UnreachableServers {
        self.packets.as_mut().map(|packets| packets.unreachable(again)).unwrap_or_default()
    }

    fn on_snapshot(&mut self, snapshot: &Snapshot) {
        self.changed.notify_one();
        self.logs.set_level(snapshot.log_level.as_ref().map(|said| said.level));
        if let Some(proxy) = &mut self.proxy {
            proxy.on_snapshot(snapshot);
        }
        if let Some(packets) = &mut self.packets {
            packets.on_snapshot(snapshot);
        }
        if let (Some(proxy), Some(packets)) = (&mut self.proxy, &self.packets) {
            proxy.count_owned(packets.owned());
        }
    }
}
