//! System call errors that mean a shortage on this host.

use std::io::Error;

use rustix::io::Errno;

/// Whether descriptors, memory or ports ran out on this host. Such an error is not the peer's
/// fault, and an immediate retry would spin.
pub fn is_shortage(error: &Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
