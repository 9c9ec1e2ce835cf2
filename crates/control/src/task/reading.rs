//! Reading of the configuration file, and the reload requests that wait for it.

use log::info;
use tokio::sync::oneshot;

use super::ConfigFile;
use super::requests::{Answer, Outcome};
use convey_config::{LoadError, Loaded, files};

/// Reading of the file in a separate thread, because the disk may be slow or the file long.
#[derive(Default)]
pub struct Reading {
    loaded: Option<oneshot::Receiver<Result<Loaded, LoadError>>>,
    /// Whether another reload was requested since the current reading began.
    again: bool,
    /// Requests that wait for the outcome of the current reading. `waiting_for_next` are the
    /// requests that wait for the next reading.
    waiting: Vec<Answer>,
    waiting_for_next: Vec<Answer>,
    /// Whether the file still has to be read or applied.
    is_pending: bool,
}

impl Reading {
    /// Begins to read the file. If a reading is under way, the file is read again afterwards.
    pub(super) fn begin(&mut self, file: &ConfigFile) {
        if self.loaded.is_some() {
            if std::mem::replace(&mut self.again, true) {
                return;
            }
            return info!("{} is being read already; convey reads it again afterwards", file.path.display());
        }
        self.waiting.append(&mut self.waiting_for_next);
        let file = file.clone();
        self.is_pending = true;
        self.loaded = Some(files::begin_aside(move || file.load()));
    }

    /// Begins to read the file like [`Reading::begin`]. `answer` receives the outcome of a reading
    /// that begins now or later, once the file is applied or refused.
    pub(super) fn begin_for(&mut self, answer: Answer, file: &ConfigFile) {
        // Drops requests whose requester is gone.
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

    /// Marks the file as to be read later, by [`Reading::resume`].
    pub(super) fn hold(&mut self, file: &ConfigFile) {
        if !std::mem::replace(&mut self.is_pending, true) {
            info!("convey reads {} after the upgrade has ended", file.path.display());
        }
    }

    /// Aborts the reading, and answers all waiting requests. [`Reading::resume`] then reads the
    /// file again.
    pub(super) fn interrupt(&mut self, outcome: &Outcome) {
        (self.loaded, self.again) = (None, false);
        self.answer(outcome);
        for answer in self.waiting_for_next.drain(..) {
            let _ = answer.send(outcome.clone());
        }
    }

    /// Begins to read the file if a held or interrupted reading is pending.
    pub(super) fn resume(&mut self, file: &ConfigFile) {
        if self.is_pending && self.loaded.is_none() {
            self.begin(file);
        }
    }

    /// Ends the current reading after the file was applied or refused. Begins the next reading if a
    /// reload was requested since. Returns whether a reading has begun.
    pub(super) fn begin_again(&mut self, file: &ConfigFile) -> bool {
        self.is_pending = false;
        let again = std::mem::take(&mut self.again);
        if again {
            self.begin(file);
        }
        again
    }

    /// Waits until the file has been read. Waits forever if no reading is under way.
    pub(super) async fn end(&mut self) -> Result<Loaded, LoadError> {
        let Some(loaded) = &mut self.loaded else { return std::future::pending().await };
        let loaded = loaded.await;
        self.loaded = None;
        loaded.unwrap_or(Err(LoadError::NoThread))
    }
}
