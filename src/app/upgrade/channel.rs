//! Channel for messages and file descriptors between the old and the new process. It is a pair of
//! sockets that no other process has.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum number of descriptors per message. The kernel allows 253.
pub(super) const MAX_DESCRIPTORS: usize = 128;

/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// One end of the channel. It keeps message boundaries.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    /// Receive buffer, kept between messages: there may be one message per UDP session.
    buffer: Mutex<Vec<u8>>,
}

impl Channel {
    /// Creates both ends. A process that is started later does not inherit them, unless one is
    /// passed as its standard input.
    pub(super) fn pair() -> io::Result<[Channel; 2]> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (one, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok([Channel::new(one), Channel::new(other)])
    }

    /// Wraps an end that another process has created.
    pub(super) fn new(socket: OwnedFd) -> Channel {
        Channel { socket, buffer: Mutex::default() }
    }

    /// Returns the descriptor of this end.
    pub(super) fn into_inner(self) -> OwnedFd {
        self.socket
    }

    /// Closes the channel in both directions. A thread that waits on it continues with an error.
    pub(super) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Sets the timeout for sending and for receiving each message.
    pub(super) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(patience))?;
        Ok(set_socket_timeout(&self.socket, Timeout::Send, Some(patience))?)
    }

    /// Sends a message with at most [`MAX_DESCRIPTORS`] descriptors.
    pub(super) fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        // No SIGPIPE if the other end is closed.
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message and its descriptors.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is closed, `WouldBlock` if no message came in time,
    /// `InvalidData` if the message is invalid.
    pub(super) fn receive<M: DeserializeOwned>(&self) -> io::Result<(M, Vec<OwnedFd>)> {
        let mut bytes = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.resize(MAX_MESSAGE, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(self.socket.as_fd(), &mut room, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other(
                "cannot receive the descriptors of the other process: the limit of open files is too low (LimitNOFILE, ulimit -n)",
            ));
        }
        match received.bytes {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => Ok((serde_json::from_slice(&bytes[..len])?, descriptors)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_message_comes_with_its_descriptors_and_none_else() {
        let [one, other] = Channel::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        one.send(&"first", &[far.as_fd(), far.as_fd()]).unwrap();
        one.send(&"second", &[]).unwrap();
        let (first, descriptors) = other.receive::<String>().unwrap();
        assert_eq!((first.as_str(), descriptors.len()), ("first", 2));
        let (second, none) = other.receive::<String>().unwrap();
        assert_eq!((second.as_str(), none.len()), ("second", 0));
        let mut received = UnixStream::from(descriptors.into_iter().next().unwrap());
        received.write_all(b"!").unwrap();
        let mut heard = [0];
        near.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"!");
    }

    #[test]
    fn upgrade_channel_times_out_and_reports_the_end() {
        let [one, other] = Channel::pair().unwrap();
        one.set_patience(Duration::from_millis(10)).unwrap();
        assert_eq!(one.receive::<String>().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        rustix::net::send(&other.socket, b"no json", SendFlags::empty()).unwrap();
        assert_eq!(one.receive::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(other);
        assert_eq!(one.receive::<String>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
