//! Packet sockets for ICMP errors about encapsulated packets that are too long for a router. They
//! receive the errors before the host's firewall, which does not track tunnel packets: it would
//! drop such an error as invalid. The host's stack gets the error as well, and ignores it.

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

/// Read buffer size in bytes, longer than any error (RFC 1812, section 4.3.2.3; RFC 4443, section
/// 2.4).
const READ_LEN: usize = 2_048;

/// Most errors to read at once, since anybody can send very many.
const MAX_READ: usize = 64;

/// Receives errors of both families on all interfaces.
pub struct PathMtuSocket {
    v4: Listener,
    v6: Listener,
}

impl PathMtuSocket {
    /// Opens the sockets, on the caller's tokio runtime.
    ///
    /// # Errors
    /// A packet socket cannot be opened: this process may lack CAP_NET_RAW, or descriptors.
    pub fn open() -> io::Result<PathMtuSocket> {
        let v4 = Listener::open(&filter_v4(), ETH_P_IP as u16)?;
        let v6 = Listener::open(&filter_v6(), ETH_P_IPV6 as u16)?;
        Ok(PathMtuSocket { v4, v6 })
    }

    /// Waits for errors, and reads up to 64. The result may be empty. Cancelling the call loses
    /// nothing.
    ///
    /// # Errors
    /// Waiting on the socket fails.
    pub async fn hear(&mut self) -> io::Result<Vec<TunnelMtuReport>> {
        tokio::select! {
            reports = self.v4.hear() => reports,
            reports = self.v6.hear() => reports,
        }
    }
}

/// Socket for one family.
struct Listener {
    heard: AsyncFd<OwnedFd>,
    receiver: Box<dyn DataLinkReceiver>,
}

impl Listener {
    fn open(filter: &[SockFilter], ether_type: u16) -> io::Result<Listener> {
        let socket = socket::open_packets(filter)?;
        let heard = socket::readiness(socket.try_clone()?.into())?;
        Ok(Listener { heard, receiver: socket::bind_packets(socket, ether_type, READ_LEN)? })
    }

    async fn hear(&mut self) -> io::Result<Vec<TunnelMtuReport>> {
        let mut ready = self.heard.readable().await?;
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

/// Outer protocols: UDP, IPv4 and IPv6 in IP.
const OUTER: [u32; 3] = [17, 4, 41];

/// Accepts "fragmentation needed" errors about packets that may be encapsulated. Offsets count from
/// the IP header.
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

/// Accepts "packet too big" errors about such packets.
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

/// Skips `yes` instructions if the loaded value equals `value`, and `no` otherwise.
const fn skip(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((BPF_JMP | BPF_JEQ | BPF_K) as u16, yes, no, value)
}
