//! Packet sockets that receive ICMP errors about encapsulated packets which exceed a path MTU.
//!
//! Packet sockets receive the errors before the host's firewall. The firewall does not track tunnel
//! packets, and may drop the errors as invalid. The host's stack receives the errors as well, and
//! ignores them.

use std::io;
use std::os::fd::OwnedFd;

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, ETH_P_IP,
    ETH_P_IPV6,
};
use pnet_datalink::DataLinkReceiver;
use socket2::SockFilter;
use tokio::io::unix::AsyncFd;

use super::socket;
use convey_wire::{TunnelMtuReport, tunnel_mtu_report};

/// Size of the read buffer in bytes, longer than any ICMP error (RFC 1812, section 4.3.2.3; RFC
/// 4443, section 2.4).
const READ_LEN: usize = 2_048;

/// Maximum number of errors that one call reads, because anybody can send a flood of errors.
const MAX_READ: usize = 64;

/// Receives path MTU errors over IPv4 and IPv6, on all interfaces.
pub struct PathMtuSocket {
    v4: Listener,
    v6: Listener,
}

impl PathMtuSocket {
    /// Opens the sockets, for the current tokio runtime.
    ///
    /// # Errors
    /// If a packet socket cannot be opened: this process may lack CAP_NET_RAW, or free descriptors.
    pub fn open() -> io::Result<PathMtuSocket> {
        let v4 = Listener::open(&filter_v4(), ETH_P_IP as u16)?;
        let v6 = Listener::open(&filter_v6(), ETH_P_IPV6 as u16)?;
        Ok(PathMtuSocket { v4, v6 })
    }

    /// Waits for errors, and returns up to 64 of them; the result may be empty. A cancelled call
    /// loses no errors.
    ///
    /// # Errors
    /// If waiting on a socket fails.
    pub async fn receive(&mut self) -> io::Result<Vec<TunnelMtuReport>> {
        tokio::select! {
            reports = self.v4.receive() => reports,
            reports = self.v6.receive() => reports,
        }
    }
}

/// Packet socket for one address family.
struct Listener {
    readiness: AsyncFd<OwnedFd>,
    receiver: Box<dyn DataLinkReceiver>,
}

impl Listener {
    fn open(filter: &[SockFilter], ether_type: u16) -> io::Result<Listener> {
        let socket = socket::open_packets(filter)?;
        let readiness = socket::readiness(socket.try_clone()?.into())?;
        Ok(Listener { readiness, receiver: socket::bind_packets(socket, ether_type, READ_LEN)? })
    }

    async fn receive(&mut self) -> io::Result<Vec<TunnelMtuReport>> {
        let mut ready = self.readiness.readable().await?;
        let mut reports = Vec::new();
        for _ in 0..MAX_READ {
            let Ok(packet) = self.receiver.next() else {
                ready.clear_ready();
                break;
            };
            reports.extend(tunnel_mtu_report(packet));
        }
        Ok(reports)
    }
}

const ICMP: u32 = 1;
const ICMP_V6: u32 = 58;

/// Protocol numbers of outer packets: UDP, IPv4 in IP, IPv6 in IP.
const OUTER: [u32; 3] = [17, 4, 41];

/// Socket filter that accepts "fragmentation needed" errors about packets that may be encapsulated.
/// Offsets count from the IP header.
fn filter_v4() -> [SockFilter; 11] {
    const FRAGMENTATION_NEEDED: u32 = 0x0304;
    [
        op(BPF_LD | BPF_ABS | BPF_B, 9),
        skip(ICMP, 0, 7),
        op(BPF_LDX | BPF_MSH | BPF_B, 0),
        op(BPF_LD | BPF_IND | BPF_H, 0),
        skip(FRAGMENTATION_NEEDED, 0, 4),
        op(BPF_LD | BPF_IND | BPF_B, 8 + 9),
        skip(OUTER[0], 3, 0),
        skip(OUTER[1], 2, 0),
        skip(OUTER[2], 1, 0),
        op(BPF_RET | BPF_K, 0),
        op(BPF_RET | BPF_K, u32::MAX),
    ]
}

/// Socket filter that accepts "packet too big" errors about packets that may be encapsulated.
fn filter_v6() -> [SockFilter; 10] {
    const PACKET_TOO_BIG: u32 = 0x0200;
    [
        op(BPF_LD | BPF_ABS | BPF_B, 6),
        skip(ICMP_V6, 0, 6),
        op(BPF_LD | BPF_ABS | BPF_H, 40),
        skip(PACKET_TOO_BIG, 0, 4),
        op(BPF_LD | BPF_ABS | BPF_B, 48 + 6),
        skip(OUTER[0], 3, 0),
        skip(OUTER[1], 2, 0),
        skip(OUTER[2], 1, 0),
        op(BPF_RET | BPF_K, 0),
        op(BPF_RET | BPF_K, u32::MAX),
    ]
}

const fn op(code: u32, k: u32) -> SockFilter {
    SockFilter::new(code as u16, 0, 0, k)
}

/// Skips `yes` instructions if the loaded value equals `value`, otherwise `no` instructions.
const fn skip(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((BPF_JMP | BPF_JEQ | BPF_K) as u16, yes, no, value)
}
