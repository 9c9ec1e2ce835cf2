//! System call errors that mean a shortage on this host.

use std::io::Error;

use rustix::io::Errno;

/// Whether an error means that this host ran out of descriptors, memory or ports. Such an error is
/// not the peer's fault, and immediate retries would only cost CPU time.
pub fn is_shortage(error: &Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
