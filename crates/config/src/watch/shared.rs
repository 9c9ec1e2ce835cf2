//! State that the thread of a watch shares with the code that notifies the thread.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock")]

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::{CheckKind, CheckSchedule, FileId};

/// State of a watch, and the condition that wakes its thread.
#[derive(Debug)]
pub(super) struct WatchShared {
    state: Mutex<WatchState>,
    changed: Condvar,
    start: Instant,
}

#[derive(Debug, Default)]
pub(super) struct WatchState {
    pub(super) schedule: CheckSchedule,
    /// Whether the list of files that the configuration names has changed.
    pub(super) has_new_names: bool,
    pub(super) is_stopped: bool,
}

/// Work of the watch's thread after a wake-up.
#[derive(Debug)]
pub(super) struct WatchTurn {
    pub(super) has_new_names: bool,
    pub(super) checks: Vec<(FileId, CheckKind)>,
}

impl WatchShared {
    pub(super) fn new() -> WatchShared {
        WatchShared { state: Mutex::default(), changed: Condvar::new(), start: Instant::now() }
    }

    /// Changes the state. Wakes the thread if its next work is due earlier than before.
    pub(super) fn update(&self, change: impl FnOnce(&mut WatchState, Duration)) {
        let mut state = self.lock();
        let before = state.schedule.wake_at();
        change(&mut state, self.start.elapsed());
        let is_sooner = match (state.schedule.wake_at(), before) {
            (Some(now), Some(before)) => now < before,
            (now, _) => now.is_some(),
        };
        if is_sooner || state.has_new_names || state.is_stopped {
            self.changed.notify_one();
        }
    }

    /// Changes the state without waking the thread. For use in the thread itself.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut WatchState, Duration) -> T) -> T {
        change(&mut self.lock(), self.start.elapsed())
    }

    /// Waits for the next work of the thread; `None` once the watch is stopped.
    pub(super) fn wait(&self) -> Option<WatchTurn> {
        let mut state = self.lock();
        while !state.is_stopped {
            let now = self.start.elapsed();
            let checks = state.schedule.due(now);
            let has_new_names = std::mem::take(&mut state.has_new_names);
            if has_new_names || !checks.is_empty() || state.schedule.is_reload_due() {
                return Some(WatchTurn { has_new_names, checks });
            }
            state = match state.schedule.wake_at() {
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at.saturating_sub(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_that_nothing_holds_up_any_more_makes_a_turn() {
        let shared = WatchShared::new();
        shared.update(|state, now| {
            state.schedule.add(0, now);
            state.schedule.due(now);
            state.schedule.want_reload();
        });
        let turn = shared.wait().unwrap();
        assert!(turn.checks.is_empty() && !turn.has_new_names, "{turn:?}");
        assert!(shared.with(|state, _| state.schedule.take_reload()));
    }
}
