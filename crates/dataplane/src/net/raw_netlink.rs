//! Netlink messages that no crate of ours parses: lists of nexthop objects, IPsec policies and Unix
//! sockets, and notifications of changes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use rtnetlink::sys::protocols::{NETLINK_ROUTE, NETLINK_XFRM};
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use tokio::task::JoinSet;

use super::KERNEL_TIMEOUT;
use super::list_attempts::ListAttempts;
use super::notifications::Notifications;

// From include/uapi/linux/netlink.h, rtnetlink.h and xfrm.h.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const ATTRIBUTE_FLAGS: u16 = 0xc000;
const RTNLGRP_IPV4_NETCONF: u32 = 24;
const RTNLGRP_IPV6_NETCONF: u32 = 25;
const RTNLGRP_NEXTHOP: u32 = 32;
const XFRMNLGRP_POLICY: u32 = 4;

/// Pause before a socket is opened again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Subscriptions: changes of interface settings and nexthop objects, and changes of IPsec policies.
const SUBSCRIPTIONS: [(isize, &[u32]); 2] = [
    (NETLINK_ROUTE, &[RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF, RTNLGRP_NEXTHOP]),
    (NETLINK_XFRM, &[XFRMNLGRP_POLICY]),
];

/// Lists that the kernel returns as raw messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawList {
    /// `RTM_GETNEXTHOP`: nexthop objects.
    Nexthops,
    /// `XFRM_MSG_GETPOLICY`: IPsec policies.
    IpsecPolicies,
}

impl RawList {
    /// Reads the list; returns the bodies of the kernel's messages. The list is empty if the kernel
    /// does not support it, or this process may not read it.
    ///
    /// # Errors
    /// If the request cannot be sent, or the kernel has not answered within ten seconds.
    pub(super) fn read(self) -> io::Result<Vec<Vec<u8>>> {
        let (protocol, kind, len) = match self {
            // Policies of the main list, and default policies.
            RawList::Nexthops => (None, 106, 8),
            RawList::IpsecPolicies => (Some(netlink::XFRM), 0x15, 64),
        };
        match dump(protocol, kind, &vec![0; len], |body| Some(body.to_vec())) {
            Err(error) if is_without(&error) => Ok(Vec::new()),
            read => read,
        }
    }
}

/// Requests a list from the kernel by a message of type `kind`. Returns the items that `pick`
/// extracts from the bodies of the answer.
///
/// # Errors
/// If the request cannot be sent, the kernel refuses it or does not answer within ten seconds, or
/// the list changes during each attempt.
pub(super) fn dump<T>(
    protocol: Option<Protocol>,
    kind: u16,
    body: &[u8],
    pick: impl FnMut(&[u8]) -> Option<T>,
) -> io::Result<Vec<T>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(KERNEL_TIMEOUT))?;
    dump_by(&socket, &question(kind, body), pick)
}

/// Requests a list on this socket. Repeats the request if the list changed while the kernel created
/// it.
fn dump_by<T>(
    socket: &OwnedFd,
    question: &[u8],
    mut pick: impl FnMut(&[u8]) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut attempts = ListAttempts::default();
    loop {
        send(socket, question, SendFlags::empty())?;
        let mut list = Vec::new();
        let is_interrupted = read_answer(socket, |body| list.extend(pick(body)))?;
        if attempts.is_last(is_interrupted)? {
            return Ok(list);
        }
    }
}

/// Passes each body of an answer to `each`. Returns whether the answer is incomplete because the
/// list changed meanwhile.
fn read_answer(socket: &OwnedFd, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
    let (mut answer, mut is_interrupted) = (vec![0u8; 64 << 10], false);
    loop {
        let (len, _) = recv(socket, answer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &answer[..len];
        while let Some(RawMessage { kind, flags, body }) = message(&mut rest) {
            is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
            match kind {
                NLMSG_DONE => return Ok(is_interrupted),
                NLMSG_ERROR => {
                    let number = body.first_chunk().map_or(0, |number| i32::from_ne_bytes(*number));
                    return Err(io::Error::from_raw_os_error(-number));
                }
                _ => each(body),
            }
        }
    }
}

/// Whether the error means that the kernel does not support the list, or this process may not read
/// it.
fn is_without(error: &io::Error) -> bool {
    let codes = [
        libc::EPROTONOSUPPORT,
        libc::EOPNOTSUPP,
        libc::EAFNOSUPPORT,
        libc::EPERM,
        libc::EACCES,
        libc::EINVAL,
    ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn question(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = (HEADER + body.len()) as u32;
    let head = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes()];
    // The sequence number and the port id follow, both 0.
    [head.concat(), vec![0; 8], body.to_vec()].concat()
}

#[derive(Debug, PartialEq, Eq)]
struct RawMessage<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

/// Takes the next message from the buffer; `None` if the buffer contains no complete message.
fn message<'a>(bytes: &mut &'a [u8]) -> Option<RawMessage<'a>> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let flags = u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?);
    let body = bytes.get(HEADER..len)?;
    *bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some(RawMessage { kind, flags, body })
}

