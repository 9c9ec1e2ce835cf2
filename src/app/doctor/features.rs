//! Kernel features of this host that a start would use.

use std::process::Stdio;

use convey_config::Config;
use convey_dataplane::net::{BpfFilter, PortRanges};
use convey_dataplane::{LastingGuard, Offloader, programs};
use convey_doctor::balancer::{Running, features};
use convey_doctor::{Diagnosis, Examination, SkippedCheck};
use convey_model::{Interface, Mode};

use super::super::host::Kernel;
use super::super::{limits, offload, packet_plan, privileges, snat_ports};

/// Examines local ports, SNAT ports and the kernel's support for the configured offload.
pub(super) async fn examine(config: &Config, kernel: &Kernel, running: Option<&Running>) -> Examination {
    let mut seen = Examination::default();
    seen.findings.extend(of_snat_ports(config));
    seen.findings.extend(limits::few_local_ports(config).map(|said| features::local_ports(&said)));
    if config.frontends_where(Mode::forwards_packets).next().is_none() {
        return seen;
    }
    let Ok(interfaces) = packet_plan::interfaces(config, &kernel.network) else { return seen };
    match running.and_then(Running::offload) {
        Some(layers) => seen.findings.extend(features::not_offloaded(layers, config.passthrough.offload)),
        None => of_start(config, &interfaces, &mut seen),
    }
    for interface in &interfaces {
        seen.findings.extend(merging(&interface.name));
    }
    seen
}

/// BPF filters of other programs on the ingress of each interface, with the name of the interface.
pub(super) async fn foreign_filters(kernel: &Kernel) -> Vec<(String, BpfFilter)> {
    let mut found = Vec::new();
    for interface in &kernel.table.interfaces {
        let filters = kernel.netlink.ingress_filters(interface.index).await.unwrap_or_default();
        let foreign = filters
            .into_iter()
            .filter(|filter| filter.name != Offloader::FILTER && !LastingGuard::is_filter(&filter.name));
        found.extend(foreign.map(|filter| (interface.name.clone(), filter)));
    }
    found
}

/// Finding if the SNAT ports that convey would use differ from the ports in the file. `None` if
/// they agree.
fn of_snat_ports(config: &Config) -> Option<Diagnosis> {
    let (said, is_fatal) = match snat_ports::choose(config) {
        Ok((_, said)) => (said?, false),
        Err(error) => (error.to_string(), true),
    };
    let reserved = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let reserved: PortRanges = reserved.parse().unwrap_or_default();
    Some(features::snat_ports(&said, is_fatal, (config.passthrough.snat_ports.clone(), &reserved)))
}

/// Checks whether the kernel accepts convey's BPF programs. Loads the programs without attaching
/// them.
fn of_start(config: &Config, interfaces: &[Interface], seen: &mut Examination) {
    if privileges::check().is_err() {
        let needs = "root (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON)".to_owned();
        seen.skipped.push(SkippedCheck { check: "offload-missing", needs });
        return;
    }
    let settings = &config.passthrough;
    let selection =
        packet_plan::selection(settings, &settings.snat_addresses, packet_plan::with_backends(config));
    match offload::try_out(settings, &selection, interfaces) {
        Ok(said) => seen.findings.extend(said.map(|said| features::offload_missing(&said, false))),
        Err(error) => seen.findings.push(features::offload_missing(&format!("{error:#}"), true)),
    }
}

fn merging(interface: &str) -> Option<Diagnosis> {
    let ran = programs::command("ethtool").args(["-k", interface]).stdin(Stdio::null()).output().ok()?;
    features::merging(interface, &String::from_utf8_lossy(&ran.stdout))
}
