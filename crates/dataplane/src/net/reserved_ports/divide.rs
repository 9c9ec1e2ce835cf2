//! Division of the reserved ports among the processes that need them. Pure.

use crate::net::PortRanges;

/// New list of reserved ports, and the processes that must release them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Divided {
    /// All ports that must be reserved.
    pub(super) list: PortRanges,
    /// Ports that this process must release when it ends.
    pub(super) added: PortRanges,
    /// For each of the other processes: additional ports that it must release when it ends.
    pub(super) handed: Vec<PortRanges>,
}

/// Divides the currently reserved ports, `now`. `orphans` are the ports in `now` that ended
/// processes have added. This process needs the ports `wanted`, and each other process needs the
/// ports in its element of `others`.
///
/// Orphans that no process needs are released. Ports that no convey process has added stay
/// reserved.
pub(super) fn divide(
    now: &PortRanges,
    orphans: &PortRanges,
    wanted: &PortRanges,
    others: &[PortRanges],
) -> Divided {
    let mut left = orphans.without(wanted);
    let take = |needed: &PortRanges| {
        let share = left.within(needed);
        left = left.without(needed);
        share
    };
    let handed = others.iter().map(take).collect();
    let added = orphans.within(wanted).with(&wanted.without(now));
    Divided { list: now.without(&left).with(wanted), added, handed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ports(text: &str) -> PortRanges {
        text.parse().unwrap()
    }

    fn told(now: &str, orphans: &str, wanted: &str, others: &[&str]) -> (String, String, Vec<String>) {
        let others: Vec<_> = others.iter().map(|other| ports(other)).collect();
        let Divided { list, added, handed } = divide(&ports(now), &ports(orphans), &ports(wanted), &others);
        (list.to_string(), added.to_string(), handed.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn reservation_adds_only_missing_ports() {
        assert_eq!(told("80", "", "40-50", &[]), ("40-50,80".into(), "40-50".into(), vec![]));
        assert_eq!(told("45", "", "40-50", &[]), ("40-50".into(), "40-44,46-50".into(), vec![]));
    }

    #[test]
    fn ports_of_a_killed_process_are_released_or_taken_over() {
        assert_eq!(told("40-50,80", "40-50", "", &[]), ("80".into(), "".into(), vec![]));
        assert_eq!(told("40-50,80", "40-50", "48-52", &[]), ("48-52,80".into(), "48-52".into(), vec![]));
    }

    #[test]
    fn shared_ports_stay_reserved_until_their_last_user_ends() {
        let (list, _, handed) = told("40-50", "40-50", "", &["45-60", "49-70"]);
        assert_eq!((list.as_str(), handed), ("45-50", vec!["45-50".into(), "".into()]));
    }

    proptest! {
        /// Simulates processes that start, stop or are killed. Sometimes no process cleans up after
        /// the killed ones.
        #[test]
        fn ports_are_reserved_while_somebody_needs_them_and_no_longer(
            before in prop::collection::btree_set(0..20u16, 0..5),
            steps in prop::collection::vec((0..3usize, 0..3u8, 0..20u16, 0..8u16), 0..30),
        ) {
            let before = before.iter().fold(PortRanges::default(), |set, port| set.with(&PortRanges::from(*port..=*port)));
            let (mut now, mut orphans) = (before.clone(), PortRanges::default());
            let mut alive: [Option<(PortRanges, PortRanges)>; 3] = [None, None, None];
            for (who, what, first, len) in steps {
                let own = alive[who].take();
                let wanted = match (&own, what) {
                    (None, _) => PortRanges::from(first..=first + len),
                    (Some((_, added)), 0) => {
                        orphans = orphans.with(added);
                        continue;
                    }
                    (Some((_, added)), _) => {
                        orphans = orphans.with(added);
                        PortRanges::default()
                    }
                };
                let others: Vec<_> = alive.iter().flatten().map(|(wanted, _)| wanted.clone()).collect();
                let divided = divide(&now, &orphans, &wanted, &others);
                (now, orphans) = (divided.list, PortRanges::default());
                for ((_, added), more) in alive.iter_mut().flatten().zip(divided.handed) {
                    *added = added.with(&more);
                }
                if own.is_none() {
                    alive[who] = Some((wanted, divided.added));
                }
                let needed = alive.iter().flatten().fold(before.clone(), |set, (wanted, _)| set.with(wanted));
                prop_assert_eq!(&now, &needed);
            }
        }
    }
}
