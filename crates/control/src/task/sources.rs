//! Host names, discovery sources and this host's addresses, on which the servers of backends
//! depend.

use std::collections::BTreeSet;
use std::time::Duration;

use log::warn;

use super::Task;
use crate::{NameQuestion, own_addresses};
use convey_config::{Config, LeftOut};

/// Time for which a start or a reload waits for lookups of new names. It is longer than name
/// servers usually take, and short enough for an operator.
const FIRST_LOOKUP: Duration = Duration::from_secs(2);

impl<D> Task<D> {
    /// Ends all lookups and watches. Their last results are kept.
    pub fn end_sources(&self) {
        self.names.end();
        self.discovery.end();
    }

    /// Watches exactly the host names and sources of this configuration.
    pub(super) fn watch_sources_of(&self, config: Option<&Config>) {
        self.names.want(config.map(NameQuestion::all).unwrap_or_default());
        let sources = config.map(Config::sources).unwrap_or_default();
        self.discovery.want(sources.into_iter().cloned().collect());
    }

    /// Waits for results of the names and sources that are new in `config`, so that their servers
    /// are available from the start. After a timeout, the configuration starts without the servers
    /// of names and sources that have no result.
    pub(super) async fn await_first_lookup(&self, config: &Config) {
        let (hosts, sources) = (self.state.unknown_names(config), self.state.unknown_sources(config));
        let names = NameQuestion::all(config).into_iter().filter(|name| hosts.contains(&name.host)).collect();
        let all = async {
            tokio::join!(self.names.all_are_posted(&names), self.discovery.all_are_posted(&sources))
        };
        let _ = tokio::time::timeout(FIRST_LOOKUP, all).await;
    }

    /// Applies the lookups and reports that the next configuration needs.
    pub(super) fn apply_first_results(&mut self, config: &Config) {
        let now = (self.now)();
        for (_, lookup) in self.names.take() {
            if let Some(change) = self.state.apply_first(lookup, now) {
                self.log_name_change(&change);
            }
        }
        for (source, report) in self.discovery.take() {
            let report = report.with_usable(config.dns.allow_local);
            if let Some(change) = self.state.apply_first_report(&source, report, now) {
                self.log_source_change(&change);
            }
        }
    }

    pub(super) fn on_lookups(&mut self) {
        let left_out_before = self.state.left_out().clone();
        for (_, lookup) in self.names.take() {
            if let Some(change) = self.state.on_lookup(lookup, (self.now)()) {
                self.log_name_change(&change);
            }
        }
        self.log_left_out(&left_out_before);
        self.schedule.set(self.state.probes());
    }

    pub(super) fn on_discoveries(&mut self) {
        let left_out_before = self.state.left_out().clone();
        let allow_local = self.state.config().is_some_and(|config| config.dns.allow_local);
        for (source, report) in self.discovery.take() {
            let report = report.with_usable(allow_local);
            if let Some(change) = self.state.on_discovery(&source, report, (self.now)()) {
                self.log_source_change(&change);
            }
        }
        self.log_left_out(&left_out_before);
        self.schedule.set(self.state.probes());
    }

    /// Reads the addresses of this host again. On error, the last addresses stay.
    pub(super) fn refresh_own_addresses(&mut self) {
        let Ok(addresses) = own_addresses() else { return };
        let left_out_before = self.state.left_out().clone();
        if self.state.set_own_addresses(addresses, (self.now)()) {
            self.log_left_out(&left_out_before);
            self.schedule.set(self.state.probes());
        }
    }

    /// Logs addresses of host names that do not become servers, because such a server would lead
    /// back to a frontend, and that are not in `before`.
    pub(super) fn log_left_out(&mut self, before: &BTreeSet<LeftOut>) {
        let new = self.state.left_out().difference(before);
        self.digest.left_out.take(new, (self.now)()).iter().for_each(|line| warn!("{line}"));
    }
}
