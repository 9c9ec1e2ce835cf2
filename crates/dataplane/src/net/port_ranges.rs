//! Sets of ports in the kernel's notation.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use thiserror::Error;

/// Set of ports in the kernel's notation, such as `1024-2048,8080`. The ranges are sorted and do
/// not touch each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortRanges(Vec<RangeInclusive<u16>>);

/// Error for text that is not a list of ports.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a port or a range of ports")]
pub struct NotPorts(String);

impl From<RangeInclusive<u16>> for PortRanges {
    fn from(range: RangeInclusive<u16>) -> PortRanges {
        PortRanges(vec![range])
    }
}

impl PortRanges {
    /// Number of ports in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|range| range.clone().len() as u32).sum()
    }

    /// Ranges of the set in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.0.iter().cloned()
    }

    /// Union of two sets.
    #[must_use]
    pub fn with(&self, other: &PortRanges) -> PortRanges {
        let mut ranges: Vec<_> = self.0.iter().chain(&other.0).filter(|r| !r.is_empty()).cloned().collect();
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        PortRanges(merged)
    }

    /// Ports of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &PortRanges) -> PortRanges {
        let mut left = self.with(&PortRanges::default()).0;
        for hole in other.0.iter().filter(|range| !range.is_empty()) {
            left = left.into_iter().flat_map(|range| cut(range, hole)).collect();
        }
        PortRanges(left)
    }

    /// Intersection of two sets.
    #[must_use]
    pub fn within(&self, other: &PortRanges) -> PortRanges {
        self.without(&self.without(other))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }
}

/// Parts of a range that are outside of `hole`.
fn cut(range: RangeInclusive<u16>, hole: &RangeInclusive<u16>) -> impl Iterator<Item = RangeInclusive<u16>> {
    let below = hole.start().checked_sub(1).map(|end| *range.start()..=end.min(*range.end()));
    let above = hole.end().checked_add(1).map(|start| start.max(*range.start())..=*range.end());
    [below, above].into_iter().flatten().filter(|part| !part.is_empty())
}

impl FromStr for PortRanges {
    type Err = NotPorts;

    fn from_str(text: &str) -> Result<PortRanges, NotPorts> {
        let parts = text.trim().split(',').filter(|part| !part.is_empty());
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse(), last.parse()) {
                (Ok(first), Ok(last)) => Ok(first..=last),
                _ => Err(NotPorts(part.into())),
            }
        };
        let ranges: Result<Vec<_>, _> = parts.map(range).collect();
        Ok(PortRanges(ranges?).with(&PortRanges::default()))
    }
}

impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ports(text: &str) -> PortRanges {
        text.parse().unwrap()
    }

    #[test]
    fn the_list_reads_and_writes_as_the_kernel_has_it() {
        for text in ["", "80", "80,443", "1024-2048,8080", "0-65535"] {
            assert_eq!(ports(text).to_string(), text);
        }
        assert_eq!(ports("\n"), PortRanges::default());
        assert_eq!("80,http".parse::<PortRanges>(), Err(NotPorts("http".into())));
        assert_eq!("1-70000".parse::<PortRanges>(), Err(NotPorts("1-70000".into())));
    }

    #[test]
    fn overlapping_and_adjacent_ranges_are_merged() {
        let both = |a: &str, b: &str| ports(a).with(&ports(b)).to_string();
        assert_eq!(both("8080", "33768-61000"), "8080,33768-61000");
        assert_eq!(both("33000-34000,61001", "33768-61000"), "33000-61001");
        assert_eq!(both("65535", "0-65534"), "0-65535");
    }

    #[test]
    fn ports_an_operator_had_reserved_stay_reserved_after_us() {
        let before = ports("40000,50000-50010,62000");
        let added = ports("33768-61000").without(&before);
        assert_eq!(added.to_string(), "33768-39999,40001-49999,50011-61000");
        assert_eq!(before.with(&added).without(&added), before);
        let meanwhile = before.with(&added).with(&ports("63000"));
        assert_eq!(meanwhile.without(&added).to_string(), "40000,50000-50010,62000,63000");
    }

    fn any_ports() -> impl Strategy<Value = PortRanges> {
        let range = (any::<u16>(), any::<u16>()).prop_map(|(a, b)| a.min(b)..=a.max(b));
        prop::collection::vec(range, 0..6).prop_map(|ranges| PortRanges(ranges).with(&PortRanges::default()))
    }

    proptest! {
        #[test]
        fn sets_behave_as_sets(a in any_ports(), b in any_ports(), port in any::<u16>()) {
            let has = |set: &PortRanges| set.0.iter().any(|range| range.contains(&port));
            prop_assert_eq!(has(&a.with(&b)), has(&a) || has(&b));
            prop_assert_eq!(has(&a.without(&b)), has(&a) && !has(&b));
            prop_assert_eq!(has(&a.within(&b)), has(&a) && has(&b));
            prop_assert_eq!(a.to_string().parse::<PortRanges>(), Ok(a));
        }
    }
}
