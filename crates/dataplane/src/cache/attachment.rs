//! The cache on one interface.

use std::io::ErrorKind;

use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{LinkOrder, ProgramError, TcAttachType, XdpMode};

use super::{CacheError, KernelCache};
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
    /// To tc ingress. Before others: what we forward concerns nobody else, and the guard drops what we do not.
    pub(super) fn to_tc(
        cache: &mut KernelCache,
        interface: &Interface,
        filter_handle: u32,
    ) -> Result<Attachment, CacheError> {
        let (program, name) = (cache.tc()?, &interface.name);
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let tcx = match program.attach_with_options(name, TcAttachType::Ingress, first) {
            Ok(link) => return Ok(Attachment { interface: interface.index, link: Link::Tcx(link) }),
            Err(tcx) if !is_unknown(&tcx) => return Err(tcx.into()),
            Err(tcx) => tcx,
        };
        // There is a qdisc to attach filters to. It does nothing by itself and stays: to remove it is to remove the
        // filters of others.
        let _ = qdisc_add_clsact(name); // there may be one
        let options = NlOptions { priority: 1, handle: filter_handle.into(), ..NlOptions::default() };
        let filter = TcAttachOptions::Netlink(options);
        match program.attach_with_options(name, TcAttachType::Ingress, filter) {
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

/// Whether it is the kernel that does not know of tcx, as before Linux 6.6. It says so of a type of attachment that it has
/// never heard of; what else may be in the way, an attachment that is there already or one too many, has other numbers.
fn is_unknown(tcx: &ProgramError) -> bool {
    matches!(tcx, ProgramError::SyscallError(error) if error.io_error.kind() == ErrorKind::InvalidInput)
}
