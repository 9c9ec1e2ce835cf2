//! Turns of tests that run at once: many, but only one beside a flood, so that the flood and its
//! clients have a core.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static TURNS: (Mutex<Turns>, Condvar) =
    (Mutex::new(Turns { told: 0, floods: 0, is_flooded: false }), Condvar::new());

struct Turns {
    /// Tests that are running, except the flood.
    told: usize,
    /// Floods that wait, or are running.
    floods: usize,
    is_flooded: bool,
}

/// A test's turn, until it is dropped.
pub(crate) struct Turn;

/// Waits for a test's turn.
pub(crate) fn begin() -> Turn {
    wait_until(|turns| turns.floods == 0 || (turns.is_flooded && turns.told == 0)).told += 1;
    Turn
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock().told -= 1;
        TURNS.1.notify_all();
    }
}

/// A flood's turn, until it is dropped.
pub(crate) struct FloodTurn;

/// Turns the running test into a flood. Waits until at most one other test and no other flood are
/// running.
pub(crate) fn flood() -> FloodTurn {
    let mut turns = lock();
    (turns.told, turns.floods) = (turns.told - 1, turns.floods + 1);
    drop(turns);
    TURNS.1.notify_all();
    wait_until(|turns| turns.told <= 1 && !turns.is_flooded).is_flooded = true;
    FloodTurn
}

impl Drop for FloodTurn {
    fn drop(&mut self) {
        let mut turns = lock();
        *turns = Turns { told: turns.told + 1, floods: turns.floods - 1, is_flooded: false };
        drop(turns);
        TURNS.1.notify_all();
    }
}

fn wait_until(is_so: impl Fn(&Turns) -> bool) -> MutexGuard<'static, Turns> {
    TURNS.1.wait_while(lock(), |turns| !is_so(turns)).unwrap_or_else(PoisonError::into_inner)
}

fn lock() -> MutexGuard<'static, Turns> {
    TURNS.0.lock().unwrap_or_else(PoisonError::into_inner)
}
