//! State of one server: its health, and failures of client connections. Pure.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::known::KnownServer;
use super::path_mtu::PathMtuRow;
use crate::health::{
    Doubt, Ejection, Finding, HandshakeCounts, HandshakeRow, HandshakesSeen, HealthState, HealthTransition,
    SilentServer, Warmup,
};
use convey_model::{
    BackendConfig, ConnectFailures, HealthCheck, OutlierDetection, ProbeKind, ServerKey, Timestamp, WHOLE,
};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Ejected, Health, ServerLive};
use xxhash_rust::xxh3::xxh3_64;

/// Server of the running configuration.
pub(super) struct ServerEntry {
    live: Arc<ServerLive>,
    check: HealthCheck,
    health: HealthState,
    /// Whether a check of the server has ever succeeded.
    has_answered: bool,
    doubt: Doubt,
    /// Operator-facing reason of the health.
    reason: String,
    since: Timestamp,
    ejection: Ejection,
    /// Operator-facing reason of the ejection.
    ejected_for: String,
    warmup: Option<Warmup>,
    handshakes: HandshakeRow,
    path_mtu: PathMtuRow,
}

/// Effect of the outcome of a probe on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeEffect {
    /// Nothing that a snapshot shows has changed.
    Nothing,
    /// The first outcome confirms the assumed health.
    Proven,
    /// The server is down for another reason.
    StillDown,
    /// The server went up or down.
    Changed(HealthTransition),
}

impl ServerEntry {
    /// Creates a server whose health no probe has confirmed yet.
    pub(super) fn new(live: Arc<ServerLive>, check: HealthCheck, now: Timestamp) -> Self {
        let reason = if check.kind == ProbeKind::None { "no health check" } else { "not probed yet" };
        ServerEntry {
            live,
            check,
            health: HealthState::default(),
            has_answered: false,
            doubt: Doubt::default(),
            reason: reason.to_owned(),
            since: now,
            ejection: Ejection::default(),
            ejected_for: String::new(),
            warmup: None,
            handshakes: HandshakeRow::default(),
            path_mtu: PathMtuRow::default(),
        }
    }

    /// Creates a server with the state that the previous process handed over.
    pub(super) fn handed_over(
        known: KnownServer,
        live: Arc<ServerLive>,
        check: &HealthCheck,
        now: Timestamp,
    ) -> ServerEntry {
        let since = |at: Timestamp| at.min(now);
        let entry = ServerEntry {
            ejection: Ejection::known(known.ejected_until, known.ejections, since(known.returned)),
            ejected_for: known.ejected_for,
            // The duration of the slow start comes from the configuration.
            warmup: known.warmup_since.map(|began| Warmup::known(since(began))),
            ..ServerEntry::new(live, check.clone(), now)
        };
        // Without a check, no probe would bring a server back that is down.
        if check.kind == ProbeKind::None {
            return entry;
        }
        let mut health = HealthState::known(known.up, known.proven, known.against);
        if known.check.is_some_and(|digest| digest != digest_of(check)) {
            health.begin_other_check();
        }
        ServerEntry {
            health,
            has_answered: known.has_answered,
            reason: known.reason,
            since: since(known.since),
            ..entry
        }
    }

    /// Applies a configuration, which may have another check. Ejection and slow start continue.
    pub(super) fn configured(
        mut self,
        backend: &BackendConfig,
        check: HealthCheck,
        now: Timestamp,
    ) -> ServerEntry {
        let (slow_start, outlier) = (backend.time_to_warm_up(), &backend.outlier_detection);
        let warmup = self.warmup.and_then(|warmup| warmup.on_time(slow_start, now));
        let ejection = outlier.as_ref().map(|_| self.ejection).unwrap_or_default();
        let is_probed = |check: &HealthCheck| check.kind != ProbeKind::None;
        if is_probed(&self.check) != is_probed(&check) {
            // Health that no probe found, or that no probe will confirm, is dropped.
            let ServerEntry { live, ejected_for, handshakes, path_mtu, .. } = self;
            let new = ServerEntry::new(live, check, now);
            return ServerEntry { warmup, ejection, ejected_for, handshakes, path_mtu, ..new };
        }
        if without_rhythm(&self.check) != without_rhythm(&check) {
            self.health.begin_other_check();
        }
        ServerEntry { check, warmup, ejection, ..self }
    }

