//! What is known of a configuration that is not on this host. The thread that follows the source writes it, whoever asks reads it.

use arc_swap::ArcSwap;
use convey_model::Timestamp;
use tokio::sync::Notify;

/// What is known now.
#[derive(Debug, Default)]
pub struct RemoteState {
    known: ArcSwap<RemoteKnown>,
    ends: Notify,
}

/// What was known at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteKnown {
    /// Where the configuration is; `None`: it is in a file.
    pub address: Option<String>,
    /// Whether the source is followed; it is not while it cannot be reached.
    pub is_connected: bool,
    /// Since when that is so.
    pub since: Timestamp,
    /// Why it cannot be reached.
    pub fault: Option<String>,
    /// The revision in force.
    pub revision: i64,
    /// The newest one, if it was refused.
    pub refused: Option<RefusedRevision>,
}

/// A revision that is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRevision {
    /// Its number.
    pub number: i64,
    /// What is wrong with it, a line each.
    pub problems: Vec<String>,
}

impl RemoteState {
    /// A configuration at this address.
    pub fn of(address: Option<String>) -> RemoteState {
        let known = RemoteKnown { address, ..RemoteKnown::default() };
        RemoteState { known: ArcSwap::from_pointee(known), ..RemoteState::default() }
    }

    /// What is known now.
    pub fn now(&self) -> RemoteKnown {
        (**self.known.load()).clone()
    }

    /// This revision is in force, and it is the newest.
    pub fn accept(&self, revision: i64) {
        self.change(|known| (known.revision, known.refused) = (revision, None));
    }

    /// The newest revision is not in force.
    pub fn refuse(&self, refused: RefusedRevision) {
        self.change(|known| known.refused = Some(refused));
    }

    /// The source is followed.
    pub fn connect(&self, now: Timestamp) {
        self.change(|known| known.turn(None, now));
    }

    /// The source cannot be reached.
    pub fn lose(&self, fault: &str, now: Timestamp) {
        self.change(|known| known.turn(Some(fault.to_owned()), now));
    }

    /// Has nobody follow it any more: another process serves, or nobody.
    pub fn end(&self) {
        self.ends.notify_one();
    }

    /// Waits until then; at once if it has come already.
    pub async fn end_comes(&self) {
        self.ends.notified().await;
    }

    /// It has one writer.
    fn change(&self, change: impl FnOnce(&mut RemoteKnown)) {
        let mut known = self.now();
        change(&mut known);
        self.known.store(known.into());
    }
}

impl RemoteKnown {
    fn turn(&mut self, fault: Option<String>, now: Timestamp) {
        if (self.is_connected, self.fault.is_some()) != (fault.is_none(), fault.is_some()) {
            self.since = now;
        }
        (self.is_connected, self.fault) = (fault.is_none(), fault);
    }
}
