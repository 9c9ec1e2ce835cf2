//! Downloads that are under way as long as a test needs them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::{check_to_end, connect, wait_for};

use crate::network::Network;

/// Bytes of a piece that a client reads, and its pause before each piece.
const PIECE: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(30);

/// Received bytes of a download that is under way.
const BEGUN: u64 = 1 << 20;

/// A client that downloads the file `big` slowly until the test sets `hurry`.
pub(crate) struct Download {
    received: Arc<AtomicU64>,
    hurry: Arc<AtomicBool>,
    reader: JoinHandle<u64>,
}

struct Unhurried {
    stream: TcpStream,
    received: Arc<AtomicU64>,
    hurry: Arc<AtomicBool>,
}

impl Read for Unhurried {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(PIECE);
        if !self.hurry.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
        }
        let n = self.stream.read(&mut buffer[..most])?;
        self.received.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl Download {
    /// Whether the download ends with an error; waits for its end.
    pub(crate) fn fails(self) -> bool {
        self.reader.join().is_err()
    }

    fn start(network: &Network) -> Download {
        let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
        stream.write_all(b"GET /big HTTP/1.0\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let (received, hurry) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let mut from = Unhurried { stream, received: received.clone(), hurry: hurry.clone() };
        Download { received, hurry, reader: thread::spawn(move || check_to_end(&mut from)) }
    }
}

/// Downloads of the first client. Each has received something.
pub(crate) fn under_way<const N: usize>(network: &Network) -> [Download; N] {
    let downloads = [(); N].map(|()| Download::start(network));
    for download in &downloads {
        let begun = || (download.received.load(Ordering::Relaxed) > BEGUN).then_some(());
        wait_for("a download to be under way", begun);
    }
    downloads
}

pub(crate) fn assert_under_way(downloads: &[Download]) {
    let under_way = downloads.iter().filter(|download| !download.reader.is_finished()).count();
    assert_eq!(under_way, downloads.len(), "downloads were to be under way");
}

/// Lets downloads of files with `bytes` hurry, and checks that they are whole.
pub(crate) fn assert_whole(downloads: impl IntoIterator<Item = Download>, bytes: u64) {
    let downloads: Vec<Download> = downloads.into_iter().collect();
    downloads.iter().for_each(|download| download.hurry.store(true, Ordering::Relaxed));
    for download in downloads {
        assert_eq!(download.reader.join().unwrap(), bytes);
    }
}
