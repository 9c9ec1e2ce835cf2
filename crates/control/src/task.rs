//! Does what [`ControlState`] decides: publishes snapshots, runs probes, opens and closes listeners.

mod reading;
mod requests;
mod servers;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use log::warn;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

pub use self::reading::Reading;
pub use self::requests::{Done, OperatorRequest, Outcome, RequestRefusal, Requested};
use super::EventLevel::{Error, Info, Warn};
use super::pace::Pace;
use super::round::{LookRound, STEP};
use super::supervisor::Heartbeat;
use super::{
    ConfigLoads, ControlState, Digest, DiscoveryBoard, EventKind, EventLog, NameBoard, NameQuestion,
    Supervisor,
};
use crate::health::{ProbeOutcome, Schedule};
use crate::own_addresses;
use convey_config::files::ReadFiles;
use convey_config::watch::NamedFiles;
use convey_config::{
    self as config, Config, Diff, LeftOut, ListSettings, LoadError, Loaded, PairsBefore, Problem,
};
use convey_model::{ConnectFailures, Mode, NetworkTables, Timestamp};
use convey_snapshot::Snapshot;

/// How long a start or a reload waits for the names that are new in it. Less than anybody's patience, more than name
/// servers take.
const FIRST_LOOKUP: Duration = Duration::from_secs(2);

/// How often the kernel is asked which addresses this host has. Most are there from the start; a VIP may come later.
const OWN_ADDRESSES: Duration = Duration::from_secs(5);

/// What a way of forwarding must be able to do when the frontends change.
pub trait DataPath {
    /// What [`DataPath::prepare`] got ready.
    type Ready;

    /// Why `wanted` cannot take the place of `running` without a restart, in words for an operator; `None` if it
    /// can.
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

/// What the task waits for.
pub struct ControlEvents<D> {
    /// From the probes.
    pub outcomes: mpsc::Receiver<ProbeOutcome>,
    /// From the data path.
    pub failures: mpsc::Receiver<ConnectFailures>,
    /// The configuration file should be read again.
    pub reloads: mpsc::Receiver<()>,
    /// The kernel's routes, neighbours or interfaces have changed (packet modes).
    pub networks: mpsc::Receiver<NetworkTables>,
    /// What operators ask for.
    pub requests: mpsc::Receiver<OperatorRequest>,
    /// What is to be done with the task itself, between two other events.
    pub calls: mpsc::Receiver<Call<D>>,
    /// The file that is being read.
    pub reading: Reading,
}

/// Something that is done with the control task. It must not wait.
pub type Call<D> = Box<dyn FnOnce(&mut Task<D>)>;

/// The configuration file, and how it is meant.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it leaves open if it is but a list of servers.
    pub list: Option<ListSettings>,
    /// The mode of the command line, for frontends that do not say theirs.
    pub mode: Option<Mode>,
    /// The files that it names.
    pub lists: NamedFiles,
    /// The folder that it is brought into, if it comes from elsewhere.
    pub brought_into: Option<PathBuf>,
}

impl ConfigFile {
    /// A configuration whose frontends are in proxy mode unless they say otherwise.
    pub fn new(path: PathBuf) -> ConfigFile {
        ConfigFile { path, list: None, mode: None, lists: NamedFiles::default(), brought_into: None }
    }

    /// This file before its first load.
    #[must_use]
    pub fn unloaded(&self) -> ConfigFile {
        ConfigFile { lists: NamedFiles::default(), ..self.clone() }
    }

    /// Where it is, seen from the root.
    pub fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    /// Reads it.
    ///
    /// # Errors
    /// Those of [`config::load`] and [`config::load_list`].
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let loaded = match self.list {
            Some(list) => self.load_list(list),
            None => self.load_with_lists(),
        };
        let loaded = self.named_as_at_home(loaded)?;
        Ok(match self.mode {
            Some(mode) => loaded.with_default_mode(mode),
            None => loaded,
        })
    }
}

impl ConfigFile {
    /// Names files as they are called where they are brought from: nobody edits them in the folder here.
    fn named_as_at_home(&self, loaded: Result<Loaded, LoadError>) -> Result<Loaded, LoadError> {
        let Some(folder) = self.path.parent().filter(|_| self.brought_into.is_some()) else { return loaded };
        let folder = format!("{}/", folder.display());
        let rename = |problems: &mut Vec<Problem>| {
            for problem in problems {
                problem.file = problem.file.replace(&folder, "");
                problem.message = problem.message.replace(&folder, "");
            }
        };
        match loaded {
            Ok(mut loaded) => {
                rename(&mut loaded.warnings);
                Ok(loaded)
            }
            Err(LoadError::Invalid(mut problems)) => {
                rename(&mut problems);
                Err(LoadError::Invalid(problems))
            }
            Err(other) => Err(other),
        }
    }

