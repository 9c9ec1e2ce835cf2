//! Operation of the flow cache: attaches it to interfaces, and applies snapshots.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::programs::{SchedClassifier, Xdp};

use super::attachment::Attachment;
use super::counter_ids::CounterIds;
use super::writer::{CacheWriter, Failures};
use super::{CacheError, CounterReader, KernelCache, Sizes, SynGate, TC, XdpLink};
use crate::{PlannedCache, Selection};
use convey_forward::FlowCache;
use convey_model::{Interface, Layer, NextHop, NextHops};

/// XDP links by the index of their interface.
pub type XdpLinks = BTreeMap<u32, XdpLink>;

/// Runs the kernel's flow cache on some interfaces. Dropping the `Offloader` detaches the cache. If
/// the process is killed, the kernel detaches the cache too, except tc filters (on kernels before
/// 6.6).
#[derive(Debug)]
pub struct Offloader {
    cache: Arc<Mutex<KernelCache>>,
    layer: Layer,
    sizes: Sizes,
    filter_handle: u32,
    counter_ids: CounterIds,
    failures: Failures,
    attached: Vec<Attachment>,
    /// Next hops by index, as written to the cache.
    hops: Vec<Option<NextHop>>,
}

impl Offloader {
    /// Name of the cache's tc filters.
    pub const FILTER: &'static str = TC;

    /// Loads the programs, without flows and attachments.
    ///
    /// `filter_handle` is the handle of the cache's tc filters. No other filter may have it,
    /// because the cache's filters may outlive the process.
    ///
    /// # Errors
    /// If the kernel refuses to load a program or a map.
    pub fn load(
        layer: Layer,
        sizes: Sizes,
        selection: &Selection,
        filter_handle: u32,
    ) -> Result<Offloader, CacheError> {
        let mut cache = KernelCache::load(&sizes)?;
        cache.select(selection)?;
        Ok(Offloader {
            cache: Arc::new(Mutex::new(cache)),
            layer,
            sizes,
            filter_handle,
            counter_ids: CounterIds::default(),
            failures: Failures::default(),
            attached: Vec::new(),
            hops: Vec::new(),
        })
    }

    /// Attaches the cache to one more interface. If `handed` is a link from another process, that
    /// process's program continues to run until [`Offloader::take_links`]. Has no effect with
    /// [`Layer::Worker`].
    ///
    /// # Errors
    /// If the kernel or the interface's driver refuses. Workers then forward the packets that
    /// arrive on the interface and, with XDP, the packets that would leave by it.
    pub fn attach(&mut self, interface: &Interface, handed: Option<XdpLink>) -> Result<(), CacheError> {
        let mut cache = lock(&self.cache);
        let attachment = match self.layer {
            Layer::Worker => return Ok(()),
            Layer::Tc => Attachment::to_tc(&mut cache, interface, self.filter_handle)?,
            Layer::Xdp => Attachment::to_xdp(&mut cache, interface, handed)?,
        };
        self.attached.push(attachment);
        Ok(())
    }

    /// Duplicates the XDP links of the cache, for another process.
    ///
    /// # Errors
    /// If the process has too few free descriptors.
    pub fn xdp_links(&self) -> io::Result<XdpLinks> {
        self.attached.iter().filter_map(Attachment::xdp_link).collect()
    }

    /// Runs this process's programs on all of its XDP links. Until then, programs of another
    /// process may run on them: of a predecessor that has handed its links over, or of a successor
    /// that has failed. Returns an error for each interface that failed.
    #[must_use]
    pub fn take_links(&self) -> Vec<CacheError> {
        let mut cache = self.cache();
        self.attached.iter().filter_map(|attachment| attachment.take_link(&mut cache).err()).collect()
    }

    /// Detaches the cache from an interface.
    pub fn detach(&mut self, interface: u32) {
        let mut cache = lock(&self.cache);
        for attachment in self.attached.extract_if(.., |attachment| attachment.interface == interface) {
            attachment.detach(&mut cache);
        }
    }

