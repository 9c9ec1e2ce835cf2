//! Follows a configuration in etcd while the program runs. Each new revision causes a reload.

use std::convert::Infallible;
use std::thread;
use std::time::Duration;

use convey_admin::RefusedRevision;
use convey_control::{OperatorRequest, RequestRefusal, Requested};
use convey_etcd::{EtcdClient, EtcdFault, FollowPace, Revision};
use log::{error, info, warn};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{EtcdSource, FollowedWith};
use crate::app::{clock, runtime};

/// Interval between reads for missed changes, and between updates of this node's status.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Upper bound for a reload, including its name lookups.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Follower of a configuration in etcd.
pub(super) struct Following {
    source: EtcdSource,
    with: FollowedWith,
    node: String,
    last: Option<TriedRevision>,
    /// Whether the newest revision has to wait for the end of an upgrade.
    is_postponed: bool,
    pace: FollowPace,
    /// Last logged reason why this node's status cannot be written.
    status_error: Option<String>,
}

impl Following {
    /// Starts the follower in a separate thread, because it writes files. The revision on disk is
    /// already in force.
    pub(super) fn start(source: EtcdSource, with: FollowedWith) {
        if let Err(error) = source.folder.accept() {
            warn!(
                "cannot save the accepted configuration in {}, so the next start needs etcd: {error}",
                source.folder.path().display()
            );
        }
        let in_force = source.folder.current();
        in_force.iter().for_each(|revision| with.state.accept(revision.number));
        let last = in_force.map(|revision| TriedRevision { revision, is_accepted: true });
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let pace = FollowPace::default();
        let following = Following { source, with, node, last, is_postponed: false, pace, status_error: None };
        let begun = thread::Builder::new().name("etcd".to_owned()).spawn(move || match runtime() {
            Ok(runtime) => runtime.block_on(following.run()),
            Err(error) => error!("cannot start the thread that watches etcd: {error:#}"),
        });
        if let Err(error) = begun {
            error!("cannot start the thread that watches etcd: {error}");
        }
    }

    async fn run(mut self) {
        let mut member = 0;
        let state = self.with.state.clone();
        loop {
            let fault = tokio::select! {
                fault = self.follow_any(&mut member) => fault,
                () = state.wait_for_end() => return,
            };
            let wait = self.note_disconnected(&fault);
            tokio::select! {
                () = sleep(wait) => {}
                () = state.wait_for_end() => return,
            }
        }
    }

    /// Follows the first reachable member, starting with `member`. Returns the reason when
    /// following ends, or the reasons why no member is reachable.
    async fn follow_any(&mut self, member: &mut usize) -> String {
        let mut faults = Vec::new();
        for _ in 0..self.source.address.endpoints.len() {
            let Err(fault) = self.follow(*member).await;
            *member = (*member + 1) % self.source.address.endpoints.len();
            if self.with.state.now().is_connected {
                return fault.to_string();
            }
            faults.push(fault.to_string());
        }
        faults.join("; ")
    }

