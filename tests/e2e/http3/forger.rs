//! An attacker on the path who sends a client's datagrams from forged addresses.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;

/// A relay between a client and convey that can forge sources.
pub(crate) struct Forger {
    addr: SocketAddr,
    state: Arc<Mutex<ForgerState>>,
}

#[derive(Default)]
struct ForgerState {
    /// Sources of the next datagrams, one each. Answers to them are lost.
    sources: Vec<StdSocket>,
    used: Vec<StdSocket>,
    /// Source of a copy that precedes each datagram.
    copies_from: Option<StdSocket>,
    received: usize,
    forged: usize,
}

impl Forger {
    pub(crate) async fn before(to: SocketAddr) -> Forger {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (addr, state) = (socket.local_addr().unwrap(), Arc::<Mutex<ForgerState>>::default());
        let shared = state.clone();
        tokio::spawn(async move {
            let beyond = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let (mut client, mut datagram, mut answer) = (None, [0; 2048], [0; 2048]);
            loop {
                tokio::select! {
                    Ok((len, from)) = socket.recv_from(&mut datagram) => {
                        client = Some(from);
                        if shared.lock().unwrap().pass(&datagram[..len], to) {
                            beyond.send_to(&datagram[..len], to).await.unwrap();
                        }
                    }
                    Ok((len, _)) = beyond.recv_from(&mut answer) => {
                        if let Some(client) = client {
                            socket.send_to(&answer[..len], client).await.unwrap();
                        }
                    }
                }
            }
        });
        Forger { addr, state }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends the next datagrams from these sources, one from each, and then no others.
    pub(crate) fn forge(&self, sources: impl Iterator<Item = SocketAddr>) {
        self.state.lock().unwrap().sources = sources.map(|source| StdSocket::bind(source).unwrap()).collect();
    }

    /// Sends a copy of each datagram from this source, before the datagram itself; `None` ends
    /// that.
    pub(crate) fn copy_from(&self, source: Option<SocketAddr>) {
        self.state.lock().unwrap().copies_from = source.map(|source| StdSocket::bind(source).unwrap());
    }

    /// Whether no forged source is left.
    pub(crate) fn is_done(&self) -> bool {
        self.state.lock().unwrap().sources.is_empty()
    }

    /// Bytes that the client has sent, bytes from forged sources, and bytes received there.
    pub(crate) fn bytes(&self) -> (usize, usize, usize) {
        let state = self.state.lock().unwrap();
        let (mut drawn, mut answer) = (0, [0; 2048]);
        for source in &state.used {
            source.set_nonblocking(true).unwrap();
            loop {
                match source.recv(&mut answer) {
                    Ok(len) => drawn += len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        (state.received, state.forged, drawn)
    }
}

impl ForgerState {
    /// Returns whether a datagram is passed on from the usual address.
    fn pass(&mut self, datagram: &[u8], to: SocketAddr) -> bool {
        self.received += datagram.len();
        if let Some(source) = &self.copies_from {
            source.send_to(datagram, to).unwrap();
            self.forged += datagram.len();
            return true;
        }
        let Some(source) = self.sources.pop() else { return self.used.is_empty() };
        source.send_to(datagram, to).unwrap();
        self.forged += datagram.len();
        self.used.push(source);
        false
    }
}
