//! BPF link of an XDP program. A process may hand the link over to another process. `aya` cannot
//! create a link from a descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::c_long;

use super::bpf::{Attributes, bpf};

// bpf(2) commands, from include/uapi/linux/bpf.h (Linux 5.9).
const LINK_CREATE: c_long = 28;
const LINK_UPDATE: c_long = 29;

/// `BPF_XDP` of `enum bpf_attach_type`.
const XDP: u32 = 37;

/// `XDP_FLAGS_DRV_MODE` of include/uapi/linux/if_link.h: run the program in the driver.
const IN_DRIVER: u32 = 1 << 2;

/// BPF link that attaches one XDP program to an interface; an interface has at most one. The kernel
/// detaches the program when no process holds the link any more.
#[derive(Debug)]
pub struct XdpLink(OwnedFd);

impl XdpLink {
    /// Attaches the program to the interface with this index.
    ///
    /// # Errors
    /// `EBUSY` if the interface has a program already. Otherwise the driver's error.
    pub(super) fn create(interface: u32, program: BorrowedFd<'_>) -> io::Result<XdpLink> {
        let program = program.as_raw_fd() as u32;
        let mut attributes = CreateAttributes { program, interface, attach_type: XDP, flags: IN_DRIVER };
        let link = bpf(LINK_CREATE, &mut attributes)?;
        #[expect(unsafe_code, reason = "the kernel returns a number")]
        // SAFETY: the kernel has just opened this descriptor, and nothing else owns it.
        Ok(XdpLink(unsafe { OwnedFd::from_raw_fd(link as RawFd) }))
    }

    /// Replaces the program of the link atomically: each packet meets the old or the new program.
    ///
    /// # Errors
    /// `ENOLINK` if the interface is gone. `EINVAL` if the descriptor is not an XDP link.
    pub(super) fn run(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let [link, program] = [self.0.as_raw_fd() as u32, program.as_raw_fd() as u32];
        bpf(LINK_UPDATE, &mut UpdateAttributes { link, program, flags: 0, before: 0 }).map(drop)
    }

    /// Duplicates the descriptor of the link.
    ///
    /// # Errors
    /// If the process has too few free descriptors.
    pub fn try_clone(&self) -> io::Result<XdpLink> {
        self.0.try_clone().map(XdpLink)
    }
}

/// Link from another process's descriptor.
impl From<OwnedFd> for XdpLink {
    fn from(descriptor: OwnedFd) -> XdpLink {
        XdpLink(descriptor)
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `union bpf_attr` of [`LINK_CREATE`], up to the fields for XDP.
#[repr(C)]
struct CreateAttributes {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// `union bpf_attr` of [`LINK_UPDATE`].
#[repr(C)]
struct UpdateAttributes {
    link: u32,
    program: u32,
    flags: u32,
    before: u32,
}

// SAFETY: the attributes contain no address.
#[expect(unsafe_code, reason = "the kernel goes by the addresses of attributes")]
unsafe impl Attributes for CreateAttributes {}
// SAFETY: the attributes contain no address.
#[expect(unsafe_code, reason = "the kernel goes by the addresses of attributes")]
unsafe impl Attributes for UpdateAttributes {}
