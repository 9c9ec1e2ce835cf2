//! State of a connection in the kernel (`TCP_INFO`).

use std::mem::{self, size_of};
use std::os::fd::AsRawFd;

/// Returns the kernel's state of a connection; older kernels leave the last fields zero. `None` if
/// the call fails.
pub fn tcp_info(socket: &impl AsRawFd) -> Option<libc::tcp_info> {
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    #[expect(unsafe_code, reason = "no crate has TCP_INFO with the fields that are used here")]
    // SAFETY: `tcp_info` is numbers, of which all bits may be zero; the kernel writes at most `len`
    // bytes, its size.
    let (info, result) = unsafe {
        let mut info: libc::tcp_info = mem::zeroed();
        let value = (&raw mut info).cast::<libc::c_void>();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let result = libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len);
        (info, result)
    };
    (result == 0).then_some(info)
}
