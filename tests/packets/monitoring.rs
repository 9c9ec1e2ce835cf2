//! The Grafana dashboard and the alert rules of `packaging/`, with a real Prometheus that scrapes a
//! running convey.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use convey_lab::Role;
use convey_model::{Mode, Offload};
use convey_testkit::{PATIENCE, Process, TcpServer, clock, connect, fetch, ping, run, wait_for};
use serde_json::Value;

use crate::case::{Case, Family, PacketTest, tests};
use crate::network::{Network, PORT};

/// Port of the server of mode http.
const WEB_PORT: u16 = 8081;

/// Address of Prometheus, in the balancer's namespace.
const PROMETHEUS: ([u8; 4], u16) = ([127, 0, 0, 1], 9090);

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() && case.family == Family::V4 && case.offload == Offload::Tc =>
        every_query_of_the_dashboard_and_the_alerts_returns_data [CURL, PROMETHEUS],
    ]
}

fn every_query_of_the_dashboard_and_the_alerts_returns_data(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance_with(&configuration(case));
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    let _web = network.server(1, |addr| TcpServer::named("a", SocketAddr::new(addr.ip(), WEB_PORT)));
    let _prometheus = start_prometheus(network);
    let http = case.family.vip(8083);
    let client = || {
        _ = network.inside(Role::Client(1), || fetch(http, "/").unwrap());
        for mode in [Mode::Proxy, Mode::Passthrough] {
            network.inside(Role::Client(1), || ping(&mut connect(vip(case, mode))).unwrap());
        }
    };
    let text = fs::read_to_string(packaging("grafana/convey.json")).unwrap();
    let mut unanswered = Vec::new();
    expressions(&serde_json::from_str(&text).unwrap(), &mut unanswered);
    assert!(unanswered.len() > 40, "{unanswered:?}");
    for (name, value) in [("$instance", ".+"), ("$job", ".+"), ("$__rate_interval", "10s")] {
        unanswered.iter_mut().for_each(|expr| *expr = expr.replace(name, value));
    }
    // Rules return results only while something is wrong, but each of their metrics must exist.
    let rules = fs::read_to_string(packaging("prometheus/convey.rules.yml")).unwrap();
    // Except the rules for certificates, which packet modes do not have.
    let of_certificates =
        |name: &&str| name.starts_with("convey_certificate_") || name.starts_with("convey_acme_");
    unanswered.extend(metrics(&rules).into_iter().filter(|name| !of_certificates(name)).map(str::to_owned));

    // Rates need consecutive scrapes, which may be late on a busy machine.
    let start = clock();
    while !unanswered.is_empty() {
        client();
        let answers = query_each(network, &unanswered);
        let answers = unanswered.into_iter().zip(answers);
        unanswered = answers.filter(|(_, answer)| !has_data(answer)).map(|(expr, _)| expr).collect();
        assert!(start.elapsed() < 3 * PATIENCE, "no data for {unanswered:#?}");
    }
}

fn start_prometheus(network: &Network) -> Process {
    let config = "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n\
        scrape_configs: [{job_name: convey, static_configs: [{targets: ['127.0.0.1:7000']}]}]\n";
    fs::write(network.path("prometheus.yml"), config).unwrap();
    let mut command = network.lab.command(Role::Balancer, "prometheus");
    command.arg(format!("--config.file={}", network.path("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", network.path("tsdb").display()));
    command.arg(format!("--web.listen-address={}", SocketAddr::from(PROMETHEUS)));
    let log = fs::File::create(network.path("prometheus.log")).unwrap();
    let prometheus = Process::spawn(command.stdout(log.try_clone().unwrap()).stderr(log));
    wait_for("Prometheus to be ready", || {
        let (status, _) = network.inside(Role::Balancer, || fetch(PROMETHEUS.into(), "/-/ready").ok())?;
        (status == 200).then_some(())
    });
    prometheus
}

/// Result of each query in Prometheus at this moment.
fn query_each(network: &Network, exprs: &[String]) -> Vec<Value> {
    let url = format!("http://{}/api/v1/query", SocketAddr::from(PROMETHEUS));
    let mut curl = network.lab.command(Role::Balancer, "curl");
    for (n, expr) in exprs.iter().enumerate() {
        let next = if n > 0 { &["--next"][..] } else { &[] };
        curl.args(next).args(["-sS", "--get", "--data-urlencode", &format!("query={expr}"), &url]);
    }
    let ran = run(&mut curl);
    let answers = serde_json::Deserializer::from_str(&ran.stdout).into_iter::<Value>();
    let answers: Vec<Value> = answers.map_while(Result::ok).collect();
    let are_all = answers.len() == exprs.len() && answers.iter().all(|answer| answer["status"] == "success");
    assert!(are_all, "{ran:?}");
    answers
}

/// Whether the result has a number.
fn has_data(answer: &Value) -> bool {
    let samples = answer.pointer("/data/result").and_then(Value::as_array).unwrap();
    samples.iter().any(|sample| sample["value"][1].as_str().is_some_and(|value| value != "NaN"))
}

/// All queries of a dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| expressions(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

/// Metrics in the rules.
fn metrics(rules: &str) -> BTreeSet<&str> {
    let words = rules.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let found: BTreeSet<&str> =
        words.filter(|word| word.starts_with("convey_") || word.starts_with("process_")).collect();
    assert!(found.len() > 10, "{found:?}");
    found
}

fn packaging(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file)
}

fn vip(case: Case, mode: Mode) -> SocketAddr {
    let port = if mode.forwards_packets() { PORT } else { 8080 };
    case.family.vip(port)
}

/// Two frontends with a limit, one of mode http, a server with a host name, and a Service that does
/// not exist.
fn configuration(case: Case) -> String {
    let [proxy, nat] = [Mode::Proxy, Mode::Passthrough].map(|mode| vip(case, mode));
    let server = SocketAddr::new(case.family.address(Role::Server(1)), PORT);
    format!(
        "[frontends.proxy]\nmode = \"proxy\"\nlisten_addr = \"{proxy}\"\nbackend = \"proxied\"\nmax_connections = 100\n\
         [frontends.nat]\nlisten_addr = \"{nat}\"\nbackend = \"web\"\nmax_connections = 100\n\
         [backends.proxied]\nhealth_check.kind = \"none\"\nservers.s.addr = \"{server}\"\n\
         [backends.web]\nhealth_check.kind = \"none\"\nservers.s.addr = \"{server}\"\n\
         [frontends.site]\nmode = \"http\"\nlisten_addr = \"{}\"\nbackend = \"site\"\n\
         [backends.site]\nhealth_check.kind = \"none\"\nservers.s.addr = \"{}\"\n\
         [frontends.named]\nmode = \"proxy\"\nlisten_addr = \"{}\"\nbackend = \"named\"\n\
         [backends.named]\nservers.s.addr = \"localhost:9\"\n\
         kubernetes = {{ service = \"shop/web\", port = \"http\", kubeconfig = \"/nowhere\" }}\n\
         [dns]\nallow_local = true\n[passthrough]\noffload = \"tc\"\n",
        case.family.vip(8083),
        SocketAddr::new(server.ip(), WEB_PORT),
        case.family.vip(8082)
    )
}
