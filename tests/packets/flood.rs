//! Forged connection attempts, more than the table holds.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use convey::demo::lab::{INTERFACE, Role, VIP};
use convey::model::Mode;
use convey::wire::TcpPacket;
use pnet_datalink::{Channel, Config as ChannelConfig, DataLinkSender};

use crate::network::{Config, Network, PORT, vip};
use crate::support::{Server, clock, connect, ping, wait_for};
use crate::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        forged_syns_push_no_established_connection_out,
        a_running_download_keeps_at_least_half_its_speed_in_a_flood,
    ]
}

/// A tenth of the SYNs.
const TABLE: &str = "connection_tracker_capacity = 10000";
const SYNS: u32 = 100_000;

/// SYNs at once: 10,000 a second.
const BURST: u32 = 50;

/// From one burst to the next.
const PERIOD: Duration = Duration::from_millis(5);

/// Bursts while a download's speed is measured.
const BURSTS: u32 = 50;

fn forged_syns_push_no_established_connection_out(mode: Mode) {
    let _alone = alone();
    let network = attacked(mode);
    let _server = network.server(1, Server::echo);
    let mut established: Vec<TcpStream> =
        network.inside(Role::Client(1), || (0..200).map(|_| connect(vip())).collect());
    let mut ping_all = || established.iter_mut().for_each(|stream| ping(stream).unwrap());
    ping_all();
    let before = connections(&network);
    let mut flood = Flood::new(&network);
    thread::scope(|scope| {
        let flood = scope.spawn(|| in_bursts(SYNS / BURST, || flood.burst()));
        while !flood.is_finished() {
            ping_all();
        }
        flood.join().unwrap();
    });
    ping_all();
    let seen = connections(&network) - before;
    assert!(seen > 20_000, "the flood did not fill the table: {seen} connections; {:#}", network.stat(""));
    // A client that means it still gets through.
    network.inside(Role::Client(1), || ping(&mut connect(vip())).unwrap());
}

/// A quarter of a second of quiet and one of flood, in turns until all SYNs are sent: what else the machine does
/// meanwhile slows both.
fn a_running_download_keeps_at_least_half_its_speed_in_a_flood(mode: Mode) {
    let _alone = alone();
    let network = attacked(mode);
    let _server = network.server(1, |addr| {
        Server::start(addr, |mut stream| {
            loop {
                stream.write_all(&[0; 256 * 1024])?;
            }
        })
    });
    let download = Download::start(network.inside(Role::Client(1), || connect(vip())));
    wait_for("the download to be under way", || (download.bytes() > 256 << 20).then_some(()));
    let mut flood = Flood::new(&network);
    let turns = SYNS / (BURST * BURSTS);
    let speeds: Vec<[u64; 2]> =
        (0..turns).map(|_| [download.speed(|| {}), download.speed(|| flood.burst())]).collect();
    let seen = connections(&network);
    assert!(seen > SYNS / 2, "the flood did not get through: {seen} connections; {:#}", network.stat(""));
    let kept = speeds.iter().filter(|[quiet, flooded]| *flooded >= quiet / 2).count();
    let all = format!("{kept} of {turns} turns; bytes a second, quiet and in the flood: {speeds:?}");
    assert!(kept > speeds.len() / 2, "{all}; {:#}", network.stat(""));
    eprintln!("{}: it kept half its speed in {all}", mode.name());
}

/// One flood at a time, so that it has the rate it says.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A balancer with a small table in front of one server.
fn attacked(mode: Mode) -> Network {
    let mut network = Network::new(mode, 2, 1);
    network.balance(&Config { passthrough: TABLE, health: "kind = \"none\"", ..Config::new(1) });
    network
}

fn connections(network: &Network) -> u32 {
    network.stat("/frontends/web/total_connections").as_u64().unwrap() as u32
}

/// A running download; dropping it ends it.
struct Download {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Download {
    fn start(stream: TcpStream) -> Download {
        let bytes = Arc::new(AtomicU64::new(0));
        let (mut from, counter) = (stream.try_clone().unwrap(), bytes.clone());
        thread::spawn(move || {
            let mut block = vec![0; 256 * 1024];
            while let Ok(1..) = from.read(&mut block).inspect(|n| _ = counter.fetch_add(*n as u64, Relaxed)) {
            }
        });
        Download { stream, bytes }
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Its speed, in bytes a second, while something comes in bursts.
    fn speed(&self, burst: impl FnMut()) -> u64 {
        let (start, before) = (clock(), self.bytes());
        in_bursts(BURSTS, burst);
        ((self.bytes() - before) as f64 / start.elapsed().as_secs_f64()) as u64
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Does something so many times, at the pace of bursts.
fn in_bursts(times: u32, mut burst: impl FnMut()) {
    let start = clock();
    for n in 1..=times {
        burst();
        thread::sleep((PERIOD * n).saturating_sub(start.elapsed()));
    }
}

/// SYNs from random addresses that nobody has (RFC 2544), which the second client sends. They are made before: that
/// takes longer than sending.
struct Flood {
    sender: Box<dyn DataLinkSender>,
    syns: std::vec::IntoIter<Vec<u8>>,
}

impl Flood {
    fn new(network: &Network) -> Flood {
        let open = || {
            let interfaces = pnet_datalink::interfaces();
            let interface = interfaces.iter().find(|interface| interface.name == INTERFACE).unwrap();
            let Ok(Channel::Ethernet(sender, _)) =
                pnet_datalink::channel(interface, ChannelConfig::default())
            else {
                panic!("cannot send frames");
            };
            sender
        };
        let mut random = fastrand::Rng::with_seed(7);
        let syns: Vec<_> = (0..SYNS).map(|_| forge(&mut random)).collect();
        Flood { sender: network.inside(Role::Client(2), open), syns: syns.into_iter() }
    }

    fn burst(&mut self) {
        for syn in self.syns.by_ref().take(BURST as usize) {
            match self.sender.send_to(&syn, None).unwrap() {
                // A queue on the way is full: the wire has lost it.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                sent => sent.unwrap(),
            }
        }
    }
}

fn forge(random: &mut fastrand::Rng) -> Vec<u8> {
    let [_, _, c, d] = random.u32(..).to_be_bytes();
    let from = SocketAddrV4::new(Ipv4Addr::new(198, random.u8(18..20), c, d), random.u16(1024..));
    let syn = TcpPacket::from(from).to(SocketAddrV4::new(VIP, PORT)).syn().seq(random.u32(..));
    syn.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes()
}