    /// Drops the state except the counters, so that the server starts like a new server.
    pub(super) fn reset(&mut self, now: Timestamp) {
        *self = ServerEntry::new(self.live.clone(), self.check.clone(), now);
    }

    /// State that convey passes to the next process.
    pub(super) fn known(&self, server: &ServerKey) -> KnownServer {
        KnownServer {
            server: server.clone(),
            up: self.health.is_up(),
            proven: self.health.is_proven(),
            against: self.health.against(),
            check: Some(digest_of(&self.check)),
            has_answered: self.has_answered,
            reason: self.reason.clone(),
            since: self.since,
            ejected_until: self.ejection.until(),
            ejections: self.ejection.times(),
            returned: self.ejection.returned(),
            ejected_for: self.ejected_for.clone(),
            warmup_since: self.warmup.map(|warmup| warmup.since()),
        }
    }

    /// Health of the server, for a snapshot.
    pub(super) fn health(&self) -> Health {
        let (times, reason) = (self.ejection.times(), &self.ejected_for);
        let ejected = self.ejection.until().map(|until| Ejected { until, times, reason: reason.clone() });
        let percent = self.warmup.map_or(WHOLE, |warmup| warmup.percent());
        // Without a check, no probe can prove the health.
        let proven = self.health.is_proven() || self.check.kind == ProbeKind::None;
        Health {
            up: self.health.is_up(),
            proven,
            reason: self.reason.clone(),
            since: self.since,
            ejected,
            percent,
        }
    }

    /// Counters and open connections of the server.
    pub(super) fn live(&self) -> &Arc<ServerLive> {
        &self.live
    }

    /// Configured health check.
    pub(super) fn check(&self) -> &HealthCheck {
        &self.check
    }

