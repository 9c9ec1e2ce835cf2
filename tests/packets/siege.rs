//! Forged connection attempts as fast as this machine makes them, where the kernel forwards open
//! flows.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{TcpServer, clock, connect, ping, wait_for};

use crate::case::{Case, Family, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::flood::{Download, attacked, connections, endless, forge, median_of_kept};
use crate::network::{Network, PORT, connect_from};
use crate::raw::Wire;

pub(crate) fn tests() -> Vec<PacketTest> {
    floods(tests![long when |case| case.is_cached() =>
        download_keeps_nine_tenths_of_its_speed_during_a_syn_flood,
        however_many_syns_are_forged_clients_connect,
        from_the_first_second_of_a_flood_on_clients_are_served,
    ])
}

/// Turns of quiet and of flood in a round.
const TURNS: usize = 4;

/// Rounds. Half of them must do.
const ROUNDS: usize = 11;

/// SYNs that are made beforehand and sent again and again, each time with other numbers.
const MADE: u32 = 50_000;

/// The baseline has the same SYNs, by the same sender, to an address that nobody has: the test
/// compares their cost for the balancer, not the cost to make them.
fn download_keeps_nine_tenths_of_its_speed_during_a_syn_flood(case: Case) {
    let network = attacked(case);
    let _server = network.server(1, endless);
    let download = Download::start(network.inside(Role::Client(1), || connect(network.vip())));
    let flood = Flood::start(&network);
    let before = Round::of(&network, &download, &flood, [false, false]);
    flood.aim_at_balancer(true);
    network.wait_for_log("SYN flood");
    flood.aim_at_balancer(false);
    settle(&network); // of what came before it was
    let rounds: Vec<Round> =
        (0..ROUNDS).map(|_| Round::of(&network, &download, &flood, [false, true])).collect();
    let is_fair =
        |round: &&Round| round.quiet.0 >= before.quiet.0 / 4 && round.flooded.1 >= before.flooded.1 / 4;
    let fair: Vec<&Round> = rounds.iter().filter(is_fair).collect();
    let kept = median_of_kept(fair.iter().map(|round| (round.quiet.0, round.flooded.0)));
    eprintln!("{case}: {kept:?} of the speed; bytes/s and SYNs/s: {before:?} before, {rounds:?} in it");
    assert!(kept >= Some(0.9), "{kept:?} of the speed in {rounds:?}; {:#}", network.stat("/packets"));
    let [begun_meanwhile, sent] = [
        fair.iter().map(|round| u64::from(round.begun_meanwhile)).sum(),
        fair.iter().map(|round| round.flooded.1).sum::<u64>(),
    ];
    assert!(begun_meanwhile <= sent / 100, "{begun_meanwhile} of {sent} SYNs/s began a connection");
}

fn however_many_syns_are_forged_clients_connect(case: Case) {
    let network = attacked(case);
    let client_of_other_network = client_of_other_network(&network);
    let _server = network.server(1, TcpServer::echo);
    let mut before = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut before).unwrap();
    let flood = Flood::start(&network);
    flood.aim_at_balancer(true);
    wait_for("SYNs to be refused", || (refused(&network) > 0).then_some(()));
    ping(&mut before).unwrap();
    let again = || network.stat("/packets/cache/came_again").as_u64().unwrap();
    // Packets from before the flood was noticed are still in the queues, and delay its clients.
    flood.aim_at_balancer(false);
    settle(&network);
    flood.aim_at_balancer(true);
    network.inside(Role::Client(1), || (0..3).for_each(|_| ping(&mut connect(network.vip())).unwrap()));
    assert_eq!(again(), 0, "its network is known");
    network.inside(Role::Client(2), || {
        let mut stream = connect_from((client_of_other_network, 0).into(), network.vip()).unwrap();
        ping(&mut stream).unwrap();
        ping(&mut stream).unwrap();
    });
    wait_for("the counters to follow", || (again() > 0).then_some(()));
    flood.aim_at_balancer(false);
    network.wait_for_log("the SYN flood is over");
    let last = refused(&network);
    network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
    assert_eq!(refused(&network), last);
}

