//! Findings about features of this host that convey needs, such as ports and offload. Pure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use convey_dataplane::net::PortRanges;
use convey_model::Offload;

use crate::Diagnosis;

/// Finding for SNAT ports that the kernel may also use for connections of this host. `reserved` are
/// the ports that the kernel currently does not use for such connections.
pub fn snat_ports(
    said: &str,
    is_fatal: bool,
    (ports, reserved): (RangeInclusive<u16>, &PortRanges),
) -> Diagnosis {
    let all = reserved.with(&PortRanges::from(ports));
    let fix = format!("sysctl -w net.ipv4.ip_local_reserved_ports={all}");
    let why = "Connections of this host may use ports that are not reserved, and convey would mistake their packets for packets of clients. So \
               convey does not use such ports; the command reserves them.";
    let found = match is_fatal {
        true => Diagnosis::error("snat-ports", said, why),
        false => Diagnosis::warning("snat-ports", said, why),
    };
    found.fix(fix)
}

/// Finding for too few local ports for connections to servers.
pub fn local_ports(said: &str) -> Diagnosis {
    let why = "Each connection to a server uses a local port. Once all are in use, convey refuses clients (`ended.no_local_port`).";
    Diagnosis::warning("local-ports", said, why).fix("sysctl -w net.ipv4.ip_local_port_range=\"10240 65535\"")
}

/// Finding for interfaces on which workers of the running convey forward all packets although the
/// file allows offload.
pub fn not_offloaded(layers: &BTreeMap<String, String>, wanted: Offload) -> Option<Diagnosis> {
    let by_workers: Vec<&str> = layers
        .iter()
        .filter(|(_, layer)| *layer == "worker")
        .map(|(interface, _)| interface.as_str())
        .collect();
    if by_workers.is_empty() || wanted == Offload::Off {
        return None;
    }
    let seen = format!(
        "the kernel does not forward packets received on {}: every packet goes through a worker",
        by_workers.join(", ")
    );
    Some(offload_missing(&seen, false))
}

/// Finding for a start without offload. `seen` describes the interfaces, or the attempt that
/// failed.
pub fn offload_missing(seen: &str, is_fatal: bool) -> Diagnosis {
    let why = "Workers use several times as much CPU time as the kernel's flow cache. convey logs the missing feature at its start: usually \
               CAP_BPF and CAP_PERFMON, which containers lack, or XDP support of the network driver.";
    if is_fatal {
        Diagnosis::error("offload-missing", seen, why)
    } else {
        Diagnosis::warning("offload-missing", seen, why)
    }
}

/// Finding for an interface that merges received packets (LRO), from the output of `ethtool -k`.
pub fn merging(interface: &str, features: &str) -> Option<Diagnosis> {
    let mut lines = features.lines().map(str::trim);
    let line = lines.find_map(|line| line.strip_prefix("large-receive-offload:"))?;
    if !line.trim().starts_with("on") {
        return None;
    }
    let seen = format!("{interface} merges received packets (large-receive-offload)");
    let why = "convey cannot split packets that LRO has merged, and they are too large to forward. GRO does no harm.";
    Some(Diagnosis::error("lro", seen, why).fix(format!("ethtool -K {interface} lro off")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_reserved_already_stay_so() {
        let reserved = "8080".parse().unwrap();
        let found = snat_ports("taken", true, (40_000..=40_999, &reserved));
        assert_eq!(found.fix, ["sysctl -w net.ipv4.ip_local_reserved_ports=8080,40000-40999"]);
    }

    #[test]
    fn workers_are_told_of_unless_they_are_wanted() {
        let layers = |layer: &str| BTreeMap::from([("eth0".to_owned(), layer.to_owned())]);
        for (layer, wanted, is_found) in
            [("worker", Offload::Auto, true), ("worker", Offload::Off, false), ("tc", Offload::Auto, false)]
        {
            assert_eq!(not_offloaded(&layers(layer), wanted).is_some(), is_found, "{layer} {wanted}");
        }
    }

    #[test]
    fn lro_is_told_of_where_it_is_on() {
        let text =
            |lro: &str| format!("Features for eth0:\nrx-checksumming: on\nlarge-receive-offload: {lro}\n");
        assert_eq!(merging("eth0", &text("off [fixed]")), None);
        assert_eq!(merging("eth0", ""), None);
        assert_eq!(merging("eth0", &text("on")).unwrap().fix, ["ethtool -K eth0 lro off"]);
    }
}
