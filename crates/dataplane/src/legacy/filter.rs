//! Attachment of the flow cache as a clsact filter. The filter stays attached if the process is
//! killed.

use std::io::ErrorKind;

use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};

/// Attaches the program to ingress, ahead of other filters. No other filter may have this handle.
pub(crate) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    handle: u32,
) -> Result<SchedClassifierLinkId, ProgramError> {
    // The qdisc does nothing by itself. It is never removed, because that would remove other
    // programs' filters.
    let _ = qdisc_add_clsact(interface); // there may be one
    let options = NlOptions { priority: 1, handle: handle.into(), ..NlOptions::default() };
    program.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::Netlink(options))
}

/// Whether attaching by tcx failed because the kernel lacks tcx. A kernel without tcx returns
/// `EINVAL`, because it does not know this type of attachment. Other failures (already attached,
/// too many attachments) have other error numbers.
pub(crate) fn lacks_tcx(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error) if error.io_error.kind() == ErrorKind::InvalidInput)
}
