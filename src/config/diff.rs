//! What a reload changes, in words for the log.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::Config;
use crate::model::{
    Backend, FlowTimeouts, Frontend, HealthCheck, NamedServer, PacketSettings, ProbeKind, Server, Timeouts,
};

/// The difference between two configurations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// What takes effect at once: one line for each frontend and backend that changed, one for each table of
    /// timeouts.
    pub changes: Vec<String>,
    /// What waits for a restart, one line each.
    pub needs_restart: Vec<String>,
}

/// Compares two configurations. Both lists are empty exactly when they are equal.
pub fn diff(old: &Config, new: &Config) -> Diff {
    // Taken apart field by field, here and below, so that a new field cannot be forgotten.
    let Config { frontends, backends, stats, timeouts, passthrough, name_servers } = old;
    let (mut changes, mut restart) = (Vec::new(), Vec::new());
    for (before, after) in pair(frontends, &new.frontends, |a, b| a.name == b.name) {
        restart.extend(before.zip(after).and_then(|(before, after)| mode_change(before, after)));
        changes.extend(line("frontend", before, after, |f| &f.name, about_frontend, frontend));
    }
    for (before, after) in pair(backends, &new.backends, |a, b| a.name == b.name) {
        changes.extend(line("backend", before, after, |b| &b.name, about_backend, backend));
    }
    let of_flows = flow_timeout_changes(&passthrough.timeouts, &new.passthrough.timeouts);
    for (what, times) in
        [("timeouts", timeout_changes(timeouts, &new.timeouts)), ("passthrough.timeouts", of_flows)]
    {
        if !times.is_empty() {
            changes.push(format!("{what}: {}", times.join(", ")));
        }
    }
    changes.extend(change("dns.nameservers", system_or(name_servers), system_or(&new.name_servers)));
    restart.extend(change("stats address", stats.listen, new.stats.listen));
    restart.extend(passthrough_changes(passthrough, &new.passthrough));
    Diff { changes, needs_restart: restart }
}

/// The line of a frontend or backend that was added, removed or changed.
fn line<T>(
    kind: &str,
    before: Option<&T>,
    after: Option<&T>,
    name: impl Fn(&T) -> &str,
    about: impl Fn(&T) -> String,
    changes: impl Fn(&T, &T) -> Vec<String>,
) -> Option<String> {
    match (before, after) {
        (Some(before), Some(after)) => {
            let changes = changes(before, after);
            (!changes.is_empty()).then(|| format!("{kind} {}: {}", name(after), changes.join(", ")))
        }
        (None, Some(after)) => Some(format!("{kind} {}: added ({})", name(after), about(after))),
        (Some(before), None) => Some(format!("{kind} {}: removed", name(before))),
        _ => None,
    }
}

fn about_frontend(frontend: &Frontend) -> String {
    let listen: Vec<_> = frontend.endpoints().map(|listen| listen.to_string()).collect();
    format!("{}, {} -> backend {}", frontend.mode.name(), listen.join(", "), frontend.backend)
}

fn mode_change(old: &Frontend, new: &Frontend) -> Option<String> {
    change(&format!("frontend {}: mode", new.name), old.mode.name(), new.mode.name())
}

fn about_backend(backend: &Backend) -> String {
    let servers: Vec<_> = entries(backend).into_iter().map(|server| server.addr).collect();
    format!("{}, servers {}", backend.algorithm.name(), servers.join(", "))
}

fn frontend(old: &Frontend, new: &Frontend) -> Vec<String> {
    // The mode waits for a restart.
    let Frontend { name: _, mode: _, protocol, listen, backend, max_connections } = old;
    let mut changes = Vec::new();
    for (before, after) in pair(listen, &new.listen, |a, b| a == b) {
        match (before, after) {
            (None, Some(addr)) => changes.push(format!("+ {addr}")),
            (Some(addr), None) => changes.push(format!("- {addr}")),
            _ => {}
        }
    }
    changes.extend(change("protocol", protocol.name(), new.protocol.name()));
    changes.extend(change("backend", backend, &new.backend));
    changes.extend(change("max_connections", or(*max_connections, "none"), or(new.max_connections, "none")));
    changes
}

fn backend(old: &Backend, new: &Backend) -> Vec<String> {
    let Backend { name: _, algorithm, hash, health_check, on_down, dsr, servers: _, named: _ } = old;
    let mut changes = server_changes(&entries(old), &entries(new));
    changes.extend(change("algorithm", algorithm.name(), new.algorithm.name()));
    changes.extend(change("hash", hash.name(), new.hash.name()));
    changes.extend(health_check_changes(health_check, &new.health_check));
    changes.extend(change("on_down", on_down.name(), new.on_down.name()));
    changes.extend(change("dsr", dsr.name(), new.dsr.name()));
    changes
}

