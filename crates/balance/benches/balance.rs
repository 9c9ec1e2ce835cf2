//! Benchmarks of server choice and of building the tables, with 10, 100 and 1,000 servers of
//! different weights.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_balance::{FlowHash, Loads, Member, build};
use convey_model::Algorithm;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const SERVERS: [usize; 3] = [10, 100, 1_000];

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = pick, tables
}
criterion_main!(benches);

fn pick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pick");
    for algorithm in Algorithm::ALL {
        for n in SERVERS {
            let balancer = build(algorithm, &members(n), Arc::default());
            let loads = Idle(vec![0; n]);
            let mut random = fastrand::Rng::with_seed(1);
            group.bench_function(BenchmarkId::new(algorithm.name(), n), |bencher| {
                bencher.iter(|| balancer.pick(FlowHash(random.u64(..)), black_box(&loads)));
            });
        }
    }
}

fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("build");
    for algorithm in Algorithm::ALL {
        for n in SERVERS {
            let members = members(n);
            group.bench_function(BenchmarkId::new(algorithm.name(), n), |bencher| {
                bencher.iter(|| build(algorithm, black_box(&members), Arc::default()));
            });
        }
    }
}

/// Servers with weights from one to ten.
fn members(n: usize) -> Vec<Member> {
    let member = |i: usize| Member {
        identity: SocketAddr::from(([10, 0, (i >> 8) as u8, i as u8], 80)).into(),
        weight: (i * 7 % 10) as u16 + 1,
        percent: 100,
        eligible: true,
    };
    (0..n).map(member).collect()
}

/// Loads of idle servers: every server is usable and has no connections.
struct Idle(Vec<u32>);

impl Loads for Idle {
    fn usable(&self, index: usize) -> bool {
        self.0[index] < u32::MAX
    }

    fn active(&self, index: usize) -> u32 {
        self.0[index]
    }
}
