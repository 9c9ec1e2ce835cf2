//! Captures the traffic of packet modes and guards it from the host's stack. The traffic changes
//! with the configuration and with the interfaces of the host.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use convey_dataplane::{
    CacheError, CaptureFilter, Guard, LastingGuard, Offloader, Pipeline, Selection, XdpLinks, causes,
};
use convey_model::NextHops;
use convey_model::{Endpoint, Interface, Layer};
use convey_snapshot::stats::PacketStats;
use log::{info, warn};

/// Drivers that capture, guard and forward packets.
pub(super) struct Drivers {
    pub(super) pipeline: Pipeline,
    pub(super) guard: Option<Guard>,
    /// Guard that outlasts this process. Set if there is a guard.
    pub(super) lasting: Option<LastingGuard>,
    pub(super) offloader: Option<Offloader>,
    /// Counters that record which layer forwards on each interface.
    pub(super) stats: Arc<PacketStats>,
}

/// The drivers, with the traffic selection and the interfaces that all drivers share.
pub(super) struct Attachments {
    drivers: Drivers,
    selection: Selection,
    /// The frontends in DSR mode.
    dsr: BTreeSet<Endpoint>,
    captured: Vec<Interface>,
    /// Indices of interfaces where capturing failed. convey logs each of them once.
    refused: BTreeSet<u32>,
}

impl Attachments {
    /// Starts with drivers that were created for `selection` and, except for the pipeline, for
    /// `interfaces`. Begins to capture on the interfaces, unless `waits` is true: the caller must
    /// then call [`Attachments::capture`].
    pub(super) fn begin(
        mut drivers: Drivers,
        selection: Selection,
        dsr: BTreeSet<Endpoint>,
        interfaces: Vec<Interface>,
        waits: bool,
    ) -> io::Result<Attachments> {
        drivers.guard_lastingly(&dsr, &BTreeSet::new(), &interfaces);
        let refused = BTreeSet::new();
        let mut begun = Attachments { drivers, selection, dsr, captured: interfaces, refused };
        if !waits {
            begun.capture()?;
        }
        Ok(begun)
    }

    /// Begins to capture on the interfaces that were passed to `Attachments::begin`.
    pub(super) fn capture(&mut self) -> io::Result<()> {
        let layer = self.drivers.offloader.as_ref().map_or(Layer::Worker, Offloader::layer);
        self.captured.iter().try_for_each(|interface| self.drivers.capture(interface, layer))
    }

