//! The retry budgets of this thread, one for each backend.

use std::cell::RefCell;
use std::sync::Arc;

use convey_http_core::RetryBudget;
use convey_snapshot::Pool;
use foldhash::HashMap;

/// Backends that are remembered: each reload may bring others. Beyond that all begin anew.
const MAX: usize = 4_096;

thread_local! {
    /// By the backend's name.
    static BUDGETS: RefCell<HashMap<Arc<str>, RetryBudget>> = RefCell::default();
}

/// A request for this backend begins.
pub(crate) fn earn(pool: &Pool) {
    with(pool, RetryBudget::earn);
}

/// Whether a request for this backend may be repeated.
pub(crate) fn spend(pool: &Pool) -> bool {
    with(pool, RetryBudget::spend)
}

fn with<T>(pool: &Pool, act: impl FnOnce(&mut RetryBudget) -> T) -> T {
    BUDGETS.with_borrow_mut(|budgets| {
        if let Some(budget) = budgets.get_mut(&pool.live.name) {
            return act(budget);
        }
        if budgets.len() >= MAX {
            budgets.clear();
        }
        act(budgets.entry(pool.live.name.clone()).or_default())
    })
}