/// Iterates over the attributes of a message: type and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !ATTRIBUTE_FLAGS, value))
    })
}

/// Reads a 32-bit number at an offset; `None` if the message is too short.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Subscribes to `SUBSCRIPTIONS`. Each notification marks everything as changed.
pub(super) fn listen(tasks: &mut JoinSet<()>, notifications: &Arc<Notifications>) {
    for (protocol, groups) in SUBSCRIPTIONS {
        let subscribed = subscribe(protocol, groups);
        tasks.spawn(listen_to(subscribed, (protocol, groups), notifications.clone()));
    }
}

/// Receives notifications. Returns if the kernel does not support them, or does not send them to
/// this process.
async fn listen_to(
    mut subscribed: io::Result<TokioSocket>,
    (protocol, groups): (isize, &'static [u32]),
    notifications: Arc<Notifications>,
) {
    loop {
        match subscribed {
            Ok(socket) => loop {
                let received = socket.recv_from_full().await;
                notifications.anything();
                // After a loss (`ENOBUFS`) the socket continues to receive messages.
                if received.is_err_and(|error| error.raw_os_error() != Some(libc::ENOBUFS)) {
                    break;
                }
            },
            Err(error) if is_without(&error) => return,
            Err(error) => warn!("cannot subscribe to changes of routes and IPsec policies: {error}"),
        }
        tokio::time::sleep(RETRY).await;
        subscribed = subscribe(protocol, groups);
        // Notifications may have been missed while there was no socket.
        notifications.anything();
    }
}

fn subscribe(protocol: isize, groups: &[u32]) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
    for group in groups {
        match socket.socket_mut().add_membership(*group) {
            // For example, the kernel does not support nexthop objects.
            Err(error) if is_without(&error) && groups.len() > 1 => {}
            joined => joined?,
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn list_of_the_kernel_is_read_or_empty() {
        for list in [RawList::Nexthops, RawList::IpsecPolicies] {
            list.read().unwrap();
        }
    }

    /// Netlink socket, and the mocked kernel's end of it, which has sent one answer for each
    /// element of `flags`: the netlink flags of the answer's first part and of its end. Each answer
    /// lists its own number.
    fn answering(flags: &[[u16; 2]]) -> [OwnedFd; 2] {
        let [ours, kernel] =
            UnixDatagram::pair().map(|(one, other)| [one, other].map(OwnedFd::from)).unwrap();
        for (number, [of_part, of_end]) in (0_u32..).zip(flags) {
            for (kind, flags) in [(16, of_part), (NLMSG_DONE, of_end)] {
                let head = [&20_u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
                let message = [head.concat(), number.to_ne_bytes().to_vec()].concat();
                send(&kernel, &message, SendFlags::empty()).unwrap();
            }
        }
        [ours, kernel]
    }

    #[test]
    fn interrupted_list_is_asked_for_again() {
        const INTR: u16 = NLM_F_DUMP_INTR;
        let [ours, kernel] = answering(&[[INTR, INTR], [0, INTR], [2, 2]]);
        let list = dump_by(&ours, b"question", |body| number(body, 0)).unwrap();
        assert_eq!(list, [2], "nothing of the attempts before");
        let mut asked = [0; 100];
        for _ in 0..3 {
            assert_eq!(recv(&kernel, &mut asked[..], RecvFlags::DONTWAIT).unwrap().0, 8);
        }
        assert!(recv(&kernel, &mut asked[..], RecvFlags::DONTWAIT).is_err());
    }

    #[test]
    fn messages_that_are_cut_off_are_none() {
        assert_eq!(message(&mut &[0u8; 3][..]), None);
        assert_eq!(message(&mut &[40, 0, 0, 0, 20, 0, 0, 0][..]), None);
    }

    #[test]
    fn attributes_that_are_cut_off_end_the_list() {
        let bytes = [8, 0, 1, 0x40, 7, 0, 0, 0, 9, 0, 2, 0, 1];
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(1, &[7, 0, 0, 0][..])]);
        let endless = [0; 8];
        assert_eq!(attributes(&endless).count(), 0);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let mut rest = &bytes[..];
            while message(&mut rest).is_some() {}
            attributes(&bytes).for_each(drop);
        }
    }
}
