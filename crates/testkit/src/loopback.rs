//! Directory and loopback network for one test.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Temporary directory, and a network 127.x.y.0/24 that no other test in any process uses while
/// this value exists.
pub struct Loopback {
    directory: TempDir,
    network: [u8; 2],
    _claim: TcpListener,
}

/// Kills processes that an upgrade has started and that still run. If a test kills the process that
/// started the upgrade, nothing else ends them.
impl Drop for Loopback {
    fn drop(&mut self) {
        let socket = format!("CONVEY_SOCKET={}/", self.directory().display()).into_bytes();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            let pid = process.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            if let Some(pid) = pid
                && environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&socket))
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Loopback {
    /// Claims a free network.
    #[allow(clippy::new_without_default, reason = "it claims something")]
    pub fn new() -> Loopback {
        let (network, claim) = claim();
        Loopback { directory: TempDir::new().unwrap(), network, _claim: claim }
    }

    /// Path of the directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Address of a host in the network.
    pub fn ip(&self, host: u8) -> IpAddr {
        host_of(self.network, host)
    }

    /// Address that clients connect to.
    pub fn vip(&self) -> SocketAddr {
        SocketAddr::new(self.ip(1), 8080)
    }

    /// Address of a second frontend.
    pub fn second_vip(&self) -> SocketAddr {
        SocketAddr::new(self.ip(1), 8081)
    }

    /// Statistics address.
    pub fn stats(&self) -> SocketAddr {
        SocketAddr::new(self.ip(1), 7000)
    }

    /// Address of server number `n`.
    pub fn server(&self, n: u8) -> SocketAddr {
        SocketAddr::new(self.ip(10 + n), 8000)
    }

    /// IPv6 loopback address, with port number `n` of four (0 to 3). There is only one `::1`, so
    /// each network has its own ports.
    pub fn v6(&self, n: u16) -> SocketAddr {
        let [x, y] = self.network.map(u16::from);
        let index = 256 * (x - FIRST_NETWORK) + y;
        SocketAddr::new("::1".parse().unwrap(), 10_000 + 4 * (index % 5_500) + n)
    }
}

const FIRST_NETWORK: u16 = 16;
const NETWORKS: u32 = 200 * 256;

/// Port that a test binds on the first host of a network to claim the network. It is above the
/// ephemeral ports, so that no connection can occupy it.
const CLAIM_PORT: u16 = 61_999;

fn claim() -> ([u8; 2], TcpListener) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes start at distant networks, so that they rarely try the same one.
    let start = std::process::id().wrapping_mul(7_919);
    (0..NETWORKS)
        .find_map(|_| {
            let n = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % NETWORKS;
            let network = [FIRST_NETWORK as u8 + (n / 256) as u8, (n % 256) as u8];
            let listener = TcpListener::bind((host_of(network, 1), CLAIM_PORT)).ok()?;
            Some((network, listener))
        })
        .expect("no loopback network is free")
}

fn host_of([x, y]: [u8; 2], host: u8) -> IpAddr {
    Ipv4Addr::new(127, x, y, host).into()
}
