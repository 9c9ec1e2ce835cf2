//! Transmission of frames.

use std::collections::HashMap;
use std::fmt;
use std::io;

use pnet_datalink::DataLinkSender;
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;

use super::{Buffer, CaptureFilter, socket};
use convey_model::DropReason;

/// Send buffer for one interface in bytes, before the kernel doubles it. The kernel regards half of
/// the doubled buffer as full. The buffer holds 34 ms of traffic at 1 Gbit/s, enough for bursts.
const SEND_BUFFER: usize = 4 << 20;

/// Sends frames on any interface, through one socket for each interface. A socket is opened on
/// first use, in the network namespace of the sending thread. At the same time, sockets of
/// interfaces that no longer exist are closed.
#[derive(Default)]
pub struct Transmit {
    senders: HashMap<u32, Box<dyn DataLinkSender>>,
}

impl Transmit {
    /// Sends the frame on the interface with this index. The interface, or the kernel before it,
    /// completes partial checksums and cuts super-frames.
    ///
    /// On error the frame is lost. A full send buffer is such an error, because a slow interface
    /// must not delay frames to other interfaces.
    pub fn send(&mut self, interface: u32, frame: &Buffer) -> io::Result<()> {
        let sender = match self.senders.get_mut(&interface) {
            Some(sender) => sender,
            None => {
                let sender = self.open(interface)?;
                self.senders.entry(interface).or_insert(sender)
            }
        };
        let sent = sender.send_to(frame.as_bytes(), None).unwrap_or(Ok(()));
        if sent.as_ref().is_err_and(is_gone) {
            self.senders.remove(&interface);
        }
        sent
    }

    fn open(&mut self, interface: u32) -> io::Result<Box<dyn DataLinkSender>> {
        let socket = socket::open(&CaptureFilter::nothing())?;
        self.senders.retain(|&index, _| index_to_name(&socket, index) != Err(Errno::NODEV));
        socket::set_send_buffer(&socket, SEND_BUFFER)?;
        let (sender, _) = socket::bind(socket, interface, 0)?;
        Ok(sender)
    }
}

/// Drop reason for a frame that could not be sent.
pub(super) fn drop_reason(error: &io::Error) -> DropReason {
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => DropReason::InterfaceRefused,
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => DropReason::InterfaceDown,
        Some(libc::EAGAIN) => DropReason::SendBufferFull,
        // pnet polls for space in the send buffer first, without waiting.
        None if error.kind() == io::ErrorKind::TimedOut => DropReason::SendBufferFull,
        _ => DropReason::TransmitFailed,
    }
}

/// Whether the error means that the interface no longer exists.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV))
}

impl fmt::Debug for Transmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transmit").field("interfaces", &self.senders.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_reason_of_its_own() {
        let of = |number| drop_reason(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::ENOBUFS), DropReason::InterfaceRefused);
        assert_eq!(of(libc::ENETDOWN), DropReason::InterfaceDown);
        assert_eq!(of(libc::ENXIO), DropReason::InterfaceDown);
        assert_eq!(of(libc::EAGAIN), DropReason::SendBufferFull);
        assert_eq!(of(libc::EMSGSIZE), DropReason::TransmitFailed);
        assert_eq!(drop_reason(&io::ErrorKind::TimedOut.into()), DropReason::SendBufferFull);
    }
}
