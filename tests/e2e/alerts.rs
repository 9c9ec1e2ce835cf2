//! The alert rules of `packaging/`: `promtool test rules` with the metrics of a running convey.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_testkit::{
    BalancerProcess, Loopback, NAME, Need, Setup, TcpServer, TestHttpServer, TestNameServer, fetch,
    is_refused_with_reset, run, tests, tool,
};

use crate::http::HTTP;
use crate::operator::command_output;

tests!("alerts":
    planned_maintenance_raises_no_alert [Need::PROMTOOL],
    http_frontend_without_healthy_server_raises_alerts [Need::PROMTOOL],
    http_backend_without_any_server_raises_alerts [Need::PROMTOOL],
    proxied_frontends_without_server_raise_alerts [Need::PROMTOOL],
    servers_that_answer_5xx_raise_an_alert [Need::PROMTOOL],
    servers_that_break_off_raise_an_alert [Need::PROMTOOL],
    requests_beyond_a_rate_limit_raise_an_alert [Need::PROMTOOL],
);

const PROBES: &str = "kind = \"tcp\"\ninterval = \"50ms\"\nrise = 1\nfall = 1";

/// Samples of `/metrics` by series, each with its type.
struct Scrape(BTreeMap<String, (String, f64)>);

impl Scrape {
    fn of(balancer: &BalancerProcess) -> Scrape {
        let text = balancer.page("/metrics").1;
        let (mut samples, mut kind) = (BTreeMap::new(), String::new());
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                kind = family.rsplit(' ').next().unwrap().to_owned();
            } else if let Some((series, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) {
                samples.insert(series.to_owned(), (kind.clone(), value.parse().unwrap()));
            }
        }
        Scrape(samples)
    }
}

/// Expects these alerts to fire, and no others, where `episode` repeats itself every 30 seconds.
fn expect_alerts(lab: &Loopback, balancer: &BalancerProcess, alerts: &[&str], episode: impl FnOnce()) {
    let before = Scrape::of(balancer);
    episode();
    let after = Scrape::of(balancer);
    let mut series = String::from("      - {series: 'up{job=\"convey\",instance=\"lb\"}', values: '1x60'}\n");
    for (sample, (kind, value)) in &after.0 {
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let comma = if labels == "}" { "" } else { "," };
        let values = match &**kind {
            "counter" => {
                let old = before.0.get(sample).map_or(0.0, |(_, old)| *old);
                format!("{old}+{}x60", value - old)
            }
            "gauge" => format!("{value}x60"),
            _ => continue,
        };
        let labels = format!("job=\"convey\",instance=\"lb\"{comma}{labels}");
        series += &format!("      - {{series: '{name}{{{labels}', values: '{values}'}}\n");
    }
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus/convey.rules.yml");
    let expected = alerts.iter().map(|alert| format!("{{labels: '{{alertname=\"{alert}\"}}', value: 1}}"));
    let test = format!(
        "rule_files: [{}]\nevaluation_interval: 30s\ntests:\n  - interval: 30s\n    input_series:\n{series}    \
         promql_expr_test:\n      - expr: 'group by (alertname) (ALERTS{{alertstate=\"firing\"}})'\n        \
         eval_time: 25m\n        exp_samples: [{}]\n",
        rules.display(),
        Vec::from_iter(expected).join(", ")
    );
    let file = lab.directory().join("alerts.test.yml");
    fs::write(&file, &test).unwrap();
    let ran = run(Command::new(tool("promtool").unwrap()).args(["test", "rules"]).arg(&file));
    assert_eq!(ran.code, Some(0), "{ran:?}\n{test}");
}

fn fetch_ten_times(lab: &Loopback, status: u16) {
    (0..10).for_each(|_| assert_eq!(fetch(lab.vip(), "/").unwrap().0, status));
}

fn planned_maintenance_raises_no_alert() {
    let lab = Loopback::new();
    let [_a, b] = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let setup = Setup::new(&lab).frontend(HTTP).health(PROBES);
    let setup = setup.server("a", lab.server(1), "").server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    ["a", "b"].iter().for_each(|name| balancer.wait_for_health(name, true));
    expect_alerts(&lab, &balancer, &[], || fetch_ten_times(&lab, 200));
    command_output(&balancer, "server maint pool/b");
    drop(b);
    balancer.wait_for_stat("/backends/pool/servers/b/up", false);
    expect_alerts(&lab, &balancer, &[], || fetch_ten_times(&lab, 200));
    command_output(&balancer, "server ready pool/b");
    balancer.wait_for_stat("/backends/pool/servers/b/state", "ready");
    balancer.wait_for_health("b", false);
    expect_alerts(&lab, &balancer, &["ConveyServerDown"], || fetch_ten_times(&lab, 200));
}

