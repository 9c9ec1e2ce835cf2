//! Finding for SNAT addresses that this host does not have. The judgement is pure.

use std::net::IpAddr;

use convey_model::NextHops;

use crate::Diagnosis;

/// Findings for each of the `addresses` that is neither on an interface nor covered by a local
/// route.
pub(super) fn missing(
    addresses: &[IpAddr],
    network: &NextHops,
    is_local: impl Fn(IpAddr) -> bool,
) -> Vec<Diagnosis> {
    let is_missing = |ip: &IpAddr| !network.is_own(*ip) && !is_local(*ip);
    addresses.iter().copied().filter(is_missing).map(absent).collect()
}

fn absent(ip: IpAddr) -> Diagnosis {
    let seen = format!("no interface has the SNAT address {ip}");
    let why = "Answers of servers to this address do not reach this host; the address may have moved to another host. convey uses it only \
               if no other address in `passthrough.snat_addresses` is left.";
    Diagnosis::warning("snat-address", seen, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture::interface;

    #[test]
    fn named_snat_address_without_interface_is_found() {
        let network = NextHops::new(&[interface(1, &["10.0.0.1"])], [], &[]);
        let addresses = ["10.0.0.1", "10.0.0.5", "10.0.0.6"].map(|ip| ip.parse().unwrap());
        let found = missing(&addresses, &network, |ip| ip == addresses[2]);
        assert_eq!(found.len(), 1);
        assert!(found[0].seen.contains("10.0.0.5"), "{:?}", found[0]);
    }
}
