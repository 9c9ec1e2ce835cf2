//! Benchmarks of route lookups: 1,000 hosts with a route each, one host with 1,000 paths, and
//! further conditions.

use std::hint::black_box;
use std::time::Duration;

use convey_http_core::{
    FieldTrust, HostPattern, NamedCondition, PathPattern, PathPrefix, PathView, RequestHead, RouteConditions,
    RouteTable, ValueCondition,
};
use criterion::{Criterion, criterion_group, criterion_main};

const ROUTES: usize = 1_000;

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = find
}
criterion_main!(benches);

fn find(criterion: &mut Criterion) {
    let host = |n: usize| HostPattern::parse(&format!("h{n}.example.com")).expect("a host");
    let prefix = |n: usize| PathPattern::Prefix(PathPrefix::parse(&format!("/api/v{n}")).expect("a path"));
    let regex = |n: usize| PathPattern::regex(&format!("^/api/v{n}/[0-9]+$")).expect("an expression");
    let none = RouteConditions::default;
    let tables = [
        ("one route", table(1, |_| (HostPattern::Any, PathPattern::any(), none()))),
        ("1000 hosts", table(ROUTES, |n| (host(n), PathPattern::any(), none()))),
        ("1000 paths", table(ROUTES, |n| (HostPattern::Any, prefix(n), none()))),
        ("1000 hosts and paths", table(ROUTES, |n| (host(n), prefix(n), none()))),
        ("10 headers of one path", table(10, |n| (HostPattern::Any, PathPattern::any(), header(n)))),
        ("10 regular expressions", table(10, |n| (HostPattern::Any, regex(n), none()))),
    ];
    let trust = FieldTrust::default();
    let mut group = criterion.benchmark_group("find");
    for (name, (table, last)) in tables {
        let text =
            format!("GET /api/v{last}/7 HTTP/1.1\r\nHost: h{last}.example.com\r\nX-Shard: {last}\r\n\r\n");
        let head = RequestHead::of_text(&text).expect("a head");
        assert_eq!(table.find(&head, trust, |_| true), Some(&last), "{name}");
        group.bench_function(name, |bencher| bencher.iter(|| table.find(black_box(&head), trust, |_| true)));
    }
}

/// Returns a table of routes, and the number of the last one.
fn table(
    routes: usize,
    route: impl Fn(usize) -> (HostPattern, PathPattern, RouteConditions),
) -> (RouteTable<usize>, usize) {
    let mut table = RouteTable::new(PathView::Normalized);
    for n in 0..routes {
        let (host, path, conditions) = route(n);
        table.add(&host, &path, conditions, n);
    }
    (table, routes - 1)
}

fn header(n: usize) -> RouteConditions {
    let value = ValueCondition::Is(n.to_string().into());
    RouteConditions {
        headers: vec![NamedCondition { name: "X-Shard".into(), value }],
        ..RouteConditions::default()
    }
}
