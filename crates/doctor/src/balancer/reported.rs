//! Faults in `convey status` that no other finding explains. Pure.
//!
//! Doctor never contradicts `convey status`: it has a finding for each fault in the status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use convey_config::listed;
use convey_model::{AdminState, Mode, Protocol};

use super::Explained;
use super::status::{RunningBackend, RunningFrontend, RunningServer, RunningStatus};
use crate::{Diagnosis, Severity};

/// Maximum number of servers, lines or notes named in a finding.
const MAX_NAMED: usize = 4;

/// Minimum number of connections to a server before doctor reports that the server sends nothing.
const FEW: u64 = 5;

/// Findings for faults in the status of the running convey that no `known` finding explains.
/// `first` is an earlier status.
pub fn examine(
    (first, status): (&RunningStatus, &RunningStatus),
    known: &[Diagnosis],
    explained: &Explained,
) -> Vec<Diagnosis> {
    let mut found = of_config(status);
    found.extend(of_sources(status));
    for (name, backend) in status.used_backends() {
        found.extend(of_servers(name, backend, known, explained));
        found.extend(mute((first, status), name, backend, known));
    }
    found.extend(not_ready(status, (known, &found), explained));
    found.extend(not_announced(status, known, &found));
    found
}

/// Whether a finding may disappear without a fix, once servers pass their health checks.
pub fn may_pass(found: &Diagnosis) -> bool {
    ["server-down", "not-ready", "not-served"].contains(&found.check)
}

fn of_config(status: &RunningStatus) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    if !status.config.last_reload_successful {
        let errors = listed(status.config.errors.iter(), MAX_NAMED);
        let seen = format!("convey refused the last reload: {errors}");
        let why = "convey still runs with the previous configuration. Correct the file: once `convey check` passes, the command loads it.";
        found.push(Diagnosis::warning("reload-refused", seen, why).fix("convey reload"));
    }
    let Some(etcd) = &status.etcd else { return found };
    if let Some(refused) = etcd.refused_revision {
        let problems = listed(etcd.problems.iter(), MAX_NAMED);
        let seen = format!("convey refused revision {refused} of {}: {problems}", etcd.address);
        let why = format!(
            "convey still runs with revision {}. Correct the configuration in etcd: convey loads it by itself.",
            etcd.revision
        );
        found.push(Diagnosis::warning("etcd-refused", seen, why));
    }
    if !etcd.connected {
        let error = etcd.error.as_deref().unwrap_or("no answer yet");
        let seen = format!("etcd cannot be reached at {}: {error}", etcd.address);
        let why = format!(
            "convey still runs with revision {}, and does not receive newer revisions.",
            etcd.revision
        );
        found.push(Diagnosis::warning("etcd-unreachable", seen, why));
    }
    found
}

/// Findings for discovery sources of backends.
fn of_sources(status: &RunningStatus) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for (backend, of) in &status.discovery {
        if !of.connected {
            let error = of.error.as_deref().unwrap_or("no answer yet");
            let seen =
                format!("convey cannot watch {} for the servers of backend {backend}: {error}", of.source);
            let why = "convey keeps the servers from the last answer of this source.";
            found.push(Diagnosis::warning("discovery", seen, why));
        }
        if !of.notes.is_empty() {
            let notes = listed(of.notes.iter(), MAX_NAMED);
            let seen = format!("backend {backend} does not use some endpoints of {}: {notes}", of.source);
            let why = "These endpoints get no clients.";
            found.push(Diagnosis::warning("discovery", seen, why));
        }
    }
    found
}

