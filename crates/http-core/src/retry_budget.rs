//! Retry budget, which limits how many requests are retried. Pure.

/// Retries that each request adds to the budget: one retry for five requests.
const PER_REQUEST: f32 = 0.2;

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
    /// Adds a request's share to the budget.
    pub fn earn(&mut self) {
        self.repeats = (self.repeats + PER_REQUEST).min(MOST);
    }

    /// Takes one retry from the budget. Returns whether there was one.
    pub fn spend(&mut self) -> bool {
        let may = self.repeats >= 1.0;
        if may {
            self.repeats -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_budget_allows_a_fifth_of_requests_and_a_small_burst() {
        let mut budget = RetryBudget::default();
        let repeats = |budget: &mut RetryBudget, requests: u32| {
            let one = |_: &u32| {
                budget.earn();
                budget.spend()
            };
            (0..requests).filter(one).count()
        };
        assert!((20..=22).contains(&repeats(&mut budget, 55)), "ten from the beginning, and a fifth");
        assert!((199..=201).contains(&repeats(&mut budget, 1_000)));
        (0..10_000).for_each(|_| budget.earn());
        assert_eq!((0..1_000).filter(|_| budget.spend()).count(), 100);
    }
}
