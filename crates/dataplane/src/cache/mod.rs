//! The kernel's flow cache: BPF programs (`bpf/cache.bpf.c`) that forward packets of flows whose
//! server userspace has chosen, and maps with these flows. [`KernelCache`] loads the cache;
//! [`FlowMap`] fills it.

mod attachment;
mod bpf;
mod counter_ids;
mod counter_reader;
mod entry;
mod events;
mod flow_map;
mod offloader;
mod syn_limit;
mod writer;
mod xdp_link;

use std::os::fd::AsFd;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{ProgramError, SchedClassifier, SocketFilter, Xdp};
use aya::{Ebpf, EbpfError, Pod};
use rustix::thread::{CapabilitySet, capabilities};
use thiserror::Error;

use crate::kernel_types::FlowCounters;
pub use counter_reader::CounterReader;
pub use entry::FlowEntry;
pub use events::SegmentEvents;
use flow_map::BatchError;
pub use flow_map::FlowMap;
pub use offloader::{Offloader, XdpLinks};
#[cfg(feature = "test-util")]
pub use offloader::{counter_reader, events};
#[cfg(feature = "test-util")]
pub use syn_limit::Rate;
pub use syn_limit::{SynGate, SynLimit};
pub use xdp_link::XdpLink;

use super::kernel_types::{NextHopEntry, SynLimitEntry};
use super::objects;
use super::{Selection, causes, selection_maps};
pub use convey_model::CacheOutcome as Outcome;
use convey_model::NextHop;

pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/cache.bpf.o"));

// Names of programs and maps in `bpf/cache.bpf.c`.
const TC: &str = "cache_tc";
const XDP: &str = "cache_xdp";
const FILTER: &str = "cache_filter";
const FLOWS: &str = "flows";
const NEXT_HOPS: &str = "next_hops";
const FLOW_COUNTERS: &str = "flow_counters";
const OUTCOMES: &str = "outcomes";
const OWN_ADDRESSES: &str = "ours";
const INTERFACES: &str = "interfaces";
const SYN_LIMIT: &str = "syn_limit";
const EVENTS: &str = "events";

/// Index in [`OUTCOMES`] of SYNs that the cache drops because of the SYN limit.
pub(crate) const SYN_LIMITED: u32 = Outcome::ALL.len() as u32;
/// Index in [`OUTCOMES`] of FINs that the cache drops because the event ring is full.
pub(crate) const FIN_QUEUE_FULL: u32 = SYN_LIMITED + 1;
/// Index in [`OUTCOMES`] of segments that the cache drops because of a wrong checksum.
pub(crate) const BAD_CHECKSUM: u32 = FIN_QUEUE_FULL + 1;
/// Index in [`OUTCOMES`] of packets that the cache drops because the kernel cannot rewrite them.
pub(crate) const REWRITE_FAILED: u32 = BAD_CHECKSUM + 1;

/// Capacity of the flow cache; each number is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Maximum number of entries. A flow has one entry for each direction that passes the balancer.
    /// The kernel allocates entries on demand.
    pub entries: u32,
    /// Maximum number of next hops.
    pub next_hops: u32,
    /// Maximum number of counter ids: pairs of frontend and server whose packets are counted.
    pub counter_ids: u16,
}

/// Loaded programs and maps of the flow cache. When this value is dropped, an attachment stays only
/// if the kernel or another process holds its link.
#[derive(Debug)]
pub struct KernelCache(Ebpf);

