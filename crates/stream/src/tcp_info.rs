//! Kernel state of a TCP connection (`TCP_INFO`).

use std::mem::{self, size_of};
use std::os::fd::AsRawFd;

/// Returns the kernel state of a TCP connection, or `None` if the system call fails. Older kernels
/// leave the last fields zero.
pub fn tcp_info(socket: &impl AsRawFd) -> Option<libc::tcp_info> {
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    #[expect(unsafe_code, reason = "no crate has TCP_INFO with the fields that are used here")]
    // SAFETY: `tcp_info` consists of numbers, so all-zero bytes are valid. The kernel writes at
    // most `len` bytes, which is its size.
    let (info, result) = unsafe {
        let mut info: libc::tcp_info = mem::zeroed();
        let value = (&raw mut info).cast::<libc::c_void>();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let result = libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len);
        (info, result)
    };
    (result == 0).then_some(info)
}
