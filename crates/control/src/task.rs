//! Control task: applies the decisions of [`ControlState`]. The task publishes snapshots, runs
//! probes, and opens and closes listeners.

mod data_path;
mod logging;
mod reading;
mod reload;
mod requests;
mod servers;
mod sources;

use std::sync::Arc;
use std::time::Duration;

use log::warn;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

pub use self::data_path::{ConfigRefusal, DataPath, UnreachableServers};
pub use self::reading::Reading;
pub use self::requests::{
    Done, OperatorRequest, Outcome, RemovedOverlays, RequestRefusal, Requested, ResetScope,
};
use super::EventLevel::Warn;
use super::pace::Pace;
use super::round::{LookRound, STEP};
use super::supervisor::Heartbeat;
use super::{
    ConfigFile, ControlState, Digest, EventKind, EventLog, NameRegistry, ReloadHistory, SourceRegistry,
    Supervisor,
};
use crate::health::{ProbeOutcome, Schedule};
use convey_config::{Config, Loaded};
use convey_model::{ConnectFailures, NetworkTables, Timestamp};
use convey_snapshot::{NewestSnapshot, Snapshot};

/// Interval at which the task reads this host's addresses. Most addresses exist from the start, but
/// a VIP may be added later.
const OWN_ADDRESSES: Duration = Duration::from_secs(5);

/// Events that the task waits for.
pub struct ControlEvents<D> {
    /// Outcomes of probes.
    pub outcomes: mpsc::Receiver<ProbeOutcome>,
    /// Failures of client connections, from the data path.
    pub failures: mpsc::Receiver<ConnectFailures>,
    /// Requests to reload the configuration file.
    pub reloads: mpsc::Receiver<()>,
    /// Changes of the kernel's routes, neighbours or interfaces (packet modes).
    pub networks: mpsc::Receiver<NetworkTables>,
    /// Requests of operators.
    pub requests: mpsc::Receiver<OperatorRequest>,
    /// Calls on the task itself, which run between other events.
    pub calls: mpsc::Receiver<Call<D>>,
    /// State of reading the configuration file.
    pub reading: Reading,
}

/// Call on the control task, which runs between other events. It must not block.
pub type Call<D> = Box<dyn FnOnce(&mut Task<D>)>;

/// Control task.
pub struct Task<D> {
    /// Pure part of the task: its state and decisions.
    pub state: ControlState,
    /// Snapshot that is published to the data path.
    pub snapshot: Arc<NewestSnapshot>,
    /// Schedule of the probes.
    pub schedule: Schedule,
    /// Registry of discovery sources and their reports.
    pub discovery: Arc<SourceRegistry>,
    /// Registry of host names and their lookups.
    pub names: Arc<NameRegistry>,
    /// Data path that serves the frontends.
    pub data_path: D,
    /// Configuration file that a reload reads.
    pub file: ConfigFile,
    /// Contents of the file as last applied.
    pub loaded: Loaded,
    /// Log lines that wait because of a log limit.
    pub digest: Digest,
    /// History of reloads.
    pub reload_history: Arc<ReloadHistory>,
    /// Recent events.
    pub events: Arc<EventLog>,
    /// Function that reads the clock.
    pub now: fn() -> Timestamp,
    /// Connection to the service manager.
    pub supervisor: Box<dyn Supervisor>,
    /// Whether the state was handed over to a process that takes over. Later changes of the state
    /// would be lost, and the other process itself applies a changed file.
    pub handing_over: bool,
}

impl<D: DataPath> Task<D> {
    /// Applies `config`. On error, for example if an address is in use, nothing changes.
    pub async fn configure(&mut self, config: Config) -> Result<(), ConfigRefusal> {
        self.watch_sources_of(Some(&config));
        self.await_first_lookup(&config).await;
        let ready = match self.data_path.prepare(&config) {
            Ok(ready) => ready,
            Err(why) => {
                self.watch_sources_of(self.state.config());
                return Err(why);
            }
        };
        self.apply_first_results(&config);
        self.refresh_own_addresses();
        let left_out_before = self.state.left_out().clone();
        let snapshot = self.state.configure(config, (self.now)());
        self.log_left_out(&left_out_before);
        let published = &self.snapshot;
        let publish = || publish(published, snapshot.clone());
        let before = self.data_path.switch(ready, &snapshot, publish).await;
        self.supervisor.publishes(&snapshot);
        self.log_empty_backends(&before);
        self.schedule.set(self.state.probes());
        if self.refuse_unreachable(false) {
            self.publish_update();
        }
        Ok(())
    }

