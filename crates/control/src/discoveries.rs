//! Servers that discovery sources report. Pure: the input is reports and the time, the output is
//! servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use convey_config::FoundBySource;
use convey_model::{DiscoveredServer, DiscoverySource, DiscoveryState, SourceSettings, Timestamp, is_local};
use convey_snapshot::Discovery;

/// Maximum number of servers of a source. A larger pool would be slow to build and to probe.
const MAX_SERVERS: usize = 1_024;

/// Discovery sources of the backends, and the servers that they have reported.
#[derive(Debug, Default)]
pub(super) struct Discoveries(BTreeMap<DiscoverySource, SourceEntry>);

/// Changes that a report of a source causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiscoveryChange {
    /// Source that sent the report.
    pub source: DiscoverySource,
    /// Servers that are new.
    pub added: Vec<DiscoveredServer>,
    /// Servers that are gone.
    pub removed: Vec<DiscoveredServer>,
    /// Servers that have begun to drain, so that they get no new connections.
    pub draining: Vec<DiscoveredServer>,
    /// Servers that were draining and get new connections again.
    pub resumed: Vec<DiscoveredServer>,
    /// New settings of the source's servers; `None`: the settings are unchanged.
    pub settings: Option<SourceSettings>,
    /// Whether backends must be rebuilt, because a server was added, was removed, or has changed,
    /// for example its zone or port.
    pub is_of_servers: bool,
    /// Whether to log the change. A new message about the same fault is not logged.
    pub is_logged: bool,
    /// Number of servers that the source has now.
    pub servers: usize,
    /// Whether the source began to fail or recovered.
    pub fault: SourceFault,
    /// Operator-facing messages about endpoints that are not used as servers and were not logged
    /// before.
    pub notes: Vec<String>,
}

/// State of a discovery source, for the process that takes over in an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownSource {
    /// Identity of the source.
    pub source: DiscoverySource,
    /// Servers of the source.
    pub servers: Vec<DiscoveredServer>,
    /// Settings of the servers.
    pub settings: SourceSettings,
    /// Operator-facing reason of the current fault; `None`: the source works.
    pub fault: Option<String>,
}

/// Change of a source's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceFault {
    /// No change.
    Same,
    /// The source has begun to fail. Its servers stay. Contains the operator-facing reason.
    Began(String),
    /// The source has recovered.
    Ended,
}

#[derive(Debug)]
struct SourceEntry {
    /// Servers, sorted by name; `None`: the source has not reported yet.
    servers: Option<Vec<DiscoveredServer>>,
    settings: SourceSettings,
    fault: Option<String>,
    notes: BTreeSet<String>,
    failures: u64,
    since: Timestamp,
}

impl Discoveries {
    /// Keeps exactly these sources: adds the missing sources, and removes all other sources.
    pub(super) fn want(&mut self, sources: &BTreeSet<&DiscoverySource>, now: Timestamp) {
        self.0.retain(|source, _| sources.contains(source));
        for &source in sources {
            self.0.entry(source.clone()).or_insert_with(|| SourceEntry::new(now));
        }
    }

    /// State of the sources that have reported their servers, for the next process.
    pub(super) fn known(&self) -> Vec<KnownSource> {
        let known = self.0.iter().filter_map(|(source, entry)| {
            let (source, servers) = (source.clone(), entry.servers.clone()?);
            Some(KnownSource { source, servers, settings: entry.settings, fault: entry.fault.clone() })
        });
        known.collect()
    }

    /// Starts with the servers that the previous process had. The servers of a source stay until
    /// the source reports.
    pub(super) fn expect(&mut self, known: Vec<KnownSource>, now: Timestamp) {
        for KnownSource { source, servers, settings, fault } in known {
            let (servers, failures) = (Some(servers), u64::from(fault.is_some()));
            let state = DiscoveryState { servers, settings, fault, failures, ..DiscoveryState::default() };
            self.apply_first(&source, state.with_usable(true), now);
        }
    }

