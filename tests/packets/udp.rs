//! A small UDP server, and clients for it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use convey_testkit::wait_for;

/// Port of the echo service (RFC 862).
pub(crate) const ECHO: u16 = 7;

/// Larger than any datagram.
const BUFFER: usize = 1 << 16;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends every datagram back to its sender. Dropping it closes its socket.
pub(crate) struct UdpEcho {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpEcho {
    pub(crate) fn start(addr: SocketAddr) -> UdpEcho {
        UdpEcho::signing("", addr)
    }

    /// A server that echoes this question only.
    pub(crate) fn answering(question: &'static [u8], addr: SocketAddr) -> UdpEcho {
        UdpEcho::serving(addr, move |datagram, _| (datagram == question).then(|| datagram.to_vec()))
    }

    /// A server that prepends its name to each echo.
    pub(crate) fn signing(name: &str, addr: SocketAddr) -> UdpEcho {
        let name = name.as_bytes().to_vec();
        UdpEcho::serving(addr, move |datagram, _| Some([&name, datagram].concat()))
    }

    /// A server that answers each client with the address that it sees.
    pub(crate) fn telling_addresses(addr: SocketAddr) -> UdpEcho {
        UdpEcho::serving(addr, |_, from| Some(from.to_string().into_bytes()))
    }

    fn serving(
        addr: SocketAddr,
        answer: impl Fn(&[u8], SocketAddr) -> Option<Vec<u8>> + Send + 'static,
    ) -> UdpEcho {
        let socket = UdpSocket::bind(addr).unwrap();
        // Interval of the checks whether to stop.
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let serve = move || {
            let mut buffer = vec![0; BUFFER];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((n, from)) = socket.recv_from(&mut buffer)
                    && let Some(answer) = answer(&buffer[..n], from)
                {
                    let _ = socket.send_to(&answer, from);
                }
            }
        };
        UdpEcho { stop, thread: Some(thread::spawn(serve)) }
    }
}

impl Drop for UdpEcho {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that receives from `addr` alone, and errors on the way there.
pub(crate) fn socket_to(addr: SocketAddr) -> UdpSocket {
    let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(addr).unwrap();
    socket
}

/// Sends a datagram, waits for the answer, and returns it.
pub(crate) fn exchange(socket: &UdpSocket, datagram: &[u8]) -> io::Result<Vec<u8>> {
    socket.send(datagram)?;
    let mut buffer = vec![0; BUFFER];
    let n = socket.recv(&mut buffer)?;
    buffer.truncate(n);
    Ok(buffer)
}

/// Sends a datagram until it is answered, as it may be lost on the way. Returns the answer.
pub(crate) fn exchange_until_answered(socket: &UdpSocket, datagram: &[u8]) -> String {
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let answer = wait_for("an answer", || exchange(socket, datagram).ok());
    String::from_utf8(answer).unwrap()
}

/// Returns so many bytes. No two adjacent bytes equal those of another datagram.
pub(crate) fn datagram(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n * 31 + n / 251) as u8 ^ seed).collect()
}
