//! The programs' maps, as userspace writes and reads them.

use convey_dataplane::Sizes;
use convey_dataplane::testing::{FlowEntry, KernelCache};
use convey_forward::Direction;
use convey_model::{FlowKey, Rewrite};

use super::kernel::SIZES;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        the_kernel_takes_the_programs,
        entries_are_read_as_they_were_written,
        entries_are_removed_and_those_that_are_gone_already_do_not_matter,
        a_full_cache_says_how_many_it_has_taken,
        interfaces_that_are_gone_leave_their_room_to_others,
    ]
}

fn the_kernel_takes_the_programs() {
    let mut cache = KernelCache::load(&SIZES).unwrap();
    let programs = [
        ("tc", cache.tc().unwrap().info().unwrap()),
        ("xdp", cache.xdp().unwrap().info().unwrap()),
        ("socket filter", cache.filter().unwrap().info().unwrap()),
    ];
    for (name, info) in programs {
        let (verified, size) = (info.verified_instruction_count(), info.size_jitted());
        println!("{name}: {verified:?} instructions verified, {size} bytes of machine code");
    }
}

/// Key of client `n`, and the rewrite of its packets.
fn flow(n: u16) -> (FlowKey, FlowEntry) {
    let key = FlowKey::tcp(format!("198.51.100.9:{n}").parse().unwrap(), "203.0.113.1:80".parse().unwrap());
    let server = FlowKey::tcp("10.0.0.9:40000".parse().unwrap(), "10.0.0.1:8080".parse().unwrap());
    let FlowKey { src, dst, src_port, dst_port, .. } = server;
    let to = Rewrite { src, dst, src_port, dst_port, next_hop: n.into() };
    (key, FlowEntry::new(&key, &to, Direction::ToServer, 3))
}

fn entries_are_read_as_they_were_written() {
    let flows = KernelCache::load(&SIZES).unwrap().flows().unwrap();
    let (keys, entries): (Vec<_>, Vec<_>) = (1..=500).map(flow).unzip();
    assert_eq!(flows.put(&keys, &entries).unwrap(), 500);
    for (key, entry) in keys.iter().zip(&entries) {
        assert_eq!(flows.get(key).unwrap(), Some(*entry));
    }
    let (key, entry) = (keys[7], entries[8]);
    flows.put(&[key], &[entry]).unwrap();
    assert_eq!(flows.get(&key).unwrap(), Some(entry), "the later one counts");
    assert_eq!(flows.get(&flow(501).0).unwrap(), None);
    assert_eq!(flows.put(&[], &[]).unwrap(), 0);
}

fn entries_are_removed_and_those_that_are_gone_already_do_not_matter() {
    let flows = KernelCache::load(&SIZES).unwrap().flows().unwrap();
    let (keys, entries): (Vec<_>, Vec<_>) = (1..=10).map(flow).unzip();
    flows.put(&keys, &entries).unwrap();
    flows.remove(&[keys[0], keys[3], keys[9]]).unwrap();
    flows.remove(&keys[..9]).unwrap();
    flows.remove(&keys[9..]).unwrap();
    flows.remove(&[]).unwrap();
    assert!(keys.iter().all(|key| flows.get(key).unwrap().is_none()));
}

fn a_full_cache_says_how_many_it_has_taken() {
    let flows = KernelCache::load(&Sizes { entries: 8, ..SIZES }).unwrap().flows().unwrap();
    let (keys, entries): (Vec<_>, Vec<_>) = (1..=10).map(flow).unzip();
    assert_eq!(flows.put(&keys, &entries).unwrap(), 8);
    assert_eq!(flows.get(&keys[7]).unwrap(), Some(entries[7]));
    assert_eq!(flows.get(&keys[8]).unwrap(), None);
    assert_eq!(flows.put(&[keys[8], keys[4]], &[entries[8], entries[0]]).unwrap(), 1);
    assert_eq!(
        flows.get(&keys[4]).unwrap(),
        Some(entries[0]),
        "what is there is replaced, whatever is before it"
    );
}

fn interfaces_that_are_gone_leave_their_room_to_others() {
    let mut cache = KernelCache::load(&SIZES).unwrap();
    for index in 1..=5_000 {
        cache.set_interface(index, [2, 0, 0, 0, 0, 1]).unwrap();
        cache.remove_interface(index).unwrap();
    }
}
