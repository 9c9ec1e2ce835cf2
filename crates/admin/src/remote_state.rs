//! State of a remote configuration. The thread that follows the source writes it, and API requests
//! read it.

use arc_swap::ArcSwap;
use convey_model::Timestamp;
use tokio::sync::Notify;

/// State of a remote configuration. Its writer and its readers share the value.
#[derive(Debug, Default)]
pub struct RemoteState {
    known: ArcSwap<RemoteKnown>,
    ends: Notify,
}

/// State of a remote configuration at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteKnown {
    /// Address of the configuration. `None` if the configuration is in a local file.
    pub address: Option<String>,
    /// Whether convey follows the source. False while the source is unreachable.
    pub is_connected: bool,
    /// Time of the last change of `is_connected`.
    pub since: Timestamp,
    /// Reason why the source is unreachable.
    pub fault: Option<String>,
    /// The revision in force.
    pub revision: i64,
    /// Newest revision, if convey refused it; otherwise `None`.
    pub refused: Option<RefusedRevision>,
}

/// Revision that convey has refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRevision {
    /// Number of the revision.
    pub number: i64,
    /// Problems of the revision, one per line.
    pub problems: Vec<String>,
}

impl RemoteState {
    /// Creates the state for a configuration at this address.
    pub fn of(address: Option<String>) -> RemoteState {
        let known = RemoteKnown { address, ..RemoteKnown::default() };
        RemoteState { known: ArcSwap::from_pointee(known), ..RemoteState::default() }
    }

    /// Current state.
    pub fn now(&self) -> RemoteKnown {
        (**self.known.load()).clone()
    }

    /// Records that this revision is in force and is the newest.
    pub fn accept(&self, revision: i64) {
        self.change(|known| (known.revision, known.refused) = (revision, None));
    }

    /// Records that the newest revision is not in force.
    pub fn refuse(&self, refused: RefusedRevision) {
        self.change(|known| known.refused = Some(refused));
    }

    /// Records that convey follows the source.
    pub fn connect(&self, now: Timestamp) {
        self.change(|known| known.turn(None, now));
    }

    /// Records that the source is unreachable.
    pub fn note_disconnected(&self, fault: &str, now: Timestamp) {
        self.change(|known| known.turn(Some(fault.to_owned()), now));
    }

    /// Requests that this process no longer follows the source, because another process takes over
    /// or this process stops.
    pub fn end(&self) {
        self.ends.notify_one();
    }

    /// Waits for a call of [`RemoteState::end`]. Returns immediately if there was a call already.
    pub async fn wait_for_end(&self) {
        self.ends.notified().await;
    }

    /// Changes the state. There must be only one writer.
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
