//! Follows a configuration in etcd while the program runs: each new revision is a reload.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use convey_etcd::{EtcdClient, EtcdFault, Revision};
use log::{error, info, warn};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::EtcdSource;
use crate::admin::{EtcdState, RefusedRevision};
use crate::app::runtime;
use crate::control::{OperatorRequest, RequestRefusal, Requested};

/// How often it is looked whether a change was missed, and what this node has said is prolonged.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// From one attempt to reach etcd to the next: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(15);

/// How long a reload may take. Its names are looked up meanwhile.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// What follows.
pub(in crate::app) struct EtcdFollower {
    pub(in crate::app) source: EtcdSource,
    /// Where reloads are asked for.
    pub(in crate::app) requests: mpsc::Sender<OperatorRequest>,
    pub(in crate::app) state: Arc<EtcdState>,
}

impl EtcdFollower {
    /// Begins, in a thread of its own: it writes files. The revision in use was accepted.
    pub(in crate::app) fn start(self) {
        if let Err(error) = self.source.folder.accept() {
            warn!("{}: the next start will need etcd: {error}", self.source.folder.path().display());
        }
        let in_force = self.source.folder.current();
        in_force.iter().for_each(|revision| self.state.accept(revision.number));
        let last = in_force.map(|revision| TriedRevision { revision, is_accepted: true });
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let following = Following { parts: self, node, last, trouble: None, cannot_say: None };
        let begun = thread::Builder::new().name("etcd".to_owned()).spawn(move || match runtime() {
            Ok(runtime) => runtime.block_on(following.run()),
            Err(error) => error!("etcd is not followed: {error:#}"),
        });
        if let Err(error) = begun {
            error!("etcd is not followed: {error}");
        }
    }
}

struct Following {
    parts: EtcdFollower,
    node: String,
    last: Option<TriedRevision>,
    /// Why etcd cannot be reached, as the log has told it.
    trouble: Option<String>,
    /// The same of the status key.
    cannot_say: Option<String>,
}

/// The last revision that was tried.
struct TriedRevision {
    revision: Revision,
    is_accepted: bool,
}

impl TriedRevision {
    /// Whether to try this one. The cause of a refusal may be outside of its files: each new revision is tried, even with the same files.
    fn allows(&self, newest: &Revision) -> bool {
        match self.is_accepted {
            true => self.revision.files != newest.files,
            false => self.revision != *newest,
        }
    }
}

