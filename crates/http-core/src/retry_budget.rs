//! Retry budget, which limits how many requests are retried. Pure.

/// Budget that each request adds: one in five may be retried.
const PER_REQUEST: f32 = 0.2;

/// Maximum number of saved retries, for a moment in which many requests fail at once.
const MOST: f32 = 100.0;

/// Retries that are available at the start.
const FIRST: f32 = 10.0;

/// Limits retries to a part of all requests. Without a limit, failing servers would get several
/// times their usual load, just when they are in trouble (like Finagle's `RetryBudget`).
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
    /// Adds the share of a new request to the budget.
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
