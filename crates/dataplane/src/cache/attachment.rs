//! The cache on one interface.

use std::io;
use std::os::fd::AsFd;

use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, TcAttachType};

use super::{CacheError, KernelCache, XdpLink};
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
    Xdp {
        link: XdpLink,
        /// Name of the interface.
        name: String,
        /// Its address, as the program was told.
        mac: Option<[u8; 6]>,
    },
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

    /// To its driver. By a link that was `handed` over, another program runs until [`Attachment::take_link`].
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

    /// Has our program run, where that of another process may by the same link.
    pub(super) fn take_link(&self, cache: &mut KernelCache) -> Result<(), CacheError> {
        let Link::Xdp { link, name, .. } = &self.link else { return Ok(()) };
        link.run(cache.xdp()?.fd()?.as_fd())
            .map_err(|error| CacheError::Driver { interface: name.clone(), error })
    }

    /// Its link, if it is to a driver, with the index of the interface; for another process.
    pub(super) fn xdp_link(&self) -> Option<io::Result<(u32, XdpLink)>> {
        let Link::Xdp { link, .. } = &self.link else { return None };
        Some(link.try_clone().map(|link| (self.interface, link)))
    }

    /// Goes by the interface as it is now.
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

    /// What it is attached by, as logs have it.
    pub(super) fn means(&self) -> &'static str {
        match self.link {
            Link::Tcx(_) => "tc (tcx)",
            Link::Filter(_) => "tc (a clsact filter)",
            Link::Xdp { .. } => "xdp",
        }
    }

    /// Detaches it. That fails where the interface is gone, and with it what was attached to it.
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

/// Tells XDP the address of an interface, if it has one.
fn tell(cache: &mut KernelCache, interface: &Interface) -> Result<(), CacheError> {
    interface.mac.map_or(Ok(()), |mac| cache.set_interface(interface.index, mac))
}
