//! Retry budgets of one worker, one for each backend.

use std::sync::{Arc, Mutex, PoisonError};

use convey_http_core::RetryBudget;
use convey_snapshot::Pool;
use foldhash::HashMap;

/// Maximum number of backends with a budget. Reloads may add backends. At the limit, a new backend
/// resets all budgets.
const MAX: usize = 4_096;

/// Retry budgets of a worker.
#[derive(Debug, Default)]
pub(crate) struct RetryBudgets {
    /// Budgets by the backend's name.
    by_backend: Mutex<HashMap<Arc<str>, RetryBudget>>,
}

impl RetryBudgets {
    /// Adds a new request to the retry budget of its backend. `by_status`: the rules of its route
    /// list statuses.
    pub(crate) fn earn(&self, pool: &Pool, by_status: bool) {
        self.with(pool, |budget| budget.earn(by_status));
    }

    /// Takes one retry from the budget of this backend. Returns whether the request may be retried.
    pub(crate) fn spend(&self, pool: &Pool) -> bool {
        self.with(pool, RetryBudget::spend)
    }

    /// Returns a retry that was taken from the budget of this backend, because it did not happen.
    pub(crate) fn give_back(&self, pool: &Pool) {
        self.with(pool, RetryBudget::give_back);
    }

    fn with<T>(&self, pool: &Pool, act: impl FnOnce(&mut RetryBudget) -> T) -> T {
        let mut budgets = self.by_backend.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = budgets.get_mut(&pool.live.name) {
            return act(budget);
        }
        if budgets.len() >= MAX {
            budgets.clear();
        }
        act(budgets.entry(pool.live.name.clone()).or_default())
    }
}
