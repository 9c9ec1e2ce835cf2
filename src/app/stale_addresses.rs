//! Announced addresses that are still on an interface although their convey process is gone.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;

use convey_dataplane::net::{self, HostAddress, HostAddresses, NotOwned, OwnedName, OwnedNames};
use convey_doctor::Diagnosis;

/// Name that a process owns in its network namespace while it announces the address.
pub(super) fn name(ip: IpAddr) -> String {
    format!("announces {ip}")
}

/// Takes the name of the address. Fails if another convey owns it.
pub(super) fn own(ip: IpAddr) -> io::Result<OwnedName> {
    OwnedName::take(name(ip))
}

/// Takes the names of all these addresses. Returns none if one name cannot be taken.
pub(super) fn own_all(ips: &[IpAddr]) -> Vec<(IpAddr, OwnedName)> {
    let names: Vec<String> = ips.iter().map(|ip| name(*ip)).collect();
    let owned = OwnedName::take_all(&names).unwrap_or_default();
    ips.iter().copied().zip(owned).collect()
}

/// Takes the names of these addresses. Names of the predecessors in an upgrade can be taken too;
/// names of any other convey cannot.
pub(super) fn own_in_lineage(mut ips: Vec<IpAddr>) -> BTreeMap<IpAddr, OwnedName> {
    loop {
        let names: Vec<String> = ips.iter().map(|ip| name(*ip)).collect();
        match OwnedName::take_all_in_lineage(&names) {
            Ok(owned) => return ips.into_iter().zip(owned).collect(),
            Err(NotOwned { which, error, .. }) if error.kind() == io::ErrorKind::AddrInUse => {
                ips.remove(which);
            }
            // No descriptors are left for further names.
            Err(NotOwned { which, .. }) => ips.truncate(which),
        }
    }
}

/// Names of all processes, of any user, that announce addresses. An address with a name of another
/// user can be announced by this process too, but must not be removed. Empty if the kernel does not
/// list the names.
pub(super) fn announcers() -> OwnedNames {
    OwnedNames::read().unwrap_or_default()
}

/// Announced address whose process is gone. While this value exists, no process can begin to
/// announce the address.
pub(super) struct StaleAddress {
    address: HostAddress,
    interface: String,
    _name: OwnedName,
}

impl StaleAddress {
    /// Description in the output of `convey clear`.
    fn description(&self) -> String {
        format!("the address {} that a killed convey announced on {}", self.address.ip, self.interface)
    }

    /// Finding in the output of `convey doctor`.
    fn diagnosis(&self) -> Diagnosis {
        let (HostAddress { ip, .. }, interface) = (&self.address, &self.interface);
        let seen = format!(
            "{ip} is still on {interface}: a killed convey had announced it, and no running convey withdraws it"
        );
        let why = "Routing daemons announce the address, and routers send clients to this host, where no process serves them. The next \
                   start takes the address over, or removes it; `convey clear --addresses` removes it, too.";
        let fix = format!("ip addr del {ip}/{} dev {interface}", if ip.is_ipv4() { 32 } else { 128 });
        Diagnosis::error("announced-stale", seen, why).fix(fix)
    }
}

/// Announced address, with the sockets of processes that claim to announce it.
pub(super) struct OwnedAddress {
    pub(super) ip: IpAddr,
    pub(super) interface: String,
    pub(super) inodes: Vec<u64>,
}

/// Addresses of this host that carry convey's mark.
#[derive(Default)]
pub(super) struct MarkedAddresses {
    stale: Vec<StaleAddress>,
    /// Addresses that a running process still announces.
    pub(super) owned: Vec<OwnedAddress>,
}

/// Finds all announced addresses of this host.
///
/// # Errors
/// The kernel does not list the addresses.
pub(super) async fn find(addresses: &HostAddresses) -> Result<MarkedAddresses, net::Error> {
    let announced: Vec<HostAddress> =
        addresses.all().await?.into_iter().filter(|address| address.is_announced).collect();
    let mut found = MarkedAddresses::default();
    if announced.is_empty() {
        return Ok(found);
    }
    let interfaces = addresses.interfaces().await?;
    let names: HashMap<u32, String> = interfaces.into_iter().map(|one| (one.index, one.name)).collect();
    let others = announcers();
    for address in announced {
        let Some(interface) = names.get(&address.interface).cloned() else { continue };
        let inodes = others.inodes_of(&name(address.ip)).to_vec();
        match own(address.ip) {
            Ok(name) if inodes.is_empty() => {
                found.stale.push(StaleAddress { address, interface, _name: name });
            }
            _ => found.owned.push(OwnedAddress { ip: address.ip, interface, inodes }),
        }
    }
    Ok(found)
}

/// Removes all announced addresses whose process is gone. Returns a description of each.
///
/// # Errors
/// The kernel refuses to remove an address.
pub(super) async fn clear(
    addresses: &HostAddresses,
    MarkedAddresses { stale, .. }: MarkedAddresses,
) -> Result<Vec<String>, net::Error> {
    let mut removed = Vec::new();
    for stale in stale {
        addresses.withdraw(&stale.address).await?;
        removed.push(stale.description());
    }
    Ok(removed)
}

/// Findings of `convey doctor` about stale addresses. Empty if the kernel does not list addresses.
pub(super) async fn diagnoses() -> Vec<Diagnosis> {
    let Ok(addresses) = HostAddresses::open() else { return Vec::new() };
    let found = find(&addresses).await.unwrap_or_default();
    found.stale.iter().map(StaleAddress::diagnosis).collect()
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;
    use convey_dataplane::net::lineage;

    #[test]
    fn address_of_another_convey_is_not_taken_in_an_upgrade() {
        let ips = [7, 8, 9].map(|last| IpAddr::from([198, 51, 100, last]));
        let held = [(ips[0], lineage()), (ips[1], lineage() ^ 1)].map(|(ip, lineage)| {
            let full = format!("convey {} #{lineage:016x}{:016x}", name(ip), 1);
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(full).unwrap()).unwrap()
        });
        let owned = own_in_lineage(ips.to_vec());
        assert_eq!(owned.into_keys().collect::<Vec<_>>(), [ips[0], ips[2]]);
        drop(held);
    }
}