fn of_servers(
    backend: &str,
    of: &RunningBackend,
    known: &[Diagnosis],
    explained: &Explained,
) -> Vec<Diagnosis> {
    let is_unexplained = |name: &str, server: &RunningServer| {
        let is_named = known.iter().any(|found| names(found, &format!("{backend}/{name}")));
        !is_named && !is_behind_a_fault(server, explained)
    };
    let ready = of.servers.iter().filter(|(name, server)| {
        server.weight > 0 && server.state == AdminState::Ready.name() && is_unexplained(name, server)
    });
    let ready: BTreeMap<&String, &RunningServer> = ready.collect();
    let list = |state: &dyn Fn(&RunningServer) -> Option<String>| {
        let servers = ready.iter().filter_map(|(name, server)| {
            let why = state(server)?;
            let why = if why.is_empty() { why } else { format!(": {why}") };
            Some(format!("{backend}/{name} ({}){why}", server.addr))
        });
        let servers: Vec<String> = servers.collect();
        (!servers.is_empty()).then(|| listed(servers.iter(), MAX_NAMED))
    };
    let down = list(&|server| (!server.up).then(|| server.health.reason.clone()));
    let ejected = list(&|server| server.ejected.as_ref().map(|of| of.reason.clone()).filter(|_| server.up));
    let stalled =
        list(&|server| server.handshakes.filter(|of| server.up && of.stalled).map(|_| String::new()));
    let down = down.map(|servers| {
        let why = "convey sends no clients to these servers, but doctor found no fault on the path to them. A server that has just \
                   recovered is up after `health_check.rise` successful checks in a row. Otherwise, check its service and \
                   `health_check`.";
        Diagnosis::error("server-down", format!("convey reports servers as down: {servers}"), why)
    });
    let ejected = ejected.map(|servers| {
        let why = "Connections or requests of clients failed at these servers, so convey sends them no new ones for a while \
                   (`outlier_detection`). Look at the log of the service.";
        Diagnosis::warning("server-ejected", format!("convey has ejected servers: {servers}"), why)
    });
    let stalled = stalled.map(|servers| {
        let why = "Clients start TCP handshakes with these servers and complete none; handshakes with other servers of the backend \
                   succeed. Check the VIP, NAT, gateway and firewall of these servers.";
        Diagnosis::error("handshakes-stalled", format!("clients cannot connect to servers: {servers}"), why)
    });
    [down, ejected, stalled].into_iter().flatten().collect()
}

/// Finding for servers that receive traffic from clients and send nothing back. The comparison with
/// the first status also finds servers that answered earlier and no longer answer.
fn mute(
    (first, status): (&RunningStatus, &RunningStatus),
    backend: &str,
    of: &RunningBackend,
    known: &[Diagnosis],
) -> Option<Diagnosis> {
    let frontends: Vec<_> = status.frontends.values().filter(|frontend| frontend.uses(backend)).collect();
    let is_relayed = |frontend: &&RunningFrontend| {
        frontend.has_mode(Mode::is_proxied) && frontend.protocol == Protocol::Tcp.name()
    };
    if frontends.is_empty() || !frontends.iter().all(is_relayed) {
        return None;
    }
    let none = RunningServer::default();
    let is_mute = |name: &str, server: &RunningServer| {
        let earlier = first.backends.get(backend).and_then(|of| of.servers.get(name));
        [Some(&none), earlier].into_iter().flatten().any(|base| {
            server.total_connections >= base.total_connections.saturating_add(FEW)
                && server.bytes_rx > base.bytes_rx
                && server.bytes_tx == base.bytes_tx
        })
    };
    let is_named = |name: &str| known.iter().any(|found| names(found, &format!("{backend}/{name}")));
    let (mute, others): (Vec<_>, Vec<_>) =
        of.servers.iter().partition(|(name, server)| is_mute(name, server) && !is_named(name));
    if mute.is_empty() {
        return None;
    }
    let list = mute.iter().map(|(name, server)| format!("{backend}/{name} ({})", server.addr));
    let seen = format!("servers receive data of clients, but send nothing back: {}", listed(list, MAX_NAMED));
    let has_resets = |frontend: &&RunningFrontend| frontend.ended.get("server_reset").is_some_and(|n| *n > 0);
    let do_others_answer = others.iter().any(|(_, server)| server.bytes_tx > 0);
    if do_others_answer || frontends.iter().any(has_resets) {
        let why = "The service accepts connections, then resets them or ignores the data. Look at its log.";
        return Some(Diagnosis::error("server-mute", seen, why));
    }
    let why = "The service accepts connections, but does not answer: look at its log. If servers never send data in its protocol, such as \
               syslog, this is no fault.";
    Some(Diagnosis::warning("server-mute", seen, why))
}

