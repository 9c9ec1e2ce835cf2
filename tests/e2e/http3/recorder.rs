//! An attacker between a client and convey, who records the client's datagrams and replays them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The one between them.
pub(crate) struct Recorder {
    addr: SocketAddr,
    to: SocketAddr,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    is_mute: Arc<AtomicBool>,
    retries: Arc<AtomicUsize>,
}

impl Recorder {
    pub(crate) async fn before(to: SocketAddr) -> Recorder {
        Recorder::at(Ipv4Addr::LOCALHOST.into(), to).await
    }

    /// Returns a recorder whose datagrams reach convey from this address.
    pub(crate) async fn at(ip: IpAddr, to: SocketAddr) -> Recorder {
        let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let (addr, sent) = (socket.local_addr().unwrap(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
        let (record, is_mute) = (sent.clone(), Arc::<AtomicBool>::default());
        let mute = is_mute.clone();
        let retries = Arc::<AtomicUsize>::default();
        let counted = retries.clone();
        tokio::spawn(async move {
            let beyond = Arc::new(UdpSocket::bind((ip, 0)).await.unwrap());
            let (mut client, mut datagram, mut answer) = (None, [0; 2048], [0; 2048]);
            loop {
                tokio::select! {
                    Ok((len, from)) = socket.recv_from(&mut datagram) => {
                        client = Some(from);
                        record.lock().unwrap().push(datagram[..len].to_vec());
                        beyond.send_to(&datagram[..len], to).await.unwrap();
                    }
                    Ok((len, _)) = beyond.recv_from(&mut answer) => {
                        counted.fetch_add(usize::from(is_retry(answer[0])), Ordering::Relaxed);
                        if let Some(client) = client.filter(|_| !mute.load(Ordering::Relaxed)) {
                            socket.send_to(&answer[..len], client).await.unwrap();
                        }
                    }
                }
            }
        });
        Recorder { addr, to, sent, is_mute, retries }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Drops all packets to clients from now on.
    pub(crate) fn be_mute(&self) {
        self.is_mute.store(true, Ordering::Relaxed);
    }

    /// Number of Retry packets that convey has sent.
    pub(crate) fn retries(&self) -> usize {
        self.retries.load(Ordering::Relaxed)
    }

    /// Clears the recording.
    pub(crate) fn forget(&self) {
        self.sent.lock().unwrap().clear();
    }

    /// Forgets all but the first datagram.
    pub(crate) fn only_the_first(&self) {
        self.sent.lock().unwrap().truncate(1);
    }

    /// Replays the recording from another port until convey answers, which it does once it has
    /// forgotten the connection.
    pub(crate) async fn replay(&self) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let sent = self.sent.lock().unwrap().clone();
        loop {
            for datagram in &sent {
                socket.send_to(datagram, self.to).await.unwrap();
            }
            if timeout(Duration::from_millis(200), socket.recv(&mut [0; 2048])).await.is_ok() {
                return;
            }
        }
    }
}

/// Whether this is the first byte of a Retry packet (RFC 9000, section 17.2.5).
fn is_retry(first: u8) -> bool {
    first & 0xf0 == 0xf0
}
