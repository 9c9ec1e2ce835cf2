//! Retry budgets of this thread, one for each backend.

use std::cell::RefCell;
use std::sync::Arc;

use convey_http_core::RetryBudget;
use convey_snapshot::Pool;
use foldhash::HashMap;

/// Maximum number of backends with a budget. Reloads may add backends; beyond the limit, all
/// budgets start again.
const MAX: usize = 4_096;

thread_local! {
    /// Budgets by the backend's name.
    static BUDGETS: RefCell<HashMap<Arc<str>, RetryBudget>> = RefCell::default();
}

/// Adds a new request to the retry budget of its backend.
pub(crate) fn earn(pool: &Pool) {
    with(pool, RetryBudget::earn);
}

/// Takes one retry from the budget of this backend. Returns whether the request may be retried.
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
