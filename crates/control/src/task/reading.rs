//! Reading of the configuration file, and the requests that wait for it.

use log::info;
use tokio::sync::oneshot;

use super::ConfigFile;
use super::requests::{Answer, Outcome};
use convey_config::{LoadError, Loaded, files};

/// Reading of the file in a thread of its own: the disk may be slow, or the file long.
#[derive(Default)]
pub struct Reading {
    loaded: Option<oneshot::Receiver<Result<Loaded, LoadError>>>,
    /// Whether another reload was requested since the reading began.
    again: bool,
    /// Requests that wait for the current reading, and for the next one.
    waiting: Vec<Answer>,
    waiting_for_next: Vec<Answer>,
    /// Whether the file's contents may not be applied yet.
    is_pending: bool,
}

impl Reading {
    /// Begins to read the file, or to read it again after the current reading.
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

    /// Like [`Reading::begin`]. `answer` gets the outcome once a file read from now on was applied
    /// or refused.
    pub(super) fn begin_for(&mut self, answer: Answer, file: &ConfigFile) {
        // Drops the requests whose requester has gone away.
        self.waiting_for_next.retain(|answer| !answer.is_closed());
        self.waiting_for_next.push(answer);
        self.begin(file);
    }

    /// Sends the outcome of the reading to the requests that wait for it.
    pub(super) fn answer(&mut self, outcome: &Outcome) {
        for answer in self.waiting.drain(..) {
            let _ = answer.send(outcome.clone());
        }
    }

    /// Remembers to read the file later; [`Reading::resume`] begins.
    pub(super) fn hold(&mut self, file: &ConfigFile) {
        if !std::mem::replace(&mut self.is_pending, true) {
            info!("{} will be read once the upgrade has ended", file.path.display());
        }
    }

    /// Aborts the reading, answers all requests that wait, and leaves it to [`Reading::resume`] to
    /// read the file again.
    pub(super) fn interrupt(&mut self, outcome: &Outcome) {
        (self.loaded, self.again) = (None, false);
        self.answer(outcome);
        for answer in self.waiting_for_next.drain(..) {
            let _ = answer.send(outcome.clone());
        }
    }

    /// Begins again if the task was interrupted before the file was applied.
    pub(super) fn resume(&mut self, file: &ConfigFile) {
        if self.is_pending && self.loaded.is_none() {
            self.begin(file);
        }
    }

    /// Ends the current reading: the file was applied or refused. Begins again if a reload was
    /// requested meanwhile. Returns whether it has begun.
    pub(super) fn begin_again(&mut self, file: &ConfigFile) -> bool {
        self.is_pending = false;
        let again = std::mem::take(&mut self.again);
        if again {
            self.begin(file);
        }
        again
    }

    /// Waits until the file has been read; forever if no reading is under way.
    pub(super) async fn end(&mut self) -> Result<Loaded, LoadError> {
        let Some(loaded) = &mut self.loaded else { return std::future::pending().await };
        let loaded = loaded.await;
        self.loaded = None;
        loaded.unwrap_or(Err(LoadError::NoThread))
    }
}
