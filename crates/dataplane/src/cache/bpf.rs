//! bpf(2) system calls that `aya` does not make.

use std::io;

use libc::c_long;

/// Part of `union bpf_attr` for one bpf(2) command, in C layout.
///
/// # Safety
/// All addresses in the attributes must point to memory that the kernel may read and write for the
/// command, valid until the call returns.
#[expect(unsafe_code, reason = "the kernel goes by the addresses")]
pub(super) unsafe trait Attributes {}

/// Calls bpf(2) with a command. Returns the kernel's result: a descriptor, or 0.
pub(super) fn bpf<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<c_long> {
    #[expect(unsafe_code, reason = "no crate has these calls")]
    // SAFETY: the kernel accesses only `attributes`, whose size it gets, and the memory that its
    // addresses point to, which `Attributes` guarantees to be valid.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<A>() as c_long) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