    /// Removes servers at loopback and link-local addresses, after a reload has forbidden these
    /// addresses.
    pub(super) fn refuse_local(&mut self) {
        for servers in self.0.values_mut().filter_map(|entry| entry.servers.as_mut()) {
            servers.retain(|server| !is_local(server.addr.ip()));
        }
    }

    /// Whether the source has reported servers or a fault.
    pub(super) fn is_known(&self, source: &DiscoverySource) -> bool {
        self.0.get(source).is_some_and(|entry| entry.servers.is_some() || entry.fault.is_some())
    }

    /// Servers of the source, sorted by name, with their settings; empty if the source is unknown.
    pub(super) fn found(&self, source: &DiscoverySource) -> FoundBySource<'_> {
        let Some(entry) = self.0.get(source) else { return FoundBySource::default() };
        let servers = entry.servers.as_deref().unwrap_or_default();
        FoundBySource { servers, settings: entry.settings }
    }

    /// Number of failed requests to the source so far; 0 if the source is unknown.
    pub(super) fn failures(&self, source: &DiscoverySource) -> u64 {
        self.0.get(source).map_or(0, |entry| entry.failures)
    }

    /// Applies the first report of a source that the next configuration uses.
    pub(super) fn apply_first(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        self.0.entry(source.clone()).or_insert_with(|| SourceEntry::new(now));
        self.on_state(source, state, now)
    }

    /// Applies a report of a source. Returns the changes; `None` if nothing changed, or if the
    /// source is no longer used.
    pub(super) fn on_state(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        let entry = self.0.get_mut(source)?;
        let was_known = entry.servers.is_some();
        let before = entry.servers.take().unwrap_or_default();
        let DiscoveryState { servers, settings, fault, mut notes, failures } = state;
        let is_known = was_known || servers.is_some();
        // A report without servers, from a source that fails, removes no servers.
        let after = servers.map_or_else(|| before.clone(), |servers| bounded(servers, &before, &mut notes));
        let change = match (&entry.fault, &fault) {
            (None, Some(why)) => SourceFault::Began(why.clone()),
            (Some(_), None) => SourceFault::Ended,
            (None, None) | (Some(_), Some(_)) => SourceFault::Same,
        };
        let new_notes: Vec<String> = notes.difference(&entry.notes).cloned().collect();
        let is_of_settings = entry.settings != settings;
        let is_other =
            before != after || is_of_settings || was_known != is_known || change != SourceFault::Same;
        let is_news = is_other || notes != entry.notes || fault != entry.fault;
        if is_other {
            entry.since = now;
        }
        (entry.fault, entry.notes, entry.failures) = (fault, notes, failures);
        entry.settings = settings;
        let in_drain = |all: &[DiscoveredServer], is_draining: bool| -> Vec<DiscoveredServer> {
            all.iter().filter(|server| server.is_draining == is_draining).cloned().collect()
        };
        let drained_before = in_drain(&before, true);
        let news = DiscoveryChange {
            source: source.clone(),
            added: without(&after, &before),
            removed: without(&before, &after),
            draining: without(&in_drain(&after, true), &drained_before),
            resumed: among(&in_drain(&after, false), &drained_before),
            is_of_servers: before != after || is_of_settings,
            settings: is_of_settings.then_some(settings),
            is_logged: is_other || !new_notes.is_empty(),
            servers: after.len(),
            fault: change,
            notes: new_notes,
        };
        entry.servers = is_known.then_some(after);
        is_news.then_some(news)
    }

    /// State of all sources, for a snapshot.
    pub(super) fn all(&self) -> Vec<Discovery> {
        let sources = self.0.iter().map(|(source, entry)| Discovery {
            source: source.clone(),
            servers: entry.servers.as_ref().map(Vec::len),
            draining: entry.servers.iter().flatten().filter(|server| server.is_draining).count(),
            fault: entry.fault.clone(),
            notes: entry.notes.clone(),
            failures: entry.failures,
            since: entry.since,
        });
        sources.collect()
    }
}

