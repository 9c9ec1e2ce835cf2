//! Facts about the running convey, and findings for resources that it has used up. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::SystemTime;

use convey_forward::{ServerSnat, SnatAddresses, SnatChoice};
use convey_model::Mode;

use super::status::RunningStatus;
use super::{Host, certificates, steered};
use crate::Diagnosis;

/// A running convey that answered on its control socket or its statistics address.
#[derive(Debug, Clone, Default)]
pub struct Running {
    /// Process id.
    pub process: Option<u32>,
    /// Open file descriptors of the process, and their limits.
    pub descriptors: Option<FileLimits>,
    /// Status report of the process.
    pub status: RunningStatus,
}

/// Open file descriptors of a process, and their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// Number of open descriptors.
    pub open: u64,
    /// Soft limit of open descriptors.
    pub soft_limit: u64,
    /// Hard limit: the process may raise the soft limit up to this number.
    pub hard_limit: u64,
}

impl Running {
    /// Findings for certificates that clients do not accept, and for failing ACME orders.
    pub(super) fn certificates(&self, now: SystemTime) -> Vec<Diagnosis> {
        let RunningStatus { frontends, acme, .. } = &self.status;
        let with_tls = frontends.iter().filter_map(|(name, one)| Some((name, one.tls.as_ref()?)));
        certificates::examine(with_tls, acme.as_ref(), now)
    }

    /// Findings for servers and backends that operators have taken out of rotation.
    pub(super) fn steered(&self) -> Vec<Diagnosis> {
        steered::examine(&self.status.used_backends().collect(), &self.status.overlays)
    }

    /// Listen addresses of frontends in proxied modes.
    pub fn listens(&self) -> Vec<SocketAddr> {
        self.status.listens(Mode::is_proxied).flat_map(|listen| listen.addrs().collect::<Vec<_>>()).collect()
    }

    /// Layer that forwards packets of open flows, for each interface; `None` without packet modes.
    pub fn offload(&self) -> Option<&BTreeMap<String, String>> {
        self.status.packets.as_ref().map(|packets| &packets.offload)
    }

    /// Interfaces with XDP programs of convey.
    pub(super) fn xdp(&self) -> BTreeSet<String> {
        let layers = self.status.packets.iter().flat_map(|packets| &packets.offload);
        layers.filter(|(_, layer)| *layer == "xdp").map(|(interface, _)| interface.clone()).collect()
    }
}

/// Findings for resources that have run out.
pub(super) fn used_up(host: &Host<'_>, running: &Running) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let upgrade = format!("convey upgrade --config {}", host.file.display());
    found.extend(descriptors(running, &upgrade));
    if let Some(packets) = &running.status.packets {
        found.extend(flows(host, packets.kept_flows()));
        found.extend(snat_ports(host, packets.snat_ports_in_use));
    }
    found
}

/// Finding for too few free file descriptors now, or for pauses in accepting connections since the
/// start. convey pauses before all descriptors are used, because it reserves some descriptors for
/// other purposes than connections.
fn descriptors(running: &Running, upgrade: &str) -> Option<Diagnosis> {
    const WHY: &str = "A connection in proxy mode needs two file descriptors. Without free descriptors, convey accepts no connections, and clients wait.";
    const LASTING: &str = "A limit set by `prlimit` lasts until convey stops; `LimitNOFILE=` in its unit (or `ulimit -n`) is permanent.";
    let pauses: u64 = running.status.frontends.values().map(|frontend| frontend.accept_backoffs).sum();
    let has = running.descriptors;
    let is_low = |part: u64| has.is_some_and(|has| has.open * 100 >= has.soft_limit * part);
    let open = has
        .map(|has| format!("convey has {} open file descriptors, of at most {}", has.open, has.soft_limit));
    let seen = match (pauses, open) {
        (0, open) => open.filter(|_| is_low(90))?,
        (_, open) => {
            let times = if pauses == 1 { "once".to_owned() } else { format!("{pauses} times") };
            let open = open.map(|open| format!("; {open}")).unwrap_or_default();
            format!(
                "convey has paused accepting connections {times} since its start, because it lacked file descriptors or memory{open}"
            )
        }
    };
    // The shortage may be over.
    let found = if pauses == 0 || is_low(50) { Diagnosis::error } else { Diagnosis::warning };
    let found = found("descriptors", seen, format!("{WHY} {LASTING}"));
    let (Some(process), Some(FileLimits { soft_limit: most, hard_limit, .. })) = (running.process, has)
    else {
        return Some(found);
    };
    let more =
        if hard_limit >= most.saturating_mul(2) { hard_limit } else { most.saturating_mul(4).max(65_536) };
    let found = found.fix(format!("prlimit --pid {process} --nofile={more}:{more}"));
    // A process divides its descriptors at its start, so a new limit takes effect only with an
    // upgrade.
    Some(if pauses == 0 { found } else { found.fix(upgrade) })
}

