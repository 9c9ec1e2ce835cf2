//! Contents of `/metrics`, validated by Prometheus' own checker.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use convey_admin::{StatsSource, routes, serve};
use convey_model::{FrontendConfig, LookupFault, Missing, Mode, Timestamp};
use convey_snapshot::stats::PacketStats;
use convey_snapshot::{Ejected, Health, Name, NewestSnapshot, Snapshot, fixture};
use convey_testkit::{Need, run_trials, trial};

fn main() -> ExitCode {
    let trials = [
        ("promtool_has_nothing_to_say_about_the_metrics", "web"),
        ("promtool_has_nothing_to_say_about_names_that_need_escaping", "a\"b\\c\nd é"),
        ("promtool_has_nothing_to_say_before_the_first_configuration", ""),
    ]
    .map(|(test, name)| trial(test, [Need::PROMTOOL], || promtool_accepts(&scrape(state(name)))));
    let rules =
        trial("promtool_finds_the_alert_rules_right", [Need::PROMTOOL], promtool_finds_the_alert_rules_right);
    let series =
        trial("series_of_alert_tests_are_series_of_convey", [], series_of_alert_tests_are_series_of_convey);
    run_trials(trials.into_iter().chain([rules, series]).collect())
}

fn promtool_finds_the_alert_rules_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus");
    for (action, file) in [("check", "convey.rules.yml"), ("test", "convey.rules.test.yml")] {
        let output =
            Command::new("promtool").args([action, "rules", file]).current_dir(&folder).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "promtool {action} rules {file}: {said}");
    }
    let text = |file| fs::read_to_string(folder.join(file)).unwrap();
    let (rules, test) = (text("convey.rules.yml"), text("convey.rules.test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(test.contains(&format!("- alertname: {alert}\n")), "no test raises {alert}");
        assert!(test.contains(&format!("- {{alertname: {alert}, ")), "no test leaves {alert} silent");
    }
}

/// Series with names and labels that `/metrics` lacks would test rules that never fire.
fn series_of_alert_tests_are_series_of_convey() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus/convey.rules.test.yml");
    let test = fs::read_to_string(file).unwrap();
    let page = scrape(state("web"));
    let rendered: BTreeSet<String> =
        page.lines().filter_map(|line| shape(line.rsplit_once(' ')?.0)).collect();
    let tested = test.lines().filter_map(|line| line.split('\'').nth(1));
    let tested: BTreeSet<String> = tested.filter_map(shape).collect();
    assert!(tested.len() > 20, "{tested:?}");
    // Prometheus adds `up`; the state of the test has no certificates and no Kubernetes Services.
    let others = ["up{", "convey_certificate_", "convey_acme_", "convey_discovery_"];
    let is_other = |series: &&String| others.iter().any(|prefix| series.starts_with(prefix));
    let missing: Vec<&String> =
        tested.iter().filter(|series| !is_other(series) && !rendered.contains(*series)).collect();
    assert!(missing.is_empty(), "/metrics lacks {missing:#?}");
}

/// A series without the labels that Prometheus adds, and without values that are names in a
/// configuration.
fn shape(series: &str) -> Option<String> {
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let labels = labels.strip_suffix('}')?.split(',').filter(|label| !label.is_empty());
    let label = |label: &str| {
        let (key, value) = label.split_once('=').unwrap_or((label, ""));
        let is_named = ["frontend", "route", "backend", "server", "name"].contains(&key);
        let is_added = ["job", "instance"].contains(&key);
        (!is_added).then(|| format!("{key}={}", if is_named { "NAME" } else { value }))
    };
    let labels: BTreeSet<String> = labels.filter_map(label).collect();
    Some(format!("{name}{{{}}}", Vec::from_iter(labels).join(",")))
}

fn promtool_accepts(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let is_fine = output.status.success() && said.is_empty();
    assert!(is_fine, "{}: {}\n{text}", output.status, String::from_utf8_lossy(&said));
}

/// The body of one real request for `/metrics`.
fn scrape(snapshot: Snapshot) -> String {
    let source = StatsSource {
        acme: Arc::default(),
        announce: Arc::default(),
        remote: Arc::default(),
        snapshot: Arc::new(NewestSnapshot::new(snapshot)),
        started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        now: Box::new(|| Timestamp(0)),
        draining: Arc::default(),
        packets: Some(Arc::new(PacketStats::new(1))),
        log_level: convey_model::LogLevel::default,
        dropped_log_lines: || 0,
        loads: Arc::default(),
        access_log: Arc::default(),
        events: Arc::default(),
        trace: Arc::default(),
        flows: Default::default(),
        data_path: Default::default(),
    };
    let (request, _requests) = tokio::sync::mpsc::channel(1);
    let routes = routes(source, request).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.77.2.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let client = tokio::task::spawn_blocking(move || get_metrics(addr));
        tokio::select! {
            () = serve(listener, routes) => unreachable!("it serves until dropped"),
            body = client => body.unwrap(),
        }
    })
}

fn get_metrics(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: convey\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// A frontend, a backend, two servers (one of them down) and a host that are all called `name`,
/// with every optional limit set, and frontends of other modes; with an empty name, an empty state.
fn state(name: &str) -> Snapshot {
    if name.is_empty() {
        return Snapshot::empty(1);
    }
    let server = |addr: &str, up: bool| {
        let mut server = fixture::server(&format!("{name}{addr}"), addr);
        server.settings.max_connections = Some(9);
        let (reason, since) = (String::from("probed"), Timestamp(1));
        let ejected = up.then(|| Ejected { until: Timestamp(9), times: 1, reason: reason.clone() });
        (server, Health { up, proven: true, reason, since, ejected, percent: 35 })
    };
    let pool = fixture::pool(name, vec![server("127.0.0.1:8081", true), server("127.0.0.1:8082", false)]);
    let config = convey_model::fixture::frontend(name, &[], name);
    let http = FrontendConfig {
        mode: Mode::Http,
        name: format!("{name} http"),
        http: Some(Default::default()),
        ..config.clone()
    };
    let http = fixture::http_frontend(http, &pool, &[]);
    let packets = FrontendConfig { mode: Mode::Passthrough, name: format!("{name} nat"), ..config.clone() };
    let packets = fixture::frontend_of(packets, &pool);
    let frontend = fixture::frontend_of(FrontendConfig { max_connections: Some(9), ..config }, &pool);
    let host = Name {
        host: name.into(),
        addresses: [std::net::IpAddr::from([127, 0, 0, 1]).into()].into(),
        fault: Some(LookupFault { missing: Missing::All, why: "timed out".into() }),
        since: Timestamp(1),
        live: Arc::default(),
    };
    Snapshot { names: vec![host], ..fixture::snapshot(vec![frontend, http, packets], vec![pool]) }
}
