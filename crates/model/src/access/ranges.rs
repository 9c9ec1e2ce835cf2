//! Nested ranges of numbers, laid out side by side. Pure.

/// What holds for each number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ranges<T> {
    /// What holds below the first start.
    rest: bool,
    /// Where a part begins, in order.
    starts: Vec<T>,
    /// What holds in it.
    values: Vec<bool>,
}

/// A part of an address space.
pub(super) trait Number: Copy + Ord {
    /// The next one; `None` after the last.
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
    /// Ranges by their first and last numbers, each inside of another or apart from it. The innermost one counts, and of two
    /// with the same ends the later one. Outside of all, `rest` holds.
    pub(super) fn new(rest: bool, ranges: impl Iterator<Item = ((T, T), bool)>) -> Ranges<T> {
        let mut all: Vec<((T, T), bool)> = ranges.collect();
        // Outer ones first; the sort keeps the order of those that are alike.
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

    /// What holds for a number.
    pub(super) fn get(&self, number: T) -> bool {
        let parts = self.starts.partition_point(|start| *start <= number);
        if parts == 0 { self.rest } else { self.values[parts - 1] }
    }

    /// The innermost range ends: what is around it holds again.
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
