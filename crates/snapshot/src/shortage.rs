//! Which errors of system calls are a shortage of this host.

use std::io::Error;

use rustix::io::Errno;

/// Whether something ran out here: descriptors, memory or ports. It says nothing of a peer, and trying again at
/// once would spin.
pub fn is_shortage(error: &Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
