//! BPF maps of `bpf/selection.h`, which contain the selection for the BPF programs.

use std::collections::HashSet;
use std::net::IpAddr;

use aya::Pod;
use aya::maps::{HashMap, Map, MapData, MapError};

use super::kernel_types::{EndpointKey, PortRange};
use super::{Replies, Selection};
use convey_model::Addr;

const FRONTENDS: &str = "frontends";
const SERVERS: &str = "servers";
const SNAT: &str = "snat";

/// Names of the selection's maps.
pub(super) const NAMES: [&str; 3] = [FRONTENDS, SERVERS, SNAT];

/// Writes the selection to the map with this name. Entries that are in both the old and the new
/// selection stay in the map during the change.
pub(super) fn fill(name: &str, map: &mut Map, selection: &Selection) -> Result<(), MapError> {
    let replies = selection.replies.as_ref();
    match name {
        FRONTENDS => {
            let draining = selection.draining.iter().map(|frontend| (EndpointKey::from(frontend), DRAINING));
            let serving = selection.frontends.iter().map(|frontend| (EndpointKey::from(frontend), SERVING));
            let addresses = selection
                .frontends
                .iter()
                .map(|frontend| (EndpointKey::of_address(frontend.addr.ip()), SERVING));
            replace(HashMap::try_from(map)?, draining.chain(serving).chain(addresses).collect())
        }
        SERVERS => {
            let servers = replies.iter().flat_map(|replies| &replies.servers);
            replace(HashMap::try_from(map)?, servers.map(|server| (EndpointKey::from(server), 1u8)).collect())
        }
        _ => {
            let snat: Vec<(IpKey, PortRange)> =
                replies.iter().flat_map(|replies| snat_ports(replies)).collect();
            replace(HashMap::try_from(map)?, snat)
        }
    }
}

/// Replaces the entries of a map. New entries are inserted before old ones are removed.
pub(super) fn replace<K, V>(
    mut map: HashMap<&mut MapData, K, V>,
    entries: Vec<(K, V)>,
) -> Result<(), MapError>
where
    K: Pod + Eq + std::hash::Hash,
    V: Pod,
{
    for (key, value) in &entries {
        map.insert(key, value, 0)?;
    }
    let wanted: HashSet<K> = entries.into_iter().map(|(key, _)| key).collect();
    let present: Vec<K> = map.keys().collect::<Result<_, _>>()?;
    for key in present.iter().filter(|key| !wanted.contains(key)) {
        map.remove(key)?;
    }
    Ok(())
}

/// Values in the map of frontends: `enum frontend_state` of `bpf/selection.h`.
pub(super) const SERVING: u8 = 1;
pub(super) const DRAINING: u8 = 2;

/// Values in the map of convey's addresses: `enum own_address` of `bpf/maps.h`.
pub(super) const WITH_FRONTENDS: u8 = 1;
pub(super) const SNAT_ALONE: u8 = 2;

/// Entries of the map of convey's addresses.
pub(super) fn own_addresses(selection: &Selection) -> Vec<(IpKey, u8)> {
    let vips: HashSet<IpAddr> = selection.listen().map(|frontend| frontend.addr.ip()).collect();
    let value = |ip: &IpAddr| if vips.contains(ip) { WITH_FRONTENDS } else { SNAT_ALONE };
    selection.addresses().iter().map(|ip| (*Addr::from(*ip).bytes(), value(ip))).collect()
}

/// Key with the layout of `struct addr` in `bpf/packet.h`.
type IpKey = [u8; 16];

fn snat_ports(replies: &Replies) -> impl Iterator<Item = (IpKey, PortRange)> {
    let ports = PortRange { first: *replies.snat_ports.start(), last: *replies.snat_ports.end() };
    replies.snat_addresses.iter().map(move |ip| (*Addr::from(*ip).bytes(), ports))
}
