//! The flow cache at work: attached to interfaces, and kept as the snapshots say.

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

/// BPF links of XDP programs, by the index of the interface.
pub type XdpLinks = BTreeMap<u32, XdpLink>;

/// Has the kernel forward packets of open flows that come in on some interfaces. Detached when dropped, and but for
/// kernels before 6.6, where it takes filters of tc, with the process.
#[derive(Debug)]
pub struct Offloader {
    cache: Arc<Mutex<KernelCache>>,
    layer: Layer,
    sizes: Sizes,
    filter_handle: u32,
    counter_ids: CounterIds,
    failures: Failures,
    attached: Vec<Attachment>,
    /// Next hops as the cache was told.
    hops: Vec<Option<NextHop>>,
}

impl Offloader {
    /// The name of its filters of tc.
    pub const FILTER: &'static str = TC;

    /// Loads the programs; the cache knows no flow yet, and nothing is attached. Filters of tc have this handle, which is to be
    /// nobody else's: they may outlive us.
    ///
    /// # Errors
    /// The kernel refuses.
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

    /// Attaches the cache to one more interface. By a link that was `handed` over, another process's program runs until
    /// [`Offloader::take_links`]. It does nothing where the layer is [`Layer::Worker`].
    ///
    /// # Errors
    /// The kernel or the interface's driver refuses; then packets that come in there are left to workers, and with XDP
    /// those that would go out there, too.
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

    /// Its links to drivers, for another process.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn xdp_links(&self) -> io::Result<XdpLinks> {
        self.attached.iter().filter_map(Attachment::xdp_link).collect()
    }

    /// Has this cache forward wherever that of another process may by the same link: one that hands
    /// over, or one that was handed our links and does not go on. Returns the errors, one for each
    /// interface where that fails.
    #[must_use]
    pub fn take_links(&self) -> Vec<CacheError> {
        let mut cache = self.cache();
        self.attached.iter().filter_map(|attachment| attachment.take_link(&mut cache).err()).collect()
    }

    /// Detaches it from an interface.
    pub fn detach(&mut self, interface: u32) {
        let mut cache = lock(&self.cache);
        for attachment in self.attached.extract_if(.., |attachment| attachment.interface == interface) {
            attachment.detach(&mut cache);
        }
    }

    /// Where it forwards.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// What it is attached by, for people to read: its layer, and which kind of tc.
    pub fn means(&self) -> &'static str {
        self.attached.first().map_or(self.layer.name(), Attachment::means)
    }

    /// Has packets go where these next hops are now. A driver without XDP drops what the program of another sends through
    /// it: with XDP what leads to interfaces without the cache is left to workers.
    ///
    /// # Errors
    /// The first one; the other next hops are up to date all the same.
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

    /// Leaves to us what another selection takes in.
    pub fn select(&mut self, selection: &Selection) -> Result<(), CacheError> {
        self.cache().select(selection)
    }

    /// A worker's end of the cache. `epoch` is `Timestamp(0)`, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn writer(&self, epoch: u64) -> Result<Box<dyn FlowCache>, CacheError> {
        let flows = self.cache().flows()?;
        let (counter_ids, failures) = (self.counter_ids.clone(), self.failures.clone());
        Ok(Box::new(CacheWriter::new(flows, self.sizes, epoch, counter_ids, failures)))
    }

    /// What the pipeline has to do with it: for one pipeline, since there is one ring of events.
    pub fn planned(&self) -> Result<PlannedCache, CacheError> {
        let (filter, counters) = (self.filter()?, self.counter_reader());
        Ok(PlannedCache { filter, counters, events: self.cache().events()? })
    }

    fn counter_reader(&self) -> CounterReader {
        CounterReader::new(self.cache.clone(), self.counter_ids.clone(), self.failures.clone())
    }

    /// Refuses floods of SYNs.
    pub fn syn_gate(&self) -> SynGate {
        SynGate::new(self.cache.clone())
    }

    /// The program that packet sockets filter by, lest they get a copy of what is forwarded here. With XDP they see none of
    /// it anyway.
    fn filter(&self) -> Result<Option<OwnedFd>, CacheError> {
        if self.layer != Layer::Tc {
            return Ok(None);
        }
        let mut cache = self.cache();
        let program = cache.filter()?.fd().map_err(CacheError::from)?;
        Ok(Some(program.as_fd().try_clone_to_owned()?))
    }

    /// The programs and maps, for tests that run them by hand.
    #[cfg(feature = "test-util")]
    pub fn kernel_cache(&self) -> MutexGuard<'_, KernelCache> {
        self.cache()
    }

    fn cache(&self) -> MutexGuard<'_, KernelCache> {
        lock(&self.cache)
    }
}

impl Drop for Offloader {
    /// The reader of its counters still holds the cache, and filters would outlive the process.
    fn drop(&mut self) {
        let mut cache = self.cache();
        let _ = cache.tc().map(SchedClassifier::unload);
        let _ = cache.xdp().map(Xdp::unload);
    }
}

/// What reads its counters, for tests without a pipeline.
#[cfg(feature = "test-util")]
pub fn counter_reader(offloader: &Offloader) -> CounterReader {
    offloader.counter_reader()
}

/// Its ring of events, for tests without a pipeline. There is one, for the first who asks.
#[cfg(feature = "test-util")]
pub fn events(offloader: &Offloader) -> Result<super::SegmentEvents, CacheError> {
    offloader.cache().events()
}

fn lock(cache: &Mutex<KernelCache>) -> MutexGuard<'_, KernelCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}
