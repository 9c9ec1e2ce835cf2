//! Detection of a flood of forged SYNs, from the outcomes of SYNs. Pure.
//!
//! Clients finish their handshakes within a round trip, no matter how many connections they begin.
//! A sender with forged addresses cannot finish handshakes.

use std::time::Duration;

use convey_model::Timestamp;
use convey_snapshot::stats::Syns;

/// Threshold of unfinished SYNs per second. Fewer unfinished SYNs cost little.
const FLOOD: u64 = 5_000;

/// Threshold of early evictions per second: flows that are evicted sooner than a handshake takes.
/// Above it, the table is so full that flows of clients are evicted, too.
const PRESSURE: u64 = 500;

/// Time for which the rates must look like a flood before a flood begins. Many clients that begin
/// at the same time also look like a flood, but finish their handshakes one round trip later.
const PROOF: Duration = Duration::from_secs(1);

/// Time for which the rates must look like a flood while the receive buffer overruns. It is shorter
/// than `PROOF`, because an overrun loses packets of clients.
const PROOF_IN_OVERRUN: Duration = Duration::from_millis(250);

/// Time below the threshold after which a flood is over. With a shorter time, convey would admit
/// the first SYNs of each wave of a flood.
const CALM: Duration = Duration::from_secs(5);

/// Detects when a flood begins and ends.
#[derive(Debug, Default)]
pub struct FloodWatch {
    /// Last observation and its time.
    last: Option<(Syns, Timestamp)>,
    phase: FloodPhase,
}

/// Begin or end of a flood of forged SYNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodEvent {
    /// A flood begins.
    Begins {
        /// Unfinished SYNs per second.
        rate: u64,
    },
    /// The flood is over.
    Ends {
        /// Duration of the flood, without the calm time at its end.
        lasted: Duration,
        /// Highest rate of the flood, in unfinished SYNs per second.
        most: u64,
        /// Number of SYNs that the kernel dropped during the flood.
        refused: u64,
    },
}

#[derive(Debug, Clone, Copy)]
enum FloodPhase {
    /// `since`: time of the first of the recent observations that look like a flood; `None`: the
    /// last observation did not look like a flood.
    Peace { since: Option<Timestamp> },
    /// `until`: time of the last observation that looked like a flood. `enough`: rate of unfinished
    /// SYNs per second at which the flood continues.
    Flood { begun: Timestamp, until: Timestamp, enough: u64, most: u64, refused: u64 },
}

impl Default for FloodPhase {
    fn default() -> Self {
        FloodPhase::Peace { since: None }
    }
}

impl FloodWatch {
    /// Applies the totals of SYNs since the start. Returns the begin or end of a flood. Call it a
    /// few times a second.
    pub fn observe(&mut self, syns: Syns, now: Timestamp) -> Option<FloodEvent> {
        let Some((before, then)) = self.last else {
            self.last = Some((syns, now));
            return None;
        };
        // The counting threads may be late. Then the next observation covers a longer time.
        if syns == before && matches!(self.phase, FloodPhase::Peace { .. }) && now.since(then) < PROOF {
            return None;
        }
        self.last = Some((syns, now));
        let seen = SynRates::between(before, syns, now.since(then));
        match &mut self.phase {
            FloodPhase::Peace { since } if seen.is_flood() => {
                let proof = if seen.is_overrun { PROOF_IN_OVERRUN } else { PROOF };
                if now.since(*since.get_or_insert(now)) < proof {
                    return None;
                }
                let enough = if seen.is_pressing() { PRESSURE / 2 } else { FLOOD / 2 };
                let (most, refused) = (seen.forged, syns.refused);
                self.phase = FloodPhase::Flood { begun: now, until: now, enough, most, refused };
                Some(FloodEvent::Begins { rate: seen.forged })
            }
            FloodPhase::Peace { since } => {
                *since = None;
                None
            }
            FloodPhase::Flood { begun, until, enough, most, refused } => {
                *most = seen.forged.max(*most);
                // Under heavy load some handshakes never finish, even without a flood.
                if seen.forged >= (*enough).max(seen.finished / 8) {
                    *until = now;
                }
                if now.since(*until) < CALM {
                    return None;
                }
                let lasted = until.since(*begun);
                let over = FloodEvent::Ends { lasted, most: *most, refused: syns.refused - *refused };
                self.phase = FloodPhase::default();
                Some(over)
            }
        }
    }
}