fn is_full(used: u64, most: u64) -> bool {
    most > 0 && used * 100 >= most * 95
}

fn flows(host: &Host<'_>, flows: u64) -> Option<Diagnosis> {
    let most = host.config.passthrough.max_flows;
    if !is_full(flows, most.into()) {
        return None;
    }
    let seen = format!("convey tracks {flows} flows, of at most {most} (`passthrough.max_flows`)");
    let why = "Once the table is full of open connections, convey refuses new connections.";
    Some(host.with_setting(
        Diagnosis::error("table-full", seen, why),
        "max_flows",
        &most.saturating_mul(4).min(convey_model::PacketSettings::MAX_FLOWS).to_string(),
    ))
}

fn snat_ports(host: &Host<'_>, in_use: u64) -> Option<Diagnosis> {
    let settings = &host.config.passthrough;
    let servers: BTreeSet<SocketAddr> = host.servers.iter().map(|server| server.addr).collect();
    let ports = settings.snat_ports.len() as u64;
    let seen_by = |server: &SocketAddr| {
        let named = &*settings.snat_addresses;
        let ServerSnat { first, further } =
            SnatChoice::Named.of_server(host.network, server.ip(), SnatAddresses::free(named));
        (first.len() + if host.has_named_snat { further.len() } else { 0 }) as u64
    };
    let most = ports * servers.iter().map(seen_by).sum::<u64>();
    if !is_full(in_use, most) {
        return None;
    }
    let seen = format!(
        "{in_use} of {most} SNAT ports are in use ({ports} ports of each SNAT address, for each of {} servers)",
        servers.len()
    );
    let why = "Once all are in use, convey refuses new connections. Each further address in `passthrough.snat_addresses` adds ports.";
    let found = Diagnosis::error("table-full", seen, why);
    let usual = convey_model::PacketSettings::default().snat_ports;
    if settings.snat_ports.len() >= usual.len() {
        return Some(found);
    }
    let value = format!("\"{}-{}\"", usual.start(), usual.end());
    Some(host.with_setting(found, "snat_ports", &value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(process: Option<u32>, pauses: u64, [open, hard_limit]: [u64; 2]) -> Option<Diagnosis> {
        let text = format!(r#"{{ "frontends": {{ "web": {{ "accept_backoffs": {pauses} }}, "b": {{}} }} }}"#);
        let descriptors = Some(FileLimits { open, soft_limit: 1_000, hard_limit });
        descriptors_of(Running { process, descriptors, status: serde_json::from_str(&text).unwrap() })
    }

    fn descriptors_of(running: Running) -> Option<Diagnosis> {
        descriptors(&running, "convey upgrade")
    }

    #[test]
    fn descriptors_are_told_of_before_they_are_gone() {
        assert_eq!(has(Some(7), 0, [899, 1_000]), None);
        let found = has(Some(7), 0, [900, 1_000]).unwrap();
        assert_eq!(found.fix, ["prlimit --pid 7 --nofile=65536:65536"]);
        let raised = has(Some(7), 0, [900, 5_000]).unwrap();
        assert_eq!(raised.fix, ["prlimit --pid 7 --nofile=5000:5000"]);
        assert!(has(None, 0, [1_000, 1_000]).unwrap().fix.is_empty());
    }

    #[test]
    fn accept_pauses_are_reported_at_any_number_of_open_descriptors() {
        use crate::Severity;
        let found = has(Some(7), 12, [630, 1_000]).unwrap();
        assert!(found.seen.starts_with("convey has paused accepting connections 12 times"), "{}", found.seen);
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(found.fix, ["prlimit --pid 7 --nofile=65536:65536", "convey upgrade"]);
        assert_eq!(has(Some(7), 1, [20, 1_000]).unwrap().severity, Severity::Warning, "a peak that is over");
        let status = serde_json::from_str(r#"{ "frontends": { "web": { "accept_backoffs": 3 } } }"#).unwrap();
        let unseen = descriptors_of(Running { status, ..Running::default() }).unwrap();
        assert!(unseen.fix.is_empty(), "as another user its process is not seen");
    }

    #[test]
    fn the_places_where_convey_listens_are_of_proxy_mode() {
        let text = r#"{ "frontends": {
            "a": { "mode": "proxy", "listen_addr": ["10.0.0.1:80", "[::1]:81-82"] },
            "b": { "mode": "dsr", "listen_addr": ["10.0.0.1:83"] } },
            "packets": { "offload": { "eth0": "xdp", "eth1": "tc" } } }"#;
        let running = Running { status: serde_json::from_str(text).unwrap(), ..Running::default() };
        let listens: Vec<String> = running.listens().iter().map(ToString::to_string).collect();
        assert_eq!(listens, ["10.0.0.1:80", "[::1]:81", "[::1]:82"]);
        assert_eq!(running.xdp(), BTreeSet::from(["eth0".to_owned()]));
    }
}
