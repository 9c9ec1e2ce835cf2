//! Attachment of the flow cache to one interface.

use std::io;
use std::os::fd::AsFd;

use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, TcAttachType};

use super::{CacheError, KernelCache, XdpLink};
use crate::legacy;
use convey_model::Interface;

/// An interface that the cache is attached to, until it is detached or the cache is unloaded.
#[derive(Debug)]
pub(super) struct Attachment {
    /// Index of the interface.
    pub(super) interface: u32,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Tcx(SchedClassifierLinkId),
    /// A filter may outlive the process.
    Filter(SchedClassifierLinkId),
    Xdp {
        link: XdpLink,
        /// Name of the interface.
        name: String,
        /// Ethernet address of the interface, as set in the XDP program.
        mac: Option<[u8; 6]>,
    },
}

impl Attachment {
    /// Attaches the cache to tc ingress, before other programs: no other program needs the packets
    /// that convey forwards, and the guard drops the rest.
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

    /// Attaches the cache to the driver. With a link that was `handed` over, the program of the
    /// other process runs until [`Attachment::take_link`].
    pub(super) fn to_xdp(
        cache: &mut KernelCache,
        interface: &Interface,
        handed: Option<XdpLink>,
    ) -> Result<Attachment, CacheError> {
        tell(cache, interface)?;
        let name = interface.name.clone();
        let link = match handed {
            Some(link) => Ok(link),
            None => XdpLink::create(interface.index, cache.xdp()?.fd()?.as_fd()),
        };
        match link {
            Ok(link) => {
                let link = Link::Xdp { link, name, mac: interface.mac };
                Ok(Attachment { interface: interface.index, link })
            }
            Err(error) => {
                let _ = cache.forget_interface(interface.index);
                Err(CacheError::Driver { interface: name, error })
            }
        }
    }

    /// Runs our program on the link, in place of the program of another process.
    pub(super) fn take_link(&self, cache: &mut KernelCache) -> Result<(), CacheError> {
        let Link::Xdp { link, name, .. } = &self.link else { return Ok(()) };
        link.run(cache.xdp()?.fd()?.as_fd())
            .map_err(|error| CacheError::Driver { interface: name.clone(), error })
    }

    /// The XDP link and the index of the interface, for another process; `None` for tc.
    pub(super) fn xdp_link(&self) -> Option<io::Result<(u32, XdpLink)>> {
        let Link::Xdp { link, .. } = &self.link else { return None };
        Some(link.try_clone().map(|link| (self.interface, link)))
    }

    /// Applies changes of the interface.
    pub(super) fn update(
        &mut self,
        cache: &mut KernelCache,
        interface: &Interface,
    ) -> Result<(), CacheError> {
        match &mut self.link {
            Link::Xdp { mac, .. } if *mac != interface.mac => {
                tell(cache, interface)?;
                *mac = interface.mac;
            }
            _ => {}
        }
        Ok(())
    }

    /// Kind of the attachment, for logs.
    pub(super) fn means(&self) -> &'static str {
        match self.link {
            Link::Tcx(_) => "tc (tcx)",
            Link::Filter(_) => "tc (a clsact filter)",
            Link::Xdp { .. } => "xdp",
        }
    }

    /// Detaches the cache. Fails if the interface is gone, and the attachment with it.
    pub(super) fn detach(self, cache: &mut KernelCache) {
        match self.link {
            Link::Tcx(link) | Link::Filter(link) => {
                let _ = cache.tc().map(|program| program.detach(link));
            }
            Link::Xdp { link, .. } => {
                let _ = cache.forget_interface(self.interface);
                drop(link);
            }
        }
    }
}

/// Sets the address of an interface in the XDP program, if the interface has one.
fn tell(cache: &mut KernelCache, interface: &Interface) -> Result<(), CacheError> {
    interface.mac.map_or(Ok(()), |mac| cache.set_interface(interface.index, mac))
}
