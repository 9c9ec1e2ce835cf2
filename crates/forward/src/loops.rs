//! Forwarding loops: packets that return because balancers have each other as servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use convey_model::Timestamp;
use convey_wire::Fingerprint;

/// Number of remembered packets: 32 KiB. A loop takes milliseconds, so this is enough for hundreds
/// of thousands of packets a second.
const REMEMBERED_PACKETS: usize = 4_096;

/// Resolution of times: a sixteenth of a second.
const UNIT: u64 = 1_000_000_000 / 16;

/// Upper bound for the time that a packet takes to return, in units of `UNIT`. It is less than a
/// second, after which a client repeats its SYN (RFC 6298), possibly on another path.
const WITHIN: u64 = 14;

/// Number of returns, each with the TTL lower by the same step, after which a packet whose
/// fingerprint is not unique counts as looping.
const LAPS: u64 = 3;

/// Recent packets that may begin a flow, with their TTL. A packet that returns with a lower TTL is
/// in a loop. Clones share the packets, because another worker may receive the packet next. Older
/// packets are overwritten.
///
/// An entry has 40 bits of a hash, 16 of the time and 8 of the TTL. Where the fingerprint is not
/// unique, the hash has 28 bits; 8 bits hold the last decrease of the TTL, and 4 the number of
/// equal decreases in a row.
#[derive(Debug, Clone)]
pub struct Loops {
    places: Arc<[AtomicU64; REMEMBERED_PACKETS]>,
    seed: u64,
}

impl Loops {
    /// Creates an empty list of recent packets. `seed` must be a secret: an attacker who has it can
    /// overwrite the packets of others.
    pub fn new(seed: u64) -> Loops {
        Loops { places: Arc::new([const { AtomicU64::new(0) }; REMEMBERED_PACKETS]), seed }
    }

    /// Seed for [`wire::fingerprint`](convey_wire::fingerprint).
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether a packet to this address and port with this fingerprint and with TTL `hops` is in a
    /// loop. Otherwise the packet is remembered.
    pub(super) fn is_looped(
        &self,
        fingerprint: Fingerprint,
        to: (&[u8; 16], u16),
        hops: u8,
        now: Timestamp,
    ) -> bool {
        let hash = xxh3_64_with_seed(to.0, fingerprint.hash ^ u64::from(to.1));
        let place = &self.places[hash as usize % REMEMBERED_PACKETS];
        if !fingerprint.is_unique {
            return is_looped_again(place, hash, hops, now);
        }
        let time = (now.0 / UNIT) & 0xffff;
        let known = place.load(Relaxed);
        let (tag, at, left) = (hash >> 24, (known >> 8) & 0xffff, known as u8);
        if known >> 24 == tag && time.wrapping_sub(at) & 0xffff <= WITHIN && hops < left {
            return true;
        }
        place.store((tag << 24) | (time << 8) | u64::from(hops), Relaxed);
        false
    }
}

/// Whether a packet with a fingerprint that is not unique is in a loop. If it is, the entry is
/// cleared.
fn is_looped_again(place: &AtomicU64, hash: u64, hops: u8, now: Timestamp) -> bool {
    let (tag, time) = (hash >> 36, (now.0 / UNIT) & 0xffff);
    let known = place.load(Relaxed);
    let (at, step, times, left) =
        ((known >> 20) & 0xffff, (known >> 12) & 0xff, (known >> 8) & 0xf, (known & 0xff) as u8);
    let is_known = known >> 36 == tag && time.wrapping_sub(at) & 0xffff <= WITHIN;
    if is_known && hops == left {
        return false; // a copy, or another's
    }
    let fewer = u64::from(left.saturating_sub(hops));
    let times = match fewer {
        0 => 0,
        _ if !is_known => 0,
        _ if times > 0 && fewer == step => times + 1,
        _ => 1,
    };
    let is_loop = times >= LAPS;
    let entry = (tag << 36) | (time << 20) | (fewer << 12) | (times << 8) | u64::from(hops);
    place.store(if is_loop { 0 } else { entry }, Relaxed);
    is_loop
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const VIP: (&[u8; 16], u16) = (&[1; 16], 80);

    /// Fingerprint of a unique packet.
    fn only(hash: u64) -> Fingerprint {
        Fingerprint { hash, is_unique: true }
    }

    /// Fingerprint that other packets may share.
    fn any(hash: u64) -> Fingerprint {
        Fingerprint { hash, is_unique: false }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp(Duration::from_millis(millis).as_nanos() as u64)
    }

    #[test]
    fn a_packet_that_comes_again_with_fewer_hops_left_has_been_here() {
        let loops = Loops::new(7);
        assert!(!loops.is_looped(only(4711), VIP, 60, at(0)));
        assert!(loops.clone().is_looped(only(4711), VIP, 58, at(5)), "whichever worker gets it");
        assert!(loops.is_looped(only(4711), VIP, 58, at(800)));
        assert!(!loops.is_looped(only(4711), (VIP.0, 81), 58, at(5)), "another port is another way");
        assert!(!loops.is_looped(only(4711), (&[2; 16], 80), 58, at(5)));
        assert!(!loops.is_looped(only(4712), VIP, 58, at(5)));
    }

    #[test]
    fn repeated_packet_is_no_loop_at_equal_ttl_or_later() {
        let loops = Loops::new(7);
        assert!(!loops.is_looped(only(4711), VIP, 60, at(0)));
        assert!(!loops.is_looped(only(4711), VIP, 60, at(10)), "a copy");
        assert!(!loops.is_looped(only(4711), VIP, 61, at(20)));
        assert!(!loops.is_looped(only(4711), VIP, 57, at(1_020)), "by a longer way");
    }

    #[test]
    fn other_packets_are_no_loop_however_many() {
        let loops = Loops::new(7);
        let hops = |n: u64| 255 - (n / 4_000) as u8;
        let taken = (0..1_000_000u64)
            .filter(|n| loops.is_looped(only(n.wrapping_mul(0x9e37_79b9)), VIP, hops(*n), at(n / 100)));
        assert_eq!(taken.count(), 0);
    }

    #[test]
    fn ambiguous_packet_loops_if_its_ttl_falls_by_equal_steps() {
        let loops = Loops::new(7);
        let comes = |hops, millis| loops.is_looped(any(4711), VIP, hops, at(millis));
        assert_eq!([62, 60, 60, 58, 56].map(|hops| comes(hops, 3)), [false, false, false, false, true]);
        assert_eq!([54, 52, 50, 48].map(|hops| comes(hops, 9)), [false, false, false, true], "and again");
    }

    #[test]
    fn others_that_say_the_same_are_no_loop() {
        let loops = Loops::new(7);
        let comes = |hops, millis| loops.is_looped(any(4711), VIP, hops, at(millis));
        let clients = [64, 60, 52, 51, 64, 60, 56, 60, 128, 64, 63, 60, 50];
        assert!(!clients.iter().any(|hops| comes(*hops, 3)), "of many hosts");
        assert!(![62, 60, 58].iter().any(|hops| comes(*hops, 2_000)));
        assert!(!comes(56, 3_000), "a second later");
    }
}
