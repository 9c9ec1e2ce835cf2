//! List of the Unix sockets in a network namespace, by sock_diag(7) with the sockets' users, or by
//! `/proc/net/unix`.

use std::fs;
use std::io;

use rustix::net::netlink;

use super::raw_netlink::{attributes, dump};

/// Unix socket with a name.
#[derive(Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Name of the socket. An abstract name begins with a zero byte.
    pub name: Vec<u8>,
    /// Inode of the socket, as in `/proc/PID/fd`.
    pub inode: u64,
    /// User who owns the socket, numbered as in our user namespace. `None` before Linux 5.3, and
    /// without sock_diag.
    pub uid: Option<u32>,
}

// From include/uapi/linux/sock_diag.h and unix_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UNIX_DIAG_MSG: usize = 16;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;

/// List of all Unix sockets in the calling thread's network namespace. The list contains names and
/// inodes, but no users.
const LIST: &str = "/proc/thread-self/net/unix";

/// Finds the Unix sockets whose name begins with this prefix, in the calling thread's network
/// namespace.
///
/// # Errors
/// If the kernel does not list sockets.
pub fn named(prefix: &[u8]) -> io::Result<Vec<UnixSocket>> {
    // The kernel may be built without CONFIG_UNIX_DIAG.
    by_diag(prefix).or_else(|error| by_file(prefix).map_err(|_| error))
}

/// Abstract sockets in [`LIST`] whose name begins with this prefix.
pub(super) fn by_file(prefix: &[u8]) -> io::Result<Vec<UnixSocket>> {
    let list = fs::read(LIST)?;
    let sockets = list.split(|byte| *byte == b'\n').filter_map(listed_socket);
    Ok(sockets.filter(|socket| socket.name.starts_with(prefix)).collect())
}

/// Parses a line of [`LIST`]: six fields, the inode, and the name. `None` if the socket is not
/// abstract. The list writes `@` for the zero byte at the beginning of an abstract name.
fn listed_socket(line: &[u8]) -> Option<UnixSocket> {
    let mut rest = line;
    let mut inode: &[u8] = b"";
    for _ in 0..7 {
        rest = rest.trim_ascii_start();
        (inode, rest) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
    }
    let name = rest.strip_prefix(b" @")?;
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    Some(UnixSocket { name: [b"\0", name].concat(), inode, uid: None })
}

fn by_diag(prefix: &[u8]) -> io::Result<Vec<UnixSocket>> {
    dump(Some(netlink::SOCK_DIAG), SOCK_DIAG_BY_FAMILY, &question(), |body| {
        unix_socket(body).filter(|socket| socket.name.starts_with(prefix))
    })
}

/// `struct unix_diag_req` for sockets in any state, with any inode.
fn question() -> Vec<u8> {
    let shown = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
    let words = [u32::MAX, 0, shown, 0, 0].map(u32::to_ne_bytes);
    [&[libc::AF_UNIX as u8, 0, 0, 0][..], words.as_flattened()].concat()
}

/// Parses a socket; `None` if the socket has no name.
fn unix_socket(body: &[u8]) -> Option<UnixSocket> {
    let (mut name, mut uid) = (None, None);
    let inode = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    for (kind, value) in attributes(body.get(UNIX_DIAG_MSG..)?) {
        match kind {
            UNIX_DIAG_NAME => name = Some(value.to_vec()),
            UNIX_DIAG_UID => uid = value.first_chunk().map(|uid| u32::from_ne_bytes(*uid)),
            _ => {}
        }
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
        let listed = by_file(&name).unwrap();
        assert_eq!(listed, [UnixSocket { name: name.clone(), inode, uid: None }]);
        drop(socket);
        assert_eq!(named(&name).unwrap(), []);
        assert_eq!(by_file(&name).unwrap(), []);
    }

    #[test]
    fn line_of_the_list_is_an_abstract_socket_or_none() {
        let fields = "0000000000000000: 00000002 00000000 00000000 0002 01";
        let socket = |line: String| listed_socket(line.as_bytes());
        for (inode, name) in [("12345", "convey a b #1"), ("   17", " two  spaces "), ("18", "")] {
            let found = socket(format!("{fields} {inode} @{name}")).unwrap();
            assert_eq!(found.name, format!("\0{name}").as_bytes());
            assert_eq!((found.inode, found.uid), (inode.trim().parse().unwrap(), None));
        }
        for line in [
            format!("{fields} 12345"),
            format!("{fields} 12345 "),
            format!("{fields} 12345 /run/a @convey"),
            format!("{fields} x @convey"),
            "Num       RefCount Protocol Flags    Type St Inode Path".to_owned(),
            String::new(),
        ] {
            assert_eq!(socket(line.clone()), None, "{line}");
        }
    }

    #[test]
    fn body_that_is_cut_off_is_no_socket() {
        assert_eq!(unix_socket(&[0; 10]), None);
        assert_eq!(unix_socket(&[&[0u8; 16][..], &[0, 0, 0, 0]].concat()), None);
    }
}