    /// Handles events until the future is dropped; never returns. The caller may call `run` again,
    /// and no reload is lost in between.
    pub async fn run(&mut self, events: &mut ControlEvents<D>) {
        let reading = &mut events.reading;
        if !self.holds_reloads() {
            reading.resume(&self.file);
        }
        let mut own_addresses = tokio::time::interval(OWN_ADDRESSES);
        let (mut round, mut step) = (LookRound::default(), tokio::time::interval(STEP));
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pace = Pace::default();
        let mut heartbeat = Heartbeat::new(self.supervisor.heartbeat());
        loop {
            let due = [self.state.due(), self.digest.due(), pace.due()].into_iter().flatten().min();
            let time = until(due, (self.now)());
            tokio::select! {
                () = time => self.on_time(),
                Some(outcome) = events.outcomes.recv() => self.state.on_outcome(outcome, (self.now)()),
                Some(failures) = events.failures.recv() => self.on_failures(failures),
                () = heartbeat.due() => self.supervisor.is_alive(),
                Some(()) = events.reloads.recv() => self.on_reload_signal(reading),
                Some(request) = events.requests.recv() => {
                    self.on_request(request, reading).await;
                    pace.hurry();
                }
                loaded = reading.end() => {
                    let outcome = self.reload(loaded).await;
                    reading.answer(&outcome);
                    if !reading.begin_again(&self.file) && !self.state.is_stopping() {
                        self.supervisor.reload_ends();
                    }
                }
                Some(table) = events.networks.recv() => self.on_network(&table),
                () = self.names.changed() => self.on_lookups(),
                () = self.discovery.changed() => self.on_discoveries(),
                _ = own_addresses.tick() => {
                    self.refresh_own_addresses();
                    self.refuse_unreachable(true);
                }
                _ = step.tick() => {
                    let backends = round.step(|| self.state.backends_with_handshakes());
                    backends.iter().for_each(|backend| self.check_backend(backend));
                }
                Some(call) = events.calls.recv() => self.on_call(call, reading),
            }
            // Applies further events that have arrived together, so that a table is rebuilt once
            // for all of them.
            while let Ok(outcome) = events.outcomes.try_recv() {
                self.state.on_outcome(outcome, (self.now)());
            }
            while let Ok(failures) = events.failures.try_recv() {
                self.on_failures(failures);
            }
            let begun = (self.now)();
            if pace.is_due(begun) && self.publish_update() {
                pace.published(begun, (self.now)());
            }
        }
    }

    fn on_reload_signal(&self, reading: &mut Reading) {
        self.notify_reload();
        match self.holds_reloads() {
            true => reading.hold(&self.file),
            false => reading.begin(&self.file),
        }
    }

    fn on_call(&mut self, call: Call<D>, reading: &mut Reading) {
        call(self);
        match self.holds_reloads() {
            true => reading.interrupt(&Err(self.while_another_has_the_state())),
            false => reading.resume(&self.file),
        }
    }

    /// Whether reloads have to wait for the end of an upgrade.
    fn holds_reloads(&self) -> bool {
        self.handing_over && !self.state.is_stopping()
    }

    /// Sets whether another process takes over. During the takeover, convey refuses requests that
    /// change the state, and delays reloads: the other process reads the file itself, and listens
    /// on its new addresses. This process reads the file again if the other process fails, or when
    /// this process stops.
    pub fn set_handing_over(&mut self, handing_over: bool) {
        self.handing_over = handing_over;
    }

    /// Stops new connections (packet modes).
    pub fn stop(&mut self) {
        let snapshot = self.state.stop();
        self.publish(snapshot);
    }

    /// Ends open connections (packet modes). convey still intercepts their packets, because
    /// otherwise the host's stack would answer them.
    pub fn end(&mut self) {
        let snapshot = self.state.end();
        self.publish(snapshot);
    }

    fn on_time(&mut self) {
        let now = (self.now)();
        self.state.on_time(now);
        for summary in self.digest.on_time(now) {
            match summary.single() {
                Some(change) => self.log_health_change(change),
                None => self.log_event(EventKind::Health, Warn, &summary.to_string()),
            }
        }
        self.digest.left_out.on_time(now).iter().for_each(|line| warn!("{line}"));
    }

    /// Checks whether clients complete handshakes with the backend's servers, and whether large
    /// packets arrive (packet modes). Workers count both.
    fn check_backend(&mut self, backend: &str) {
        let now = (self.now)();
        let handshakes = self.state.check_handshakes(backend, now);
        for line in handshakes.into_iter().chain(self.state.check_path_mtu(backend, now)) {
            self.log_event(EventKind::Health, Warn, &line);
        }
    }

    fn on_network(&mut self, table: &NetworkTables) {
        let mut network = self.state.network().update_all(table);
        let now = (self.now)();
        network.recycle(now);
        self.state.on_network(network, now);
    }

    fn on_failures(&mut self, failures: ConnectFailures) {
        self.state.on_connect_failures(&failures, (self.now)());
        for confirmation in self.state.take_doubts() {
            self.schedule.confirm(confirmation);
        }
    }

    /// Publishes a snapshot of the running configuration. Returns the previous snapshot.
    fn publish(&mut self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        self.data_path.see(&snapshot);
        publish(&self.snapshot, snapshot)
    }

    /// Publishes the pending changes. Returns whether there were any changes.
    fn publish_update(&mut self) -> bool {
        let Some((snapshot, changes)) = self.state.take_update() else { return false };
        let before = self.publish(snapshot.clone());
        self.data_path.on_snapshot(&snapshot);
        self.supervisor.publishes(&snapshot);
        let now = (self.now)();
        let logged: Vec<_> = changes.into_iter().filter_map(|change| self.digest.take(change, now)).collect();
        logged.iter().for_each(|change| self.log_health_change(change));
        self.log_empty_backends(&before);
        self.log_off_link_servers(&before);
        if self.refuse_unreachable(false) {
            self.publish_update();
        }
        true
    }

    /// Marks the servers to which the data path cannot send as down, and no other servers. Returns
    /// whether the set has changed. With `again`, the data path retries to get missing resources.
    fn refuse_unreachable(&mut self, again: bool) -> bool {
        let unreachable = self.data_path.unreachable(again);
        self.state.set_unreachable(unreachable, (self.now)())
    }
}

async fn until(due: Option<Timestamp>, now: Timestamp) {
    match due {
        Some(due) => tokio::time::sleep(due.since(now)).await,
        None => std::future::pending().await,
    }
}

/// Publishes a snapshot, and returns the previous one. Wakes the connections that wait on the
/// previous snapshot or on the new one.
fn publish(published: &NewestSnapshot, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
    let before = published.publish(snapshot.clone());
    before.wake_waiting();
    snapshot.wake_waiting();
    before
}

#[cfg(test)]
mod tests;
