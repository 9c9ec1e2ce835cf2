//! Flat list of nested number ranges. Pure.

/// Map from the numbers of an address space to values, stored as sorted intervals without overlaps.
/// An interval ends where the next one starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ranges<T> {
    /// Value of the numbers below the first interval.
    rest: bool,
    /// First number of each interval, in ascending order.
    starts: Vec<T>,
    /// Value of each interval.
    values: Vec<bool>,
}

/// IP address as an integer: `u32` for IPv4, `u128` for IPv6.
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
    /// or disjoint. The innermost range determines the value of a number; of equal ranges, the
    /// later one. Numbers outside of all ranges have the value `rest`.
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

    /// Ends the innermost open range. The value of the enclosing range applies again after it.
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
