//! System calls that `aya` does not make.

use std::io;

use libc::c_long;

/// Part of `union bpf_attr` for one command, in C layout.
///
/// # Safety
/// Addresses in it lead to memory that the kernel reads and writes for its command, valid for as
/// long as a call takes.
#[expect(unsafe_code, reason = "the kernel goes by the addresses")]
pub(super) unsafe trait Attributes {}

/// Calls bpf(2) with a command. Returns the kernel's result: a descriptor, or 0.
pub(super) fn bpf<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<c_long> {
    #[expect(unsafe_code, reason = "no crate has these calls")]
    // SAFETY: the kernel reads and writes `attributes`, of its size, and what its addresses lead
    // to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<A>() as c_long) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
