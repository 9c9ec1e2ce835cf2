//! Counters of the cache, by their owner.

use convey_dataplane::testing::counter_reader;
use convey_dataplane::{Offloader, Sizes};
use convey_forward::{CachedRoute, Direction, FlowOwners, Progress, View};
use convey_model::{FlowKey, Layer, Rewrite};
use convey_snapshot::stats::{Counter, PacketStats};
use convey_wire::TestPacket;

use super::filter::selection;
use super::hits::HOP;
use super::kernel::{self, SIZES};
use super::twin::US;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![reused_counter_ids_start_at_zero_for_new_servers]
}

fn reused_counter_ids_start_at_zero_for_new_servers() {
    let sizes = Sizes { counter_ids: 1, ..SIZES };
    let offloader = Offloader::load(Layer::Tc, sizes, &selection(&["203.0.113.1:53/udp"]), 1).unwrap();
    offloader.kernel_cache().set_next_hop(0, Some(&HOP)).unwrap();
    let (mut writer, mut reader) = (offloader.writer(0).unwrap(), counter_reader(&offloader));
    let stats = PacketStats::new(1);

    let packet = TestPacket::from("198.51.100.9:4242").to("203.0.113.1:53").udp().macs([2; 6], US).bytes();
    let key = convey_wire::parse(&packet).unwrap().key;
    let server = FlowKey::udp("10.0.0.1:40000".parse().unwrap(), "10.0.0.7:53".parse().unwrap());
    let FlowKey { src, dst, src_port, dst_port, .. } = server;
    for n in 1..=20 {
        let owners = FlowOwners { frontend: 0, server: n };
        let route = CachedRoute {
            rewrite: Rewrite { src, dst, src_port, dst_port, next_hop: 0 },
            envelope: None,
            direction: Direction::ToServer,
            view: View::BothSides,
            from: None,
            owners,
            is_new: true,
            last: None,
            progress: Progress::default(),
            opening: None,
            is_restored: false,
        };
        writer.put(&key, &route);
        writer.flush();
        (0..n).for_each(|_| _ = kernel::run(offloader.kernel_cache().tc().unwrap(), &packet));
        let mut counted = Vec::new();
        reader.read(&stats, |owners, counter, n| counted.push((owners, counter, n)));
        let bytes = packet.len() as u64 * u64::from(n);
        let expected = [(owners, Counter::PacketsRx, n.into()), (owners, Counter::BytesRx, bytes)];
        assert_eq!(counted, expected);
        writer.remove(&key, owners);
        writer.flush();
        (0..2).for_each(|_| reader.read(&stats, |_, _, _| panic!("nothing has passed")));
    }
}