    /// Operator-facing reason of the health.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn is_up(&self) -> bool {
        self.health.is_up()
    }

    pub(super) fn is_ejected(&self) -> bool {
        self.ejection.until().is_some()
    }

    /// Whether the server is up and not ejected.
    pub(super) fn takes_connections(&self) -> bool {
        self.is_up() && !self.is_ejected()
    }

    /// Whether a check of the server has ever succeeded.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Time at which the ejection ends or the slow start advances; `None`: neither is under way.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.ejection.until().into_iter().chain(self.warmup.map(|warmup| warmup.due())).min()
    }

    /// Applies the outcome of a probe.
    pub(super) fn on_probe(&mut self, success: bool, reason: &str, now: Timestamp) -> ProbeEffect {
        self.has_answered |= success;
        let is_first = !self.health.is_proven();
        let effect = match self.health.on_probe(success, &self.check) {
            Some(change) => ProbeEffect::Changed(change),
            None if is_first => ProbeEffect::Proven,
            None if !success && !self.is_up() && self.reason != reason => ProbeEffect::StillDown,
            None => return ProbeEffect::Nothing,
        };
        if matches!(effect, ProbeEffect::Changed(_)) {
            self.since = now;
        }
        reason.clone_into(&mut self.reason);
        effect
    }

    /// Records failures of clients that a probe has to confirm. Returns whether to send the probe
    /// now.
    pub(super) fn raise_doubt(
        &mut self,
        failures: &ConnectFailures,
        timeout: Duration,
        now: Timestamp,
    ) -> bool {
        self.doubt.raise(failures, timeout, now)
    }

    /// Applies the finding of a confirming probe. Returns the failures if the finding confirms
    /// them.
    pub(super) fn resolve_doubt(&mut self, found: Finding) -> Option<ConnectFailures> {
        self.doubt.resolve(found, self.live.failures())
    }

    /// Applies confirmed failures. `reason` becomes the reason of the health. Returns the change,
    /// if any.
    pub(super) fn on_confirmed_failures(&mut self, reason: &str, now: Timestamp) -> Option<HealthTransition> {
        let change = self.health.on_confirmed_failures(&self.check)?;
        self.since = now;
        reason.clone_into(&mut self.reason);
        Some(change)
    }

    /// Ejects the server. Returns the duration of the ejection.
    pub(super) fn eject(&mut self, outlier: &OutlierDetection, reason: &str, now: Timestamp) -> Duration {
        let time = self.ejection.begin(outlier, now);
        reason.clone_into(&mut self.ejected_for);
        self.live.count_ejection();
        time
    }

    /// Ends an ejection whose duration has passed. Returns whether it ended.
    pub(super) fn end_ejection(&mut self, now: Timestamp) -> bool {
        self.ejection.on_time(now)
    }

    /// Resets the consecutive failures, and begins the slow start if the server takes connections.
    pub(super) fn restart(&mut self, slow_start: Duration, now: Timestamp) {
        self.live.begin_row();
        self.warmup = if self.takes_connections() { Warmup::begin(slow_start, now) } else { None };
    }

    /// Advances the slow start. Returns whether the share of the weight changed.
    pub(super) fn warm_up(&mut self, slow_start: Duration, now: Timestamp) -> bool {
        let Some(before) = self.warmup else { return false };
        self.warmup = before.on_time(slow_start, now);
        self.warmup.map(|warmup| warmup.percent()) != Some(before.percent())
    }

    /// Takes the handshakes that workers have counted since the last call.
    pub(super) fn count_handshakes(&mut self) -> HandshakesSeen {
        // `completed` is read first, so that no handshake counts as completed before it counts as
        // begun.
        let completed = self.live.traffic.sum(Counter::HandshakesCompleted);
        let repeated = self.live.traffic.sum(Counter::SynsRepeated);
        let begun = self.live.traffic.sum(Counter::HandshakesBegun);
        let counts = HandshakeCounts { begun, completed, repeated };
        self.handshakes.advance(counts, self.live.completing.take(), self.live.repeating.take())
    }

    /// Judges the server by its own handshakes and the handshakes of the other servers. Returns the
    /// server's counts if the server answers no client. A server that takes no connections is not
    /// judged.
    pub(super) fn evaluate_handshakes(
        &mut self,
        own: HandshakesSeen,
        others: HandshakesSeen,
        least: u32,
        now: Timestamp,
    ) -> Option<SilentServer> {
        if self.takes_connections() {
            return self.handshakes.evaluate(own, others, least, now);
        }
        self.forgive_handshakes(now);
        None
    }

    /// Clears the counts of handshakes, so that the server may be reported again.
    pub(super) fn forgive_handshakes(&mut self, now: Timestamp) {
        self.handshakes.forgive(now);
    }

    /// Publishes the handshakes to the statistics.
    pub(super) fn publish_handshakes(&self) {
        self.live.handshakes_stalled.store(self.handshakes.is_reported(), Ordering::Relaxed);
        self.live.unanswered_handshakes.store(self.handshakes.unanswered(), Ordering::Relaxed);
    }

    /// Returns the numbers of connections to log that lose large packets: first to the server, then
    /// to clients. `None`: do not log a line for this direction.
    pub(super) fn count_lost_packets(&mut self, now: Timestamp) -> [Option<u64>; 2] {
        self.path_mtu.advance(&self.live, now)
    }
}

/// Copy of a check without its intervals and thresholds.
fn without_rhythm(check: &HealthCheck) -> HealthCheck {
    HealthCheck { interval: Duration::ZERO, timeout: Duration::ZERO, rise: 0, fall: 0, ..check.clone() }
}

/// Digest of a check without its intervals and thresholds, for the next process of an upgrade. A
/// version that formats checks differently has another digest. If the digests differ, the next
/// probe alone decides the health, as after a reload that changes the check.
fn digest_of(check: &HealthCheck) -> u64 {
    xxh3_64(format!("{:?}", without_rhythm(check)).as_bytes())
}