/// Whether a fault of this host or its links keeps packets from reaching this server.
fn is_behind_a_fault(server: &RunningServer, explained: &Explained) -> bool {
    let addr = server.addr.parse::<SocketAddr>();
    addr.is_ok_and(|addr| explained.servers.contains(&addr.ip()))
}

/// Whether a server of the backend is down because of a fault of this host or its links.
fn are_behind_a_fault(backend: &RunningBackend, explained: &Explained) -> bool {
    let mut down = backend.servers.values().filter(|server| !server.up);
    down.any(|server| is_behind_a_fault(server, explained))
}

/// Findings for the lines NOT READY and NOT SERVED of `convey status`.
fn not_ready(
    status: &RunningStatus,
    (known, found): (&[Diagnosis], &[Diagnosis]),
    explained: &Explained,
) -> Vec<Diagnosis> {
    let errors = || known.iter().chain(found).filter(|one| one.severity == Severity::Error);
    if !status.not_ready.is_empty() {
        let are_explained = status.used_backends().any(|(_, of)| are_behind_a_fault(of, explained));
        if are_explained || errors().next().is_some() {
            return Vec::new();
        }
        let seen = format!("convey is not ready: {}", listed(status.not_ready.iter(), MAX_NAMED));
        let why = "`/readyz` answers 503, and announced addresses are withdrawn. `convey status` shows each server with its state.";
        return vec![with_resets(Diagnosis::error("not-ready", seen, why), status)];
    }
    let is_explained = |backend: &str| {
        let of = status.backends.get(backend);
        of.is_some_and(|of| are_behind_a_fault(of, explained)) || errors().any(|one| mentions(one, backend))
    };
    let mut unserved: Vec<String> = Vec::new();
    for (frontend, of) in &status.frontends {
        let some = of.unserved.iter().filter(|(backend, _)| !is_explained(backend));
        unserved.extend(some.map(|(_, why)| format!("frontend {frontend}: {why}")));
    }
    if unserved.is_empty() {
        return Vec::new();
    }
    let seen = format!("clients of some routes are not served: {}", listed(unserved.iter(), MAX_NAMED));
    let why = "`convey status` shows each server of the backend with its state.";
    vec![with_resets(Diagnosis::error("not-served", seen, why), status)]
}

/// Adds commands that reset runtime changes by operators, for the backends that a finding names.
fn with_resets(mut found: Diagnosis, status: &RunningStatus) -> Diagnosis {
    let changed: BTreeSet<&String> = status.overlays.iter().filter_map(|one| one.backend.as_ref()).collect();
    for backend in changed.into_iter().filter(|backend| mentions(&found, backend)).collect::<Vec<_>>() {
        found = found.fix(format!("convey reset {backend}"));
    }
    if !found.fix.is_empty() {
        found.why += " Operators have changed servers at runtime: `convey reset` removes these changes.";
    }
    found
}

/// Finding for addresses of `[announce]` that convey does not announce at the moment.
fn not_announced(status: &RunningStatus, known: &[Diagnosis], found: &[Diagnosis]) -> Option<Diagnosis> {
    let withdrawn = status.announced.iter().filter(|(_, of)| !of.announced);
    let withdrawn: Vec<String> =
        withdrawn.map(|(address, of)| format!("{address} on {}: {}", of.interface, of.reason)).collect();
    let is_error = |one: &Diagnosis| one.severity == Severity::Error;
    if withdrawn.is_empty() || known.iter().chain(found).any(is_error) {
        return None;
    }
    let seen = format!("convey does not announce addresses: {}", listed(withdrawn.iter(), MAX_NAMED));
    let why = "So routers do not send packets for these addresses to this host.";
    Some(Diagnosis::error("not-announced", seen, why))
}