fn http_frontend_without_healthy_server_raises_alerts() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).frontend(HTTP).health(PROBES).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("a", false);
    let alerts = [
        "ConveyBackendWithoutServer",
        "ConveyClientsGet5xx",
        "ConveyClientsRefused",
        "ConveyHalfOfBackendDown",
        "ConveyServerDown",
    ];
    expect_alerts(&lab, &balancer, &alerts, || fetch_ten_times(&lab, 503));
}

fn http_backend_without_any_server_raises_alerts() {
    let lab = Loopback::new();
    // No server answers at the address of the name server.
    let setup = Setup::new(&lab).frontend(HTTP).server("app", format!("{NAME}:80"), "");
    let balancer = BalancerProcess::start(&lab, &setup.and(&TestNameServer::dns(&lab)));
    assert_eq!(balancer.stat("/backends/pool/servers"), serde_json::json!({}));
    let alerts =
        ["ConveyBackendWithoutServer", "ConveyClientsGet5xx", "ConveyClientsRefused", "ConveyNameUnresolved"];
    balancer.wait_for_stat(&format!("/names/{NAME}/resolved"), false);
    expect_alerts(&lab, &balancer, &alerts, || fetch_ten_times(&lab, 503));
}

fn proxied_frontends_without_server_raise_alerts() {
    let lab = Loopback::new();
    let server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).health(PROBES).server("a", lab.server(1), "");
    let setup = setup.and(&format!(
        "[frontends.dns]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n",
        lab.vip()
    ));
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("a", true);
    expect_alerts(&lab, &balancer, &[], || fetch_ten_times(&lab, 200));
    drop(server);
    balancer.wait_for_health("a", false);
    let alerts =
        ["ConveyBackendWithoutServer", "ConveyClientsRefused", "ConveyHalfOfBackendDown", "ConveyServerDown"];
    let client = UdpSocket::bind((lab.ip(9), 0)).unwrap();
    expect_alerts(&lab, &balancer, &alerts, || {
        (0..10).for_each(|_| _ = client.send_to(b"question", lab.vip()).unwrap());
        let pointer = "/frontends/dns/drops/no_server";
        balancer.wait_for_stat(pointer, 10);
    });
    expect_alerts(&lab, &balancer, &alerts, || {
        (0..10).for_each(|_| assert!(is_refused_with_reset(lab.vip())));
        balancer.wait_for_stat("/frontends/web/ended/no_server", 10);
    });
}

/// A server that answers every second request with 500.
pub(crate) fn half_broken(lab: &Loopback) -> TestHttpServer {
    let asked = AtomicUsize::new(0);
    TestHttpServer::start(lab.server(1), move |_, stream| {
        let status =
            if asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { "200 OK" } else { "500 Oops" };
        stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())
    })
}

fn servers_that_answer_5xx_raise_an_alert() {
    let lab = Loopback::new();
    let _server = half_broken(&lab);
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    expect_alerts(&lab, &balancer, &["ConveyClientsGet5xx", "ConveyServersAnswer5xx"], || {
        (0..10).for_each(|_| _ = fetch(lab.vip(), "/").unwrap());
    });
}

fn servers_that_break_off_raise_an_alert() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, _| Err(ErrorKind::ConnectionReset.into()));
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    expect_alerts(&lab, &balancer, &["ConveyClientsGet5xx", "ConveyRequestsFail"], || {
        fetch_ten_times(&lab, 502)
    });
}

fn requests_beyond_a_rate_limit_raise_an_alert() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let limits = "[frontends.web.limits]\nrequests_per_source = 1\nrequest_burst = 1\n";
    let setup = Setup::http(&lab).and(limits);
    let balancer = BalancerProcess::start(&lab, &setup);
    expect_alerts(&lab, &balancer, &["ConveyRequestsLimited"], || {
        let mut refused = 0;
        while refused < 10 {
            refused += u32::from(fetch(lab.vip(), "/").unwrap().0 == 429);
        }
    });
}
