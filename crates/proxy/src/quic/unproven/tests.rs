use proptest::prelude::*;

use super::PacketHeader::{Long, Short};
use super::*;

fn address(n: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, (n >> 8) as u8], 1000 + (n & 255)))
}

impl UnprovenAddresses {
    /// Number of bytes that convey may send to an address now.
    fn left(&self, to: SocketAddr, header: PacketHeader) -> u64 {
        let addresses = self.lock();
        let budget = match header {
            Long => addresses.shaking.get(&to).or_else(|| addresses.ended.peek(&to)),
            Short => addresses.shaking.get(&to).filter(|budget| !budget.has_short),
        };
        assert!(budget.is_none() || self.limited.may_contain(to));
        budget.map_or(u64::MAX, Budget::left)
    }

    /// Sends one datagram.
    fn send(&self, to: SocketAddr, bytes: usize) {
        assert_eq!(self.reserve(to, Long, bytes, None), bytes);
    }
}

fn begin(all: &Arc<UnprovenAddresses>, address: SocketAddr) -> ClientAddress {
    let arrived = all.take_arrived(address);
    all.begin(address, arrived).unwrap()
}

#[test]
fn unproven_address_gets_three_times_what_came_from_it() {
    let all = UnprovenAddresses::new();
    all.received(address(1), 1200, Long);
    all.received(address(1), 1252, Long);
    all.received(address(1), 60, Short);
    assert_eq!(all.left(address(1), Long), u64::MAX, "no handshake has begun");
    let handshake = begin(&all, address(1));
    assert_eq!(all.left(address(1), Long), 3 * 2452);
    all.send(address(1), 7000);
    assert_eq!(all.left(address(1), Long), 356);
    all.received(address(1), 100, Short);
    assert_eq!(all.left(address(1), Long), 656);
    assert_eq!(all.left(address(2), Long), u64::MAX);
    handshake.prove();
    assert_eq!(all.left(address(1), Long), u64::MAX);
    drop(handshake);
    assert_eq!(all.left(address(1), Long), u64::MAX);
}

#[test]
fn address_stays_limited_after_a_handshake_without_proof() {
    let all = UnprovenAddresses::new();
    let handshakes = [begin(&all, address(1)), begin(&all, address(1))];
    all.send(address(1), 3600);
    drop(handshakes);
    assert_eq!(all.left(address(1), Long), 0);
    let again = begin(&all, address(1));
    assert_eq!(all.left(address(1), Long), 0, "a new handshake has the budget of the ended one");
    drop(again);
    for n in 2..3_000 {
        drop(begin(&all, address(n)));
    }
    assert_eq!(all.left(address(1), Long), u64::MAX, "the oldest one was evicted");
    assert_eq!(all.left(address(2_999), Long), 3600);
    assert_eq!(all.limited.all.load(Ordering::Relaxed), MAX_ENDED.get());
}

#[test]
fn connection_lives_on_at_an_address_with_a_handshake_of_somebody_else() {
    let all = UnprovenAddresses::new();
    let other = begin(&all, address(1));
    all.send(address(1), 3_600);
    assert_eq!((all.left(address(1), Long), all.left(address(1), Short)), (0, 0));
    // The client of an established connection moves to this address, and its connection
    // continues.
    all.received(address(1), 40, Short);
    assert_eq!((all.left(address(1), Long), all.left(address(1), Short)), (120, u64::MAX));
    drop(other);
    assert_eq!((all.left(address(1), Long), all.left(address(1), Short)), (120, u64::MAX));
    // The client moves to an address from which an earlier handshake has ended without a
    // validation.
    drop(begin(&all, address(2)));
    assert_eq!((all.left(address(2), Long), all.left(address(2), Short)), (3_600, u64::MAX));
}

#[test]
fn datagrams_beyond_a_budget_are_cut_off_whole() {
    for (len, each, most, expected) in [
        (1200, None, u64::MAX, 1200),
        (1200, None, 1200, 1200),
        (1200, None, 1199, 0),
        (4000, Some(1200), 4000, 4000),
        (4000, Some(1200), 3999, 3600),
        (4000, Some(1200), 1199, 0),
    ] {
        assert_eq!(whole_datagrams(len, each, most), expected, "{len} {each:?} {most}");
    }
}

