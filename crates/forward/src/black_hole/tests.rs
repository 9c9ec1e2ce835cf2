use super::*;

const LARGE: u16 = 1400;
const SIDE: FlowSide = FlowSide { place: 7, serial: 1, direction: Direction::ToServer };

/// Times at which Linux repeats a segment without an acknowledgement, in milliseconds.
const REPEATS: [u64; 5] = [200, 600, 1_400, 3_000, 6_200];

fn at(ms: u64) -> Timestamp {
    Timestamp(ms * 1_000_000)
}

fn segment(seq: u32) -> RepeatedSegment {
    RepeatedSegment {
        flow: FlowOwners { server: 3, frontend: 1 },
        seq,
        sent: seq.wrapping_add(14_480),
        packet_len: LARGE,
    }
}

/// Repeats a segment with the intervals of Linux. `answers` selects the repeats before which the
/// server has answered other clients. Returns the times at which the path is suspected.
fn suspected(holes: &mut BlackHoles, answers: impl Fn(u64) -> bool) -> Vec<u64> {
    let is_suspected = |ms: &u64| {
        let finding = holes.repeated(SIDE, segment(100), at(*ms));
        match finding {
            RepeatFinding::Suspected(suspicion) => {
                assert_eq!((suspicion.direction, suspicion.packet_len), (Direction::ToServer, LARGE));
                true
            }
            RepeatFinding::Unanswered(unanswered) if answers(*ms) => {
                holes.server_has_answered(&unanswered, at(*ms - 100)).is_some()
            }
            _ => false,
        }
    };
    REPEATS.into_iter().filter(is_suspected).collect()
}

#[test]
fn repeatedly_lost_segment_is_suspected_once() {
    let mut holes = BlackHoles::new();
    assert!(holes.is_empty());
    assert_eq!(suspected(&mut holes, |_| true), [3_000]);
    assert_eq!(suspected(&mut holes, |_| true), [], "and not again");
}

#[test]
fn the_segment_has_to_be_sent_after_the_server_answered_somebody() {
    assert_eq!(suspected(&mut BlackHoles::new(), |ms| ms == 3_000), [6_200]);
    assert_eq!(suspected(&mut BlackHoles::new(), |ms| ms == 6_200), [], "the path may just be whole again");
    assert_eq!(suspected(&mut BlackHoles::new(), |_| false), [], "the server is dead");
}

#[test]
fn progressing_or_acknowledged_connection_is_not_suspected() {
    let mut holes = BlackHoles::new();
    for ms in REPEATS {
        // Each segment has a new number.
        assert_eq!(holes.repeated(SIDE, segment(ms as u32), at(ms)), RepeatFinding::Nothing);
    }
    let mut holes = BlackHoles::new();
    for ms in REPEATS {
        let finding = holes.repeated(SIDE, segment(100), at(ms));
        assert!(!matches!(finding, RepeatFinding::Suspected(_)), "{ms}");
        holes.acknowledged(SIDE, 101, at(ms + 1));
        assert!(holes.is_empty());
    }
}

#[test]
fn a_receiver_that_sends_and_does_not_acknowledge_it_is_there() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (mut holes, side) = (BlackHoles::new(), FlowSide { direction, ..SIDE });
        let mut found = Vec::new();
        for ms in REPEATS {
            if let RepeatFinding::Suspected(suspicion) = holes.repeated(side, segment(100), at(ms)) {
                found.push((suspicion.direction, ms));
            }
            if ms == 600 {
                holes.acknowledged(side, 100, at(700));
            }
        }
        assert_eq!(found, [(direction, 3_000)]);
    }
}

#[test]
fn on_a_link_that_loses_one_packet_in_twenty_nobody_is_suspected() {
    for ack_passes_here in [true, false] {
        let (mut holes, mut random, mut now) = (BlackHoles::new(), 0x9e37_79b9_7f4a_7c15_u64, 0);
        let mut is_lost = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % 20 == 0
        };
        let mut repeats = 0;
        for n in 0..200_000_u32 {
            let seq = n.wrapping_mul(1_348);
            // The first repeat is a fast one, the next ones follow after 200 ms, 400 ms, and so on.
            let (mut pause, mut lost) = (1, is_lost());
            while lost {
                now += pause;
                pause = if pause == 1 { 200 } else { 2 * pause };
                repeats += 1;
                let finding = holes.repeated(SIDE, segment(seq), at(now));
                assert!(!matches!(finding, RepeatFinding::Suspected(_)), "segment {n}");
                if let RepeatFinding::Unanswered(unanswered) = finding {
                    assert_eq!(holes.server_has_answered(&unanswered, at(now)), None, "segment {n}");
                }
                lost = is_lost();
            }
            if ack_passes_here {
                holes.acknowledged(SIDE, seq + 1, at(now));
            }
            now += 1;
        }
        assert!((9_000..13_000).contains(&repeats), "{repeats}");
    }
}

#[test]
fn suspects_are_bounded_and_silent_ones_are_replaced() {
    let side = |place| FlowSide { place, ..SIDE };
    let mut holes = BlackHoles::new();
    for place in 0..10_000 {
        holes.repeated(side(place), segment(1), at(0));
        holes.repeated(side(place), segment(1), at(1));
    }
    assert!(holes.occupied as usize <= PLACES);
    let places = PLACES as u32;
    let is_reported = |holes: &mut BlackHoles, place, ms| {
        matches!(holes.repeated(side(place), segment(1), at(ms)), RepeatFinding::Unanswered(_))
    };
    assert!(is_reported(&mut holes, 0, 2), "the first keeps its place");
    assert!(!is_reported(&mut holes, places, 3) && !is_reported(&mut holes, places, 4));
    assert!(!is_reported(&mut holes, places, 20_000) && is_reported(&mut holes, places, 20_001));
    holes.remove_old(at(200_000));
    assert!(holes.is_empty());
}
