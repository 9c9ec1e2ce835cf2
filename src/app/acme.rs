//! ACME thread, which orders certificates while the program runs. The work has its own thread
//! because files and certificate authorities may be slow.

use std::collections::BTreeMap;
use std::io;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use convey_acme::{Authority, FileLock, OrderFailure, OrderFault, OrderLock, RenewalSchedule, Store};
use convey_admin::{AcmeName, AcmeState};
use convey_config::Config;
use convey_control::{EventKind, EventLevel, EventLog};
use convey_model::AcmeConfig;
use convey_snapshot::NewestSnapshot;
use convey_tls::{AcmeChallenges, AcmeProof, Validity};
use log::{error, info, warn};
use rustix::fs::{Access, access};

use super::state_folder::FileOwner;
use super::{clock, runtime, state_folder};

/// Interval between checks for due certificates and for challenge proofs of other nodes.
const TICK: Duration = Duration::from_secs(1);

/// Number of ticks between reads of the stored certificates, which another node may have renewed.
const LOOK_TICKS: u32 = 60;

/// Wait between the publication of a challenge proof and the authority's check. In two ticks, every
/// other node has started to serve the proof too.
const UNTIL_ALL_SHOW: Duration = Duration::from_secs(2);

/// State that the ACME task shares with the rest of the program.
pub(super) struct AcmeTask {
    pub(super) snapshot: Arc<NewestSnapshot>,
    pub(super) challenges: Arc<AcmeChallenges>,
    pub(super) events: Arc<EventLog>,
    pub(super) state: Arc<AcmeState>,
}

/// State of the orders of one configuration.
struct Orders {
    config: Arc<AcmeConfig>,
    store: Store,
    lock: FileLock,
    schedule: RenewalSchedule,
    /// Challenge proofs that this node serves now, for its own orders and for orders of other
    /// nodes.
    shown: Vec<AcmeProof>,
    ticks_to_look: u32,
    /// Failures that could not be saved in the store.
    unsaved: BTreeMap<String, OrderFailure>,
    /// Last logged fault of the store. convey logs each fault once.
    trouble: Option<String>,
}

/// Log text if the thread cannot start.
const NO_THREAD: &str = "cannot start the thread that orders certificates";

impl AcmeTask {
    /// Starts the thread, which orders certificates until the program stops. Logs an error if the
    /// thread cannot start.
    pub(super) fn start(self) {
        let begun = thread::Builder::new().name("acme".to_owned()).spawn(move || match runtime() {
            Ok(runtime) => runtime.block_on(self.run()),
            Err(error) => error!("{NO_THREAD}: {error:#}"),
        });
        if let Err(error) = begun {
            error!("{NO_THREAD}: {error}");
        }
    }

    async fn run(self) {
        let mut orders: Option<Orders> = None;
        while !self.state.is_over() {
            let config = self.snapshot.load().acme.clone();
            match config {
                None if orders.is_some() => {
                    orders = None;
                    let _ = self.challenges.show(Vec::new());
                    self.state.set(Vec::new());
                }
                None => {}
                Some(config) => {
                    let mut now = match orders.take() {
                        Some(same) if same.config == config => same,
                        before => Orders::new(config, before.is_some()),
                    };
                    self.step(&mut now).await;
                    orders = Some(now);
                }
            }
            tokio::time::sleep(TICK).await;
        }
        let _ = self.challenges.show(Vec::new());
    }

    /// Checks which certificates are due, and orders the first one unless another node is ordering.
    async fn step(&self, orders: &mut Orders) {
        let outcome = self.try_step(orders).await;
        if let Err(trouble) = &outcome
            && orders.trouble.as_ref() != Some(trouble)
        {
            self.log_event(EventLevel::Error, &format!("cannot order certificates: {trouble}"));
        }
        orders.trouble = outcome.err();
    }

    async fn try_step(&self, orders: &mut Orders) -> Result<(), String> {
        let words = |error: io::Error| error.to_string();
        if orders.ticks_to_look == 0 {
            orders.store.prepare().map_err(words)?;
            self.read_store(orders);
        }
        orders.ticks_to_look = orders.ticks_to_look.saturating_sub(1);
        let proofs = orders.store.proofs();
        if proofs != orders.shown {
            self.challenges.show(proofs.clone()).map_err(|error| error.to_string())?;
            orders.shown = proofs;
        }
        if orders.schedule.due_now(clock::unix_seconds()).is_empty() {
            return Ok(());
        }
        let Some(_held) = orders.lock.try_take().map_err(words)? else {
            // Read the store again at the next tick: the other node may be ordering the certificate
            // that is due here.
            orders.ticks_to_look = 0;
            return Ok(());
        };
        self.read_store(orders);
        let due = orders.schedule.due_now(clock::unix_seconds()).first().map(|name| (*name).to_owned());
        if let Some(name) = due {
            self.order(orders, &name).await?;
            self.read_store(orders);
        }
        orders.shown.clear();
        Ok(())
    }

    /// Reads the current certificates and failures from the store.
    fn read_store(&self, orders: &mut Orders) {
        let Orders { config, store, schedule, ticks_to_look, unsaved, .. } = orders;
        *ticks_to_look = LOOK_TICKS;
        let (mut failures, now) = (store.failures(), clock::unix_seconds());
        for name in &config.domains {
            let saved = failures.remove(name).map(|failure| failure.bounded(now));
            let failure = unsaved.get(name).cloned().or(saved);
            schedule.found(name, store.certificate(name), failure, fastrand::f64);
        }
        let before = self.state.names();
        let failing_since = |name: &str| {
            let known = before.iter().find(|before| before.name == name);
            known.and_then(|known| known.failing_since).unwrap_or(now)
        };
        let names = schedule.names().map(|(name, certificate, failure)| AcmeName {
            name: name.to_owned(),
            not_after: certificate.map(|validity| validity.until),
            next_order: schedule.due(name).map(|at| at.max(0)),
            failures: failure.map_or(0, |failure| failure.count),
            failing_since: failure.map(|_| failing_since(name)),
            error: failure.map(|failure| failure.error.clone()),
        });
        self.state.set(names.collect());
    }

