//! The configuration file while it is being read, and who waits for that.

use log::info;
use tokio::sync::oneshot;

use super::ConfigFile;
use super::requests::{Answer, Outcome};
use convey_config::{LoadError, Loaded, files};

/// The file while it is being read, beside the control task: a disk may take its time, and so does a long text.
#[derive(Default)]
pub struct Reading {
    loaded: Option<oneshot::Receiver<Result<Loaded, LoadError>>>,
    /// Whether somebody has asked since.
    again: bool,
    /// Who waits for what becomes of the reading that is under way, and of the next one.
    waiting: Vec<Answer>,
    waiting_for_next: Vec<Answer>,
    /// Whether what was read may not be in force yet.
    is_pending: bool,
}

impl Reading {
    /// Begins, or will once the reading that is under way has ended.
    pub(super) fn begin(&mut self, file: &ConfigFile) {
        if self.loaded.is_some() {
            if std::mem::replace(&mut self.again, true) {
                return;
            }
            return info!("{} is still being read; it will be read again after that", file.path.display());
        }
        self.waiting.append(&mut self.waiting_for_next);
        let file = file.clone();
        self.is_pending = true;
        self.loaded = Some(files::begin_aside(move || file.load()));
    }

    /// The same. Answers once what was read from now on is in force, or was refused.
    pub(super) fn begin_for(&mut self, answer: Answer, file: &ConfigFile) {
        // Who has gone away leaves no trace.
        self.waiting_for_next.retain(|answer| !answer.is_closed());
        self.waiting_for_next.push(answer);
        self.begin(file);
    }

    /// Tells who waits what has become of the file that was read.
    pub(super) fn answer(&mut self, outcome: &Outcome) {
        for answer in self.waiting.drain(..) {
            let _ = answer.send(outcome.clone());
        }
    }

    /// Notes that the file is to be read, which [`Reading::resume`] begins.
    pub(super) fn hold(&mut self, file: &ConfigFile) {
        if !std::mem::replace(&mut self.is_pending, true) {
            info!("{} will be read once the upgrade has ended", file.path.display());
        }
    }

    /// Ends a reading that is under way, answers everybody who waits, and has [`Reading::resume`] read the file again.
    pub(super) fn interrupt(&mut self, outcome: &Outcome) {
        (self.loaded, self.again) = (None, false);
        self.answer(outcome);
        for answer in self.waiting_for_next.drain(..) {
            let _ = answer.send(outcome.clone());
        }
    }

    /// Begins anew if the task was interrupted before what was read was in force.
    pub(super) fn resume(&mut self, file: &ConfigFile) {
        if self.is_pending && self.loaded.is_none() {
            self.begin(file);
        }
    }

    /// The last file is in force, or was refused. Begins again if somebody has asked meanwhile. Returns whether
    /// it has begun.
    pub(super) fn begin_again(&mut self, file: &ConfigFile) -> bool {
        self.is_pending = false;
        let again = std::mem::take(&mut self.again);
        if again {
            self.begin(file);
        }
        again
    }

    /// Waits until it has been read; forever if nobody reads it.
    pub(super) async fn end(&mut self) -> Result<Loaded, LoadError> {
        let Some(loaded) = &mut self.loaded else { return std::future::pending().await };
        let loaded = loaded.await;
        self.loaded = None;
        loaded.unwrap_or(Err(LoadError::NoThread))
    }
}