#[test]
fn datagrams_that_were_not_sent_are_given_back() {
    let all = UnprovenAddresses::new();
    let _handshake = begin(&all, address(1));
    assert_eq!(all.reserve(address(1), Long, 5_000, Some(1_000)), 3_000);
    assert_eq!(all.reserve(address(1), Long, 1_000, None), 0);
    all.refund(address(1), 3_000);
    assert_eq!(all.left(address(1), Long), 3_600);
}

#[test]
fn short_packets_of_other_addresses_take_no_lock() {
    let all = UnprovenAddresses::new();
    let handshakes: Vec<_> = (0..100).map(|n| begin(&all, address(n))).collect();
    let is_lock_free = |n: &u16| !all.limited.may_contain(address(*n));
    let others: Vec<u16> = (1_000..2_000).filter(is_lock_free).collect();
    assert!(others.len() > 900, "{}", others.len());
    let held = all.lock();
    for n in others {
        all.received(address(n), 60, Short);
        assert_eq!(all.reserve(address(n), Short, 1_200, None), 1_200);
    }
    drop(held);
    drop(handshakes);
    assert!((0..100).all(|n| all.limited.may_contain(address(n))), "they have ended without a proof");
}

#[test]
fn address_of_a_proven_connection_is_limited_by_nobody() {
    let all = UnprovenAddresses::new();
    drop(begin(&all, address(1)));
    assert_eq!(all.left(address(1), Long), 3600, "it has ended without a proof");
    let proven = [all.begin_proven(address(1)), begin(&all, address(1))];
    proven[1].prove();
    proven[1].prove();
    let forged = begin(&all, address(1));
    assert_eq!(all.left(address(1), Long), u64::MAX);
    drop(forged);
    assert_eq!(all.left(address(1), Long), u64::MAX);
    drop(proven);
    assert!(all.lock().proven.is_empty());
    let later = begin(&all, address(1));
    assert_eq!(all.left(address(1), Long), 3600);
    drop(later);
}

#[test]
fn handshakes_with_unproven_addresses_are_bounded() {
    let all = UnprovenAddresses::new();
    let open: Vec<_> = (0..MAX_SHAKING as u16).map(|n| begin(&all, address(n))).collect();
    assert!(all.begin(address(60_000), MIN_INITIAL).is_none());
    open[7].prove();
    assert!(all.begin(address(60_000), MIN_INITIAL).is_some());
}

#[test]
fn arriving_addresses_are_bounded() {
    let all = UnprovenAddresses::new();
    for n in 0..10_000 {
        all.received(address(n), 5_000, Long);
    }
    assert_eq!(all.lock().arriving.len(), MAX_ARRIVING.get());
    let (_evicted, _known) = (begin(&all, address(0)), begin(&all, address(9_999)));
    assert_eq!((all.left(address(0), Long), all.left(address(9_999), Long)), (3 * MIN_INITIAL, 15_000));
}

proptest! {
    #[test]
    fn amplification_stays_within_three_in_any_event_order(
        events in prop::collection::vec((0..4_u8, 0..3_u16, 1..3_000_usize), 0..100)
    ) {
        let (all, mut open) = (UnprovenAddresses::new(), Vec::new());
        let (mut received, mut sent) = ([0_u64; 3], [0_u64; 3]);
        for (kind, n, bytes) in events {
            let at = n as usize;
            match kind {
                0 => {
                    received[at] += bytes as u64;
                    all.received(address(n), bytes, Short);
                }
                1 => {
                    received[at] += 1200;
                    all.received(address(n), 1200, Long);
                    open.push(begin(&all, address(n)));
                }
                2 if !open.is_empty() => drop(open.swap_remove(bytes % open.len())),
                _ if received[at] >= 1200 && bytes as u64 <= all.left(address(n), Long) && all.left(address(n), Long) < u64::MAX => {
                    sent[at] += bytes as u64;
                    all.send(address(n), bytes);
                }
                _ => {}
            }
            prop_assert!(sent[at] <= 3 * received[at]);
            let addresses = all.lock();
            prop_assert_eq!(all.limited.all.load(Ordering::Relaxed), addresses.shaking.len() + addresses.ended.len());
        }
    }
}
