//! Servers of the backends: servers of the file, addresses of host names, and servers of discovery
//! sources. Pure.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::discoveries::{Discoveries, DiscoveryChange, KnownSource};
use crate::names::{KnownName, NameChange, Names};
use convey_config::{Config, FoundServers, LeftOut, Resolved};
use convey_model::{BackendConfig, DiscoverySource, DiscoveryState, Lookup, ServerKey, Timestamp};
use convey_snapshot::{Discovery, Name};

/// Host names and discovery sources that supply servers, and the addresses of this host.
#[derive(Default)]
pub(super) struct Membership {
    names: Names,
    discoveries: Discoveries,
    own_addresses: Arc<BTreeSet<IpAddr>>,
    /// Addresses of host names that do not become servers, because such a server would lead back to
    /// a frontend of convey.
    left_out: BTreeSet<LeftOut>,
    /// Servers that get no new connections, because their source reports them as draining.
    draining: HashSet<ServerKey>,
}

impl Membership {
    /// Follows exactly the names and sources of this configuration.
    pub(super) fn follow(&mut self, config: &Config, now: Timestamp) {
        self.names.want(&config.hosts(), now);
        self.discoveries.want(&config.sources(), now);
        if !config.dns.allow_local {
            self.names.refuse_local();
            self.discoveries.refuse_local();
        }
    }

    /// Backends of the configuration with all their servers.
    pub(super) fn resolve(&mut self, config: &Config) -> Vec<BackendConfig> {
        let found = FoundServers {
            addresses: |host: &str| self.names.addresses(host),
            discovered: |source: &DiscoverySource| self.discoveries.found(source),
        };
        let Resolved { backends, left_out, draining } = config.resolved(&found, &self.own_addresses);
        (self.left_out, self.draining) = (left_out, draining);
        backends
    }

    /// Host names of this configuration that were not looked up yet.
    pub(super) fn unknown_names(&self, config: &Config) -> BTreeSet<String> {
        let unknown = config.hosts().into_iter().filter(|host| !self.names.is_known(host));
        unknown.map(str::to_owned).collect()
    }

    /// Sources of this configuration that have not reported servers or a fault yet.
    pub(super) fn unknown_sources(&self, config: &Config) -> BTreeSet<DiscoverySource> {
        let unknown = config.sources().into_iter().filter(|source| !self.discoveries.is_known(source));
        unknown.cloned().collect()
    }

    /// Applies the first lookup of a host name that the next configuration uses.
    pub(super) fn apply_first_lookup(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.names.apply_first(lookup, now)
    }

    /// Applies a lookup. Returns the changes; `None` if nothing changed.
    pub(super) fn on_lookup(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.names.on_lookup(lookup, now)
    }

    /// Applies the first report of a source that the next configuration uses.
    pub(super) fn apply_first_report(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        self.discoveries.apply_first(source, state, now)
    }

    /// Applies a report of a source. Returns the changes, and whether they change the next
    /// snapshot.
    pub(super) fn on_discovery(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> (Option<DiscoveryChange>, bool) {
        let failures = self.discoveries.failures(source);
        let change = self.discoveries.on_state(source, state, now);
        let is_shown = change.is_some() || failures != self.discoveries.failures(source);
        (change, is_shown)
    }

    /// Sets the addresses of this host. Returns whether they have changed.
    pub(super) fn set_own_addresses(&mut self, addresses: BTreeSet<IpAddr>) -> bool {
        let differ = *self.own_addresses != addresses;
        if differ {
            self.own_addresses = addresses.into();
        }
        differ
    }

    pub(super) fn own_addresses(&self) -> Arc<BTreeSet<IpAddr>> {
        self.own_addresses.clone()
    }

    /// Addresses of host names that do not become servers, because such a server would lead back to
    /// a frontend of convey.
    pub(super) fn left_out(&self) -> &BTreeSet<LeftOut> {
        &self.left_out
    }

    /// Whether the source of a server reports it as draining.
    pub(super) fn is_draining(&self, server: &ServerKey) -> bool {
        self.draining.contains(server)
    }

    /// State of host names and sources, for the next process.
    pub(super) fn known(&self) -> (Vec<KnownName>, Vec<KnownSource>) {
        (self.names.known(), self.discoveries.known())
    }

    /// Starts with the names and sources of the previous process.
    pub(super) fn expect(&mut self, names: Vec<KnownName>, sources: Vec<KnownSource>, now: Timestamp) {
        self.names.expect(names, now);
        self.discoveries.expect(sources, now);
    }

    /// State of all host names, for a snapshot.
    pub(super) fn names(&self) -> Vec<Name> {
        self.names.all()
    }

    /// State of all sources, for a snapshot.
    pub(super) fn discoveries(&self) -> Vec<Discovery> {
        self.discoveries.all()
    }
}
