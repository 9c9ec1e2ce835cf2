//! Observable state of a running convey, for clients and operators.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use convey_testkit::{BalancerProcess, TestAuthority, TlsClient, TlsSettings, connect_from, wait_for};
use serde_json::Value;

use super::generate::{Choices, HOSTS, PATHS};

/// Statistics that depend on the configuration alone.
const CONFIGURED: [&str; 6] = [
    "weight",
    "effective_weight",
    "max_connections",
    "servers_up",
    "waiting_connections",
    "current_connections",
];

/// Texts that differ between two runs of one configuration.
const PASSING: [&str; 5] = ["since", "loaded", "last_reload", "started", "reason"];

/// Statistics that a process has only after some requests: of the last half minute, a percentile
/// that is left out without measurements, and reasons that a route shows once they have occurred.
const AFTER_REQUESTS: [&str; 3] = ["recent", "p90", "local_replies"];

/// Observations by their paths.
#[derive(Debug, PartialEq)]
pub(super) struct Seen(BTreeMap<String, String>);

impl Seen {
    /// Records the state of a process once its servers are as their checks find them.
    pub(super) fn of(balancer: &BalancerProcess, choices: &Choices, authority: &TestAuthority) -> Seen {
        wait_until_settled(balancer, choices);
        let mut seen = BTreeMap::new();
        flatten(&balancer.stats(), "", &mut seen);
        seen.insert("readyz".to_owned(), format!("{:?}", balancer.page("/readyz")));
        for series in balancer.page("/metrics").1.lines().filter(|line| !line.starts_with('#')) {
            seen.insert(format!("metric {}", series.rsplit_once(' ').unwrap().0), String::new());
        }
        let ip = choices.served()[0].0.ip();
        seen.insert("sockets".to_owned(), format!("{:#?}", sockets(ip)));
        for (at, is_http, is_tls) in choices.served() {
            let client = Client { at, is_tls, authority };
            for name in HOSTS.iter().filter(|_| is_tls) {
                let shown = TlsClient::connect(at, name, &settings(authority));
                let shown = shown.map(|client| client.certificate()).map_err(|error| error.kind());
                seen.insert(format!("{at} certificate of {name}"), format!("{shown:?}"));
            }
            seen.insert(format!("{at} picks"), client.picks(choices, if is_tls { 30 } else { 200 }));
            for (host, path) in
                HOSTS.iter().flat_map(|host| PATHS.map(|path| (host, path))).filter(|_| is_http)
            {
                let answer = client.fetch(ip_of(ip, 2), host, path);
                // Other algorithms depend on their history.
                let answer = if choices.is_by_hash(at) { answer } else { without_server(&answer) };
                seen.insert(format!("{at} {host}{path}"), answer);
            }
        }
        Seen(seen)
    }

    /// Paths whose observations differ, with both values.
    pub(super) fn differences(&self, other: &Seen) -> Vec<String> {
        let keys: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differs = keys.into_iter().filter(|key| self.0.get(*key) != other.0.get(*key));
        differs.map(|key| format!("{key}: {:?}, {:?}", self.0.get(key), other.0.get(key))).collect()
    }
}

/// Serves some clients, so that the process has state.
pub(super) fn exercise(balancer: &BalancerProcess, choices: &Choices, authority: &TestAuthority) {
    wait_until_settled(balancer, choices);
    for (at, _, is_tls) in choices.served() {
        Client { at, is_tls, authority }.picks(choices, 10);
    }
}

fn wait_until_settled(balancer: &BalancerProcess, choices: &Choices) {
    wait_for("servers to be as their checks find them", || {
        let stats = balancer.stats();
        // A lookup may time out on a busy machine. convey repeats it.
        let is_looked_up = !choices.has_name()
            || stats["names"].as_object().is_some_and(|names| {
                // All addresses are local.
                let is_final = |name: &Value| match name["reason"].as_str() {
                    Some(reason) => reason.contains("dns.allow_local"),
                    None => choices.allows_local(),
                };
                !names.is_empty() && names.values().all(is_final)
            });
        let is_settled = |n: usize| {
            let servers = stats["backends"][format!("b{n}")]["servers"].as_object().unwrap();
            let is_right = |server: &Value| {
                let at = server["addr"].as_str().unwrap().parse().unwrap();
                server["up"] == choices.is_up(n, at) && server["health"]["reason"] != "not probed yet"
            };
            servers.len() == choices.count(n) && servers.values().all(is_right)
        };
        let is_idle = stats["current_connections"] == 0;
        (is_looked_up && is_idle && (0..choices.backends.len()).all(is_settled)).then_some(())
    });
}