/// Words of a finding, without surrounding punctuation.
fn words(found: &Diagnosis) -> impl Iterator<Item = &str> {
    let texts = [Some(found.seen.as_str()), found.on.as_deref()].into_iter().flatten();
    texts.flat_map(|text| text.split(' ')).map(|word| word.trim_matches([',', ':', ';', '(', ')']))
}

/// Whether a finding names the server `BACKEND/SERVER`.
fn names(found: &Diagnosis, server: &str) -> bool {
    words(found).any(|word| word == server)
}

/// Whether a finding names this backend, or one of its servers.
fn mentions(found: &Diagnosis, backend: &str) -> bool {
    words(found)
        .any(|word| word.strip_prefix(backend).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(status: Value, known: &[Diagnosis]) -> Vec<(&'static str, String)> {
        let status: RunningStatus = serde_json::from_value(status).unwrap();
        let found = examine((&status, &status), known, &Explained::default());
        found.into_iter().map(|found| (found.check, found.seen)).collect()
    }

    fn checks(status: &Value, known: &[Diagnosis]) -> Vec<&'static str> {
        found(status.clone(), known).into_iter().map(|(check, _)| check).collect()
    }

    fn server(up: bool) -> Value {
        json!({ "addr": "10.0.0.9:80", "weight": 1, "state": "ready", "up": up, "health": { "reason": "refused" } })
    }

    fn status(servers: Value, not_ready: &[&str]) -> Value {
        json!({
            "not_ready": not_ready,
            "frontends": { "web": { "backend": "a" } },
            "backends": { "a": { "servers": servers }, "unused": { "servers": { "x": server(false) } } },
        })
    }

    #[test]
    fn server_that_status_calls_down_is_found_unless_a_finding_names_it() {
        let down = status(json!({ "s1": server(true), "s2": server(false) }), &[]);
        let [(check, seen)] = &found(down.clone(), &[])[..] else { panic!() };
        assert_eq!(
            (*check, seen.as_str()),
            ("server-down", "convey reports servers as down: a/s2 (10.0.0.9:80): refused")
        );
        let refused =
            |name: &str| Diagnosis::error("server-refused", format!("server {name} (10.0.0.9) refuses"), "");
        assert_eq!(checks(&down, &[refused("a/s2")]), [""; 0]);
        assert_eq!(checks(&down, &[refused("a/s20")]), ["server-down"]);
        let status: RunningStatus = serde_json::from_value(down).unwrap();
        let mut explained = Explained::default();
        explained.servers.insert("10.0.0.9".parse().unwrap());
        let status = RunningStatus { not_ready: vec!["frontend web: down".to_owned()], ..status };
        assert_eq!(examine((&status, &status), &[], &explained), []);
    }

    #[test]
    fn server_that_an_operator_took_out_is_found_elsewhere() {
        let mut out = server(false);
        out["state"] = json!("maint");
        let mut light = server(false);
        light["weight"] = json!(0);
        assert_eq!(checks(&status(json!({ "s1": out, "s2": light }), &[]), &[]), [""; 0]);
    }

    #[test]
    fn not_ready_is_found_unless_an_error_is_known() {
        let line = "frontend web: no server of backend a can be chosen (1 of 1 are at weight 0)";
        let idle = status(json!({}), &[line]);
        assert_eq!(found(idle.clone(), &[]), [("not-ready", format!("convey is not ready: {line}"))]);
        assert_eq!(checks(&idle, &[Diagnosis::warning("clock", "", "")]), ["not-ready"]);
        assert_eq!(checks(&idle, &[Diagnosis::error("vip-missing", "", "")]), [""; 0]);
        assert_eq!(checks(&status(json!({ "s": server(false) }), &[line]), &[]), ["server-down"]);
    }

    #[test]
    fn changes_of_operators_are_taken_back_by_the_command() {
        let mut idle = status(json!({}), &["frontend web: no server of backend a can be chosen"]);
        idle["overlays"] = json!([{ "backend": "a", "server": "s1", "weight": 0 }, { "backend": "b" }, {}]);
        let status: RunningStatus = serde_json::from_value(idle).unwrap();
        let found = examine((&status, &status), &[], &Explained::default());
        assert_eq!(found[0].fix, ["convey reset a"]);
    }

    #[test]
    fn backend_that_is_not_served_is_found_beside_errors_of_others() {
        let mut some = status(json!({ "s1": server(true) }), &[]);
        some["frontends"]["web"]["unserved"] = json!({ "b": "backend b has no server" });
        let other = Diagnosis::error("backend-taken-out", "all servers of backend bb (2)", "");
        assert_eq!(checks(&some, &[other]), ["not-served"]);
        for seen in ["all servers of backend b (2)", "server b/s1 (10.0.0.9) refuses"] {
            assert_eq!(checks(&some, &[Diagnosis::error("x", seen, "")]), [""; 0], "{seen}");
        }
    }

    #[test]
    fn ejected_and_stalled_servers_are_found() {
        let (mut ejected, mut stalled) = (server(true), server(true));
        ejected["ejected"] = json!({ "reason": "5 connects failed" });
        stalled["handshakes"] = json!({ "stalled": true });
        let both = status(json!({ "s1": ejected, "s2": stalled }), &[]);
        assert_eq!(checks(&both, &[]), ["server-ejected", "handshakes-stalled"]);
    }

    #[test]
    fn server_that_sends_nothing_back_is_found() {
        let server = |connections: u64, rx: u64, tx: u64| {
            let mut server = server(true);
            server["total_connections"] = json!(connections);
            (server["bytes_rx"], server["bytes_tx"]) = (json!(rx), json!(tx));
            server
        };
        let report = |servers: Value| {
            let mut report = status(servers, &[]);
            report["frontends"]["web"]["mode"] = json!("proxy");
            report["frontends"]["web"]["protocol"] = json!("tcp");
            report
        };
        let found = |first: &Value, last: &Value| {
            let [first, last] = [first, last].map(|one| serde_json::from_value(one.clone()).unwrap());
            let found = examine((&first, &last), &[], &Explained::default());
            found.into_iter().map(|found| (found.check, found.severity)).collect::<Vec<_>>()
        };
        let alone = report(json!({ "s1": server(5, 10, 0) }));
        assert_eq!(found(&alone, &alone), [("server-mute", Severity::Warning)]);
        let mut with_resets = alone.clone();
        with_resets["frontends"]["web"]["ended"] = json!({ "server_reset": 1 });
        assert_eq!(found(&with_resets, &with_resets), [("server-mute", Severity::Error)]);
        let beside = report(json!({ "s1": server(5, 10, 0), "s2": server(5, 10, 10) }));
        assert_eq!(found(&beside, &beside), [("server-mute", Severity::Error)]);
        let fine = report(json!({ "s1": server(5, 10, 10), "s2": server(4, 10, 0) }));
        assert_eq!(found(&fine, &fine), []);
        let broken = report(json!({ "s1": server(10, 20, 10), "s2": server(4, 10, 0) }));
        assert_eq!(found(&fine, &broken), [("server-mute", Severity::Warning)], "it answered once");
        let udp = status(json!({ "s1": server(5, 10, 0) }), &[]);
        assert_eq!(found(&udp, &udp), []);
    }

    #[test]
    fn refused_reload_and_unreachable_sources_are_found() {
        let source = json!({ "source": "kubernetes default/web", "notes": ["10.0.0.9: no port"] });
        let text = json!({
            "config": { "last_reload_successful": false, "errors": ["line 3: no"] },
            "etcd": { "address": "etcd:2379", "refused_revision": 8, "revision": 7 },
            "discovery": { "a": source },
            "announced": { "10.0.0.100": { "interface": "lo", "reason": "draining" } },
        });
        let expected =
            ["reload-refused", "etcd-refused", "etcd-unreachable", "discovery", "discovery", "not-announced"];
        assert_eq!(checks(&text, &[]), expected);
        assert_eq!(checks(&json!({}), &[]), [""; 0], "an older version reports less");
    }
}
