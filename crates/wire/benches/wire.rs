//! Benchmarks of parsing and rewriting a packet's headers, for the shortest packet and the longest
//! usual one.

use std::hint::black_box;
use std::time::Duration;

use convey_model::{FlowKey, NextHop, Rewrite};
use convey_wire::{Checksum, TestPacket, parse, rewrite};
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
    let hop = NextHop { interface: 1, src_mac: [2; 6], dst_mac: [4; 6], mtu: 1_500, redirect_peer: false };
    let v4 = ["10.0.0.9:4242", "10.0.0.1:80", "10.0.1.1:40000", "10.0.1.2:8080"];
    let v6 = ["[fd00::9]:4242", "[fd00::1]:80", "[fd01::1]:40000", "[fd01::2]:8080"];
    let short = |addrs: [&str; 4]| TestPacket::from(addrs[0]).to(addrs[1]).ack(1);
    let long = |addrs: [&str; 4], payload| short(addrs).payload(&vec![7; payload]);
    let packets = [
        ("60", v4, short(v4)),
        ("60 v6", v6, short(v6)),
        ("60 udp", v4, short(v4).udp()),
        ("60 v6 udp", v6, short(v6).udp()),
        ("1500", v4, long(v4, 1_460)),
        ("1500 v6", v6, long(v6, 1_440)),
        ("60 with IP options", v4, short(v4).ip_options(&[1; 4])),
        ("60 v6 with an extension header", v6, short(v6).extension(60, &[0, 1, 4, 0, 0, 0, 0])),
    ];
    let packets = packets.map(|(name, addrs, packet)| {
        let mut frame = packet.bytes();
        frame.resize(frame.len().max(60), 0);
        (name, addrs, frame)
    });

    let mut group = criterion.benchmark_group("parse");
    for (name, _, frame) in &packets {
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                black_box(&parse(black_box(frame)));
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("parse and rewrite");
    for (name, [client, vip, snat, server], frame) in &packets {
        let (there, back) = (rule(snat, server), rule(client, vip));
        // Take the frames in turn, so that no frame is read right after it was written.
        let mut ring = vec![frame.clone(); 16];
        let mut turn = 0_usize;
        let hops = if client.starts_with('[') { 21 } else { HOPS_V4 };
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let frame = &mut ring[turn % 16];
                let parsed = parse(black_box(frame));
                let headers = parsed.as_ref().expect("a valid packet");
                let to = if turn & 16 == 0 { &there } else { &back };
                rewrite(frame, headers, to, &hop, Checksum::Complete);
                // Restore the TTL or hop limit, because the benchmark rewrites the same frames
                // repeatedly.
                give_hop_back(frame, hops);
            });
        });
    }
    group.finish();
}

/// Offset of the TTL in an IPv4 frame.
const HOPS_V4: usize = 22;

/// Increments the TTL or hop limit again after a rewrite, and updates the IPv4 header checksum.
fn give_hop_back(frame: &mut [u8], hops: usize) {
    frame[hops] += 1;
    if hops == HOPS_V4 {
        let checksum = u16::from_be_bytes([frame[24], frame[25]]);
        let (checksum, borrow) = checksum.overflowing_sub(0x100);
        frame[24..26].copy_from_slice(&(checksum - u16::from(borrow)).to_be_bytes());
    }
}

fn rule(src: &str, dst: &str) -> Rewrite {
    let [src, dst] = [src, dst].map(|addr| addr.parse().expect("an address and a port"));
    let FlowKey { src, dst, src_port, dst_port, .. } = FlowKey::tcp(src, dst);
    Rewrite { src, dst, src_port, dst_port, next_hop: 0 }
}