/// Errors of the flow cache.
#[derive(Debug, Error)]
pub enum CacheError {
    /// The programs could not be loaded.
    #[error("cannot load the flow cache (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): {0}")]
    Load(#[from] EbpfError),
    /// The process lacks CAP_PERFMON: the kernel accepts these programs only from a process that
    /// may read kernel memory.
    #[error("cannot load the flow cache: this process lacks CAP_PERFMON")]
    Unprivileged,
    /// The kernel refused a program.
    #[error("the kernel refuses the program of the flow cache: {0}")]
    Program(#[from] ProgramError),
    /// The tc program could not be attached to an interface.
    #[error("cannot attach the flow cache as a tc filter: {filter} (tcx: {})", causes(tcx))]
    Attach {
        /// Error of attaching by tcx.
        tcx: Box<ProgramError>,
        /// Error of attaching as a tc filter.
        #[source]
        filter: ProgramError,
    },
    /// The XDP program could not be attached to an interface.
    #[error("cannot attach the flow cache to the driver of {interface} (XDP): {error}")]
    Driver {
        /// Name of the interface.
        interface: String,
        /// The driver's error.
        error: std::io::Error,
    },
    /// A map could not be read or changed.
    #[error("cannot access a map of the flow cache: {0}")]
    Map(#[from] MapError),
    /// The object file lacks a program or map that this binary expects.
    #[error("the BPF object of the flow cache contains no `{0}`")]
    Missing(&'static str),
    /// Some entries could not be written.
    #[error(transparent)]
    Entries(#[from] BatchError),
    /// A system call without a wrapper in `aya` failed.
    #[error("cannot access a map of the flow cache: {0}")]
    System(#[from] std::io::Error),
}

impl CacheError {
    /// Whether an XDP link is no longer attached: the interface is gone, or another process has
    /// detached the link.
    pub fn is_detached(&self) -> bool {
        matches!(self, CacheError::Driver { error, .. } if error.raw_os_error() == Some(libc::ENOLINK))
    }
}

impl KernelCache {
    /// Loads the programs and empty maps, without attaching them.
    pub fn load(sizes: &Sizes) -> Result<KernelCache, CacheError> {
        let mut loader = objects::loader();
        loader.map_max_entries(FLOWS, sizes.entries);
        loader.map_max_entries(NEXT_HOPS, sizes.next_hops);
        loader.map_max_entries(FLOW_COUNTERS, sizes.counter_ids.into());
        let mut cache = KernelCache(loader.load(OBJECT)?);
        match cache.load_programs() {
            Ok(()) => Ok(cache),
            // Hide the verifier's log, which would be a page about one instruction.
            Err(CacheError::Program(ProgramError::LoadError { .. })) if lacks_perfmon() => {
                Err(CacheError::Unprivileged)
            }
            Err(error) => Err(error),
        }
    }

    /// The tc ingress program.
    pub fn tc(&mut self) -> Result<&mut SchedClassifier, CacheError> {
        let program = self.0.program_mut(TC).ok_or(CacheError::Missing(TC))?;
        Ok(program.try_into()?)
    }

    /// The XDP program.
    pub fn xdp(&mut self) -> Result<&mut Xdp, CacheError> {
        let program = self.0.program_mut(XDP).ok_or(CacheError::Missing(XDP))?;
        Ok(program.try_into()?)
    }

    /// The filter program for packet sockets (`SOCK_RAW`), used on interfaces where the cache is on
    /// tc.
    pub fn filter(&mut self) -> Result<&mut SocketFilter, CacheError> {
        let program = self.0.program_mut(FILTER).ok_or(CacheError::Missing(FILTER))?;
        Ok(program.try_into()?)
    }

    /// The map of flows, writable from any thread.
    pub fn flows(&self) -> Result<FlowMap, CacheError> {
        let Some(Map::HashMap(map)) = self.0.map(FLOWS) else { return Err(CacheError::Missing(FLOWS)) };
        Ok(FlowMap::new(map.fd().as_fd().try_clone_to_owned()?))
    }

    /// Sets the next hop with this index, or clears it (`None`).
    pub fn set_next_hop(&mut self, index: u32, hop: Option<&NextHop>) -> Result<(), CacheError> {
        let mut hops: Array<_, NextHopEntry> = Array::try_from(self.map(NEXT_HOPS)?)?;
        Ok(hops.set(index, hop.map_or_else(NextHopEntry::default, NextHopEntry::from), 0)?)
    }

    /// Applies a new selection to `cache_filter`. Packets that are in both the old and the new
    /// selection also pass the filter during the change.
    pub fn select(&mut self, selection: &Selection) -> Result<(), CacheError> {
        let ours = HashMap::try_from(self.map(OWN_ADDRESSES)?)?;
        selection_maps::replace(ours, selection_maps::own_addresses(selection))?;
        for name in selection_maps::NAMES {
            selection_maps::fill(name, self.map(name)?, selection)?;
        }
        Ok(())
    }

    /// Sets the MAC address of an interface. XDP forwards only frames that are sent to this MAC
    /// address.
    pub fn set_interface(&mut self, index: u32, mac: [u8; 6]) -> Result<(), CacheError> {
        let mut interfaces: HashMap<_, u32, [u8; 6]> = HashMap::try_from(self.map(INTERFACES)?)?;
        Ok(interfaces.insert(index, mac, 0)?)
    }

    /// Stops XDP forwarding of frames that arrive on this interface.
    pub fn remove_interface(&mut self, index: u32) -> Result<(), CacheError> {
        let mut interfaces: HashMap<_, u32, [u8; 6]> = HashMap::try_from(self.map(INTERFACES)?)?;
        Ok(interfaces.remove(&index)?)
    }

    /// Limits the rate of new connections; `None` removes the limit.
    pub fn limit_syns(&mut self, limit: Option<&SynLimit>) -> Result<(), CacheError> {
        let mut map: Array<_, SynLimitEntry> = Array::try_from(self.map(SYN_LIMIT)?)?;
        Ok(map.set(0, limit.map_or_else(SynLimitEntry::default, SynLimit::entry), 0)?)
    }

    /// Packets and bytes that were forwarded under a counter id since the cache was loaded.
    pub fn flow_counters(&self, counter_id: u16) -> Result<FlowCounters, CacheError> {
        self.sum(FLOW_COUNTERS, counter_id.into(), |sum: FlowCounters, core| FlowCounters {
            packets_to_server: sum.packets_to_server + core.packets_to_server,
            bytes_to_server: sum.bytes_to_server + core.bytes_to_server,
            packets_to_client: sum.packets_to_client + core.packets_to_client,
            bytes_to_client: sum.bytes_to_client + core.bytes_to_client,
        })
    }

    /// Number of packets with this outcome since the cache was loaded.
    pub fn count(&self, outcome: Outcome) -> Result<u64, CacheError> {
        self.outcomes(outcome as u32)
    }

    /// Number of FINs that were dropped because the event ring was full, since the cache was
    /// loaded.
    pub fn fin_queue_full(&self) -> Result<u64, CacheError> {
        self.outcomes(FIN_QUEUE_FULL)
    }

    /// Number of SYN and FIN segments that were dropped because of a wrong checksum, since the
    /// cache was loaded.
    pub fn bad_checksums(&self) -> Result<u64, CacheError> {
        self.outcomes(BAD_CHECKSUM)
    }

    /// Number of packets that were dropped because the kernel could not rewrite them, since the
    /// cache was loaded.
    pub fn rewrites_failed(&self) -> Result<u64, CacheError> {
        self.outcomes(REWRITE_FAILED)
    }

    /// Takes the event ring out of the cache. Only the first call succeeds.
    pub fn events(&mut self) -> Result<SegmentEvents, CacheError> {
        let ring = self.0.take_map(EVENTS).ok_or(CacheError::Missing(EVENTS))?;
        Ok(SegmentEvents::new(RingBuf::try_from(ring)?))
    }

    /// Number of SYNs dropped by [`KernelCache::limit_syns`] since the cache was loaded.
    pub fn syns_refused(&self) -> Result<u64, CacheError> {
        self.outcomes(SYN_LIMITED)
    }

    fn outcomes(&self, outcome: u32) -> Result<u64, CacheError> {
        self.sum(OUTCOMES, outcome, |sum: u64, core| sum + core)
    }

    /// Sums a counter over all cores.
    fn sum<C: Pod + Default>(
        &self,
        name: &'static str,
        index: u32,
        add: impl Fn(C, C) -> C,
    ) -> Result<C, CacheError> {
        let map = self.0.map(name).ok_or(CacheError::Missing(name))?;
        let counters: PerCpuArray<&MapData, C> = PerCpuArray::try_from(map)?;
        Ok(counters.get(&index, 0)?.iter().copied().fold(C::default(), add))
    }

    fn load_programs(&mut self) -> Result<(), CacheError> {
        self.tc()?.load()?;
        self.xdp()?.load()?;
        Ok(self.filter()?.load()?)
    }

    fn map(&mut self, name: &'static str) -> Result<&mut Map, CacheError> {
        self.0.map_mut(name).ok_or(CacheError::Missing(name))
    }
}

fn lacks_perfmon() -> bool {
    let sufficient = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|held| !held.effective.intersects(sufficient))
}