impl SourceEntry {
    fn new(now: Timestamp) -> SourceEntry {
        SourceEntry {
            servers: None,
            settings: SourceSettings::default(),
            fault: None,
            notes: BTreeSet::new(),
            failures: 0,
            since: now,
        }
    }
}

/// Cuts the servers to [`MAX_SERVERS`] and sorts them by name. Servers of `before` are kept first.
/// So if a source reports more servers than the limit, and others each time, the kept servers stay.
fn bounded(
    mut servers: Vec<DiscoveredServer>,
    before: &[DiscoveredServer],
    notes: &mut BTreeSet<String>,
) -> Vec<DiscoveredServer> {
    let all = servers.len();
    if all > MAX_SERVERS {
        let known: BTreeSet<&str> = before.iter().map(|server| &*server.name).collect();
        servers.sort_by_key(|server| !known.contains(&*server.name));
        servers.truncate(MAX_SERVERS);
        // The note contains no total, because the total may change every second.
        notes.insert(format!(
            "the source has more than {MAX_SERVERS} endpoints; convey uses only {MAX_SERVERS} of them"
        ));
    }
    servers.sort();
    servers.dedup_by(|a, b| a.name == b.name);
    servers
}

/// Servers of `all` that are not among `others`.
fn without(all: &[DiscoveredServer], others: &[DiscoveredServer]) -> Vec<DiscoveredServer> {
    compared(all, others, false)
}

/// Servers of `all` that are also among `others`.
fn among(all: &[DiscoveredServer], others: &[DiscoveredServer]) -> Vec<DiscoveredServer> {
    compared(all, others, true)
}

/// Servers of `all` that are also among `others` if `is_among` is true, or that are not among
/// `others` if `is_among` is false. Two servers are equal if they have the same name and address.
fn compared(all: &[DiscoveredServer], others: &[DiscoveredServer], is_among: bool) -> Vec<DiscoveredServer> {
    let known: BTreeSet<_> = others.iter().map(key).collect();
    all.iter().filter(|server| known.contains(&key(server)) == is_among).cloned().collect()
}

