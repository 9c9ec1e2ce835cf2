//! Connects to servers, and describes failures: the error, and the ICMP message that caused it.

use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::servers::Reached;

/// Maximum number of connections that are open at the same time.
const AT_ONCE: usize = 32;

/// Maximum wait to see whether a server ends a connection that it has accepted.
const END_TIMEOUT: Duration = Duration::from_millis(250);

// Origins of socket errors, from include/uapi/linux/errqueue.h.
const FROM_ICMP: u8 = 2;
const FROM_ICMPV6: u8 = 3;

/// Connects to each target; returns the outcomes in the same order.
pub(super) fn all(targets: &[SocketAddr], patience: Duration, own: &[IpAddr]) -> Vec<Reached> {
    in_parallel(targets, |target| one(*target, patience, own))
}

/// Calls `each` for every item, for up to `AT_ONCE` items in parallel.
pub(super) fn in_parallel<T: Sync, R: Send>(of: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (each, mut results) = (&each, Vec::with_capacity(of.len()));
    for some in of.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|one| scope.spawn(move || each(one))).collect();
            results.extend(
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
            );
        });
    }
    results
}

/// Connects to `target`. An ICMP message from one of our `own` addresses comes from this host's
/// kernel.
fn one(target: SocketAddr, patience: Duration, own: &[IpAddr]) -> Reached {
    let socket = match open(target) {
        Ok(socket) => socket,
        Err(error) => return Reached::NotTried(error.to_string()),
    };
    let Err(error) = socket.connect_timeout(&target.into(), patience) else {
        // A reset on close leaves no socket in TIME_WAIT.
        let _ = socket.set_linger(Some(Duration::ZERO));
        return after_opening(socket.into());
    };
    let message = icmp(&socket);
    match (message, error.kind()) {
        (Some((by, how)), _) if !own.contains(&by) => Reached::Rejected { by, how },
        (Some(_), _) => Reached::Unreachable("no host on the link answers for its address".to_owned()),
        (None, ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => Reached::Refused,
        (None, ErrorKind::TimedOut) => Reached::Silent,
        (None, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            Reached::Unreachable(error.to_string())
        }
        // A packet filter rule of this host dropped the SYN on its way out.
        (None, ErrorKind::PermissionDenied) => {
            Reached::Unreachable("a firewall rule of this host blocks the connection".to_owned())
        }
        (None, _) => Reached::NotTried(error.to_string()),
    }
}

/// Waits briefly to find out whether the server ends the connection before the client sends
/// anything.
fn after_opening(mut stream: TcpStream) -> Reached {
    if stream.set_read_timeout(Some(END_TIMEOUT)).is_err() {
        return Reached::Opened;
    }
    match stream.read(&mut [0]) {
        Ok(0) => Reached::Ended { is_reset: false },
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Reached::Ended { is_reset: true },
        // The server sent a greeting, or it waits for the client.
        Ok(_) | Err(_) => Reached::Opened,
    }
}

fn open(target: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    match target.is_ipv4() {
        true => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
        false => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
    }
    Ok(socket)
}

/// Sender and description of the ICMP message that caused an error; `None` if there was no such
/// message.
fn icmp(socket: &Socket) -> Option<(IpAddr, String)> {
    let mut control = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let mut byte = [0; 1];
    let mut into = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut control), flags).ok()?;
    message.cmsgs().ok()?.find_map(|part| match part {
        ControlMessageOwned::Ipv4RecvErr(error, Some(from)) if error.ee_origin == FROM_ICMP => Some((
            IpAddr::from(from.sin_addr.s_addr.to_ne_bytes()),
            icmp_words(error.ee_type, error.ee_code, true),
        )),
        ControlMessageOwned::Ipv6RecvErr(error, Some(from)) if error.ee_origin == FROM_ICMPV6 => {
            Some((IpAddr::from(from.sin6_addr.s6_addr), icmp_words(error.ee_type, error.ee_code, false)))
        }
        _ => None,
    })
}

/// Name of an ICMP type and code, from RFC 792, RFC 1812 and RFC 4443.
pub(super) fn icmp_words(kind: u8, code: u8, is_ipv4: bool) -> String {
    let known = match (is_ipv4, kind, code) {
        (true, 3, 0) => "net unreachable",
        (true, 3, 1) | (false, 1, 3) => "host unreachable",
        (true, 3, 2) => "protocol unreachable",
        (true, 3, 3) | (false, 1, 4) => "port unreachable",
        (true, 3, 9 | 10 | 13) | (false, 1, 1 | 5 | 6) => "administratively prohibited",
        (false, 1, 0) => "no route",
        _ => return format!("type {kind}, code {code}"),
    };
    known.to_owned()
}
