//! The cache on one interface.

use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{LinkOrder, TcAttachType, XdpMode};

use super::{CacheError, KernelCache};
use crate::model::Interface;

/// An interface that has the cache, until it is detached or the cache is unloaded.
#[derive(Debug)]
pub(super) struct Attachment {
    /// Index of the interface.
    pub(super) interface: u32,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Tc(SchedClassifierLinkId),
    Xdp(XdpLinkId),
}

impl Attachment {
    /// To tc ingress. Before others: what we forward concerns nobody else, and the guard drops what we do not.
    pub(super) fn to_tc(
        cache: &mut KernelCache,
        interface: &Interface,
        filter_handle: u32,
    ) -> Result<Attachment, CacheError> {
        let (program, name) = (cache.tc()?, &interface.name);
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let tcx = match program.attach_with_options(name, TcAttachType::Ingress, first) {
            Ok(link) => return Ok(Attachment { interface: interface.index, link: Link::Tc(link) }),
            Err(tcx) => tcx,
        };
        // Before Linux 6.6 there is no tcx, but a qdisc to attach filters to. It does nothing by itself and stays: to
        // remove it is to remove the filters of others.
        let _ = qdisc_add_clsact(name); // there may be one
        let options = NlOptions { priority: 1, handle: filter_handle.into(), ..NlOptions::default() };
        let filter = TcAttachOptions::Netlink(options);
        match program.attach_with_options(name, TcAttachType::Ingress, filter) {
            Ok(link) => Ok(Attachment { interface: interface.index, link: Link::Tc(link) }),
            Err(filter) => Err(CacheError::Attach { tcx: tcx.into(), filter }),
        }
    }

    /// To its driver.
    pub(super) fn to_xdp(cache: &mut KernelCache, interface: &Interface) -> Result<Attachment, CacheError> {
        if let Some(mac) = interface.mac {
            cache.set_interface(interface.index, mac)?;
        }
        let link = cache.xdp()?.attach_to_if_index(interface.index, XdpMode::Driver)?;
        Ok(Attachment { interface: interface.index, link: Link::Xdp(link) })
    }

    /// Detaches it.
    pub(super) fn detach(self, cache: &mut KernelCache) -> Result<(), CacheError> {
        match self.link {
            Link::Tc(link) => cache.tc()?.detach(link)?,
            Link::Xdp(link) => cache.xdp()?.detach(link)?,
        }
        Ok(())
    }
}