fn key(server: &DiscoveredServer) -> (&str, SocketAddr) {
    (&server.name, server.addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture::kubernetes_source;

    fn source() -> DiscoverySource {
        kubernetes_source("web")
    }

    fn server(number: u16) -> DiscoveredServer {
        let [high, low] = number.to_be_bytes();
        let addr = ([10, 0, high, low], 80).into();
        DiscoveredServer { name: format!("web-{number:04}"), addr, is_draining: false, zone: None }
    }

    fn says(numbers: impl IntoIterator<Item = u16>) -> DiscoveryState {
        DiscoveryState {
            servers: Some(numbers.into_iter().map(server).collect()),
            ..DiscoveryState::default()
        }
    }

    fn fails(why: &str) -> DiscoveryState {
        DiscoveryState { fault: Some(why.into()), failures: 1, ..DiscoveryState::default() }
    }

    fn begin() -> Discoveries {
        let (mut all, source) = (Discoveries::default(), source());
        all.want(&BTreeSet::from([&source]), Timestamp(0));
        all
    }

    #[test]
    fn a_change_says_which_servers_came_went_and_drain() {
        let mut all = begin();
        let change = all.on_state(&source(), says([2, 1]), Timestamp(1)).unwrap();
        assert_eq!((change.added, change.servers), (vec![server(1), server(2)], 2));
        assert!(all.on_state(&source(), says([1, 2]), Timestamp(2)).is_none(), "nothing has changed");
        let drains = DiscoveredServer { is_draining: true, ..server(1) };
        let state =
            DiscoveryState { servers: Some(vec![drains.clone(), server(3)]), ..DiscoveryState::default() };
        let change = all.on_state(&source(), state, Timestamp(3)).unwrap();
        assert_eq!(
            (change.added, change.removed, change.draining),
            (vec![server(3)], vec![server(2)], vec![drains])
        );
        let shown = &all.all()[0];
        assert_eq!((shown.servers, shown.draining, shown.since), (Some(2), 1, Timestamp(3)));
        let change = all.on_state(&source(), says([1, 3]), Timestamp(4)).unwrap();
        assert_eq!((change.resumed, change.is_of_servers), (vec![server(1)], true));
    }

    #[test]
    fn another_zone_alone_is_a_change_of_servers() {
        let mut all = begin();
        all.on_state(&source(), says([1]), Timestamp(1));
        let moved = DiscoveredServer { zone: Some("z2".into()), ..server(1) };
        let state = DiscoveryState { servers: Some(vec![moved]), ..DiscoveryState::default() };
        let change = all.on_state(&source(), state, Timestamp(2)).unwrap();
        assert!(change.is_of_servers && change.added.is_empty() && change.resumed.is_empty());
    }

    #[test]
    fn source_settings_are_a_change_of_its_servers() {
        let mut all = begin();
        all.on_state(&source(), says([1]), Timestamp(1));
        let settings = SourceSettings { weight: Some(0), ..SourceSettings::default() };
        let change = all.on_state(&source(), DiscoveryState { settings, ..says([1]) }, Timestamp(2)).unwrap();
        assert!(change.is_of_servers && change.settings == Some(settings));
        assert_eq!(all.found(&source()).settings, settings);
        assert_eq!(all.on_state(&source(), DiscoveryState { settings, ..says([1]) }, Timestamp(3)), None);
    }

    #[test]
    fn failing_source_keeps_its_servers_and_is_logged_once() {
        let mut all = begin();
        assert!(!all.is_known(&source()));
        all.on_state(&source(), says([1]), Timestamp(1));
        let change = all.on_state(&source(), fails("refused"), Timestamp(2)).unwrap();
        assert_eq!((change.fault, change.servers), (SourceFault::Began("refused".into()), 1));
        assert!(all.on_state(&source(), fails("refused"), Timestamp(3)).is_none());
        let change = all.on_state(&source(), fails("timed out"), Timestamp(4)).unwrap();
        assert_eq!((change.fault, change.is_logged), (SourceFault::Same, false));
        assert!(!all.all()[0].is_connected());
        let change = all.on_state(&source(), says([1]), Timestamp(5)).unwrap();
        assert_eq!((change.is_of_servers, change.fault), (false, SourceFault::Ended));
        assert!(all.all()[0].is_connected());
    }

    #[test]
    fn source_is_connected_after_its_first_answer_even_if_empty() {
        let mut all = begin();
        all.on_state(&source(), fails("refused"), Timestamp(1));
        assert!(all.is_known(&source()) && all.all()[0].servers.is_none());
        assert!(all.on_state(&source(), says([]), Timestamp(2)).is_some());
        assert!(all.all()[0].is_connected());
    }

    #[test]
    fn known_servers_stay_if_a_source_has_too_many() {
        let mut all = begin();
        all.on_state(&source(), says(1_000..2_000), Timestamp(1));
        let change = all.on_state(&source(), says(0..2_000), Timestamp(2)).unwrap();
        assert_eq!((change.added.len(), change.removed.len()), (24, 0));
        assert_eq!(change.notes, ["the source has more than 1024 endpoints; convey uses only 1024 of them"]);
        assert_eq!(all.found(&source()).servers.len(), MAX_SERVERS);
        assert!(all.on_state(&source(), says(0..2_000), Timestamp(3)).is_none(), "it is told once");
    }

    #[test]
    fn a_source_that_is_no_longer_wanted_changes_nothing() {
        let mut all = begin();
        all.want(&BTreeSet::new(), Timestamp(1));
        assert!(all.on_state(&source(), says([1]), Timestamp(2)).is_none());
        all.apply_first(&source(), says([1]), Timestamp(3));
        assert_eq!(all.found(&source()).servers, [server(1)]);
    }
}
