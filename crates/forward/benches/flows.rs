//! Benchmark of the connection table with one thousand to ten million flows, in random order. The
//! choice of each flow depends on data that was read for the previous flow, so that memory accesses
//! cannot overlap. Lookups that find no flow are an exception, because the processor can predict
//! their result. `packet_of_batch` measures the gain from overlapping accesses.

use std::time::Duration;

use convey_forward::testing::{FlowTable, NewFlow};
use convey_forward::{ACK, AddrPort, Direction, ForwardingMethod, NatPorts, PortSplit, SYN, Segment, View};
use convey_model::{Addr, FlowKey, FlowTimeouts, TCP, Timestamp};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};

const FLOWS: [u32; 4] = [1_000, 100_000, 1_000_000, 10_000_000];

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1_000)
        .without_plots()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(300));
    targets = tables, ports
}
criterion_main!(benches);

fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flows");
    for n in FLOWS {
        let mut table = established(n);
        let mut random = Walk { state: 1, n };
        group.bench_function(BenchmarkId::new("hit_to_server", n), |bencher| {
            bencher.iter(|| {
                let (id, _) = table.lookup(&flow(random.next()).client).expect("it is there");
                random.after(table.get(id).frontend_id());
            });
        });
        group.bench_function(BenchmarkId::new("hit_to_client", n), |bencher| {
            bencher.iter(|| {
                let (id, _) = table.lookup(&flow(random.next()).server).expect("it is there");
                random.after(table.get(id).frontend_id());
            });
        });
        group.bench_function(BenchmarkId::new("miss", n), |bencher| {
            bencher.iter(|| {
                let found = table.lookup(&flow(n + random.next()).client);
                random.after(found.is_some().into());
            });
        });
        // All table operations for a packet of an established flow.
        group.bench_function(BenchmarkId::new("packet", n), |bencher| {
            let mut now = 0;
            bencher.iter(|| {
                let (id, direction) = table.lookup(&flow(random.next()).client).expect("it is there");
                now += 200;
                table.on_segment(id, direction, segment(ACK), Timestamp(now));
                random.after(table.get(id).rewrite(direction).next_hop);
            });
        });
        // Batches of 32 packets whose keys are known before the first packet is handled.
        group.bench_function(BenchmarkId::new("packet_of_batch", n), |bencher| {
            let mut batch = Vec::new();
            let mut now = 0;
            bencher.iter(|| {
                if batch.is_empty() {
                    batch.extend((0..32).map(|_| {
                        random.after(0);
                        flow(random.next()).client
                    }));
                    table.prefetch(&batch);
                }
                let (id, direction) = batch.pop().and_then(|key| table.lookup(&key)).expect("it is there");
                now += 200;
                table.on_segment(id, direction, segment(ACK), Timestamp(now));
                table.get(id).rewrite(direction)
            });
        });
        group.bench_function(BenchmarkId::new("insert_remove", n), |bencher| {
            bencher.iter(|| {
                let gone = table.lookup(&flow(random.next()).client).expect("it is there").0;
                let gone = table.remove(gone);
                let new = NewFlow { client: gone.client(), server: gone.server(), ..flow(0) };
                let id = table.insert(&new, Timestamp(0)).expect("there is room").id;
                random.after(table.get(id).frontend_id());
            });
        });
        assert_eq!(table.len(), n);
    }
    group.bench_function("forged_syn_in_a_full_table", |bencher| {
        bencher.iter_batched_ref(
            || (FlowTable::new(10_000, &FlowTimeouts::default(), 1), 0),
            |(table, n)| {
                for _ in 0..20_000 {
                    *n += 1;
                    let id = table.insert(&flow(*n), Timestamp(0)).expect("a half-open flow gives way").id;
                    let answer = segment(SYN | ACK);
                    table.on_segment(id, Direction::ToClient, answer, Timestamp(0));
                }
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn ports(criterion: &mut Criterion) {
    let split = PortSplit::new(33_768..=61_000, 4);
    let mut ports = NatPorts::new(vec![Addr::v4([10, 0, 0, 1])], split.ports(2), 1);
    let server = AddrPort::new(Addr::v4([10, 0, 1, 1]), 80);
    criterion.bench_function("ports/allocate_release", |bencher| {
        bencher.iter(|| {
            let port = ports.allocate(server, TCP).expect("one is free");
            ports.release(server, TCP, port);
            split.owner(port.port)
        });
    });
}

/// Creates a full table.
fn established(n: u32) -> FlowTable {
    let mut table = FlowTable::new(n, &FlowTimeouts::default(), 0x5eed);
    for i in 0..n {
        let id = table.insert(&flow(i), Timestamp(u64::from(i) * 1_000)).expect("there is room").id;
        for (direction, flags) in [(Direction::ToClient, SYN | ACK), (Direction::ToServer, ACK)] {
            table.on_segment(id, direction, segment(flags), Timestamp(u64::from(i) * 1_000));
        }
    }
    table
}

/// A segment of a connection whose numbers begin at 0 on both sides.
fn segment(flags: u8) -> Segment {
    Segment { flags, seq: u32::from(flags & SYN == 0), ack: 1, len: 0 }
}

/// Flow of this number.
fn flow(i: u32) -> NewFlow {
    let [a, b, c, d] = i.to_be_bytes();
    let key = |src, dst, src_port, dst_port| FlowKey {
        src: Addr::v4(src),
        dst: Addr::v4(dst),
        src_port,
        dst_port,
        protocol: TCP,
        reserved: [0; 3],
    };
    NewFlow {
        client: key([100 + a, b, c, d], [192, 0, 2, 1], 1_024 + u16::from(d), 443),
        server: key([10, 1, a, b], [10, 0, 0, c], 8_443, 33_768 + u16::from(d)),
        view: View::BothSides,
        method: ForwardingMethod::Rewritten,
        server_id: i % 10,
        frontend_id: 0,
        to_server: 0,
        to_client: 0,
        segment: segment(SYN),
    }
}

/// Random numbers below `n`. Each depends on data that was read for the previous number.
struct Walk {
    state: u64,
    n: u32,
}

impl Walk {
    fn next(&mut self) -> u32 {
        let mixed = (self.state ^ self.state >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (((mixed >> 32) * u64::from(self.n)) >> 32) as u32
    }

    fn after(&mut self, read: u32) {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(read) * 2 + 1);
    }
}
