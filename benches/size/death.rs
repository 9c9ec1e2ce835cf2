//! Time for which clients are sent to a dead server. The server is one of two in a backend of its
//! own, among all other backends.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use convey_testkit::reset;
use socket2::{Domain, Socket, Type};

use crate::running::Running;

/// Two servers, each checked ten times a second.
const BACKEND: &str = "\n[frontends.mortal]\nlisten_addr = \"10.0.0.1:999\"\nbackend = \"mortal\"\n\
    [backends.mortal]\nalgorithm = \"maglev\"\nhealth_check = { interval = 0.1, timeout = 0.1, fall = 1, rise = 1 }\n\
    servers.stays = { addr = \"10.255.0.1:9001\" }\nservers.dies = { addr = \"10.255.0.2:9001\" }\n";
const VIP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 999);
/// Clients served in a row that show that no worker chooses the dead server any more.
const ALL_SERVED: u32 = 1_000;

/// Times of each death: until the log reports it, and until the last client was refused.
pub(crate) struct Deaths(Vec<[Duration; 2]>);

impl Deaths {
    /// Adds the backend, and stops its server this number of times.
    pub(crate) fn measure(running: &Running, times: usize) -> Deaths {
        let file = running.site.file();
        fs::write(&file, fs::read_to_string(&file).unwrap() + BACKEND).unwrap();
        let servers = &running.site.servers;
        let [_stays, mut dies] = [1, 2].map(|n| servers.enter(|| Server::start(n)));
        let mut deaths = Vec::new();
        for _ in 0..times {
            running.wait("clients at the server that is to die", || servers.enter(|| has_clients(&dies)));
            deaths.push(servers.enter(|| one(running, &dies)));
            dies = servers.enter(|| Server::start(2));
        }
        Deaths(deaths)
    }

    /// Cells of a table, in milliseconds.
    pub(crate) fn cells(&self) -> String {
        let cell = |n: usize| {
            let mut all: Vec<f64> = self.0.iter().map(|death| death[n].as_secs_f64() * 1e3).collect();
            all.sort_by(f64::total_cmp);
            format!("{:.0} | {:.0}", all[all.len() / 2], all[all.len() - 1])
        };
        format!("{} | {}", cell(0), cell(1))
    }
}

/// Measures one death.
fn one(running: &Running, server: &Server) -> [Duration; 2] {
    let mut log = File::open(running.log()).unwrap();
    log.seek(SeekFrom::End(0)).unwrap();
    let (served_in_a_row, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut refused = None;
            while !stop.load(Ordering::Relaxed) {
                let is_served = is_served();
                refused = if is_served { refused } else { Some(Instant::now()) };
                let _ = served_in_a_row.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                    Some(if is_served { n + 1 } else { 0 })
                });
            }
            refused.expect("half of the clients were sent to the dead server")
        });
        let died = Instant::now();
        server.die();
        let mut told = String::new();
        while !told.contains("mortal/dies (10.255.0.2:9001) is down") {
            thread::sleep(Duration::from_millis(1));
            log.read_to_string(&mut told).unwrap();
        }
        let found = died.elapsed();
        while served_in_a_row.load(Ordering::Relaxed) < ALL_SERVED {
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        [found, clients.join().unwrap() - died]
    })
}

/// Whether a client is served, and not refused.
fn is_served() -> bool {
    TcpStream::connect_timeout(&VIP, Duration::from_secs(1)).map(reset).is_ok()
}

/// Whether clients reach a server: half of a hundred do, and health checks come less often.
fn has_clients(server: &Server) -> bool {
    let before = server.accepted.load(Ordering::Relaxed);
    let are_served = (0..100).all(|_| is_served());
    are_served && server.accepted.load(Ordering::Relaxed) - before > 25
}

/// A server that closes what it accepts.
struct Server {
    socket: Arc<Socket>,
    accepted: Arc<AtomicU64>,
}

impl Server {
    /// Starts the server in the namespace of this thread.
    fn start(number: u8) -> Server {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from(([10, 255, 0, number], 9_001)).into()).unwrap();
        socket.listen(4_096).unwrap();
        let server = Server { socket: Arc::new(socket), accepted: Arc::default() };
        let (socket, accepted) = (server.socket.clone(), server.accepted.clone());
        thread::spawn(move || {
            while socket.accept().is_ok() {
                accepted.fetch_add(1, Ordering::Relaxed);
            }
        });
        server
    }

    /// Refuses connections from now on.
    fn die(&self) {
        self.socket.shutdown(Shutdown::Both).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
