//! UDP servers and clients for tests.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{PATIENCE, wait_for};

/// Server that answers every datagram. Dropping it closes its socket.
pub struct UdpServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// Starts a server that answers with its name.
    pub fn named(name: &'static str, addr: SocketAddr) -> UdpServer {
        UdpServer::start(addr, move |_, answer| answer(name.as_bytes()))
    }

    /// Starts an echo server.
    pub fn echo(addr: SocketAddr) -> UdpServer {
        UdpServer::start(addr, |question, answer| answer(question))
    }

    /// Starts a server that passes every datagram to `handle`, with a function that sends an
    /// answer.
    pub fn start(
        addr: SocketAddr,
        handle: impl Fn(&[u8], &mut dyn FnMut(&[u8])) + Send + 'static,
    ) -> UdpServer {
        let socket = UdpSocket::bind(addr).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((n, client)) = socket.recv_from(&mut buffer) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                handle(&buffer[..n], &mut |answer| {
                    let _ = socket.send_to(answer, client);
                });
            }
        });
        UdpServer { addr, stop, thread: Some(thread) }
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let any = if self.addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        // Wakes the server's thread.
        let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], self.addr));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends datagrams from many ports, as fast as one thread can, until it is dropped.
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Floods `addr` from `ports` different ports in turn.
    pub fn start(addr: SocketAddr, ports: usize) -> Flood {
        let clients: Vec<UdpClient> = (0..ports).map(|_| UdpClient::of(addr)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                clients.iter().for_each(|client| {
                    let _ = client.socket.send(b"flood");
                });
            }
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Client that receives datagrams only from the address that it sends to.
pub struct UdpClient {
    socket: UdpSocket,
}

impl UdpClient {
    /// Creates a client that sends to `addr` from a free port.
    pub fn of(addr: SocketAddr) -> UdpClient {
        let socket = UdpSocket::bind(if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
        socket.connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        UdpClient { socket }
    }

    /// Sends a datagram.
    pub fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    /// Waits for a datagram.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 65_536];
        let n = self.socket.recv(&mut buffer)?;
        buffer.truncate(n);
        Ok(buffer)
    }

    /// Sends one datagram and returns the answer. Panics if no answer arrives in time.
    pub fn fetch(&self) -> String {
        self.send(b"who?");
        String::from_utf8(self.receive().unwrap()).unwrap()
    }

    /// Repeats a datagram every 100 ms until an answer arrives. Returns the answer and the number
    /// of datagrams sent.
    pub fn insist(&self) -> (String, u32) {
        self.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut asked = 0;
        let answer = wait_for("an answer", || {
            asked += 1;
            self.send(b"who?");
            self.receive().ok()
        });
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (String::from_utf8(answer).unwrap(), asked)
    }
}
