//! Retry budget, which limits how many requests are retried. Pure.

/// Retries that each request adds to the budget: one retry for five requests.
const PER_REQUEST: f32 = 0.2;

/// Like [`PER_REQUEST`], for requests whose route lists statuses: one retry for two requests. So one
/// of two servers may fail all of its requests for any time.
const PER_REQUEST_BY_STATUS: f32 = 0.5;

/// Maximum number of saved retries. They are for bursts of failures.
const MOST: f32 = 100.0;

/// Number of retries that are available at the start.
const FIRST: f32 = 10.0;

/// Budget that limits retries to a fraction of all requests, like Finagle's `RetryBudget`. Without
/// it, retries would multiply the load of servers that already fail.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryBudget {
    repeats: f32,
}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { repeats: FIRST }
    }
}

impl RetryBudget {
    /// Adds a request's share to the budget. `by_status`: the rules of its route list statuses.
    pub fn earn(&mut self, by_status: bool) {
        let share = if by_status { PER_REQUEST_BY_STATUS } else { PER_REQUEST };
        self.repeats = (self.repeats + share).min(MOST);
    }

    /// Takes one retry from the budget. Returns whether there was one.
    pub fn spend(&mut self) -> bool {
        let may = self.repeats >= 1.0;
        if may {
            self.repeats -= 1.0;
        }
        may
    }

    /// Returns a retry that was taken from the budget, because it did not happen.
    pub fn give_back(&mut self) {
        self.repeats = (self.repeats + 1.0).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_budget_allows_a_fifth_of_requests_and_a_small_burst() {
        let mut budget = RetryBudget::default();
        let repeats = |budget: &mut RetryBudget, requests: u32| repeats(budget, requests, false);
        assert!((20..=22).contains(&repeats(&mut budget, 55)), "ten from the beginning, and a fifth");
        assert!((199..=201).contains(&repeats(&mut budget, 1_000)));
        (0..10_000).for_each(|_| budget.earn(false));
        assert_eq!((0..1_000).filter(|_| budget.spend()).count(), 100);
        budget.give_back();
        assert!(budget.spend() && !budget.spend(), "a retry that did not happen");
    }

    #[test]
    fn retry_budget_lets_one_of_two_servers_fail_all_its_requests() {
        let mut budget = RetryBudget::default();
        let all = (0..10_000).all(|request| {
            budget.earn(true);
            request % 2 == 0 || budget.spend()
        });
        assert!(all);
        let refused = 10_000 - repeats(&mut budget, 10_000, true);
        assert!(refused > 4_800, "if all servers fail, at most half of the requests are repeated");
    }

    /// Number of repeated requests if each server fails.
    fn repeats(budget: &mut RetryBudget, requests: u32, by_status: bool) -> usize {
        let one = |_: &u32| {
            budget.earn(by_status);
            budget.spend()
        };
        (0..requests).filter(one).count()
    }
}
