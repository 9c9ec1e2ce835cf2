//! Benchmark: formats an access log line as text and as JSON.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use convey_access_log::{Format, LineWriter, LoggedRequest, Record, ServedBy, Termination};
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
    let served = ServedBy { name: "web-1", addr: ([10, 0, 0, 2], 8080).into() };
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
        frontend: "web",
        backend: "app",
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
    let request = LoggedRequest {
        method: b"GET",
        host: b"shop.example.com",
        target: b"/cart/items?id=7",
        route: Some("default"),
        status: Some(200),
        is_answered_here: false,
        phase: None,
        version: "1.1",
        trace_id: None,
        compression: None,
        headers: None,
        response: None,
    };
    let request = Record { mode: Mode::Http, request: Some(request), ..record.clone() };
    let ended = Duration::from_secs(1_700_000_000);
    for (name, record) in [("text", &record), ("text", &request), ("json", &record), ("json", &request)] {
        let Ok(format) = Format::parse(name) else { continue };
        let mut writer = LineWriter::new(Arc::new(format));
        let mut line = Vec::with_capacity(1_024);
        let kind = if record.request.is_some() { "request" } else { "connection" };
        group.bench_function(format!("{name}/{kind}"), |bencher| {
            bencher.iter(|| {
                line.clear();
                writer.write(&mut line, black_box(record), ended);
            });
        });
    }
}
