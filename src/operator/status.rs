//! `convey status`: one screen, or what has happened lately. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};
use serde::Deserialize;

/// What of the report is shown. Fields that another version lacks or adds do not matter.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    version: String,
    uptime_seconds: u64,
    frontends: BTreeMap<String, Frontend>,
    backends: BTreeMap<String, Backend>,
    overlays: Vec<Said>,
    config: Config,
    packets: Option<Packets>,
    acme: Option<Acme>,
    announced: BTreeMap<String, Announced>,
    etcd: Option<Etcd>,
    discovery: BTreeMap<String, Discovered>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Etcd {
    address: String,
    connected: bool,
    since: String,
    error: Option<String>,
    revision: i64,
    refused_revision: Option<i64>,
    problems: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Announced {
    interface: String,
    announced: bool,
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Discovered {
    source: String,
    connected: bool,
    error: Option<String>,
    notes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Acme {
    names: BTreeMap<String, AcmeName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AcmeName {
    not_after: Option<String>,
    next_order: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Frontend {
    mode: String,
    protocol: String,
    listen_addr: Vec<String>,
    backend: String,
    routes: Vec<Route>,
    unserved: BTreeMap<String, String>,
    tls: Option<FrontendTls>,
    total_connections: u64,
    current_connections: u64,
    refused: BTreeMap<String, u64>,
    drops: BTreeMap<String, u64>,
    accept_backoffs: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FrontendTls {
    fault: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Route {
    backend: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Backend {
    /// The directory whose files it serves.
    files: Option<String>,
    algorithm: String,
    servers_up: usize,
    servers: BTreeMap<String, Server>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Server {
    addr: String,
    effective_weight: f64,
    state: String,
    up: bool,
    eligible: bool,
    health: Health,
    ejected: Option<Ejected>,
    total_connections: u64,
    current_connections: u64,
    connect_failures: u64,
    handshakes: Option<Handshakes>,
    path_mtu_suspicions: PathMtuSuspicions,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathMtuSuspicions {
    to_server: u64,
    to_client: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Handshakes {
    begun: u64,
    completed: u64,
    syn_repeated: u64,
    answers_nobody: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Health {
    reason: String,
    since: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ejected {
    reason: String,
    remaining_seconds: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    /// `None`: of the program.
    backend: Option<String>,
    server: Option<String>,
    state: Option<String>,
    weight: Option<u64>,
    added: Option<AddedTo>,
    removed: bool,
    log_level: Option<String>,
    superseded: bool,
    absent: bool,
    since: String,
    by: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AddedTo {
    addr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    file: String,
    hash: String,
    loaded: String,
    last_reload_successful: bool,
    last_reload: String,
    errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Packets {
    drops: BTreeMap<String, u64>,
}

/// Something that has happened.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PastEvent {
    at: String,
    level: String,
    text: String,
}

/// A line for each, as in the log.
pub fn past(events: &[PastEvent]) -> String {
    let line = |event: &PastEvent| format!("{} {:<5} {}\n", event.at, event.level.to_uppercase(), event.text);
    events.iter().map(line).collect()
}

impl Status {
    /// Frontends without a certificate that is valid now, each with the reason.
    pub fn certificate_faults(&self) -> Vec<String> {
        let fault = |(name, frontend): (&String, &Frontend)| {
            Some(format!("frontend {name}: {}", frontend.tls.as_ref()?.fault.as_ref()?))
        };
        self.frontends.iter().filter_map(fault).collect()
    }
}

/// The screen. `obstacles` are the lines of `/readyz`, of which there are none while convey should get traffic.
pub fn overview(status: &Status, obstacles: &[String], now: SystemTime) -> String {
    let up = time(Duration::from_secs(status.uptime_seconds));
    let mut screen = format!("convey {}, up {up}\n", status.version);
    screen += &of_config(&status.config, now);
    screen += &status.etcd.as_ref().map(|etcd| of_etcd(etcd, now)).unwrap_or_default();
    match obstacles {
        [] => {
            let unserved = status.frontends.iter().flat_map(|(name, frontend)| {
                frontend.unserved.values().map(move |why| format!("NOT SERVED: frontend {name}: {why}\n"))
            });
            let certificates = status.certificate_faults();
            let certificates = certificates.iter().map(|fault| format!("NO VALID CERTIFICATE: {fault}\n"));
            let unserved: String = unserved.chain(certificates).collect();
            screen += if unserved.is_empty() { "ready: every frontend can serve\n" } else { "ready\n" };
            screen += &unserved;
        }
        some => {
            some.iter().for_each(|line| screen += &format!("NOT READY: {line}\n"));
            let faults = status.certificate_faults().into_iter().filter(|fault| !some.contains(fault));
            faults.for_each(|fault| screen += &format!("NO VALID CERTIFICATE: {fault}\n"));
        }
    }
    screen += &of_frontends(status);
    for (name, backend) in &status.backends {
        screen += &of_backend(name, backend, now);
        screen += &status.discovery.get(name).map(of_discovery).unwrap_or_default();
    }
    screen += &status.acme.as_ref().map(of_acme).unwrap_or_default();
    screen += &of_announced(&status.announced);
    screen += &of_drops(status);
    if !status.overlays.is_empty() {
        screen += "\nOther than the file (`convey reset` takes it back):\n";
        status.overlays.iter().for_each(|said| screen += &of_overlay(said, now));
    }
    screen
}

/// What is other than the file in the convey that this is the status of, a line each; nothing if it runs with another file.
pub fn other_than_file(status: &Status, is_file: impl Fn(&str) -> bool, now: SystemTime) -> Vec<String> {
    if !is_file(&status.config.file) {
        return Vec::new();
    }
    status.overlays.iter().map(|said| of_overlay(said, now).trim().to_owned()).collect()
}

/// What is wrong with the source of a backend's servers.
fn of_discovery(discovery: &Discovered) -> String {
    let Discovered { source, connected, error, notes } = discovery;
    let error = match (connected, error) {
        (true, _) => None,
        (false, Some(why)) => Some(format!("  {source} cannot be watched, its servers stay: {why}\n")),
        (false, None) => Some(format!("  {source} has not answered yet\n")),
    };
    error.into_iter().chain(notes.iter().map(|note| format!("  {source}: {note}\n"))).collect()
}

/// Certificates that convey orders itself.
fn of_acme(acme: &Acme) -> String {
    let mut remarks = String::new();
    let mut table = table(["CERTIFICATE", "UNTIL", "NEXT ORDER"], 3);
    for (name, AcmeName { not_after, next_order, error }) in &acme.names {
        let time = |time: &Option<String>| time.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([name.clone(), time(not_after), time(next_order)]);
        remarks += &error.as_ref().map_or(String::new(), |why| format!("  {name}: {why}\n"));
    }
    format!("\n{}\n{remarks}", trimmed(&table))
}

/// Addresses that are announced while their frontends can serve.
fn of_announced(announced: &BTreeMap<String, Announced>) -> String {
    if announced.is_empty() {
        return String::new();
    }
    let mut table = table(["ADDRESS", "ON", "ANNOUNCED", "WHY"], 4);
    for (address, Announced { interface, announced, reason }) in announced {
        let word = if *announced { "yes" } else { "NO" };
        table.add_row([address.clone(), interface.clone(), word.to_owned(), reason.clone()]);
    }
    format!("\n{}\n", trimmed(&table))
}

/// The configuration in etcd.
fn of_etcd(etcd: &Etcd, now: SystemTime) -> String {
    let Etcd { address, connected, since, error, revision, refused_revision, problems } = etcd;
    let mut lines = format!("revision {revision} of {address}\n");
    if let Some(refused) = refused_revision {
        lines += &format!("revision {refused} is refused:\n");
        problems.iter().for_each(|problem| lines += &format!("  {problem}\n"));
    }
    if !connected {
        lines += &match error {
            Some(why) => {
                format!("etcd cannot be reached (since {since}, {} ago): {why}\n", age(since, now))
            }
            None => "etcd cannot be reached: not yet\n".to_owned(),
        };
    }
    lines
}

fn of_config(config: &Config, now: SystemTime) -> String {
    let mut lines = format!("configuration {}, loaded {} ago\n", config.hash, age(&config.loaded, now));
    if !config.last_reload_successful {
        lines += &format!("the last reload was refused {} ago:\n", age(&config.last_reload, now));
        config.errors.iter().for_each(|error| lines += &format!("  {error}\n"));
    }
    lines
}

fn of_frontends(status: &Status) -> String {
    let mut remarks = String::new();
    let mut table = table(["FRONTEND", "MODE", "LISTENS", "BACKEND", "OPEN", "TOTAL", "REFUSED"], 4);
    for (name, frontend) in &status.frontends {
        let mode = format!("{} {}", frontend.mode, frontend.protocol);
        let refused: u64 = frontend.refused.values().sum();
        if frontend.accept_backoffs > 0 {
            let pauses = frontend.accept_backoffs;
            remarks +=
                &format!("  {name}: accepting paused for want of descriptors or memory, pauses: {pauses}\n");
        }
        table.add_row([
            name.clone(),
            mode,
            frontend.listen_addr.join(" "),
            backends_of(frontend),
            frontend.current_connections.to_string(),
            frontend.total_connections.to_string(),
            refused.to_string(),
        ]);
    }
    format!("\n{}\n{remarks}", trimmed(&table))
}

/// Its backend, and those of its routes.
fn backends_of(frontend: &Frontend) -> String {
    let of_routes = frontend.routes.iter().filter_map(|route| route.backend.as_deref());
    let mut names: Vec<&str> = Vec::new();
    for name in [&*frontend.backend].into_iter().chain(of_routes).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}

fn of_backend(name: &str, backend: &Backend, now: SystemTime) -> String {
    if let Some(files) = &backend.files {
        return format!("\nbackend {name}: files {files}\n");
    }
    let eligible = |server: &&Server| server.eligible;
    let whole: f64 = backend.servers.values().filter(eligible).map(|server| server.effective_weight).sum();
    let mut table =
        table(["SERVER", "ADDRESS", "STATE", "HEALTH", "SINCE", "SHARE", "OPEN", "TOTAL", "FAILED"], 4);
    let mut reasons = String::new();
    for (name, server) in &backend.servers {
        let share =
            if server.eligible && whole > 0.0 { server.effective_weight / whole * 100.0 } else { 0.0 };
        let health = match (&server.ejected, server.up) {
            (Some(_), _) => "ejected",
            (None, true) => "up",
            (None, false) => "down",
        };
        let why = server.ejected.as_ref().map_or_else(|| server.health.reason.clone(), until_when);
        // The time is of its health, which has not changed.
        let since = if server.ejected.is_some() { "-".to_owned() } else { age(&server.health.since, now) };
        if health != "up" {
            reasons += &format!("  {name}: {why}\n");
        }
        if let Some(remark) = server.handshakes.as_ref().and_then(of_handshakes) {
            reasons += &format!("  {name}: {remark}\n");
        }
        for remark in of_path_mtu(&server.path_mtu_suspicions) {
            reasons += &format!("  {name}: {remark}\n");
        }
        table.add_row([
            name.clone(),
            server.addr.clone(),
            server.state.clone(),
            health.to_owned(),
            since,
            format!("{share:.0} %"),
            server.current_connections.to_string(),
            server.total_connections.to_string(),
            failures(server).to_string(),
        ]);
    }
    let (up, all) = (backend.servers_up, backend.servers.len());
    let title = format!("\nbackend {name}: {}, {up} of {all} up", backend.algorithm);
    format!("{title}\n{}\n{reasons}", trimmed(&table))
}

/// Connects that failed; in packet modes handshakes that clients did not complete.
fn failures(server: &Server) -> u64 {
    let incomplete = |handshakes: &Handshakes| handshakes.begun.saturating_sub(handshakes.completed);
    server.handshakes.as_ref().map_or(server.connect_failures, incomplete)
}

/// Fewer say nothing.
const TELLING_HANDSHAKES: u64 = 5;

/// What is to be said of a server that answers no client now, or if fewer than half of its handshakes got to their end.
fn of_handshakes(handshakes: &Handshakes) -> Option<String> {
    let &Handshakes { begun, completed, syn_repeated, answers_nobody } = handshakes;
    if answers_nobody {
        return Some("answers no client; look at its VIP, NAT, gateway and firewall".to_owned());
    }
    (begun >= TELLING_HANDSHAKES && completed.saturating_mul(2) < begun).then(|| {
        format!("{completed} of {begun} handshakes completed, {syn_repeated} SYNs repeated since the start")
    })
}

/// What is to be said of large packets that do not arrive.
fn of_path_mtu(&PathMtuSuspicions { to_server, to_client }: &PathMtuSuspicions) -> Vec<String> {
    let remark = |flows: u64, whose: &str| {
        let connections = if flows == 1 { "connection" } else { "connections" };
        (flows > 0).then(|| format!("large packets of {flows} {connections} do not arrive at {whose}"))
    };
    [remark(to_server, "the server"), remark(to_client, "the client")].into_iter().flatten().collect()
}

fn of_drops(status: &Status) -> String {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    let frontends = status.frontends.values().flat_map(|frontend| &frontend.drops);
    let packets = status.packets.iter().flat_map(|packets| &packets.drops);
    for (reason, count) in frontends.chain(packets) {
        *all.entry(reason).or_default() += count;
    }
    all.retain(|_, count| *count > 0);
    let drops: Vec<String> = all.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if drops.is_empty() {
        "\nnothing dropped\n".to_owned()
    } else {
        format!("\ndropped: {}\n", drops.join(", "))
    }
}

fn of_overlay(said: &Said, now: SystemTime) -> String {
    let server = said.server.as_ref().map(|server| format!("/{server}")).unwrap_or_default();
    let what = match said {
        Said { added: Some(added), .. } => format!("added at {}", added.addr),
        Said { removed: true, .. } => "removed".to_owned(),
        Said { log_level: Some(level), .. } => format!("log level {level}"),
        Said { weight: Some(weight), .. } => format!("weight {weight}"),
        _ => said.state.clone().unwrap_or_default(),
    };
    let of = said.backend.as_ref().map(|backend| format!("{backend}{server}: ")).unwrap_or_default();
    let note = match (said.superseded, said.absent, &said.server) {
        (true, ..) => "; superseded: the file goes before it",
        (_, true, Some(_)) => "; no effect: there is no such server now",
        (_, true, None) => "; no effect: there is no such backend now",
        _ => "",
    };
    format!("  {of}{what}, for {}, by {}{note}\n", age(&said.since, now), said.by)
}

/// A table of words, and of numbers from this column on.
fn table<const N: usize>(titles: [&str; N], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(titles);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        if column.index >= numbers {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Why a server is out, and for how much longer.
fn until_when(ejected: &Ejected) -> String {
    let left = time(Duration::from_secs_f64(ejected.remaining_seconds.max(0.0).ceil()));
    format!("{}; it comes back in {left}", ejected.reason)
}

/// How long ago that was.
fn age(rfc3339: &str, now: SystemTime) -> String {
    let Ok(then) = humantime::parse_rfc3339(rfc3339) else { return "?".to_owned() };
    time(now.duration_since(then).unwrap_or_default())
}

/// Its two largest units.
fn time(length: Duration) -> String {
    let all = humantime::format_duration(Duration::from_secs(length.as_secs())).to_string();
    all.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_screen_tells_who_is_down_and_why_and_what_is_other_than_the_file() {
        let server = |name: &str, up: bool, state: &str| {
            let completed = if name == "3" { 3 } else { 20 };
            json!({
                "addr": format!("10.0.0.{name}:80"), "effective_weight": 1.0, "state": state, "up": up,
                "eligible": up && state == "ready", "connect_failures": 2, "total_connections": 12,
                "health": { "up": up, "reason": "connect failed: refused", "since": "2026-01-01T00:00:00Z" },
                "path_mtu_suspicions": { "to_server": u64::from(name == "1"), "to_client": 0 },
                "handshakes": { "begun": 40, "completed": completed, "syn_repeated": 70 },
            })
        };
        let report = json!({
            "version": "1.2.3", "uptime_seconds": 3_725, "news": "of another version",
            "config": { "hash": "abc", "loaded": "2026-01-01T00:00:00Z", "last_reload_successful": true },
            "frontends": { "web": {
                "mode": "proxy", "protocol": "tcp", "listen_addr": ["10.0.0.9:80"], "backend": "app",
                "drops": { "no_server": 3 }, "accept_backoffs": 12,
            } },
            "backends": { "app": {
                "algorithm": "round_robin", "servers_up": 2,
                "servers": {
                    "1": server("1", true, "ready"), "2": server("2", false, "ready"), "3": server("3", true, "drain"),
                },
            } },
            "overlays": [{
                "backend": "app", "server": "3", "state": "drain", "since": "2026-01-01T00:01:00Z", "by": "root",
            }, {
                "backend": "app", "server": "9", "weight": 2, "since": "2026-01-01T00:01:00Z", "by": "root", "absent": true,
            }],
        });
        let status: Status = serde_json::from_value(report).unwrap();
        let now = humantime::parse_rfc3339("2026-01-01T00:01:30Z").unwrap();
        let screen = overview(&status, &[], now);
        let lines: Vec<Vec<&str>> = screen.lines().map(|line| line.split_whitespace().collect()).collect();
        let has = |line: &str| lines.contains(&line.split(' ').collect());
        assert!(has("convey 1.2.3, up 1h 2m"), "{screen}");
        assert!(has("ready: every frontend can serve"), "{screen}");
        assert!(has("web proxy tcp 10.0.0.9:80 app 0 0 0"), "{screen}");
        assert!(has("1 10.0.0.1:80 ready up 1m 30s 100 % 0 12 20"), "{screen}");
        assert!(has("2 10.0.0.2:80 ready down 1m 30s 0 % 0 12 20"), "{screen}");
        assert!(has("2: connect failed: refused") && has("dropped: no_server 3"), "{screen}");
        assert!(has("3: 3 of 40 handshakes completed, 70 SYNs repeated since the start"), "{screen}");
        assert_eq!(screen.matches("handshakes").count(), 1, "{screen}");
        assert!(has("1: large packets of 1 connection do not arrive at the server"), "{screen}");
        assert_eq!(screen.matches("large packets").count(), 1, "{screen}");
        assert!(has("web: accepting paused for want of descriptors or memory, pauses: 12"), "{screen}");
        assert!(has("app/3: drain, for 30s, by root"), "{screen}");
        assert!(has("app/9: weight 2, for 30s, by root; no effect: there is no such server now"), "{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    }

    #[test]
    fn a_backend_with_files_says_where_these_are() {
        let report = json!({ "backends": { "site": { "algorithm": "round_robin", "files": "/srv/www", "servers": {} } } });
        let screen = overview(&serde_json::from_value(report).unwrap(), &[], SystemTime::UNIX_EPOCH);
        assert!(
            screen.contains("\nbackend site: files /srv/www\n") && !screen.contains("0 of 0"),
            "{screen}"
        );
    }

    #[test]
    fn a_server_that_answers_no_client_now_is_named_however_many_it_has_answered_before() {
        let server = json!({ "handshakes": { "begun": 9_000, "completed": 8_990, "answers_nobody": true } });
        let report = json!({ "backends": { "app": { "servers": { "a": server, "b": {} } } } });
        let screen = overview(&serde_json::from_value(report).unwrap(), &[], SystemTime::UNIX_EPOCH);
        assert!(screen.contains("\n  a: answers no client; look at its VIP,"), "{screen}");
        assert_eq!(screen.matches("answers no client").count(), 1, "{screen}");
    }

    #[test]
    fn who_cannot_serve_and_a_file_that_was_refused_are_told_first() {
        let report = json!({ "config": {
            "last_reload_successful": false, "last_reload": "2026-01-01T00:00:00Z", "errors": ["line 3: no"],
        } });
        let status: Status = serde_json::from_value(report).unwrap();
        let now = humantime::parse_rfc3339("2026-01-01T00:00:05Z").unwrap();
        let screen = overview(&status, &["web: no server".to_owned()], now);
        let told = ["the last reload was refused 5s ago:", "  line 3: no", "NOT READY: web: no server"];
        assert!(told.iter().all(|told| screen.lines().any(|line| line == *told)), "{screen}");
    }

    #[test]
    fn why_a_certificate_is_not_ordered_is_on_a_line_of_its_own() {
        let names = json!({ "names": {
            "bad.example": { "not_after": null, "next_order": "2026-01-01T00:00:00Z", "error": "unauthorized" },
            "good.example": { "not_after": "2026-04-01T00:00:00Z", "next_order": "2026-03-01T00:00:00Z", "error": null },
        } });
        let said = of_acme(&serde_json::from_value(names).unwrap());
        assert!(said.ends_with("2026-03-01T00:00:00Z\n  bad.example: unauthorized\n"), "{said}");
    }
}