    fn load_list(&self, list: ListSettings) -> Result<Loaded, LoadError> {
        let mut read = ReadFiles::default();
        let loaded = config::load_list(&self.path, list, &mut read);
        self.lists.set_texts(read.texts);
        loaded
    }

    /// Has whoever watches it watch the files that it names, too.
    fn load_with_lists(&self) -> Result<Loaded, LoadError> {
        let mut read = ReadFiles::default();
        let before = self.lists.pairs();
        let loaded = config::load_with_lists(&self.path, &mut read, before.as_ref());
        let ReadFiles { texts, named: lists } = read;
        self.lists.set_texts(texts);
        if let Ok(loaded) = &loaded {
            self.lists.keep_pairs(PairsBefore::of(&loaded.config));
            for (path, before) in self.lists.set(lists) {
                warn!("{} has no network any more; it had {before} before", path.display());
            }
        } else {
            self.lists.add(lists);
        }
        loaded
    }
}

/// The control task.
pub struct Task<D> {
    /// Decides.
    pub state: ControlState,
    /// Where snapshots are published.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The probes.
    pub schedule: Schedule,
    /// What sources of servers say.
    pub discovery: Arc<DiscoveryBoard>,
    /// What the names of servers stand for.
    pub names: Arc<NameBoard>,
    /// The frontends' traffic.
    pub data_path: D,
    /// What is read again on a reload.
    pub file: ConfigFile,
    /// What it said when it was last put in force.
    pub loaded: Loaded,
    /// What the log will say.
    pub digest: Digest,
    /// What has become of the file.
    pub loads: Arc<ConfigLoads>,
    /// What has happened lately.
    pub events: Arc<EventLog>,
    /// Tells the time.
    pub now: fn() -> Timestamp,
    /// The service manager that hears how the task fares.
    pub supervisor: Box<dyn Supervisor>,
    /// Whether the state was handed to a process that takes over: changes would be lost, and addresses of a file that changes
    /// belong to that process.
    pub handing_over: bool,
}

impl<D: DataPath> Task<D> {
    /// Makes `config` what runs. On error (an address cannot be listened on) everything stays as it was.
    pub async fn configure(&mut self, config: Config) -> Result<(), String> {
        self.watch_sources_of(Some(&config));
        self.hear_unknown(&config).await;
        let ready = match self.data_path.prepare(&config) {
            Ok(ready) => ready,
            Err(why) => {
                self.watch_sources_of(self.state.config());
                return Err(why);
            }
        };
        let now = (self.now)();
        for (_, lookup) in self.names.take() {
            if let Some(change) = self.state.learn(lookup, now) {
                self.tell_of_name(&change);
            }
        }
        for (source, said) in self.discovery.take() {
            let said = said.with_usable(config.allow_local);
            if let Some(change) = self.state.learn_of_source(&source, said, now) {
                self.tell_of_source(&change);
            }
        }
        self.look_at_own_addresses();
        let left_out_before = self.state.left_out().clone();
        let snapshot = self.state.configure(config, now);
        self.tell_who_is_left_out(&left_out_before);
        let published = &self.snapshot;
        let publish = || publish(published, snapshot.clone());
        let before = self.data_path.switch(ready, &snapshot, publish).await;
        self.supervisor.publishes(&snapshot);
        self.tell_who_is_empty(&before);
        self.schedule.set(self.state.probes());
        if self.refuse_unreachable(false) {
            self.publish_update();
        }
        Ok(())
    }

    /// Handles events until the program ends (never returns; drop the future to stop). A caller that runs it again misses no
    /// reload.
    pub async fn run(&mut self, events: &mut ControlEvents<D>) {
        let reading = &mut events.reading;
        reading.resume(&self.file);
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
                Some(()) = events.reloads.recv(), if !self.handing_over => {
                    self.tell_of_reload();
                    reading.begin(&self.file);
                }
                Some(request) = events.requests.recv() => {
                    self.on_request(request, reading).await;
                    pace.hurry();
                }
                loaded = reading.end(), if !self.handing_over => {
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
                    self.look_at_own_addresses();
                    self.refuse_unreachable(true);
                }
                _ = step.tick() => {
                    let backends = round.step(|| self.state.backends_with_handshakes());
                    backends.iter().for_each(|backend| self.look_at_backend(backend));
                }
                Some(call) = events.calls.recv() => call(self),
            }
            // Further events that have arrived are decided together: a table is built once for all of them.
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

