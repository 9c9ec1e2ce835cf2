//! The page on state and limits: its counters are served, and its tests exist.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use convey_admin::{CertificateView, ReadinessInput, packet_report, stats_report};
use convey_api::StatsReport;
use convey_model::{
    DiscoveryConfig, DiscoverySource, FilesConfig, FrontendConfig, KubernetesCluster, KubernetesService,
    Mode, ServerSettings, ServicePort, Timestamp,
};
use convey_snapshot::stats::PacketStats;
use convey_snapshot::{Discovery, Name, Snapshot, fixture};
use serde_json::Value;

use crate::{code_spans, pages, read, rust_files};

const PAGE: &str = "docs/reference/limits.md";

#[test]
fn each_line_of_the_page_on_limits_names_a_test_that_exists() {
    let code = ["src", "crates", "tests"].map(|place| rust_files(place).concat()).concat();
    let mut tests = 0;
    for row in rows() {
        let test = row.last().unwrap();
        let names = code_spans(test);
        assert!(!names.is_empty() || test == "the same", "no test: {row:?}");
        for name in names.iter().map(|path| path.rsplit("::").next().unwrap()) {
            let exists = [format!("fn {name}("), format!("fn {name}<")].iter().any(|f| code.contains(f));
            assert!(exists, "no test is called {name}");
            tests += 1;
        }
    }
    assert!(tests > 40, "where are the tables?");
}

#[test]
fn each_counter_of_the_page_on_limits_is_served() {
    let served = served();
    let mut counters = 0;
    for row in rows() {
        for counter in code_spans(&row[row.len() - 2]) {
            assert!(served.contains(&counter), "/stats has no {counter}: {row:?}");
            counters += 1;
        }
    }
    assert!(counters > 40, "where are the tables?");
}

#[test]
fn each_counter_of_packet_modes_that_a_page_names_is_served() {
    let served = served();
    for page in pages() {
        let spans = code_spans(&read(&page)).into_iter();
        for counter in spans.filter(|span| span.starts_with("packets.")) {
            assert!(served.contains(&counter), "{}: /stats has no {counter}", page.display());
        }
    }
}

/// Cells of each row that describes a state.
fn rows() -> Vec<Vec<String>> {
    let page = read(PAGE);
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<_>>());
    cells.filter(|row| row[0] != "state").collect()
}

/// Paths of `/stats` for a frontend and a host name called NAME.
fn served() -> BTreeSet<String> {
    let mut backend = (*fixture::pool("NAME", vec![]).config).clone();
    backend.files = Some(FilesConfig::new("/srv/www"));
    let source = source();
    let settings = ServerSettings::default();
    backend.discovery = Some(DiscoveryConfig { source: source.clone(), settings, zone: None });
    let pool = fixture::pool_of(backend);
    // This mode returns more information than all others.
    let listen = vec!["127.0.0.1:80".parse().unwrap()];
    let frontend = fixture::frontend_of(FrontendConfig::new("NAME", Mode::Http, listen, "NAME"), &pool);
    let host = Name {
        host: "NAME".into(),
        addresses: BTreeSet::new(),
        fault: None,
        since: Timestamp(0),
        live: Arc::default(),
    };
    let discovery = Discovery {
        source,
        servers: None,
        draining: 0,
        fault: None,
        notes: BTreeSet::new(),
        failures: 0,
        since: Timestamp(0),
    };
    let discoveries = vec![discovery];
    let snapshot =
        Snapshot { names: vec![host], discoveries, ..fixture::snapshot(vec![frontend], vec![pool]) };
    let certificates = CertificateView::of_readiness(Vec::new(), 0, &snapshot);
    let input = ReadinessInput {
        snapshot: &snapshot,
        certificates: &certificates,
        packets: None,
        is_draining: false,
    };
    let report = stats_report(input, SystemTime::UNIX_EPOCH, Timestamp(0));
    let report = StatsReport { packets: Some(packet_report(&PacketStats::new(1))), ..report };
    let mut paths = BTreeSet::new();
    collect_paths(&serde_json::to_value(report).unwrap(), "", &mut paths);
    paths
}

fn source() -> DiscoverySource {
    DiscoverySource::Kubernetes(KubernetesService {
        namespace: "NAME".into(),
        name: "NAME".into(),
        port: ServicePort::Number(80),
        protocol: None,
        cluster: KubernetesCluster::default(),
    })
}

fn collect_paths(value: &Value, prefix: &str, paths: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{prefix}{key}");
        collect_paths(value, &format!("{path}."), paths);
        paths.insert(path);
    }
}
