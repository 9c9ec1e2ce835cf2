//! What is known of a configuration in etcd. The thread that follows it writes it, whoever asks reads it.

use arc_swap::ArcSwap;
use tokio::sync::Notify;

/// What is known now.
#[derive(Debug, Default)]
pub struct EtcdState {
    known: ArcSwap<EtcdKnown>,
    ends: Notify,
}

/// What was known at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdKnown {
    /// Where the configuration is; `None`: it is in a file.
    pub address: Option<String>,
    /// Whether etcd is followed; it is not while it cannot be reached.
    pub is_connected: bool,
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

impl EtcdState {
    /// A configuration at this address.
    pub fn of(address: Option<String>) -> EtcdState {
        let known = EtcdKnown { address, ..EtcdKnown::default() };
        EtcdState { known: ArcSwap::from_pointee(known), ..EtcdState::default() }
    }

    /// What is known now.
    pub fn now(&self) -> EtcdKnown {
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

    /// etcd is followed.
    pub fn connect(&self) {
        self.change(|known| (known.is_connected, known.fault) = (true, None));
    }

    /// etcd cannot be reached.
    pub fn lose(&self, fault: &str) {
        self.change(|known| (known.is_connected, known.fault) = (false, Some(fault.to_owned())));
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
    fn change(&self, change: impl FnOnce(&mut EtcdKnown)) {
        let mut known = self.now();
        change(&mut known);
        self.known.store(known.into());
    }
}