struct Client<'a> {
    at: SocketAddr,
    is_tls: bool,
    authority: &'a TestAuthority,
}

impl Client<'_> {
    /// Answers to so many clients: in order for hash algorithms, as a set for algorithms with a
    /// history.
    fn picks(&self, choices: &Choices, clients: u8) -> String {
        let picks = (0..clients).map(|n| self.fetch(ip_of(self.at.ip(), 30 + n), "a.test", "/"));
        let picks =
            picks.map(|answer| if choices.is_by_hash(self.at) { answer } else { without_server(&answer) });
        match choices.is_by_hash(self.at) {
            true => format!("{:#?}", picks.collect::<Vec<_>>()),
            false => format!("{:#?}", picks.collect::<BTreeSet<_>>()),
        }
    }

    /// Response to a request on its own connection, without the field `Date`.
    fn fetch(&self, from: IpAddr, host: &str, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-One: 1\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let asked = connect_from(from, self.at).and_then(|mut tcp| match self.is_tls {
            true => {
                converse(&mut TlsClient::over(tcp, host, &settings(self.authority))?, &request, &mut answer)
            }
            false => converse(&mut tcp, &request, &mut answer),
        });
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let mut lines: Vec<&str> =
            head.lines().filter(|line| !line.to_lowercase().starts_with("date:")).collect();
        lines.get_mut(1..).into_iter().for_each(<[&str]>::sort_unstable);
        match asked {
            Err(_) if answer.is_empty() => "none".to_owned(),
            _ => format!("{}\n{body}", lines.join("\n")),
        }
    }
}

/// Sends a request and reads its answer: servers may keep a connection that convey only relays.
fn converse(stream: &mut (impl Read + Write), request: &str, answer: &mut Vec<u8>) -> io::Result<()> {
    stream.write_all(request.as_bytes())?;
    let mut buffer = [0; 4096];
    while !is_whole(answer) {
        match stream.read(&mut buffer)? {
            0 => break,
            len => answer.extend_from_slice(&buffer[..len]),
        }
    }
    Ok(())
}

/// Whether a response has the length in its head.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| length == body.len().to_string())
}

/// A response without the server's name.
fn without_server(answer: &str) -> String {
    let lines = answer.lines().map(|line| match line.split_once(' ') {
        Some(("s0" | "s1" | "s2" | "named", rest)) => rest,
        _ if line.to_lowercase().starts_with("content-length:") => "",
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn settings(authority: &TestAuthority) -> std::sync::Arc<rustls::ClientConfig> {
    TlsSettings::trusting(authority).client()
}

fn ip_of(network: IpAddr, host: u8) -> IpAddr {
    let IpAddr::V4(ip) = network else { panic!("{network} is no network of IPv4") };
    let [a, b, c, _] = ip.octets();
    Ipv4Addr::new(a, b, c, host).into()
}

/// Statistics by their JSON paths: values of strings and booleans, and only the paths of other
/// numbers.
fn flatten(value: &Value, at: &str, seen: &mut BTreeMap<String, String>) {
    let name = at.rsplit('/').next().unwrap_or_default();
    match value {
        Value::Object(entries) => {
            let lasting = entries.iter().filter(|(name, _)| !AFTER_REQUESTS.contains(&name.as_str()));
            lasting.for_each(|(name, value)| flatten(value, &format!("{at}/{name}"), seen));
        }
        Value::Array(entries) => {
            (0..).zip(entries).for_each(|(n, value)| flatten(value, &format!("{at}/{n}"), seen));
        }
        Value::Number(_) | Value::Null if !CONFIGURED.contains(&name) => {
            seen.insert(at.to_owned(), "a number".to_owned());
        }
        _ if PASSING.contains(&name) => {
            seen.insert(at.to_owned(), "a text".to_owned());
        }
        value => {
            seen.insert(at.to_owned(), value.to_string());
        }
    }
}

/// Listening sockets of an address, with their number.
fn sockets(ip: IpAddr) -> BTreeMap<String, usize> {
    let IpAddr::V4(v4) = ip else { panic!("{ip} is no address of IPv4") };
    let start = format!("{:08X}:", u32::from_le_bytes(v4.octets()));
    let mut found = BTreeMap::new();
    for (file, state) in [("tcp", "0A"), ("udp", "07")] {
        let table = fs::read_to_string(format!("/proc/net/{file}")).unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        for row in rows.filter(|row| row[1].starts_with(&start) && row[3] == state) {
            *found.entry(format!("{file} {}", row[1])).or_default() += 1;
        }
    }
    found
}