/// Rates per second between two observations.
struct SynRates {
    /// Unfinished SYNs: forged SYNs, and SYNs whose handshakes are under way.
    forged: u64,
    finished: u64,
    displaced: u64,
    /// Whether the receive buffer overran.
    is_overrun: bool,
}

impl SynRates {
    fn between(before: Syns, after: Syns, time: Duration) -> SynRates {
        let millis = (time.as_millis() as u64).max(1);
        let rate = |of: fn(&Syns) -> u64| (of(&after) - of(&before)) * 1_000 / millis;
        let finished = rate(|syns| syns.finished);
        // A dropped SYN that a client has repeated is not counted as forged.
        let dropped = rate(|syns| syns.refused).saturating_sub(rate(|syns| syns.repeated));
        let forged = dropped + rate(|syns| syns.begun).saturating_sub(finished);
        let is_overrun = after.overrun > before.overrun;
        SynRates { forged, finished, displaced: rate(|syns| syns.displaced), is_overrun }
    }

    /// Whether the rates look like a flood. Under heavy load the threshold is higher, because some
    /// handshakes are always under way.
    fn is_flood(&self) -> bool {
        self.forged >= FLOOD.max(self.finished / 2) || self.is_pressing()
    }

    /// Whether early evictions show a flood. Too many clients of a frontend also evict each other,
    /// but most of them finish their handshakes.
    fn is_pressing(&self) -> bool {
        self.displaced >= PRESSURE.max(self.finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of observations per second.
    const LOOKS_A_SECOND: u64 = 4;

    /// Simulated balancer with its clients and an attacker.
    #[derive(Default)]
    struct Site {
        watch: FloodWatch,
        syns: Syns,
        now: Timestamp,
        is_limited: bool,
        /// Number of forged SYNs per second that fit into the table. Each further SYN evicts
        /// another forged SYN early.
        room_for: Option<u64>,
        /// Whether the receive buffer is too small.
        is_overrun: bool,
        /// Numbers of unfinished handshakes of clients, one for each coming observation.
        on_their_way: Vec<u64>,
    }

    impl Site {
        /// Simulates `seconds` with `clients` and `forged` SYNs per second. `trip` is the clients'
        /// round-trip time in observations. Returns the events, each with its second.
        fn simulate(
            &mut self,
            seconds: u64,
            clients: u64,
            trip: usize,
            forged: u64,
        ) -> Vec<(u64, FloodEvent)> {
            let mut told = Vec::new();
            for look in 0..seconds * LOOKS_A_SECOND {
                self.now.0 += 1_000_000_000 / LOOKS_A_SECOND;
                let (clients, forged) = (clients / LOOKS_A_SECOND, forged / LOOKS_A_SECOND);
                self.on_their_way.resize(trip.max(self.on_their_way.len()) + 1, 0);
                self.on_their_way[trip] += clients;
                self.syns.begun += clients;
                match self.is_limited {
                    // The kernel drops SYNs of unknown clients, and these clients repeat their
                    // SYNs.
                    true => {
                        self.syns.refused += forged + clients;
                        self.syns.repeated += clients;
                    }
                    false => {
                        self.syns.begun += forged;
                        let room = self.room_for.map_or(u64::MAX, |a_second| a_second / LOOKS_A_SECOND);
                        self.syns.displaced += forged.saturating_sub(room);
                    }
                }
                self.syns.finished += self.on_their_way.remove(0);
                self.syns.overrun += u64::from(self.is_overrun);
                if let Some(event) = self.watch.observe(self.syns, self.now) {
                    self.is_limited = matches!(event, FloodEvent::Begins { .. });
                    told.push((look / LOOKS_A_SECOND, event));
                }
            }
            told
        }
    }

    #[test]
    fn completed_handshakes_are_no_flood_at_any_rate() {
        for (clients, trip) in [(1_000, 0), (30_000, 0), (30_000, 1), (1_000_000, 1), (200_000, 3)] {
            let mut site = Site::default();
            assert_eq!(site.simulate(10, clients, trip, 0), [], "{clients} a second, {trip} looks away");
            assert_eq!(site.simulate(10, 0, trip, 0), [], "they stop");
            assert_eq!(site.simulate(10, clients, trip, 1_000), [], "with a few that do not");
        }
    }

    #[test]
    fn flood_begins_and_ends_within_seconds_at_any_load() {
        for (clients, forged) in [(0, 6_000), (0, 1_000_000), (5_000, 6_000), (30_000, 100_000)] {
            let mut site = Site::default();
            site.simulate(5, clients, 1, 0);
            let told = site.simulate(20, clients, 1, forged);
            let [(1, FloodEvent::Begins { rate })] = told[..] else { panic!("{forged} a second: {told:?}") };
            assert!(rate.abs_diff(forged) < 10, "{rate}");
            let told = site.simulate(20, clients, 1, 0);
            let [(4 | 5, FloodEvent::Ends { lasted, most, refused })] = told[..] else {
                panic!("after {forged} a second: {told:?}")
            };
            assert!(most.abs_diff(forged) < 10, "{most}");
            assert!(lasted.as_secs().abs_diff(19) <= 1, "{lasted:?}");
            assert!(refused >= forged * 18, "{refused}");
        }
    }

    #[test]
    fn flood_that_overruns_the_receive_buffer_is_noticed_within_a_second() {
        for (clients, forged) in [(0, 6_000), (5_000, 100_000), (30_000, 100_000)] {
            let mut site = Site::default();
            site.simulate(5, clients, 1, 0);
            site.is_overrun = true;
            let told = site.simulate(1, clients, 1, forged);
            assert!(matches!(told[..], [(0, FloodEvent::Begins { .. })]), "{forged} a second: {told:?}");
        }
    }

    #[test]
    fn clients_that_overrun_the_receive_buffer_are_no_flood() {
        for trip in [0, 1] {
            let mut site = Site { is_overrun: true, ..Site::default() };
            assert_eq!(site.simulate(10, 30_000, trip, 0), [], "{trip} looks away");
        }
    }

    #[test]
    fn low_syn_rate_is_a_flood_if_the_table_is_small() {
        let mut site = Site { room_for: Some(400), ..Site::default() };
        site.simulate(5, 100, 1, 0);
        let told = site.simulate(20, 100, 1, 2_000);
        assert!(matches!(told[..], [(1, FloodEvent::Begins { .. })]), "{told:?}");
        let told = site.simulate(20, 100, 1, 0);
        assert!(matches!(told[..], [(4 | 5, FloodEvent::Ends { .. })]), "{told:?}");
        let mut site = Site { room_for: Some(40_000), ..Site::default() };
        assert_eq!(site.simulate(60, 100, 1, 2_000), [], "they get on by the room there is");
    }

    #[test]
    fn too_many_clients_are_no_flood() {
        // Of 3,000 clients per second, those that arrive while all slots are taken evict 1,200
        // others.
        let (mut watch, mut syns) = (FloodWatch::default(), Syns::default());
        for look in 0..100 {
            syns.begun += 3_000 / LOOKS_A_SECOND;
            syns.finished += 1_800 / LOOKS_A_SECOND;
            syns.displaced += 1_200 / LOOKS_A_SECOND;
            assert_eq!(watch.observe(syns, Timestamp(look * 1_000_000_000 / LOOKS_A_SECOND)), None);
        }
    }

    #[test]
    fn a_flood_in_waves_is_one_flood() {
        let mut site = Site::default();
        let told: Vec<_> =
            (0..20).flat_map(|n| site.simulate(2, 1_000, 1, if n % 2 == 0 { 20_000 } else { 0 })).collect();
        assert_eq!(told.len(), 1, "{told:?}");
    }

    #[test]
    fn a_worker_that_counts_late_hides_no_flood() {
        let (mut watch, mut syns, mut told) = (FloodWatch::default(), Syns::default(), None);
        for look in 0..16 {
            syns.begun += if look % 3 == 0 { 9_000 } else { 0 };
            told = told.or(watch.observe(syns, Timestamp(look * 250_000_000)));
        }
        assert!(matches!(told, Some(FloodEvent::Begins { .. })), "{told:?}");
    }
}