    async fn follow(&mut self, member: usize) -> Result<Infallible, EtcdFault> {
        let client = &mut self.source.connect(member).await?;
        // Take the mark before reading, so that changes after the read are noticed.
        let mut mark = client.mark().await?;
        self.read(client).await?;
        let mut watch = client.watch().await?;
        self.with.state.connect(clock::now());
        if self.pace.on_followed(clock::now()) {
            info!("watching {} again", self.source.address);
        }
        // The interval does not restart when changes arrive, so that this node's status is updated
        // in time.
        let mut looks = interval(LOOK_EVERY);
        looks.reset();
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = watch.changed() => {
                    changed?;
                    self.read(client).await?;
                }
                _ = looks.tick() => {
                    let now = client.mark().await?;
                    let is_due = std::mem::take(&mut self.is_postponed);
                    if std::mem::replace(&mut mark, now) != now || is_due {
                        self.read(client).await?;
                    }
                    if !client.keep().await? {
                        self.write_status(client).await;
                    }
                }
            }
        }
    }

    /// Reports the lost connection. Returns the pause before the next attempt.
    fn note_disconnected(&mut self, fault: &str) -> Duration {
        self.with.state.note_disconnected(fault, clock::now());
        let next = self.pace.on_fault(fault, clock::now(), fastrand::f64());
        if next.is_logged {
            warn!("cannot watch {}, so convey keeps its configuration: {fault}", self.source.address);
        }
        next.wait
    }

    /// Reads the newest revision. Applies it unless its files are already in force.
    async fn read(&mut self, client: &mut EtcdClient) -> Result<(), EtcdFault> {
        self.is_postponed = false;
        match client.read().await {
            Ok(revision) if self.last.as_ref().is_none_or(|last| last.allows(&revision)) => {
                let tried = match self.try_out(&revision).await {
                    Ok(()) => Ok(()),
                    Err(NotInForce::Refused(problems)) => Err(problems),
                    Err(NotInForce::Later) => {
                        let number = revision.number;
                        info!(
                            "revision {number} of {} is postponed until the current upgrade of convey has ended",
                            self.source.address
                        );
                        self.is_postponed = true;
                        return Ok(());
                    }
                };
                let is_accepted = tried.is_ok();
                self.note(revision.number, tried);
                self.last = Some(TriedRevision { revision, is_accepted });
            }
            Ok(revision) => {
                if let Some(last) = self.last.as_mut().filter(|last| last.is_accepted) {
                    self.with.state.accept(revision.number);
                    last.revision = revision;
                }
            }
            Err(EtcdFault::NoConfiguration { number, fault }) => {
                self.last = None;
                self.note(number, Err(vec![fault.to_string()]));
            }
            Err(fault) => return Err(fault),
        }
        self.write_status(client).await;
        Ok(())
    }

    /// Writes the files of the revision and reloads. If this fails, restores the previous revision.
    ///
    /// # Errors
    /// The revision is not in force, and the previous one stays in use.
    async fn try_out(&self, revision: &Revision) -> Result<(), NotInForce> {
        let folder = &self.source.folder;
        let words = |error: std::io::Error| {
            NotInForce::Refused(vec![format!("{}: {error}", folder.path().display())])
        };
        folder.use_revision(revision).map_err(words)?;
        let reloaded = self.reload(revision.number).await;
        match reloaded {
            Ok(()) => {
                // The revision is in force. A failure here only matters for a start without etcd.
                if let Err(error) = folder.accept() {
                    warn!(
                        "cannot save the accepted configuration in {}, so the next start needs etcd: {error}",
                        folder.path().display()
                    );
                }
                Ok(())
            }
            Err(problems) => {
                folder.go_back().map_err(words)?;
                Err(problems)
            }
        }
    }

    async fn reload(&self, number: i64) -> Result<(), NotInForce> {
        let (answer, answered) = oneshot::channel();
        let by = format!("revision {number} of etcd");
        let over = || NotInForce::Refused(vec!["this process is about to end".to_owned()]);
        let request = OperatorRequest { what: Requested::Reload, by, answer };
        self.with.requests.send(request).await.map_err(|_| over())?;
        match timeout(RELOAD_TIMEOUT, answered).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(RequestRefusal::Invalid(problems)))) => Err(NotInForce::Refused(problems)),
            Ok(Ok(Err(RequestRefusal::Later(_)))) => Err(NotInForce::Later),
            Ok(Ok(Err(refusal))) => Err(NotInForce::Refused(vec![refusal.to_string()])),
            Ok(Err(_)) => Err(over()),
            Err(_) => {
                let seconds = RELOAD_TIMEOUT.as_secs();
                Err(NotInForce::Refused(vec![format!("the reload has not ended within {seconds} s")]))
            }
        }
    }

    fn note(&self, number: i64, tried: Result<(), Vec<String>>) {
        match tried {
            Ok(()) => self.with.state.accept(number),
            Err(problems) => {
                let first = problems.first().map_or("", |problem| problem);
                error!(
                    "revision {number} of {} is refused, so convey keeps its configuration: {first}",
                    self.source.address
                );
                self.with.state.refuse(RefusedRevision { number, problems });
            }
        }
    }

    /// Writes the outcome of the newest revision to this node's status key. Logs each reason for a
    /// failed write once.
    async fn write_status(&mut self, client: &mut EtcdClient) {
        let known = self.with.state.now();
        let refused = known.refused.as_ref();
        let status = json!({
            "node": self.node,
            "revision": refused.map_or(known.revision, |refused| refused.number),
            "accepted": refused.is_none(),
            "in_force": known.revision,
            "problems": refused.map_or(&[][..], |refused| &refused.problems),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let said = client
            .write_status(&self.node, &format!("{status:#}\n"))
            .await
            .err()
            .map(|fault| fault.to_string());
        if let Some(fault) = &said
            && self.status_error.is_none()
        {
            let key = self.source.address.status_key(&self.node);
            warn!("cannot write the status of this node to {key}: {fault}");
        }
        self.status_error = said;
    }
}

/// Reason why a revision is not in force.
enum NotInForce {
    /// The revision was refused. Contains its problems, one per line.
    Refused(Vec<String>),
    /// An upgrade is under way. If it fails, the revision must be tried again.
    Later,
}

/// Last revision that was tried.
struct TriedRevision {
    revision: Revision,
    is_accepted: bool,
}

impl TriedRevision {
    /// Whether to try this revision. After a refusal, each new revision is tried, even with
    /// unchanged files, because the cause may lie outside the files.
    fn allows(&self, newest: &Revision) -> bool {
        match self.is_accepted {
            true => self.revision.files != newest.files,
            false => self.revision != *newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: i64, text: &str) -> Revision {
        Revision { number, files: [("config.toml".to_owned(), text.into())].into() }
    }

    #[test]
    fn refused_etcd_revision_is_retried_but_not_an_accepted_one() {
        for (is_accepted, number, text, expected) in [
            (true, 7, "a", false),
            (true, 9, "a", false),
            (true, 9, "b", true),
            (false, 7, "a", false),
            (false, 9, "a", true),
            (false, 7, "b", true),
        ] {
            let last = TriedRevision { revision: revision(7, "a"), is_accepted };
            assert_eq!(last.allows(&revision(number, text)), expected, "{is_accepted} {number} {text}");
        }
    }
}