    /// A service manager that waits for the end of a process has heard of that.
    fn tell_of_reload(&self) {
        if !self.state.is_stopping() {
            self.supervisor.reload_begins();
        }
    }

    /// Whether requests that change the state are refused, because another process has it. The file is not reloaded meanwhile, but
    /// afterwards: the other process reads it itself, and listens on what is new there.
    pub fn set_handing_over(&mut self, handing_over: bool) {
        self.handing_over = handing_over;
    }

    /// Begins no new connections (packet modes).
    pub fn stop(&mut self) {
        // A process that leaves follows what the file forbids clients.
        self.handing_over = false;
        let snapshot = self.state.stop();
        self.publish(snapshot);
    }

    /// Cuts what is open (packet modes). It is still guarded, or the host's stack would answer it.
    pub fn end(&mut self) {
        let snapshot = self.state.end();
        self.publish(snapshot);
    }

    /// Has no name and no source watched any more. What is known stays.
    pub fn end_sources(&self) {
        self.names.end();
        self.discovery.end();
    }

    /// Has the names and the sources of this configuration watched, and no others.
    fn watch_sources_of(&self, config: Option<&Config>) {
        self.names.want(config.map(NameQuestion::all).unwrap_or_default());
        let sources = config.map(Config::sources).unwrap_or_default();
        self.discovery.want(sources.into_iter().cloned().collect());
    }

    /// Waits for names and sources that are new in `config`, so that their servers are there from the start; those that take too
    /// long go without for now.
    async fn hear_unknown(&self, config: &Config) {
        let (hosts, sources) = (self.state.unknown_names(config), self.state.unknown_sources(config));
        let names = NameQuestion::all(config).into_iter().filter(|name| hosts.contains(&name.host)).collect();
        let all =
            async { tokio::join!(self.names.all_are_said(&names), self.discovery.all_are_said(&sources)) };
        let _ = tokio::time::timeout(FIRST_LOOKUP, all).await;
    }

    fn on_time(&mut self) {
        let now = (self.now)();
        self.state.on_time(now);
        for summary in self.digest.on_time(now) {
            match summary.single() {
                Some(change) => self.tell_of_server(change),
                None => self.tell(EventKind::Health, Warn, &summary.to_string()),
            }
        }
        self.digest.left_out.on_time(now).iter().for_each(|line| warn!("{line}"));
    }

    fn on_lookups(&mut self) {
        let left_out_before = self.state.left_out().clone();
        for (_, lookup) in self.names.take() {
            if let Some(change) = self.state.on_lookup(lookup, (self.now)()) {
                self.tell_of_name(&change);
            }
        }
        self.tell_who_is_left_out(&left_out_before);
        self.schedule.set(self.state.probes());
    }

    fn on_discoveries(&mut self) {
        let left_out_before = self.state.left_out().clone();
        let allow_local = self.state.config().is_some_and(|config| config.allow_local);
        for (source, said) in self.discovery.take() {
            let said = said.with_usable(allow_local);
            if let Some(change) = self.state.on_discovery(&source, said, (self.now)()) {
                self.tell_of_source(&change);
            }
        }
        self.tell_who_is_left_out(&left_out_before);
        self.schedule.set(self.state.probes());
    }

    /// While the kernel does not tell, the addresses stay that it told last.
    fn look_at_own_addresses(&mut self) {
        let Ok(addresses) = own_addresses() else { return };
        let left_out_before = self.state.left_out().clone();
        if self.state.set_own_addresses(addresses, (self.now)()) {
            self.tell_who_is_left_out(&left_out_before);
            self.schedule.set(self.state.probes());
        }
    }

    /// Whether clients' handshakes with its servers are completed, and large packets arrive (packet modes). The workers count, and nobody
    /// tells when it is worth a look.
    fn look_at_backend(&mut self, backend: &str) {
        let now = (self.now)();
        let handshakes = self.state.look_at_handshakes(backend, now);
        for line in handshakes.into_iter().chain(self.state.look_at_path_mtu(backend, now)) {
            self.tell(EventKind::Health, Warn, &line);
        }
    }

