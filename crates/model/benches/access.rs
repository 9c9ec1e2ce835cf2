//! Admission of a client: access lists of 1 to 100,000 networks, and limits per source.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use convey_model::{Access, Limits, Prefix, Sources, Timestamp};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const NETWORKS: [u32; 4] = [1, 100, 10_000, 100_000];

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = lists, sources
}
criterion_main!(benches);

fn lists(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lists");
    for n in NETWORKS {
        // Every other /24, so that no two networks are adjacent.
        let networks = (0..n).map(|i| Prefix::of(Ipv4Addr::from_bits(0x0100_0000 + (i << 9)).into(), 24));
        let access = Access::new([], networks);
        let mut random = fastrand::Rng::with_seed(1);
        group.bench_function(BenchmarkId::new("admits", n), |bencher| {
            bencher.iter(|| access.admits(black_box(Ipv4Addr::from_bits(random.u32(..)).into())));
        });
    }
}

fn sources(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sources");
    let rate_per_source = NonZeroU32::new(1_000);
    let limits = Limits { connections_per_source: Some(100), rate_per_source, ..Limits::default() };
    for (name, clients) in [("begin", 1_000), ("begin, forged", u32::MAX)] {
        let (sources, mut random, mut now) = (Sources::new(&limits), fastrand::Rng::with_seed(1), 0);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                now += 1_000;
                let client: IpAddr = Ipv4Addr::from_bits(random.u32(..clients)).into();
                sources.begin(black_box(client), &limits, Timestamp(now))
            });
        });
    }
}