impl Following {
    async fn run(mut self) {
        let (mut member, mut wait) = (0, FIRST_WAIT);
        let state = self.parts.state.clone();
        loop {
            let fault = tokio::select! {
                fault = self.follow_any(&mut member, &mut wait) => fault,
                () = state.end_comes() => return,
            };
            self.lose(&fault);
            tokio::select! {
                () = sleep(wait) => {}
                () = state.end_comes() => return,
            }
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    /// Follows the first member that can be followed, beginning with this one. Returns why it is over, or why none can.
    async fn follow_any(&mut self, member: &mut usize, wait: &mut Duration) -> String {
        let mut faults = Vec::new();
        for _ in 0..self.parts.source.address.endpoints.len() {
            let Err(fault) = self.follow(*member, wait).await;
            *member = (*member + 1) % self.parts.source.address.endpoints.len();
            if self.parts.state.now().is_connected {
                return fault.to_string();
            }
            faults.push(fault.to_string());
        }
        faults.join("; ")
    }

    async fn follow(
        &mut self,
        member: usize,
        wait: &mut Duration,
    ) -> Result<std::convert::Infallible, EtcdFault> {
        let client = &mut self.parts.source.connect(member).await?;
        // Before reading: what changes in between is seen.
        let mut mark = client.mark().await?;
        self.read(client).await?;
        let mut watch = client.watch().await?;
        *wait = FIRST_WAIT;
        self.parts.state.connect();
        if self.trouble.take().is_some() {
            info!("{} is followed again", self.parts.source.address);
        }
        // It goes on while changes come: what this node has said is prolonged, too.
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
                    if std::mem::replace(&mut mark, now) != now {
                        self.read(client).await?;
                    }
                    if !client.keep().await? {
                        self.say(client).await;
                    }
                }
            }
        }
    }

    fn lose(&mut self, fault: &str) {
        self.parts.state.lose(fault);
        if self.trouble.as_deref() != Some(fault) {
            warn!("{} cannot be followed, convey goes on as it is: {fault}", self.parts.source.address);
        }
        self.trouble = Some(fault.to_owned());
    }

    /// Reads the newest revision, and tries it unless its files are in force.
    async fn read(&mut self, client: &mut EtcdClient) -> Result<(), EtcdFault> {
        match client.read().await {
            Ok(revision) if self.last.as_ref().is_none_or(|last| last.allows(&revision)) => {
                let tried = self.try_out(&revision).await;
                let is_accepted = tried.is_ok();
                self.note(revision.number, tried);
                self.last = Some(TriedRevision { revision, is_accepted });
            }
            Ok(revision) => {
                if let Some(last) = self.last.as_mut().filter(|last| last.is_accepted) {
                    self.parts.state.accept(revision.number);
                    last.revision = revision;
                }
            }
            Err(EtcdFault::NoConfiguration { number, fault }) => {
                self.last = None;
                self.note(number, Err(vec![fault.to_string()]));
            }
            Err(fault) => return Err(fault),
        }
        self.say(client).await;
        Ok(())
    }

    /// # Errors
    /// It is not in force, and the one before is in use: what is wrong, a line each.
    async fn try_out(&self, revision: &Revision) -> Result<(), Vec<String>> {
        let folder = &self.parts.source.folder;
        let words = |error: std::io::Error| vec![format!("{}: {error}", folder.path().display())];
        folder.use_revision(revision).map_err(words)?;
        let reloaded = self.reload(revision.number).await;
        match reloaded {
            Ok(()) => {
                // It serves. Only a start without etcd would not have it.
                if let Err(error) = folder.accept() {
                    warn!("{}: the next start will need etcd: {error}", folder.path().display());
                }
                Ok(())
            }
            Err(problems) => {
                folder.go_back().map_err(words)?;
                Err(problems)
            }
        }
    }

    async fn reload(&self, number: i64) -> Result<(), Vec<String>> {
        let (answer, answered) = oneshot::channel();
        let by = format!("revision {number} of etcd");
        let over = || vec!["this process is about to end".to_owned()];
        let request = OperatorRequest { what: Requested::Reload, by, answer };
        self.parts.requests.send(request).await.map_err(|_| over())?;
        match timeout(RELOAD_TIMEOUT, answered).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(RequestRefusal::Invalid(problems)))) => Err(problems),
            Ok(Ok(Err(refusal))) => Err(vec![refusal.to_string()]),
            Ok(Err(_)) => Err(over()),
            Err(_) => Err(vec![format!("the reload has not ended within {} s", RELOAD_TIMEOUT.as_secs())]),
        }
    }

    fn note(&self, number: i64, tried: Result<(), Vec<String>>) {
        match tried {
            Ok(()) => self.parts.state.accept(number),
            Err(problems) => {
                let first = problems.first().map_or("", |problem| problem);
                error!(
                    "revision {number} of {} is refused, convey goes on as it is: {first}",
                    self.parts.source.address
                );
                self.parts.state.refuse(RefusedRevision { number, problems });
            }
        }
    }

    /// Says under this node's key what has become of the newest revision. That it may not is told once.
    async fn say(&mut self, client: &mut EtcdClient) {
        let known = self.parts.state.now();
        let refused = known.refused.as_ref();
        let status = json!({
            "node": self.node,
            "revision": refused.map_or(known.revision, |refused| refused.number),
            "accepted": refused.is_none(),
            "in_force": known.revision,
            "problems": refused.map_or(&[][..], |refused| &refused.problems),
            "version": env!("CARGO_PKG_VERSION"),
        });
        let said =
            client.say(&self.node, &format!("{status:#}\n")).await.err().map(|fault| fault.to_string());
        if let Some(fault) = &said
            && self.cannot_say.is_none()
        {
            let key = self.parts.source.address.status_key(&self.node);
            warn!("{key} does not tell of this node: {fault}");
        }
        self.cannot_say = said;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: i64, text: &str) -> Revision {
        Revision { number, files: [("config.toml".to_owned(), text.into())].into() }
    }

    #[test]
    fn what_was_refused_is_tried_again_with_a_new_revision_and_what_is_in_force_is_not() {
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