    /// Tells which servers of names, besides those before, would be a frontend themselves.
    fn tell_who_is_left_out(&mut self, before: &BTreeSet<LeftOut>) {
        let new = self.state.left_out().difference(before);
        self.digest.left_out.take(new, (self.now)()).iter().for_each(|line| warn!("{line}"));
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

    /// Publishes a snapshot of the configuration that runs and returns the one before.
    fn publish(&mut self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        self.data_path.see(&snapshot);
        publish(&self.snapshot, snapshot)
    }

    /// Returns whether there was anything to publish.
    fn publish_update(&mut self) -> bool {
        let Some((snapshot, changes)) = self.state.take_update() else { return false };
        let before = self.publish(snapshot.clone());
        self.data_path.on_snapshot(&snapshot);
        self.supervisor.publishes(&snapshot);
        let now = (self.now)();
        let told = changes.into_iter().filter_map(|change| self.digest.take(change, now));
        let told: Vec<_> = told.collect();
        told.iter().for_each(|change| self.tell_of_server(change));
        self.tell_who_is_empty(&before);
        self.tell_who_left_the_link(&before);
        if self.refuse_unreachable(false) {
            self.publish_update();
        }
        true
    }

    /// Has the servers count as down that the data path cannot send to, and no others. Returns whether they are others than before.
    fn refuse_unreachable(&mut self, again: bool) -> bool {
        let unreachable = self.data_path.unreachable(again);
        self.state.set_unreachable(unreachable, (self.now)())
    }

    /// Takes what was read of the file. Whatever is wrong with it, what runs goes on.
    async fn reload(&mut self, loaded: Result<Loaded, LoadError>) -> Outcome {
        let file = self.file.path.display().to_string();
        let diff = match self.try_reload(loaded).await {
            Ok(diff) => diff,
            Err(problems) => {
                self.loads.fail(&problems, (self.now)());
                problems.iter().for_each(|problem| self.tell(EventKind::Reload, Error, problem));
                let line = format!("{file} not reloaded: the running configuration stays");
                self.tell(EventKind::Reload, Error, &line);
                return Err(RequestRefusal::Invalid(problems));
            }
        };
        self.loads.succeed(&self.loaded.config, (self.now)());
        self.loads.refuse_certificates(&self.loaded.refused_certificates);
        if diff == Diff::default() {
            let line = format!("{file} read again: nothing that matters has changed");
            self.tell(EventKind::Reload, Info, &line);
        }
        for change in &diff.changes {
            self.tell(EventKind::Reload, Info, &format!("reload: {change}"));
        }
        for change in &diff.needs_restart {
            self.tell(EventKind::Reload, Warn, &format!("reload: {change} needs restart"));
        }
        Ok(Done::Reloaded(diff))
    }

    /// Puts in force what the file asks for, as far as that needs no restart; the next save is compared with what is
    /// in force. Returns what has changed, or a line for each thing that is wrong.
    async fn try_reload(&mut self, loaded: Result<Loaded, LoadError>) -> Result<Diff, Vec<String>> {
        if self.state.config().is_none() {
            return Ok(Diff::default());
        }
        let (loaded, running) = (loaded.map_err(lines)?, &self.loaded.config);
        let stopping = self.state.is_stopping();
        let (loaded, diff) = if stopping { loaded.reload_draining(running) } else { loaded.reload(running) };
        if let Some(obstacle) = self.data_path.refuse(running, &loaded.config) {
            return Err(vec![obstacle]);
        }
        let odd = self.on_host(&loaded.config, |network| config::validate_mode(&loaded, network));
        let odd = odd.map_err(|error| vec![error])?.map_err(|wrong| lines(LoadError::Invalid(wrong)))?;
        loaded.warnings.iter().chain(&odd).for_each(|warning| warn!("{warning}"));
        if diff == Diff::default() {
            self.loaded = loaded;
        } else {
            self.run_loaded(loaded).await.map_err(|problem| vec![problem])?;
        }
        Ok(diff)
    }
}

async fn until(due: Option<Timestamp>, now: Timestamp) {
    match due {
        Some(due) => tokio::time::sleep(due.since(now)).await,
        None => std::future::pending().await,
    }
}

/// Publishes a snapshot and returns the one before. Connections that wait on something of either look again.
fn publish(published: &ArcSwap<Snapshot>, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
    let before = published.swap(snapshot.clone());
    before.wake_waiting();
    snapshot.wake_waiting();
    before
}

fn lines(error: LoadError) -> Vec<String> {
    match error {
        LoadError::Invalid(problems) => problems.iter().map(ToString::to_string).collect(),
        unreadable => vec![unreadable.to_string()],
    }
}

#[cfg(test)]
mod tests;
