//! Flat list of nested number ranges. Pure.

/// Map from each number of an address space to a value, as a sorted list of parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ranges<T> {
    /// Value below the first start.
    rest: bool,
    /// Start of each part, in ascending order.
    starts: Vec<T>,
    /// Value of each part.
    values: Vec<bool>,
}

/// Number of an address space.
pub(super) trait Number: Copy + Ord {
    /// Successor; `None` after the last number.
    fn next(self) -> Option<Self>;
}

impl Number for u32 {
    fn next(self) -> Option<u32> {
        self.checked_add(1)
    }
}

impl Number for u128 {
    fn next(self) -> Option<u128> {
        self.checked_add(1)
    }
}

impl<T: Number> Ranges<T> {
    /// Builds a map from ranges, given by their first and last numbers. Two ranges must be nested
    /// or disjoint. The innermost range applies; of equal ranges, the later one. Outside of all
    /// ranges, `rest` applies.
    pub(super) fn new(rest: bool, ranges: impl Iterator<Item = ((T, T), bool)>) -> Ranges<T> {
        let mut all: Vec<((T, T), bool)> = ranges.collect();
        // Outer ranges first; the sort keeps the order of equal ranges.
        all.sort_by(|((a, a_end), _), ((b, b_end), _)| a.cmp(b).then(b_end.cmp(a_end)));
        let mut found = Ranges { rest, starts: Vec::new(), values: Vec::new() };
        let mut open: Vec<(T, bool)> = Vec::new();
        for ((first, last), value) in all {
            while open.last().is_some_and(|(end, _)| *end < first) {
                found.close(&mut open);
            }
            found.begin(first, value);
            open.push((last, value));
        }
        while !open.is_empty() {
            found.close(&mut open);
        }
        found.starts.shrink_to_fit();
        found.values.shrink_to_fit();
        found
    }

    /// Value for a number.
    pub(super) fn get(&self, number: T) -> bool {
        let parts = self.starts.partition_point(|start| *start <= number);
        if parts == 0 { self.rest } else { self.values[parts - 1] }
    }

    /// Ends the innermost range, so that the value of the range around it applies again.
    fn close(&mut self, open: &mut Vec<(T, bool)>) {
        let ended = open.pop().and_then(|(end, _)| end.next());
        if let Some(after) = ended {
            self.begin(after, open.last().map_or(self.rest, |(_, value)| *value));
        }
    }

    fn begin(&mut self, start: T, value: bool) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.values.pop();
        }
        if self.values.last().copied().unwrap_or(self.rest) != value {
            self.starts.push(start);
            self.values.push(value);
        }
    }
}
