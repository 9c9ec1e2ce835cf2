//! Attachment of the flow cache to one interface.

use std::io;
use std::os::fd::AsFd;

use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, TcAttachType};

use super::{CacheError, KernelCache, XdpLink};
use crate::legacy;
use convey_model::Interface;

/// Interface to which the flow cache is attached, until it is detached or the cache is unloaded.
#[derive(Debug)]
pub(super) struct Attachment {
    /// Index of the interface.
    pub(super) interface: u32,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Tcx(SchedClassifierLinkId),
    /// A tc filter. It may outlive the process.
    Filter(SchedClassifierLinkId),
    Xdp {
        link: XdpLink,
        /// Name of the interface.
        name: String,
        /// MAC address of the interface, as written to the XDP program's map.
        mac: Option<[u8; 6]>,
    },
}

impl Attachment {
    /// Attaches the cache to tc ingress, ahead of other programs: the others do not need the
    /// packets that convey forwards. The guard drops the packets that the cache leaves to workers.
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

    /// Attaches the cache to the interface's driver by XDP. If `handed` is a link from another
    /// process, that process's program continues to run until [`Attachment::take_link`].
    pub(super) fn to_xdp(
        cache: &mut KernelCache,
        interface: &Interface,
        handed: Option<XdpLink>,
    ) -> Result<Attachment, CacheError> {
        write_mac(cache, interface)?;
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
                let _ = cache.remove_interface(interface.index);
                Err(CacheError::Driver { interface: name, error })
            }
        }
    }

    /// Replaces another process's program on the XDP link by ours. Has no effect for tc.
    pub(super) fn take_link(&self, cache: &mut KernelCache) -> Result<(), CacheError> {
        let Link::Xdp { link, name, .. } = &self.link else { return Ok(()) };
        link.run(cache.xdp()?.fd()?.as_fd())
            .map_err(|error| CacheError::Driver { interface: name.clone(), error })
    }

    /// Duplicates the XDP link for another process, with the index of its interface; `None` for tc.
    pub(super) fn xdp_link(&self) -> Option<io::Result<(u32, XdpLink)>> {
        let Link::Xdp { link, .. } = &self.link else { return None };
        Some(link.try_clone().map(|link| (self.interface, link)))
    }

    /// Applies a changed MAC address of the interface, which only XDP uses.
    pub(super) fn update(
        &mut self,
        cache: &mut KernelCache,
        interface: &Interface,
    ) -> Result<(), CacheError> {
        match &mut self.link {
            Link::Xdp { mac, .. } if *mac != interface.mac => {
                write_mac(cache, interface)?;
                *mac = interface.mac;
            }
            _ => {}
        }
        Ok(())
    }

    /// Kind of the attachment as text, for logs.
    pub(super) fn log_name(&self) -> &'static str {
        match self.link {
            Link::Tcx(_) => "tc (tcx)",
            Link::Filter(_) => "tc (a clsact filter)",
            Link::Xdp { .. } => "xdp",
        }
    }

    /// Detaches the cache. Errors are ignored: if the interface is gone, so is the attachment.
    pub(super) fn detach(self, cache: &mut KernelCache) {
        match self.link {
            Link::Tcx(link) | Link::Filter(link) => {
                let _ = cache.tc().map(|program| program.detach(link));
            }
            Link::Xdp { link, .. } => {
                let _ = cache.remove_interface(self.interface);
                drop(link);
            }
        }
    }
}

/// Writes the MAC address of an interface, if it has one, to the XDP program's map.
fn write_mac(cache: &mut KernelCache, interface: &Interface) -> Result<(), CacheError> {
    interface.mac.map_or(Ok(()), |mac| cache.set_interface(interface.index, mac))
}
