//! Benchmark: formats an access log line as text and as JSON.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use convey_access_log::{Format, Record, ServedBy, Termination};
use convey_model::{Mode, Protocol, Timestamp};
use criterion::{Criterion, criterion_group, criterion_main};

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = lines
}
criterion_main!(benches);

fn lines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("line");
    let served = ServedBy { name: "web-1".into(), addr: ([10, 0, 0, 2], 8080).into() };
    let record = Record {
        ended: Timestamp(0),
        total: Duration::from_micros(2_513),
        queued: Some(Duration::from_micros(11)),
        connect: Some(Duration::from_micros(312)),
        mode: Mode::Proxy,
        protocol: Protocol::Tcp,
        client: ([192, 0, 2, 77], 50_123).into(),
        proxy: None,
        listen: ([10, 0, 0, 1], 80).into(),
        frontend: "web".into(),
        backend: "app".into(),
        server: Some(served),
        bytes_rx: Some(312),
        bytes_tx: Some(10_240),
        retries: 0,
        termination: Termination::Closed,
        reason: None,
        tls: None,
        hello: None,
        request: None,
    };
    let ended = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for name in ["text", "json"] {
        let Ok(format) = Format::parse(name) else { continue };
        let mut line = String::with_capacity(1_024);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                line.clear();
                format.write(&mut line, black_box(&record), ended);
            });
        });
    }
}
