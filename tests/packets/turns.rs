//! Turns of tests that run at once: many, but only one beside a flood, so that the flood and its
//! clients have a core. Waiting floods have their turns one after another: the other tests need not
//! end for each.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static TURNS: (Mutex<Turns>, Condvar) =
    (Mutex::new(Turns { others: 0, waiting_floods: 0, is_flooded: false }), Condvar::new());

struct Turns {
    /// Running tests, except the flood.
    others: usize,
    waiting_floods: usize,
    is_flooded: bool,
}

/// A test's turn, until it is dropped.
pub(crate) struct Turn {
    is_flood: bool,
}

/// Waits for a test's turn. A flood waits until no other flood and at most one other test are
/// running.
pub(crate) fn begin(is_flood: bool) -> Turn {
    let mut turns = lock();
    if is_flood {
        turns.waiting_floods += 1;
        turns = wait_while(turns, |turns| turns.is_flooded || turns.others > 1);
        (turns.waiting_floods, turns.is_flooded) = (turns.waiting_floods - 1, true);
    } else {
        turns = wait_while(turns, |turns| match turns.is_flooded {
            true => turns.others >= 1,
            false => turns.waiting_floods > 0,
        });
        turns.others += 1;
    }
    Turn { is_flood }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = lock();
        match self.is_flood {
            true => turns.is_flooded = false,
            false => turns.others -= 1,
        }
        TURNS.1.notify_all();
    }
}

fn wait_while(
    turns: MutexGuard<'static, Turns>,
    is_so: impl Fn(&Turns) -> bool,
) -> MutexGuard<'static, Turns> {
    TURNS.1.wait_while(turns, |turns| is_so(turns)).unwrap_or_else(PoisonError::into_inner)
}

fn lock() -> MutexGuard<'static, Turns> {
    TURNS.0.lock().unwrap_or_else(PoisonError::into_inner)
}