    /// Layer at which the cache forwards.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// Name of the layer for logs; for tc, also the kind of attachment.
    pub fn log_name(&self) -> &'static str {
        self.attached.first().map_or(self.layer.name(), Attachment::log_name)
    }

    /// Updates the next hops.
    ///
    /// With XDP, the cache gets no next hops on interfaces to which it is not attached: a driver
    /// without an XDP program drops frames that another driver's XDP program sends to it. Workers
    /// forward these packets.
    ///
    /// # Errors
    /// The first error. An error does not prevent updates of the other next hops.
    pub fn update_next_hops(&mut self, network: &NextHops) -> Result<(), CacheError> {
        let mut cache = lock(&self.cache);
        let mut done = Ok(());
        for attachment in &mut self.attached {
            let mut interfaces = network.interfaces().iter();
            if let Some(now) = interfaces.find(|interface| interface.index == attachment.interface) {
                done = done.and(attachment.update(&mut cache, now));
            }
        }
        let (layer, attached) = (self.layer, &self.attached);
        let is_on = |interface: u32| attached.iter().any(|attachment| attachment.interface == interface);
        let leads_on = |hop: &&NextHop| layer != Layer::Xdp || is_on(hop.interface);
        let count = network.count().min(self.sizes.next_hops);
        self.hops.resize(count as usize, None);
        for (index, known) in (0..count).zip(&mut self.hops) {
            let hop = network.get(index).filter(leads_on);
            if hop != known.as_ref() {
                match cache.set_next_hop(index, hop) {
                    Ok(()) => *known = hop.copied(),
                    Err(error) => done = done.and(Err(error)),
                }
            }
        }
        done
    }

    /// Applies a new selection to the packet sockets' filter.
    pub fn select(&mut self, selection: &Selection) -> Result<(), CacheError> {
        self.cache().select(selection)
    }

    /// Creates a worker's writer to the cache. `epoch` is the time of `Timestamp(0)` in nanoseconds
    /// of `CLOCK_MONOTONIC`.
    pub fn writer(&self, epoch: u64) -> Result<Box<dyn FlowCache>, CacheError> {
        let flows = self.cache().flows()?;
        let (counter_ids, failures) = (self.counter_ids.clone(), self.failures.clone());
        Ok(Box::new(CacheWriter::new(flows, self.sizes, epoch, counter_ids, failures)))
    }

    /// Filter program, counters and events of the cache, for a pipeline. Only one pipeline can get
    /// them, because there is one event ring.
    pub fn planned(&self) -> Result<PlannedCache, CacheError> {
        let (filter, counters) = (self.filter()?, self.counter_reader());
        Ok(PlannedCache { filter, counters, events: self.cache().events()? })
    }

    fn counter_reader(&self) -> CounterReader {
        CounterReader::new(self.cache.clone(), self.counter_ids.clone(), self.failures.clone())
    }

    /// Handle that sets the SYN limit.
    pub fn syn_gate(&self) -> SynGate {
        SynGate::new(self.cache.clone())
    }

    /// Filter program that keeps packet sockets from receiving packets which the cache forwards.
    /// `None` with XDP, which forwards packets before packet sockets receive them.
    fn filter(&self) -> Result<Option<OwnedFd>, CacheError> {
        if self.layer != Layer::Tc {
            return Ok(None);
        }
        let mut cache = self.cache();
        let program = cache.filter()?.fd().map_err(CacheError::from)?;
        Ok(Some(program.as_fd().try_clone_to_owned()?))
    }

    /// Programs and maps, for tests that run them directly.
    #[cfg(feature = "test-util")]
    pub fn kernel_cache(&self) -> MutexGuard<'_, KernelCache> {
        self.cache()
    }

    fn cache(&self) -> MutexGuard<'_, KernelCache> {
        lock(&self.cache)
    }
}

impl Drop for Offloader {
    /// Detaches explicitly: the counter reader still holds the cache, and tc filters would outlive
    /// the process.
    fn drop(&mut self) {
        let mut cache = self.cache();
        let _ = cache.tc().map(SchedClassifier::unload);
        let _ = cache.xdp().map(Xdp::unload);
    }
}

/// Reader of the cache's counters, for tests without a pipeline.
#[cfg(feature = "test-util")]
pub fn counter_reader(offloader: &Offloader) -> CounterReader {
    offloader.counter_reader()
}

/// Event ring, for tests without a pipeline. Only the first call succeeds.
#[cfg(feature = "test-util")]
pub fn events(offloader: &Offloader) -> Result<super::SegmentEvents, CacheError> {
    offloader.cache().events()
}

fn lock(cache: &Mutex<KernelCache>) -> MutexGuard<'_, KernelCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}
