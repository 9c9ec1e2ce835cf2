//! The cache on one interface.

use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{LinkOrder, TcAttachType, XdpMode};

use super::{CacheError, KernelCache};
use crate::legacy;
use convey_model::Interface;

/// An interface that has the cache, until it is detached or the cache is unloaded.
#[derive(Debug)]
pub(super) struct Attachment {
    /// Index of the interface.
    pub(super) interface: u32,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Tcx(SchedClassifierLinkId),
    /// May outlive us.
    Filter(SchedClassifierLinkId),
    /// With the interface's address as the program was told.
    Xdp(XdpLinkId, Option<[u8; 6]>),
}

impl Attachment {
    /// To tc ingress. Before others: no other program needs the packets that we forward, and the guard drops
    /// the rest.
    pub(super) fn to_tc(
        cache: &mut KernelCache,
        interface: &Interface,
        filter_handle: u32,
    ) -> Result<Attachment, CacheError> {
        let (program, name) = (cache.tc()?, &interface.name);
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let tcx = match program.attach_with_options(name, TcAttachType::Ingress, first) {
            Ok(link) => return Ok(Attachment { interface: interface.index, link: Link::Tcx(link) }),
            Err(tcx) if !legacy::lacks_tcx(&tcx) => return Err(tcx.into()),
            Err(tcx) => tcx,
        };
        match legacy::attach(program, name, filter_handle) {
            Ok(link) => Ok(Attachment { interface: interface.index, link: Link::Filter(link) }),
            Err(filter) => Err(CacheError::Attach { tcx: tcx.into(), filter }),
        }
    }

    /// To its driver.
    pub(super) fn to_xdp(cache: &mut KernelCache, interface: &Interface) -> Result<Attachment, CacheError> {
        tell(cache, interface)?;
        match cache.xdp()?.attach_to_if_index(interface.index, XdpMode::Driver) {
            Ok(link) => Ok(Attachment { interface: interface.index, link: Link::Xdp(link, interface.mac) }),
            Err(error) => {
                let _ = cache.forget_interface(interface.index);
                Err(error.into())
            }
        }
    }

    /// Goes by the interface as it is now.
    pub(super) fn update(
        &mut self,
        cache: &mut KernelCache,
        interface: &Interface,
    ) -> Result<(), CacheError> {
        match &mut self.link {
            Link::Xdp(_, told) if *told != interface.mac => {
                tell(cache, interface)?;
                *told = interface.mac;
            }
            _ => {}
        }
        Ok(())
    }

    /// What it is attached by, as logs have it.
    pub(super) fn means(&self) -> &'static str {
        match self.link {
            Link::Tcx(_) => "tc (tcx)",
            Link::Filter(_) => "tc (a clsact filter)",
            Link::Xdp(..) => "xdp",
        }
    }

    /// Detaches it. That fails where the interface is gone, and with it what was attached to it.
    pub(super) fn detach(self, cache: &mut KernelCache) {
        let _ = match self.link {
            Link::Tcx(link) | Link::Filter(link) => cache.tc().map(|program| program.detach(link)),
            Link::Xdp(link, _) => {
                let _ = cache.forget_interface(self.interface);
                cache.xdp().map(|program| program.detach(link))
            }
        };
    }
}

/// Tells XDP the address of an interface, if it has one.
fn tell(cache: &mut KernelCache, interface: &Interface) -> Result<(), CacheError> {
    interface.mac.map_or(Ok(()), |mac| cache.set_interface(interface.index, mac))
}