    /// Pipeline that captures and sends frames.
    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.drivers.pipeline
    }

    /// XDP links of the flow cache, to hand over to another process.
    pub(super) fn xdp_links(&self) -> io::Result<XdpLinks> {
        self.drivers.offloader.as_ref().map_or_else(|| Ok(XdpLinks::new()), Offloader::xdp_links)
    }

    /// Replaces another process's flow cache by the flow cache of this process, in the same XDP
    /// links. Returns an error for each interface on which the other process's cache stays
    /// attached.
    #[must_use]
    pub(super) fn take_xdp_links(&self) -> Vec<CacheError> {
        let mut errors = self.drivers.offloader.as_ref().map_or_else(Vec::new, Offloader::take_links);
        for error in errors.extract_if(.., |error| error.is_detached()) {
            warn!("the flow cache is no longer attached to an interface: {}", causes(&error));
        }
        errors
    }

    /// Stops after another process has begun to forward and guard the same traffic.
    pub(super) fn leave(self) {
        let Drivers { pipeline, guard, lasting, offloader, .. } = self.drivers;
        pipeline.stop();
        if let Some(lasting) = lasting {
            lasting.remove_now();
        }
        drop((guard, offloader));
    }

    /// Captures and guards the traffic of `selection` from now on. `dsr` has the frontends of the
    /// selection that are in DSR mode. Returns whether the selection has changed.
    pub(super) fn select(&mut self, selection: Selection, dsr: BTreeSet<Endpoint>) -> bool {
        if dsr != self.dsr || selection.draining != self.selection.draining {
            self.drivers.guard_lastingly(&dsr, &selection.draining, &self.captured);
            self.dsr = dsr;
        }
        if selection == self.selection {
            return false;
        }
        if let Err(error) = self.drivers.pipeline.set_filter(&CaptureFilter::new(&selection)) {
            warn!("convey does not receive packets of new frontends: {error}");
        }
        if let Some(offloader) = &mut self.drivers.offloader
            && let Err(error) = offloader.select(&selection)
        {
            warn!("convey does not receive packets of new frontends: {error}");
        }
        if let Some(guard) = &mut self.drivers.guard
            && let Err(error) = guard.select(&selection)
        {
            warn!(
                "the guard does not cover new frontends, so the host's stack may answer their clients: {error}"
            );
        }
        self.selection = selection;
        true
    }

    /// Begins to capture and guard on the interfaces in `passed` that are not captured yet. Other
    /// captured interfaces stay captured until they disappear.
    pub(super) fn cover(&mut self, passed: Vec<Interface>, network: &NextHops) {
        let there_is = |index: u32| network.interfaces().iter().any(|interface| interface.index == index);
        for gone in self.captured.extract_if(.., |interface| !there_is(interface.index)) {
            self.drivers.pipeline.release(gone.index);
            self.drivers.detach(&gone);
            self.drivers.stats.remove_layer(&gone.name);
            warn!(
                "interface {} is gone: convey forwards on it again once an interface of this name exists",
                gone.name
            );
        }
        self.refused.retain(|index| there_is(*index));
        let before = self.captured.len();
        for new in passed {
            if self.captured.iter().any(|interface| interface.index == new.index) {
                continue;
            }
            match self.add(&new) {
                Ok(means) => {
                    self.refused.remove(&new.index);
                    info!("now forwarding packets on {} (open flows: by {means})", new.name);
                    self.captured.push(new);
                }
                Err(error) if self.refused.insert(new.index) => {
                    warn!("cannot forward packets on {}: {error:#}", new.name);
                }
                Err(_) => {}
            }
        }
        if self.captured.len() > before {
            self.drivers.guard_lastingly(&self.dsr, &self.selection.draining, &self.captured);
        }
    }

    /// Passes the routes to the kernel's flow cache, which forwards packets without convey. Call
    /// this after [`Attachments::cover`]: the cache may not be allowed to use every interface.
    pub(super) fn route(&mut self, network: &NextHops) {
        if let Some(offloader) = &mut self.drivers.offloader
            && let Err(error) = offloader.update_next_hops(network)
        {
            warn!("cannot update the routes of the flow cache: {error}");
        }
    }

    /// The frontends in DSR mode.
    pub(super) fn dsr(&self) -> &BTreeSet<Endpoint> {
        &self.dsr
    }

    /// Traffic that is captured and guarded.
    pub(super) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Sends the queued frames and stops.
    pub(super) fn stop(self) {
        self.drivers.pipeline.stop();
    }

    /// Guards the interface, attaches the flow cache and begins to capture. The guard comes first
    /// because the host's stack answers every packet that it receives. Returns the name of the
    /// layer that forwards open flows.
    fn add(&mut self, new: &Interface) -> anyhow::Result<&'static str> {
        if let Some(guard) = &mut self.drivers.guard {
            let all: Vec<Interface> = self.captured.iter().chain([new]).cloned().collect();
            guard.cover(&self.selection, &all)?;
        }
        let layer = self.drivers.attach(new);
        self.drivers.capture(new, layer).inspect_err(|_| self.drivers.detach(new))?;
        let offloader = self.drivers.offloader.as_ref().filter(|_| layer != Layer::Worker);
        Ok(offloader.map_or(layer.name(), Offloader::log_name))
    }
}

impl Drivers {
    /// Attaches the flow cache if possible. Returns the layer that forwards open flows on this
    /// interface.
    fn attach(&mut self, interface: &Interface) -> Layer {
        let Some(offloader) = &mut self.offloader else { return Layer::Worker };
        match offloader.attach(interface, None) {
            Ok(()) => offloader.layer(),
            Err(error) => {
                let (name, layer) = (&interface.name, offloader.layer().name());
                warn!(
                    "every packet received on {name} goes through a worker, because the kernel cannot forward there by {layer}: {}",
                    causes(&error)
                );
                Layer::Worker
            }
        }
    }

    /// Keeps these frontends guarded on these interfaces after this process has ended. Logs a
    /// warning if the process lacks the rights for this.
    fn guard_lastingly(
        &mut self,
        dsr: &BTreeSet<Endpoint>,
        draining: &BTreeSet<Endpoint>,
        interfaces: &[Interface],
    ) {
        let Some(lasting) = &mut self.lasting else { return };
        if let Err(error) = lasting.cover(dsr, draining, interfaces) {
            warn!(
                "cannot set up the guard that stays after convey is killed: {}; without this guard, the host's stack resets \
                 connections in dsr mode after a kill; to prevent this, run iptables/dsr.sh",
                causes(&error)
            );
        }
    }

    fn detach(&mut self, interface: &Interface) {
        if let Some(offloader) = &mut self.offloader {
            offloader.detach(interface.index);
        }
    }

    fn capture(&mut self, interface: &Interface, layer: Layer) -> io::Result<()> {
        self.pipeline.capture(interface.index, layer != Layer::Worker)?;
        self.stats.set_layer(&interface.name, layer);
        Ok(())
    }
}
