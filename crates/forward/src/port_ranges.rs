//! Sets of ports by key, stored as ranges: a frontend may have thousands of ports, and each plan is
//! compared with the previous plan.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::RangeInclusive;

/// Ports of each key `K`, as sorted ranges that do not touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortsByKey<K: Eq + Hash>(HashMap<K, Vec<RangeInclusive<u16>>>);

impl<K: Eq + Hash> Default for PortsByKey<K> {
    fn default() -> Self {
        PortsByKey(HashMap::new())
    }
}

impl<K: Eq + Hash> PortsByKey<K> {
    /// Whether the ports of `of` include this port.
    pub(super) fn contain(&self, of: &K, port: u16) -> bool {
        self.around(of, port).is_some()
    }

    /// Whether `other` has all of these ports, with the same keys.
    pub(super) fn are_among(&self, other: &Self) -> bool {
        let is_among = |of: &K, range: &RangeInclusive<u16>| {
            other.around(of, *range.start()).is_some_and(|around| around.contains(range.end()))
        };
        self.0.iter().all(|(of, ranges)| ranges.iter().all(|range| is_among(of, range)))
    }

    /// Each range, with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &RangeInclusive<u16>)> {
        self.0.iter().flat_map(|(of, ranges)| ranges.iter().map(move |range| (of, range)))
    }

    /// Range of `of` that contains this port.
    pub(super) fn around(&self, of: &K, port: u16) -> Option<&RangeInclusive<u16>> {
        let ranges = self.0.get(of)?;
        let after = ranges.partition_point(|range| *range.start() <= port);
        ranges[..after].last().filter(|range| range.contains(&port))
    }
}

impl<K: Eq + Hash> FromIterator<(K, RangeInclusive<u16>)> for PortsByKey<K> {
    fn from_iter<I: IntoIterator<Item = (K, RangeInclusive<u16>)>>(ranges: I) -> Self {
        let mut of_each: HashMap<K, Vec<RangeInclusive<u16>>> = HashMap::new();
        for (of, range) in ranges {
            let known = of_each.entry(of).or_default();
            match known.last_mut() {
                // Join consecutive ports here, before the ranges are sorted.
                Some(last) if range.start().checked_sub(1) == Some(*last.end()) => {
                    *last = *last.start()..=*range.end();
                }
                _ => known.push(range),
            }
        }
        of_each.values_mut().for_each(join);
        PortsByKey(of_each)
    }
}

/// Sorts ranges, and joins ranges that touch each other.
fn join(ranges: &mut Vec<RangeInclusive<u16>>) {
    ranges.sort_unstable_by_key(|range| *range.start());
    ranges.dedup_by(|next, last| {
        let touches = *next.start() <= last.end().saturating_add(1);
        if touches {
            *last = *last.start()..=*last.end().max(next.end());
        }
        touches
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn any_ranges() -> impl Strategy<Value = Vec<(u8, RangeInclusive<u16>)>> {
        let near_an_end = prop_oneof![0..30u16, 65_500..=65_535u16];
        let range = (0..2u8, near_an_end, 0..8u16)
            .prop_map(|(of, first, more)| (of, first..=first.saturating_add(more)));
        prop::collection::vec(range, 0..12)
    }

    fn one_by_one(ranges: &[(u8, RangeInclusive<u16>)]) -> HashSet<(u8, u16)> {
        ranges.iter().flat_map(|(of, range)| range.clone().map(|port| (*of, port))).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_what_their_ports_are_one_by_one(a in any_ranges(), b in any_ranges()) {
            let [in_a, in_b] = [&a, &b].map(|ranges| one_by_one(ranges));
            let [a, b] = [a, b].map(|ranges| ranges.into_iter().collect::<PortsByKey<u8>>());
            for (of, port) in (0..2).flat_map(|of| (0..50).chain(65_490..=65_535).map(move |port| (of, port))) {
                prop_assert_eq!(a.contain(&of, port), in_a.contains(&(of, port)));
            }
            prop_assert_eq!(a.are_among(&b), in_a.is_subset(&in_b));
            prop_assert_eq!(a == b, in_a == in_b);
            prop_assert_eq!(a.iter().map(|(_, range)| range.len()).sum::<usize>(), in_a.len());
        }
    }
}