    async fn order(&self, orders: &mut Orders, name: &str) -> Result<(), String> {
        let Orders { config, store, unsaved, .. } = orders;
        info!("acme: ordering a certificate for {name} from {}", config.directory);
        let authority = Authority::new(config.clone(), store.clone(), self.challenges.clone());
        let ordered = authority.order(name, UNTIL_ALL_SHOW).await;
        let now = clock::unix_seconds();
        self.state.count(ordered.is_ok());
        let ordered = ordered.and_then(|validity| useful(validity, now));
        let saved = match &ordered {
            Ok(validity) => {
                self.log_event(
                    EventLevel::Info,
                    &format!("{name} has a certificate until {}", date(validity.until)),
                );
                unsaved.remove(name);
                store.save_failure(name, None)
            }
            Err(OrderFault { what, retry_after }) => {
                let before = unsaved.remove(name).or_else(|| store.failures().remove(name));
                let failure =
                    OrderFailure::after(before.as_ref(), what.clone(), *retry_after, now, fastrand::f64());
                let pause = Duration::from_secs(u64::try_from(failure.next - now).unwrap_or(0));
                // Save the failure first: a process that is killed now must not ask the authority
                // again too soon.
                let saved = store.save_failure(name, Some(failure.clone()));
                if saved.is_err() {
                    unsaved.insert(name.to_owned(), failure);
                }
                let is_served = store.certificate(name).is_some_and(|validity| validity.until > now);
                let level = if is_served { EventLevel::Warn } else { EventLevel::Error };
                let pause = humantime::format_duration(pause);
                self.log_event(
                    level,
                    &format!("cannot get a certificate for {name}: {what}; next attempt in {pause}"),
                );
                saved
            }
        };
        saved.map_err(|error| error.to_string())
    }

    fn log_event(&self, level: EventLevel, line: &str) {
        let line = format!("acme: {line}");
        match level {
            EventLevel::Error => error!("{line}"),
            EventLevel::Warn => warn!("{line}"),
            EventLevel::Info => info!("{line}"),
        }
        self.events.record(EventKind::Certificate, level, clock::now(), &line);
    }
}

impl Orders {
    /// Creates the state of the orders in `config`. If an operator has changed the ACME
    /// configuration (`is_changed`), convey immediately retries names that failed before.
    fn new(config: Arc<AcmeConfig>, is_changed: bool) -> Orders {
        let store = Store::new(&config.folder);
        if is_changed && let Err(error) = store.forget_failures() {
            warn!("acme: {error}");
        }
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let lock = FileLock::new(&store.lock_path(), &format!("{node}, process {}", process::id()));
        let mut schedule = RenewalSchedule::default();
        schedule.set_names(config.domains.iter());
        let (shown, unsaved) = (Vec::new(), BTreeMap::new());
        Orders { config, store, lock, schedule, shown, ticks_to_look: 0, unsaved, trouble: None }
    }
}

/// Returns the validity of a new certificate unless the certificate is already due for renewal.
///
/// # Errors
/// The certificate is already due for renewal. Without this check convey would order it again and
/// again.
fn useful(validity: Validity, now: i64) -> Result<Validity, OrderFault> {
    let left = validity.until - now;
    if left * 3 > validity.until - validity.from {
        return Ok(validity);
    }
    let what = format!(
        "the new certificate has less than a third of its lifetime left: it expires on {}",
        date(validity.until)
    );
    Err(OrderFault { what, retry_after: None })
}

fn date(unix_seconds: i64) -> String {
    let since = Duration::from_secs(u64::try_from(unix_seconds).unwrap_or(0));
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string()
}

/// Creates the folder of the ordered certificates before convey drops privileges. `owner` becomes
/// the owner of new folders.
///
/// # Errors
/// The folder cannot be created: operator-facing error message.
pub(super) fn make_folder(config: &Config, owner: Option<FileOwner>) -> Result<(), String> {
    let Some(acme) = &config.acme else { return Ok(()) };
    let made = state_folder::make(&acme.folder);
    let made = made.and_then(|made| owner.map_or(Ok(()), |owner| state_folder::give(&made, owner)));
    made.map_err(|error| format!("state_dir: cannot create {}: {error}", acme.folder.display()))
}

/// Reason why this user cannot safely store ordered certificates, in one line. `None` if there is
/// no obstacle.
pub(super) fn obstacle(config: &Config) -> Option<String> {
    let acme = config.acme.as_ref()?;
    if let Some(open) = convey_acme::open_to_all(&acme.folder) {
        let folder = open.display();
        return Some(format!("state_dir: all users can write to {folder}; `chmod o-w {folder}` fixes it"));
    }
    let there = acme.folder.ancestors().find(|folder| folder.exists())?;
    let error = access(there, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).err()?;
    let (folder, user) = (there.display(), config.privileges.user.as_deref());
    let mends = user.map_or(String::new(), |user| {
        format!("; user {user} (privileges.user) has to own it: `chown -R {user} {folder}`")
    });
    Some(format!("state_dir: cannot write to {folder}: {error}{mends}"))
}