/// A server of the file, known by its address or by a name.
struct Entry {
    name: String,
    addr: String,
    weight: u16,
    backup: bool,
    max_connections: Option<u32>,
}

fn entries(backend: &Backend) -> Vec<Entry> {
    let at_address = backend.servers.iter().cloned().map(|server| {
        let Server { name, addr, weight, backup, max_connections } = server;
        Entry { name, addr: addr.to_string(), weight, backup, max_connections }
    });
    let named = backend.named.iter().cloned().map(|named| {
        let NamedServer { name, host, port, weight, backup, max_connections } = named;
        Entry { name, addr: format!("{host}:{port}"), weight, backup, max_connections }
    });
    at_address.chain(named).collect()
}

/// A server that changes its address is another one; one that changes its name only is renamed.
fn server_changes(old: &[Entry], new: &[Entry]) -> Vec<String> {
    let (mut added, mut removed, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    for (before, after) in pair(old, new, |a, b| a.name == b.name && a.addr == b.addr) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(server(before, after)),
            (None, Some(after)) => come.push(after),
            (Some(before), None) => gone.push(before),
            (None, None) => {}
        }
    }
    for (before, after) in pair(&gone, &come, |a, b| a.addr == b.addr) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(server(before, after)),
            (None, Some(after)) => added.push(format!("+ {}", after.addr)),
            (Some(before), None) => removed.push(format!("- {}", before.addr)),
            (None, None) => {}
        }
    }
    [added, removed, changed].concat()
}

fn server(old: &Entry, new: &Entry) -> Vec<String> {
    let Entry { name, addr, weight, backup, max_connections } = old;
    let of = |what: &str| format!("{what} of {addr}");
    let mut changes = Vec::new();
    changes.extend(change(&of("name"), name, &new.name));
    changes.extend(change(&of("weight"), weight, &new.weight));
    changes.extend(change(&of("backup"), backup, &new.backup));
    let limits = (or(*max_connections, "none"), or(new.max_connections, "none"));
    changes.extend(change(&of("max_connections"), limits.0, limits.1));
    changes
}

fn health_check_changes(old: &HealthCheck, new: &HealthCheck) -> Vec<String> {
    let HealthCheck { kind, port, interval, timeout, rise, fall } = old;
    let mut changes = Vec::new();
    changes.extend(change("health check", probe(kind), probe(&new.kind)));
    changes.extend(change("health check port", or(*port, "the server's"), or(new.port, "the server's")));
    changes.extend(duration("health check interval", *interval, new.interval));
    changes.extend(duration("health check timeout", *timeout, new.timeout));
    changes.extend(change("health check rise", rise, &new.rise));
    changes.extend(change("health check fall", fall, &new.fall));
    changes
}

fn probe(kind: &ProbeKind) -> String {
    match kind {
        ProbeKind::None => "none".to_owned(),
        ProbeKind::Tcp => "tcp".to_owned(),
        ProbeKind::Udp => "udp".to_owned(),
        ProbeKind::Http { path, expected_status } => {
            format!("http {path} ({}-{})", expected_status.start(), expected_status.end())
        }
    }
}

fn timeout_changes(old: &Timeouts, new: &Timeouts) -> Vec<String> {
    let Timeouts { connect, idle, drain } = old;
    let mut changes = Vec::new();
    changes.extend(duration("connect", *connect, new.connect));
    changes.extend(duration("idle", *idle, new.idle));
    changes.extend(duration("drain", *drain, new.drain));
    changes
}

fn passthrough_changes(old: &PacketSettings, new: &PacketSettings) -> Vec<String> {
    let PacketSettings {
        capacity,
        workers,
        stats_update_frequency: frequency,
        interfaces,
        guard,
        offload,
        snat_ports,
        snat_addresses,
        timeouts: _, // they hold at once
    } = old;
    let ports = |ports: &RangeInclusive<u16>| format!("{}-{}", ports.start(), ports.end());
    let changes = [
        change("connection_tracker_capacity", capacity, &new.capacity),
        change("workers", or(*workers, "automatic"), or(new.workers, "automatic")),
        change("stats_update_frequency", frequency, &new.stats_update_frequency),
        change("interfaces", list(interfaces), list(&new.interfaces)),
        change("guard", guard, &new.guard),
        change("offload", offload, &new.offload),
        change("snat_ports", ports(snat_ports), ports(&new.snat_ports)),
        change("snat_addresses", list(snat_addresses), list(&new.snat_addresses)),
    ];
    changes.into_iter().flatten().map(|change| format!("passthrough.{change}")).collect()
}

fn flow_timeout_changes(old: &FlowTimeouts, new: &FlowTimeouts) -> Vec<String> {
    let pairs = old.named().into_iter().zip(new.named());
    pairs.filter_map(|((name, old), (_, new))| duration(name, old, new)).collect()
}

