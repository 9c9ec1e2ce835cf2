//! Packet socket for one probe. It sends frames that convey has built. It receives ICMP, and TCP to
//! one port.

use std::io;
use std::os::fd::OwnedFd;

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, ETH_P_IP,
    ETH_P_IPV6,
};
use pnet_datalink::{DataLinkReceiver, DataLinkSender};
use socket2::SockFilter;
use tokio::io::unix::AsyncFd;

use super::socket;

/// Size of the read buffer in bytes. Longer frames are truncated; an answer to a SYN is shorter.
const READ_LEN: usize = 2_048;

/// Maximum number of frames to read without a pause, more than the socket can hold. Without the
/// limit, frames of other hosts could keep the probe from its timeout.
const MAX_READ: usize = 4_096;

/// Packet socket of a probe, which sends on one interface and receives on all interfaces.
pub struct ProbeSocket {
    readiness: AsyncFd<OwnedFd>,
    sender: Box<dyn DataLinkSender>,
    receiver: Box<dyn DataLinkReceiver>,
}

impl ProbeSocket {
    /// Opens a socket that sends on this interface, for the current tokio runtime. The socket
    /// receives ICMP and frames to this TCP port, on all interfaces.
    ///
    /// # Errors
    /// If a packet socket cannot be opened: this process may lack CAP_NET_RAW, or free descriptors.
    pub fn open(interface: u32, port: u16) -> io::Result<ProbeSocket> {
        let receiving = socket::open_plain(&filter(port))?;
        let readiness = socket::readiness(receiving.try_clone()?.into())?;
        // The answer may arrive on another interface than the SYN leaves by.
        let (_, receiver) = socket::bind(receiving, socket::ANY_INTERFACE, READ_LEN)?;
        let sending = socket::open_plain(&NOTHING)?;
        let (sender, _) = socket::bind(sending, interface, READ_LEN)?;
        Ok(ProbeSocket { readiness, sender, receiver })
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// If the kernel refuses the frame.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.sender.send_to(frame, None).unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Receives frames and passes each to `parse`, until `parse` returns a value.
    ///
    /// # Errors
    /// If waiting on the socket fails.
    pub async fn receive<T>(&mut self, mut parse: impl FnMut(&[u8]) -> Option<T>) -> io::Result<T> {
        loop {
            let mut ready = self.readiness.readable().await?;
            let mut frames = (0..MAX_READ).map_while(|_| Some(parse(self.receiver.next().ok()?)));
            if let Some(found) = frames.find_map(|found| found) {
                return Ok(found);
            }
            ready.clear_ready();
        }
    }
}

/// Socket filter that accepts no frame.
const NOTHING: [SockFilter; 1] = [SockFilter::new((BPF_RET | BPF_K) as u16, 0, 0, 0)];

/// Socket filter that accepts ICMP, and TCP to this port over IPv4 or over IPv6 without extension
/// headers.
fn filter(port: u16) -> [SockFilter; 16] {
    const ICMP: u32 = 1;
    const TCP: u32 = 6;
    const ICMP_V6: u32 = 58;
    let op = |code: u32, k: u32| SockFilter::new(code as u16, 0, 0, k);
    let skip =
        |value: u32, yes: u8, no: u8| SockFilter::new((BPF_JMP | BPF_JEQ | BPF_K) as u16, yes, no, value);
    [
        op(BPF_LD | BPF_ABS | BPF_H, 12),
        skip(ETH_P_IP as u32, 0, 6),
        op(BPF_LD | BPF_ABS | BPF_B, 23),
        skip(ICMP, 11, 0),
        skip(TCP, 0, 9),
        op(BPF_LDX | BPF_MSH | BPF_B, 14),
        op(BPF_LD | BPF_IND | BPF_H, 16),
        skip(port.into(), 7, 6),
        skip(ETH_P_IPV6 as u32, 0, 5),
        op(BPF_LD | BPF_ABS | BPF_B, 20),
        skip(ICMP_V6, 4, 0),
        skip(TCP, 0, 2),
        op(BPF_LD | BPF_ABS | BPF_H, 56),
        skip(port.into(), 1, 0),
        op(BPF_RET | BPF_K, 0),
        op(BPF_RET | BPF_K, u32::MAX),
    ]
}
