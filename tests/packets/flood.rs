//! Forged connection attempts, more than the table holds.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::{TcpServer, clock, connect, ping, wait_for};
use convey_wire::TestPacket;
use rustix::process::Signal;

use crate::case::{Case, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::raw::Wire;

pub(crate) fn tests() -> Vec<PacketTest> {
    let anyhow = tests![forged_syns_push_no_established_connection_out];
    // Where the kernel forwards open flows, it refuses the SYNs, too: see `siege`.
    let by_workers = tests![when |case| !case.is_cached() => full_capture_buffer_counts_lost_packets];
    let long = tests![long when |case| !case.is_cached() =>
        a_running_download_keeps_a_quarter_of_its_speed_in_a_flood];
    floods([anyhow, by_workers, long].concat())
}

/// Table that the SYNs of half a second fill.
const TABLE: &str = "max_flows = 5000";
const SYNS: u32 = 100_000;

/// SYNs in one burst: 10,000 a second.
const BURST: u32 = 50;

/// Time between bursts.
const PERIOD: Duration = Duration::from_millis(5);

/// Bursts that fill the table.
const FILL: u32 = 400;

/// Bursts in a turn: a quarter of a second.
const TURN: u32 = 50;

/// Turns of quiet and of flood in a round.
const TURNS: u32 = 4;

fn forged_syns_push_no_established_connection_out(case: Case) {
    let network = attacked(case);
    let _server = network.server(1, TcpServer::echo);
    let mut established: Vec<TcpStream> =
        network.inside(Role::Client(1), || (0..200).map(|_| connect(network.vip())).collect());
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
    // A busy balancer loses SYNs in its capture buffer.
    wait_for("the flood to fill the table twice", || {
        let is_filled = connections(&network) - before > 10_000;
        if !is_filled {
            in_bursts(TURN, || flood.burst());
        }
        ping_all();
        is_filled.then_some(())
    });
    // A genuine client still gets through.
    network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
}

/// Quiet and flood alternate, so that other load on the machine slows both. Half of the valid
/// rounds must pass. A round with a stalled download, or with a flood that is lost on the way, is
/// not valid.
fn a_running_download_keeps_a_quarter_of_its_speed_in_a_flood(case: Case) {
    let network = attacked(case);
    let _server = network.server(1, endless);
    let download = Download::start(network.inside(Role::Client(1), || connect(network.vip())));
    let mut flood = Flood::new(&network);
    let alone = Round::of(|| [download.speed(|| {}), 0], &network);
    in_bursts(FILL, || flood.burst());
    let rounds: Vec<Round> = (0..(SYNS / BURST - FILL) / (TURN * TURNS))
        .map(|_| Round::of(|| [download.speed(|| {}), download.speed(|| flood.burst())], &network))
        .collect();
    let is_fair = |round: &&Round| round.quiet >= alone.quiet / 4 && round.seen >= TURNS * TURN * BURST / 2;
    let kept = median_of_kept(rounds.iter().filter(is_fair).map(|round| (round.quiet, round.flooded)));
    eprintln!("{case}: {kept:?} of the speed; {alone:?} before the flood, {rounds:?} in it");
    // A program that is not optimised takes its time for each SYN, beside the sender on two cores.
    assert!(kept >= Some(0.25), "{kept:?} of the speed in {rounds:?}; {:#}", network.stat(""));
}

/// Part of its quiet speed that a download keeps in a flood, in the median of rounds.
pub(crate) fn median_of_kept(rounds: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
    let mut kept: Vec<f64> = rounds.map(|(quiet, flooded)| flooded as f64 / quiet as f64).collect();
    kept.sort_unstable_by(f64::total_cmp);
    kept.get(kept.len() / 2).copied()
}

/// A download's speed in quiet and in flood.
#[derive(Debug)]
struct Round {
    /// Bytes a second.
    quiet: u64,
    flooded: u64,
    /// Number of connections that were new to the balancer.
    seen: u32,
}

impl Round {
    /// Takes turns, each of which has a speed in quiet and one in flood.
    fn of(turn: impl FnMut() -> [u64; 2], network: &Network) -> Round {
        let before = connections(network);
        let turns: Vec<[u64; 2]> = std::iter::repeat_with(turn).take(TURNS as usize).collect();
        let mean = |of: usize| turns.iter().map(|turn| turn[of]).sum::<u64>() / u64::from(TURNS);
        Round { quiet: mean(0), flooded: mean(1), seen: connections(network) - before }
    }
}

/// A balancer with a small table in front of one server.
pub(crate) fn attacked(case: Case) -> Network {
    let mut network = Network::new(case, 2, 1);
    network.balance(&Config { passthrough: TABLE, health: UNCHECKED, ..Config::new(1) });
    network
}

pub(crate) fn connections(network: &Network) -> u32 {
    network.stat("/frontends/web/total_connections").as_u64().unwrap() as u32
}

/// A server that sends as long as the client reads.
pub(crate) fn endless(addr: SocketAddr) -> TcpServer {
    TcpServer::start(addr, |mut stream| {
        loop {
            stream.write_all(&[0; 256 * 1024])?;
        }
    })
}

/// A running download; dropping it ends it.
pub(crate) struct Download {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Download {
    /// Starts the download of all bytes that the server sends on this connection.
    pub(crate) fn start(stream: TcpStream) -> Download {
        let bytes = Arc::new(AtomicU64::new(0));
        let (mut from, counter) = (stream.try_clone().unwrap(), bytes.clone());
        thread::spawn(move || {
            let mut block = vec![0; 256 * 1024];
            while let Ok(1..) = from.read(&mut block).inspect(|n| _ = counter.fetch_add(*n as u64, Relaxed)) {
            }
        });
        let download = Download { stream, bytes };
        wait_for("the download to be under way", || (download.bytes() > 256 << 20).then_some(()));
        download
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Speed in bytes a second, while bursts are sent.
    pub(crate) fn speed(&self, burst: impl FnMut()) -> u64 {
        let (start, before) = (clock(), self.bytes());
        in_bursts(TURN, burst);
        ((self.bytes() - before) as f64 / start.elapsed().as_secs_f64()) as u64
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Calls `burst` so many times, at the pace of bursts.
fn in_bursts(times: u32, mut burst: impl FnMut()) {
    let start = clock();
    for n in 1..=times {
        burst();
        thread::sleep((PERIOD * n).saturating_sub(start.elapsed()));
    }
}

/// SYNs from random unused addresses (RFC 2544), sent by the second client in turn. They are made
/// beforehand, because that takes longer than sending.
struct Flood {
    wire: Wire,
    syns: Vec<Vec<u8>>,
    sent: usize,
}

/// The balancer is stopped while more packets arrive than the buffer takes.
fn full_capture_buffer_counts_lost_packets(case: Case) {
    let network = attacked(case);
    let _server = network.server(1, TcpServer::echo);
    let mut flood = Flood::new(&network);
    network.convey(|convey| convey.signal(Signal::STOP));
    (0..SYNS / BURST).for_each(|_| flood.burst());
    network.convey(|convey| convey.signal(Signal::CONT));
    let lost = || network.stat("/packets/drops/capture_overrun").as_u64().filter(|lost| *lost > 0);
    let lost = wait_for("what was lost to be counted", lost);
    assert!(lost < SYNS.into(), "{lost}");
    network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
}

impl Flood {
    fn new(network: &Network) -> Flood {
        let mut random = fastrand::Rng::with_seed(7);
        let syns: Vec<_> = (0..SYNS).map(|_| forge(network.vip(), &mut random)).collect();
        Flood { wire: network.inside(Role::Client(2), Wire::open), syns, sent: 0 }
    }

    fn burst(&mut self) {
        for _ in 0..BURST {
            self.wire.send(&self.syns[self.sent % self.syns.len()]);
            self.sent += 1;
        }
    }
}

/// A SYN from an unused address (RFC 2544, RFC 5180).
pub(crate) fn forge(vip: SocketAddr, random: &mut fastrand::Rng) -> Vec<u8> {
    let from = unused_address(vip, random);
    let syn = TestPacket::from(from).to(vip).syn().seq(random.u32(..));
    syn.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes()
}

/// Unused address in the family of another.
pub(crate) fn unused_address(vip: SocketAddr, random: &mut fastrand::Rng) -> SocketAddr {
    let [_, _, c, d] = random.u32(..).to_be_bytes();
    let from: IpAddr = match vip {
        SocketAddr::V4(_) => Ipv4Addr::new(198, random.u8(18..20), c, d).into(),
        SocketAddr::V6(_) => Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, random.u16(..), random.u16(1..)).into(),
    };
    SocketAddr::new(from, random.u16(1024..))
}
