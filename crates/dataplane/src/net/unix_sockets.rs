//! Which Unix sockets there are in the network namespace, and whose: sock_diag(7).

use std::io;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::KERNEL_TIMEOUT;

/// A socket that has a name.
#[derive(Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// One of an abstract socket begins with a zero.
    pub name: Vec<u8>,
    /// Its inode, which `/proc/PID/fd` has as well.
    pub inode: u64,
    /// Whose it is, as numbered in our user namespace; `None` before Linux 5.3.
    pub uid: Option<u32>,
}

// From include/uapi/linux/netlink.h, sock_diag.h and unix_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
const UNIX_DIAG_MSG: usize = 16;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;

/// Those whose name begins like this.
///
/// # Errors
/// If the kernel tells of no sockets.
pub fn named(prefix: &[u8]) -> io::Result<Vec<UnixSocket>> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(KERNEL_TIMEOUT))?;
    send(&socket, &question(), SendFlags::empty())?;
    let (mut answer, mut found) = (vec![0u8; 64 << 10], Vec::new());
    loop {
        let (len, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &answer[..len];
        while let Some((kind, body)) = message(&mut rest) {
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => {
                    let number = body.first_chunk().map_or(0, |number| i32::from_ne_bytes(*number));
                    return Err(io::Error::from_raw_os_error(-number));
                }
                _ => found.extend(unix_socket(body).filter(|socket| socket.name.starts_with(prefix))),
            }
        }
    }
}

/// `struct unix_diag_req`, in front of it the header.
fn question() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + 24);
    bytes.extend((HEADER as u32 + 24).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend([0; 8]); // number and port
    bytes.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes()); // in any state
    bytes.extend(0u32.to_ne_bytes()); // with any inode
    bytes.extend((UDIAG_SHOW_NAME | UDIAG_SHOW_UID).to_ne_bytes());
    bytes.extend([0; 8]); // cookie
    bytes
}

/// The first message: its kind, and what follows its header.
fn message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let len = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    let body = rest.get(HEADER..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// `None` if it has no name.
fn unix_socket(body: &[u8]) -> Option<UnixSocket> {
    let (mut name, mut uid) = (None, None);
    let inode = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let mut rest = body.get(UNIX_DIAG_MSG..)?;
    while let (Some(len), Some(kind)) =
        (rest.first_chunk(), rest.get(2..).and_then(|rest| rest.first_chunk()))
    {
        let len = usize::from(u16::from_ne_bytes(*len));
        let Some(value) = rest.get(4..len) else { break };
        match u16::from_ne_bytes(*kind) {
            UNIX_DIAG_NAME => name = Some(value.to_vec()),
            UNIX_DIAG_UID => uid = value.first_chunk().map(|uid| u32::from_ne_bytes(*uid)),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    name.map(|name| UnixSocket { name, inode: inode.into(), uid })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn a_socket_is_found_by_its_name_with_its_user() {
        let name = format!("convey-test {}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let name = [b"\0", name.as_bytes()].concat();
        let uid = Some(rustix::process::geteuid().as_raw());
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let found = named(&name).unwrap();
        let inode = found[0].inode;
        assert_eq!(link.to_str(), Some(&*format!("socket:[{inode}]")));
        assert_eq!(found, [UnixSocket { name: name.clone(), inode, uid }]);
        drop(socket);
        assert_eq!(named(&name).unwrap(), []);
    }

    #[test]
    fn messages_that_are_cut_off_are_none() {
        assert_eq!(message(&mut &[0u8; 3][..]), None);
        assert_eq!(message(&mut &[40, 0, 0, 0, 20, 0, 0, 0][..]), None);
        assert_eq!(unix_socket(&[0; 10]), None);
        assert_eq!(unix_socket(&[&[0u8; 16][..], &[0, 0, 0, 0]].concat()), None);
    }
}
