//! Attaches the flow cache as a filter of a clsact qdisc; the filter stays if the process is
//! killed.

use std::io::ErrorKind;

use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};

/// Attaches the program to ingress, before other filters. No other filter may have the handle.
pub(crate) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    handle: u32,
) -> Result<SchedClassifierLinkId, ProgramError> {
    // The qdisc does nothing by itself and stays: its removal would remove the filters of others.
    let _ = qdisc_add_clsact(interface); // there may be one
    let options = NlOptions { priority: 1, handle: handle.into(), ..NlOptions::default() };
    program.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::Netlink(options))
}

/// Whether attaching by tcx failed because the kernel lacks tcx. The kernel returns this error
/// number for an unknown type of attachment. Other obstacles (the attachment exists, or is one too
/// many) have other numbers.
pub(crate) fn lacks_tcx(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error) if error.io_error.kind() == ErrorKind::InvalidInput)
}
