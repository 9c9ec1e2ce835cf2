//! Kernel flow cache: decides whether and on which layer the kernel forwards packets of open flows.

use anyhow::anyhow;
use convey_dataplane::net;
use convey_dataplane::{CacheError, Offloader, Selection, Sizes, XdpLink, XdpLinks, causes};
use convey_model::{Interface, Layer, Nic, Offload, PacketSettings};
use log::{info, warn};

/// Maximum number of next hops in the kernel, 24 bytes each. A worker forwards the packets of
/// clients behind further next hops.
const NEXT_HOPS: u32 = 1 << 16;

/// Memory of a flow in the kernel, in bytes: two map entries and their slots in the buckets.
pub(super) const FLOW_BYTES: u64 = 2 * (192 + 16);

/// Maximum number of frontend/server pairs with counters. A pair takes 32 bytes per core.
const COUNTER_IDS: u16 = 1 << 14;

/// Kernel memory without any flow, in bytes: the tables of `bpf/maps.h`, and the counters of each
/// core.
pub(super) fn table_bytes(cores: usize) -> u64 {
    (24 << 20) + 32 * u64::from(COUNTER_IDS) * cores as u64
}

/// Log text if convey starts without the flow cache.
const WORKERS: &str =
    "every packet goes through a worker, which takes several times the CPU of the kernel's flow cache";

/// Interfaces, filter handle and links with which the flow cache is attached.
pub(super) struct Attached<'a> {
    pub(super) interfaces: &'a [Interface],
    /// Handle number of the tc filters.
    pub(super) filter_handle: u32,
    /// XDP links that another process has handed over.
    pub(super) handed: &'a XdpLinks,
}

/// Starts the flow cache for `max_flows` flows. Returns `None` if, by configuration or on this
/// host, workers forward every packet.
///
/// # Errors
/// The configuration requires a layer that is not available on this host.
pub(super) fn start(
    wanted: Offload,
    max_flows: u32,
    selection: &Selection,
    Attached { interfaces, filter_handle, handed }: Attached<'_>,
) -> anyhow::Result<Option<Offloader>> {
    // A flow has an entry for each direction.
    let entries = max_flows.saturating_mul(2);
    let sizes = Sizes { entries, next_hops: NEXT_HOPS, counter_ids: COUNTER_IDS };
    let start = |layer| -> Result<Offloader, CacheError> {
        let mut offloader = Offloader::load(layer, sizes, selection, filter_handle)?;
        for interface in interfaces {
            let link = handed.get(&interface.index).map(XdpLink::try_clone).transpose()?;
            offloader.attach(interface, link)?;
        }
        Ok(offloader)
    };
    let nics: Vec<Nic> = interfaces.iter().map(nic).collect();
    let started = match (wanted, wanted.layer(&nics)) {
        (_, Layer::Worker) => {
            info!("{WORKERS} (passthrough.offload = \"{wanted}\")");
            return Ok(None);
        }
        (Offload::Auto, Layer::Xdp) => start(Layer::Xdp).or_else(|error| {
            info!("native XDP is not available, so convey tries tc: {}", causes(&error));
            start(Layer::Tc)
        }),
        (_, layer) => start(layer),
    };
    let offloader = match (started, wanted) {
        (Ok(offloader), _) => offloader,
        (Err(error), Offload::Auto) => {
            warn!("{WORKERS}: {}", causes(&error));
            return Ok(None);
        }
        (Err(error), offload) => return Err(refused(&error, offload)),
    };
    let names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
    info!("the kernel forwards packets of open flows, by {} on {}", offloader.log_name(), names.join(", "));
    Ok(Some(offloader))
}

/// Checks whether this host supports the configured offload. Loads the programs without attaching
/// them. If the offload is optional and not available, returns a warning.
///
/// # Errors
/// See [`start`].
pub(super) fn try_out(
    settings: &PacketSettings,
    selection: &Selection,
    interfaces: &[Interface],
) -> anyhow::Result<Option<String>> {
    let nics: Vec<Nic> = interfaces.iter().map(nic).collect();
    let layer = settings.offload.layer(&nics);
    if layer == Layer::Worker {
        return Ok(None);
    }
    // The check uses the smallest maps that work. A start needs more memory.
    let sizes = Sizes { entries: 1 << 10, next_hops: 1 << 10, counter_ids: 1 << 10 };
    match (Offloader::load(layer, sizes, selection, 0), settings.offload) {
        (Ok(_), _) => Ok(None),
        (Err(error), Offload::Auto) => Ok(Some(format!("{WORKERS}: {}", causes(&error)))),
        (Err(error), offload) => Err(refused(&error, offload)),
    }
}

fn refused(error: &CacheError, offload: Offload) -> anyhow::Error {
    anyhow!(
        "passthrough.offload = \"{offload}\" is not available (\"auto\" falls back to workers): {}",
        causes(error)
    )
}

pub(super) fn nic(interface: &Interface) -> Nic {
    Nic { driver: net::driver(&interface.name).ok(), mtu: interface.mtu }
}
