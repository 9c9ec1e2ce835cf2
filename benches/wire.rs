//! Reading a packet's headers, and sending it on rewritten, at the shortest and the usual longest length.

use std::hint::black_box;
use std::time::Duration;

use convey::model::{Addr, NextHop, Rewrite};
use convey::wire::{Checksum, TcpPacket, parse, rewrite};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = packets
}
criterion_main!(benches);

fn packets(criterion: &mut Criterion) {
    let hop = NextHop { interface: 1, src_mac: [2; 6], dst_mac: [4; 6], mtu: 1_500 };
    let there = rule(([10, 0, 1, 1], 40_000), ([10, 0, 1, 2], 8_080));
    let back = rule(([10, 0, 0, 9], 4_242), ([10, 0, 0, 1], 80));
    let packet = || TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").ack(1);
    let mut frames = [
        ("60", packet().bytes()),
        ("1500", packet().payload(&[7; 1_446]).bytes()),
        ("60 with IP options", packet().ip_options(&[1; 4]).bytes()),
    ];
    frames[0].1.resize(60, 0);
    frames[2].1.resize(60, 0);

    let mut group = criterion.benchmark_group("parse");
    for (name, frame) in &frames {
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                black_box(&parse(black_box(frame)));
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("parse and rewrite");
    for (name, frame) in &frames {
        // In turn, so that none is read just after it was written.
        let mut ring = vec![frame.clone(); 16];
        let mut turn = 0_usize;
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let frame = &mut ring[turn % 16];
                let headers = parse(black_box(frame)).expect("a valid packet");
                let to = if turn & 16 == 0 { &there } else { &back };
                rewrite(frame, &headers, to, &hop, Checksum::Complete);
                // Back to 64 hops: the packet goes there and back for as long as the benchmark runs.
                frame[22] = 64;
            });
        });
    }
    group.finish();
}

fn rule((src, src_port): ([u8; 4], u16), (dst, dst_port): ([u8; 4], u16)) -> Rewrite {
    Rewrite { src: Addr::v4(src), dst: Addr::v4(dst), src_port, dst_port, next_hop: 0 }
}