/// Uses the default table and SNAT ports. A client that connects before the flood is noticed may
/// have to repeat its SYN three times; afterwards, it is served within 5 s.
fn from_the_first_second_of_a_flood_on_clients_are_served(case: Case) {
    const CLIENTS: usize = 100;
    let [patience, back_to_normal] = [10, 5].map(Duration::from_secs);
    let mut network = Network::new(case, 2, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let vip = network.vip();
    let connects = |patience| {
        TcpStream::connect_timeout(&vip, patience).is_ok_and(|mut client| ping(&mut client).is_ok())
    };
    assert!(network.inside(Role::Client(1), || connects(patience)), "its network is known");
    let flood = Flood::start(&network);
    flood.aim_at_balancer(true);
    let begin = clock();
    let served = network.inside(Role::Client(1), || (0..CLIENTS).filter(|_| connects(patience)).count());
    let rate = flood.sent() as f64 / begin.elapsed().as_secs_f64();
    eprintln!("{case}: {served} of {CLIENTS} served in {:?}, {rate:.0} SYNs/s", begin.elapsed());
    flood.aim_at_balancer(false);
    drop(flood);
    let after = network.inside(Role::Client(1), || (0..20).filter(|_| connects(back_to_normal)).count());
    let packets = network.stat("/packets");
    assert!(served >= 99 && after == 20, "{served} of {CLIENTS}, then {after} of 20: {packets:#}");
}

fn refused(network: &Network) -> u64 {
    network.stat("/packets/drops/syn_limited").as_u64().unwrap()
}

/// Gives the second client an address of another network.
fn client_of_other_network(network: &Network) -> IpAddr {
    let (text, family): (&str, &[&str]) = match network.case.family {
        Family::V4 => ("192.0.2.7", &[]),
        Family::V6 => ("2001:db8:7::7", &["-6"]),
    };
    let via = network.case.family.address(Role::Client(2)).to_string();
    let ip = |role: Role, line: &[&str]| _ = network.lab.run(role, "ip", &[family, line].concat()).unwrap();
    ip(Role::Client(2), &["addr", "add", text, "dev", INTERFACE]);
    ip(Role::Balancer, &["route", "add", text, "via", &via]);
    ip(Role::Server(1), &["route", "add", text, "via", &via]);
    text.parse().unwrap()
}

/// A download in quiet and in flood, with the SYNs that came: a second, both.
#[derive(Debug)]
struct Round {
    quiet: (u64, u64),
    flooded: (u64, u64),
    /// Connections that began meanwhile.
    begun_meanwhile: u32,
}

impl Round {
    /// Alternates turns in which the flood is aimed at the balancer or not.
    fn of(network: &Network, download: &Download, flood: &Flood, aims: [bool; 2]) -> Round {
        let turn = |at_balancer: bool| {
            flood.aim_at_balancer(at_balancer);
            if !at_balancer {
                settle(network);
            }
            let (begin, before) = (clock(), flood.sent());
            let speed = download.speed(|| {});
            (speed, ((flood.sent() - before) as f64 / begin.elapsed().as_secs_f64()) as u64)
        };
        let before = connections(network);
        let turns: Vec<_> = (0..TURNS).map(|_| aims.map(turn)).collect();
        let mean = |of: fn(&[(u64, u64); 2]) -> u64| turns.iter().map(of).sum::<u64>() / TURNS as u64;
        Round {
            quiet: (mean(|turn| turn[0].0), mean(|turn| turn[0].1)),
            flooded: (mean(|turn| turn[1].0), mean(|turn| turn[1].1)),
            begun_meanwhile: connections(network) - before,
        }
    }
}

/// Waits until the balancer has processed the received SYNs: it has begun no flow in several checks
/// in a row.
fn settle(network: &Network) {
    const LOOKS: u32 = 20;
    let (mut last, mut same) = (0, 0);
    wait_for("the balancer to have nothing to do", || {
        let now = connections(network);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same == LOOKS).then_some(())
    });
}

/// The second client, which sends forged SYNs for as long as this is there.
struct Flood {
    is_aimed: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: Option<JoinHandle<()>>,
}

impl Flood {
    /// Starts a flood to an unused address.
    fn start(network: &Network) -> Flood {
        let unused_address: IpAddr = match network.case.family {
            Family::V4 => [203, 0, 113, 9].into(),
            Family::V6 => "2001:db8::9".parse().unwrap(),
        };
        let [mut aimed, mut astray] = [network.vip(), SocketAddr::new(unused_address, PORT)].map(|to| {
            let mut random = fastrand::Rng::with_seed(7);
            (0..MADE).map(|_| forge(to, &mut random)).collect::<Vec<_>>()
        });
        let mut wire = network.inside(Role::Client(2), Wire::open);
        let [is_aimed, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let sent = Arc::new(AtomicU64::new(0));
        let (aim, end, count) = (is_aimed.clone(), is_over.clone(), sent.clone());
        let send = move || {
            for n in (0..MADE as usize).cycle() {
                if end.load(Relaxed) {
                    break;
                }
                let syn = if aim.load(Relaxed) { &mut aimed[n] } else { &mut astray[n] };
                renumber(syn);
                wire.send(syn);
                count.fetch_add(1, Relaxed);
            }
        };
        Flood { is_aimed, is_over, sent, sender: Some(thread::spawn(send)) }
    }

    fn aim_at_balancer(&self, is_aimed: bool) {
        self.is_aimed.store(is_aimed, Relaxed);
    }

    fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _ = self.sender.take().map(JoinHandle::join);
    }
}

/// Gives a forged SYN another sequence number; otherwise it would look like a retransmission. One
/// half of the number gains as much as the other loses (in ones' complement), so the checksum stays
/// valid.
fn renumber(syn: &mut [u8]) {
    let at = syn.len() - 16;
    let [high, low] = [at, at + 2].map(|at| u32::from(u16::from_be_bytes([syn[at], syn[at + 1]])));
    syn[at..at + 2].copy_from_slice(&((high % 0xffff + 1) as u16).to_be_bytes());
    syn[at + 2..at + 4].copy_from_slice(&(((low + 0xfffe) % 0xffff) as u16).to_be_bytes());
}
