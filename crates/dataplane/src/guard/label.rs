//! Label of a guard that outlives its process: the filter's name contains the guarded frontends.
//! `tc filter show` shows the name. The next process reads it over netlink, without the privilege
//! to read BPF maps.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use xxhash_rust::xxh3::xxh3_64;

use crate::net::KERNEL_TIMEOUT;
use convey_model::Endpoint;

/// Maximum length of a filter name in the kernel, including the terminating zero.
const MAX_NAME_BYTES: usize = 255;

// From include/uapi/linux/netlink.h, rtnetlink.h and pkt_cls.h.
const RTM_NEWTFILTER: u16 = 44;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const HEADER: usize = 16;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const DIRECT_ACTION: u32 = 1;

/// Filter name of a guard for these frontends: a list, or a hash if the list is too long.
pub(super) fn name(program: &str, frontends: &BTreeSet<Endpoint>) -> String {
    let all: Vec<String> = frontends.iter().map(ToString::to_string).collect();
    let all = all.join(",");
    match program.len() + 1 + all.len() <= MAX_NAME_BYTES {
        true => format!("{program} {all}"),
        // The hash is enough to recognise the same frontends.
        false => format!("{program} {} frontends #{:016x}", frontends.len(), xxh3_64(all.as_bytes())),
    }
}

/// Whether `frontends` contains all frontends that the filter with this name guards. Returns
/// `false` for a name without a list, because its guard may cover any frontends.
pub(super) fn is_within(program: &str, name: &str, frontends: &BTreeSet<Endpoint>) -> bool {
    let Some(label) = name.strip_prefix(program).and_then(|rest| rest.strip_prefix(' ')) else {
        return false;
    };
    let known: BTreeSet<String> = frontends.iter().map(ToString::to_string).collect();
    name == self::name(program, frontends) || label.split(',').all(|guarded| known.contains(guarded))
}

/// Request to rename a tc filter on ingress.
pub(super) struct Renaming<'a> {
    pub(super) interface: u32,
    pub(super) priority: u16,
    pub(super) handle: u32,
    pub(super) program: BorrowedFd<'a>,
}

impl Renaming<'_> {
    /// Renames the filter.
    pub(super) fn rename(&self, name: &str) -> io::Result<()> {
        let socket =
            // Protocol zero is NETLINK_ROUTE.
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(KERNEL_TIMEOUT))?;
        send(&socket, &self.order(name), SendFlags::empty())?;
        let mut answer = [0u8; 4096];
        let (len, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
        // The first number of `struct nlmsgerr` is zero for success, otherwise a negative error
        // number.
        let number = answer[..len].get(HEADER..).and_then(|body| body.first_chunk());
        match number.map(|number| i32::from_ne_bytes(*number)) {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Netlink message that replaces the filter by the same program with another name: header,
    /// `struct tcmsg`, attributes.
    fn order(&self, name: &str) -> Vec<u8> {
        let mut options = Vec::new();
        attribute(&mut options, TCA_BPF_FD, &self.program.as_raw_fd().to_ne_bytes());
        attribute(&mut options, TCA_BPF_NAME, &[name.as_bytes(), &[0]].concat());
        attribute(&mut options, TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes());
        let all_protocols = (libc::ETH_P_ALL as u16).to_be();
        let mut body = Vec::new();
        body.extend([0u8; 4]); // of any family
        body.extend(self.interface.to_ne_bytes());
        body.extend(self.handle.to_ne_bytes());
        body.extend(CLSACT_INGRESS.to_ne_bytes());
        body.extend((u32::from(self.priority) << 16 | u32::from(all_protocols)).to_ne_bytes());
        attribute(&mut body, TCA_KIND, b"bpf\0");
        attribute(&mut body, TCA_OPTIONS, &options);

        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(RTM_NEWTFILTER.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message.extend([0; 8]); // number and port
        message.extend(body);
        message
    }
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((4 + value.len() as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontends(count: u16) -> BTreeSet<Endpoint> {
        (0..count).map(|n| Endpoint::tcp(([10, 0, 0, 1], 8000 + n).into())).collect()
    }

    #[test]
    fn a_name_says_whom_a_filter_guards() {
        let name = name("guard", &frontends(2));
        assert_eq!(name, "guard 10.0.0.1:8000,10.0.0.1:8001");
        assert!(is_within("guard", &name, &frontends(2)));
        assert!(is_within("guard", &name, &frontends(3)));
        assert!(!is_within("guard", &name, &frontends(1)));
        assert!(!is_within("guard", "guard", &frontends(2)), "it does not say");
        assert!(!is_within("guard", "guards 10.0.0.1:8000", &frontends(2)));
    }

    #[test]
    fn long_frontend_list_is_replaced_by_a_hash_in_the_label() {
        let name = name("guard", &frontends(100));
        assert!(name.starts_with("guard 100 frontends #") && name.len() <= MAX_NAME_BYTES, "{name}");
        assert!(is_within("guard", &name, &frontends(100)));
        assert!(!is_within("guard", &name, &frontends(101)));
    }
}
