//! Resources of the host that keep other processes and the host's stack away from forwarded
//! traffic.

use std::net::IpAddr;

use anyhow::Context;
use convey_dataplane::net::ReservedPorts;
use convey_dataplane::{Guard, LastingGuard, Selection, Terms, XdpLinks};
use convey_doctor::masquerade;
use convey_model::{Interface, PacketSettings};
use log::{info, warn};

use crate::app::host::Kernel;
use crate::app::offload::Attached;
use crate::app::ownership::{Ownership, SnatOwnership};
use crate::app::packet_plan::{interfaces, needs_snat_address, selection, snat_addresses, with_backends};
use crate::app::paths::Parts;
use crate::app::stale_filters::{self, Kinds, OwnHandle};

/// Resources of the host: ownership, guard, reserved ports and filters. They keep other processes
/// and the host's stack away from forwarded traffic.
pub(super) struct HostResources {
    pub(super) interfaces: Vec<Interface>,
    pub(super) snat_addresses: Vec<IpAddr>,
    pub(super) selection: Selection,
    pub(super) ownership: Ownership,
    pub(super) snat: SnatOwnership,
    pub(super) guard: Option<Guard>,
    pub(super) lasting: Option<LastingGuard>,
    pub(super) reserved: Option<ReservedPorts>,
    pub(super) filters: OwnHandle,
}

impl HostResources {
    /// Parameters to attach the flow cache. `handed` are the XDP links of another process.
    pub(super) fn attached<'a>(&'a self, handed: &'a XdpLinks) -> Attached<'a> {
        Attached { interfaces: &self.interfaces, filter_handle: self.filters.number, handed }
    }

    pub(super) async fn take(parts: &Parts<'_>, kernel: &Kernel) -> anyhow::Result<HostResources> {
        let config = parts.config;
        let (Kernel { netlink, table, network }, settings) = (kernel, &config.passthrough);
        let interfaces = interfaces(config, network)?;
        let snat_addresses = snat_addresses(config, network)?;
        // Take ownership before any step that could affect another process.
        let ownership = Ownership::default().missing(config)?;
        let needs = needs_snat_address(config, network, &snat_addresses);
        let needed = snat_addresses.iter().copied().filter(|ip| needs(*ip));
        let snat = SnatOwnership::take(config, needed)?;
        let selection = selection(settings, &snat.addresses(), with_backends(config));
        let guard = guard(settings, &selection, &interfaces)?;
        let reserved = reserve_ports(settings, &snat_addresses)?;
        // The stale filters keep their packets from the host's stack. Remove them only now that the
        // new guard does so.
        stale_filters::remove(netlink, &table.interfaces, Kinds::FlowCaches).await;
        let filters = OwnHandle::new(netlink, &table.interfaces).await?;
        for found in masquerade::of_host(config, &snat_addresses, network) {
            warn!("{}", masquerade::line(&found));
        }
        let lasting = guard.as_ref().map(|_| LastingGuard::new(filters.number, Terms::default()));
        Ok(HostResources {
            interfaces,
            snat_addresses,
            selection,
            ownership,
            snat,
            guard,
            lasting,
            reserved,
            filters,
        })
    }
}

/// Reserves the SNAT ports. Without SNAT addresses, returns `None` and releases ports that a dead
/// process left reserved.
fn reserve_ports(
    settings: &PacketSettings,
    snat_addresses: &[IpAddr],
) -> anyhow::Result<Option<ReservedPorts>> {
    if snat_addresses.is_empty() {
        ReservedPorts::release_stale();
        return Ok(None);
    }
    Ok(Some(ReservedPorts::add(settings.snat_ports.clone())?))
}

/// Error text if the kernel is too old, or a container allows neither kind of guard.
const NO_GUARD: &str = "the guard cannot keep the host's stack from the traffic of packet modes (needs Linux 6.6, or 5.12 and nftables; \
    passthrough.guard = false turns the guard off, see iptables/)";

fn guard(
    settings: &PacketSettings,
    selection: &Selection,
    interfaces: &[Interface],
) -> anyhow::Result<Option<Guard>> {
    if !settings.guard {
        warn!(
            "passthrough.guard = false: add firewall rules so that the host's own network stack does not answer the traffic of \
             packet modes (examples: iptables/ in the source)"
        );
        return Ok(None);
    }
    let guard = Guard::new(selection, interfaces).context(NO_GUARD)?;
    info!("the guard keeps the host's stack from the traffic of packet modes: {guard}");
    Ok(Some(guard))
}