/// The values, or that they are chosen automatically.
pub(super) fn list<T: Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    if values.is_empty() { "automatic".to_owned() } else { values.join(", ") }
}

/// The name servers, or that they are the system's.
fn system_or(name_servers: &[SocketAddr]) -> String {
    let name_servers: Vec<String> = name_servers.iter().map(ToString::to_string).collect();
    if name_servers.is_empty() { "the system's".to_owned() } else { name_servers.join(", ") }
}

/// `what old -> new`, if they differ.
fn change<T: Display + PartialEq>(what: &str, old: T, new: T) -> Option<String> {
    (old != new).then(|| format!("{what} {old} -> {new}"))
}

fn duration(what: &str, old: Duration, new: Duration) -> Option<String> {
    let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
    change(what, seconds(old), seconds(new))
}

/// The value, or what stands for none.
pub(super) fn or<T: Display>(value: Option<T>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// Pairs what is the same thing before and after, one to one: those of before in their order, then those
/// that are only after.
fn pair<'a, T>(
    before: &'a [T],
    after: &'a [T],
    same: impl Fn(&T, &T) -> bool,
) -> Vec<(Option<&'a T>, Option<&'a T>)> {
    let mut rest: Vec<&T> = after.iter().collect();
    let mut pairs = Vec::new();
    for one in before {
        let twin = rest.iter().position(|other| same(one, other)).map(|index| rest.remove(index));
        pairs.push((Some(one), twin));
    }
    pairs.extend(rest.into_iter().map(|one| (None, Some(one))));
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const BEFORE: &str = r#"
        [frontends.api]
        listen_addr = "10.0.0.1:9000"
        backend = "a"
        [frontends.web]
        listen_addr = ["10.0.0.1:80", "10.0.0.1:81"]
        backend = "web"
        [backends.a.servers.x]
        addr = "10.0.1.1:80"
        [backends.web.servers.five]
        addr = "10.0.0.5:80"
        weight = 10
        [backends.web.servers.six]
        addr = "10.0.0.6:80"
    "#;

    fn config(text: &str) -> Config {
        parse("config.toml", text).expect("valid").config
    }

    /// The difference that edits of [`BEFORE`] make.
    fn edited(edits: &[(&str, &str)]) -> Diff {
        let mut text = BEFORE.to_owned();
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        diff(&config(BEFORE), &config(&text))
    }

    fn changes(edits: &[(&str, &str)]) -> Vec<String> {
        let diff = edited(edits);
        assert_eq!(diff.needs_restart, [""; 0]);
        diff.changes
    }

    #[test]
    fn a_file_saved_without_a_change_says_nothing() {
        assert_eq!(edited(&[]), Diff::default());
        assert_eq!(
            edited(&[("[\"10.0.0.1:80\", \"10.0.0.1:81\"]", "['10.0.0.1:81', '10.0.0.1:80']")]),
            Diff::default()
        );
    }

    #[test]
    fn a_server_that_is_known_by_name_comes_goes_and_changes_by_that() {
        let named = ("10.0.0.6", "App.internal");
        assert_eq!(changes(&[named]), ["backend web: + app.internal:80, - 10.0.0.6:80"]);
        let before = BEFORE.replace(named.0, named.1);
        let after = before.replace("internal:80\"", "internal:80\"\nweight = 3");
        let changes = diff(&config(&before), &config(&after)).changes;
        assert_eq!(changes, ["backend web: weight of app.internal:80 1 -> 3"]);
    }

    #[test]
    fn other_name_servers_need_no_restart() {
        let dns = "[backends.a.servers.x]";
        let with = format!("[dns]\nnameservers = ['10.0.0.53', '127.0.0.1:8600']\n{dns}");
        let line = "dns.nameservers the system's -> 10.0.0.53:53, 127.0.0.1:8600";
        assert_eq!(changes(&[(dns, &with)]), [line]);
    }

    #[test]
    fn servers_that_come_go_and_change_make_one_line() {
        assert_eq!(
            changes(&[("10.0.0.6", "10.0.0.7"), ("weight = 10", "weight = 50")]),
            ["backend web: + 10.0.0.7:80, - 10.0.0.6:80, weight of 10.0.0.5:80 10 -> 50"]
        );
    }

    #[test]
    fn everything_about_a_server_that_changes_is_named() {
        assert_eq!(
            changes(&[("servers.five]", "servers.six_]\nbackup = true\nmax_connections = 9")]),
            ["backend web: name of 10.0.0.5:80 five -> six_, backup of 10.0.0.5:80 false -> true, \
              max_connections of 10.0.0.5:80 none -> 9"]
        );
    }

    #[test]
    fn two_servers_that_swap_names_are_renamed() {
        assert_eq!(
            changes(&[
                ("servers.five", "servers.S"),
                ("servers.six", "servers.five"),
                ("servers.S", "servers.six")
            ]),
            ["backend web: name of 10.0.0.5:80 five -> six, name of 10.0.0.6:80 six -> five"]
        );
    }

    #[test]
    fn a_frontend_tells_where_it_listens_and_who_serves_it() {
        assert_eq!(
            changes(&[
                ("\"10.0.0.1:9000\"", "[\"0.0.0.0:9000\", \"[::]:9000\"]\nmax_connections = 5"),
                ("backend = \"a\"", "backend = \"web\""),
            ]),
            [
                "frontend api: - 10.0.0.1:9000, + 0.0.0.0:9000, + [::]:9000, backend a -> web, max_connections none -> 5"
            ]
        );
    }

    #[test]
    fn frontends_and_backends_come_and_go() {
        assert_eq!(
            changes(&[
                ("frontends.api", "frontends.new"),
                ("backends.a.", "backends.b."),
                ("\"a\"", "\"b\"")
            ]),
            [
                "frontend api: removed",
                "frontend new: added (proxy, 10.0.0.1:9000 -> backend b)",
                "backend a: removed",
                "backend b: added (round_robin, servers 10.0.1.1:80)",
            ]
        );
    }

    #[test]
    fn a_backend_tells_how_it_chooses_and_checks() {
        let settings = r#"
            [backends.web]
            algorithm = "maglev"
            hash = "tuple"
            on_down = "keep"
            [backends.web.health_check]
            kind = "http"
            port = 81
            interval = 1.5
            timeout = 0.5
            rise = 1
            fall = 1
            [backends.web.servers.five]"#;
        assert_eq!(
            changes(&[("[backends.web.servers.five]", settings)]),
            ["backend web: algorithm round_robin -> maglev, hash source -> tuple, \
              health check tcp -> http / (200-399), health check port the server's -> 81, \
              health check interval 2s -> 1.5s, health check timeout 1s -> 0.5s, \
              health check rise 2 -> 1, health check fall 3 -> 1, on_down reset -> keep"]
        );
    }

    #[test]
    fn timeouts_make_one_line_a_table() {
        let timeouts = "[timeouts]\nconnect = 2\nidle = 60\ndrain = 0\n[passthrough.timeouts]\nhalf_open = 1\n\
            established = 2\nhalf_closed = 3\nclosing = 4\ntime_wait = 5\nclosed = 6\n\
            udp_single = 7\nudp_stream = 8\n[frontends.api]";
        assert_eq!(
            changes(&[("[frontends.api]", timeouts)]),
            [
                "timeouts: connect 5s -> 2s, idle 600s -> 60s, drain 30s -> 0s",
                "passthrough.timeouts: half_open 60s -> 1s, established 7440s -> 2s, half_closed 240s -> 3s, \
                 closing 60s -> 4s, time_wait 60s -> 5s, closed 10s -> 6s, udp_single 30s -> 7s, udp_stream 300s -> 8s"
            ]
        );
    }

    #[test]
    fn what_cannot_change_while_running_is_listed_apart() {
        let settings = r#"mode = "dsr"
            [stats]
            port = 7001
            [passthrough]
            connection_tracker_capacity = 3
            workers = 2
            stats_update_frequency = 1
            interfaces = ["eth0", "eth1"]
            guard = false
            offload = "off"
            snat_ports = "40000-41000"
            snat_addresses = ["10.0.0.8", "10.0.0.9"]
            [frontends.api]"#;
        let text = BEFORE.replace("[frontends.api]", settings);
        // The modes that run stay: so do the defaults that depend on them.
        let (before, loaded) = (config(BEFORE), parse("config.toml", &text).expect("valid"));
        let frontends = loaded.config.frontends.clone();
        let in_force = loaded.keeping_modes(&before.frontends).config;
        let diff = diff(&before, &Config { frontends, ..in_force });
        assert_eq!(diff.changes, [""; 0]);
        assert_eq!(
            diff.needs_restart,
            [
                "frontend api: mode proxy -> dsr",
                "frontend web: mode proxy -> dsr",
                "stats address 127.0.0.1:7000 -> 127.0.0.1:7001",
                "passthrough.connection_tracker_capacity 1000000 -> 3",
                "passthrough.workers automatic -> 2",
                "passthrough.stats_update_frequency 5 -> 1",
                "passthrough.interfaces automatic -> eth0, eth1",
                "passthrough.guard true -> false",
                "passthrough.offload auto -> off",
                "passthrough.snat_ports 33768-61000 -> 40000-41000",
                "passthrough.snat_addresses automatic -> 10.0.0.8, 10.0.0.9",
            ]
        );
    }
}
