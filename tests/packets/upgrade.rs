//! Upgrades: another process replaces the running one, open connections go on, and clients that
//! come meanwhile are served.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{self as unix, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use convey_lab::{INTERFACE, Role};
use convey_model::Offload;
use convey_testkit::{
    Ran, SlowReader, TcpServer, binary, binary_of_upgrade, check_to_end, connect, ping, run, send, wait_for,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::outlast::guards;
use crate::udp::{ECHO, UdpEcho, exchange_until_answered, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let short = tests![
        upgrades_under_load_cut_no_connection_and_refuse_no_client,
        refused_upgrade_leaves_all_flows_to_the_old_process,
        datagrams_keep_their_server_through_upgrades,
    ];
    let of_workers = tests![when |case| case.is_passthrough() && !case.is_cached() =>
        connections_of_several_workers_go_on_after_upgrades,
    ];
    let of_dsr = tests![when Case::is_dsr => killed_new_process_leaves_no_guard_behind];
    let long = tests![long when |_| true =>
        ten_upgrades_under_load_cut_no_connection_and_refuse_no_client,
        a_download_of_a_gibibyte_lives_through_ten_upgrades,
    ];
    [short, of_workers, of_dsr, long].concat()
}

fn upgrades_under_load_cut_no_connection_and_refuse_no_client(case: Case) {
    upgrade_under_load(&mut Network::new(case, 2, 2), 2);
}

/// Replies reach the worker that has their SNAT port, so clients' packets have to reach that
/// worker, too.
fn connections_of_several_workers_go_on_after_upgrades(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let program = Program::install(&network);
    let config = Config { passthrough: "workers = 3", ..Config::new(1) };
    network.balance_by(program.command(&network), &config);
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let begin = || network.inside(Role::Client(1), || connect(network.vip()));
    let mut open: Vec<_> = (0..40).map(|_| begin()).collect();
    for n in 1..=2 {
        open.iter_mut().for_each(|stream| ping(stream).unwrap());
        program.replace();
        program.upgrade(&network, n);
        open.push(begin());
    }
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
}

fn ten_upgrades_under_load_cut_no_connection_and_refuse_no_client(case: Case) {
    upgrade_under_load(&mut Network::new(case, 2, 2), 10);
}

/// Connections that send all the time, connections that are silent meanwhile, and clients that come
/// and go.
pub(crate) fn upgrade_under_load(network: &mut Network, upgrades: usize) {
    let program = Program::install(network);
    network.balance_by(program.command(network), &Config { servers: vec![(1, "")], ..Config::new(2) });
    let network = &*network;
    let _servers = [network.server(1, TcpServer::echo), network.server(2, TcpServer::echo)];
    network.wait_for_health(1, true);
    let begin = || network.inside(Role::Client(1), || connect(network.vip()));
    let mut silent: Vec<_> = (0..20).map(|_| begin()).collect();
    let mut speaking: Vec<_> = (0..40).map(|_| begin()).collect();
    silent.iter_mut().chain(&mut speaking).for_each(|stream| ping(stream).unwrap());
    // A process without a record of these connections sends half of them to the other server, in
    // DSR, too.
    network.save(&Config::new(2));
    network.wait_for_health(2, true);
    let (stop, spoken, came) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let goes_on = || {
        let before = [&spoken, &came].map(|count| count.load(Ordering::Relaxed));
        wait_for("clients", || {
            let now = [&spoken, &came].map(|count| count.load(Ordering::Relaxed));
            (now[0] > before[0] + 200 && now[1] > before[1] + 10).then_some(())
        });
    };
    thread::scope(|scope| {
        // Any failure ends the other threads.
        let _stop = Stop(&stop);
        for some in speaking.chunks_mut(20) {
            scope.spawn(|| {
                let mut all = (0..some.len()).cycle();
                until(&stop, &spoken, || ping(&mut some[all.next().unwrap()]).unwrap());
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                network.inside(Role::Client(2), || {
                    until(&stop, &came, || ping(&mut connect(network.vip())).unwrap())
                });
            });
        }
        for n in 1..=upgrades {
            goes_on();
            program.replace();
            program.upgrade(network, n);
        }
        goes_on();
    });
    silent.iter_mut().for_each(|stream| ping(stream).unwrap());
    // Every process except the last has no connection left: it waits for the end of the next one,
    // since there is no service manager.
    wait_for("every process before it to be done", || {
        (network.log(Role::Balancer).matches("this process exits when that process exits").count()
            == upgrades)
            .then_some(())
    });
    assert_eq!(network.convey(|convey| convey.ended()), None);
    // Workers have processed the ends that the kernel saw while no process was reading its events.
    drop((silent, speaking));
    wait_for("every end to be known", || {
        (network.stat("/frontends/web/current_connections") == 0).then_some(())
    });
}

fn a_download_of_a_gibibyte_lives_through_ten_upgrades(case: Case) {
    upgrade_under_a_download(&mut Network::new(case, 1, 2));
}

/// The bytes of a stream are checked one by one.
pub(crate) fn upgrade_under_a_download(network: &mut Network) {
    const GIB: u64 = 1 << 30;
    let program = Program::install(network);
    network.balance_by(program.command(network), &Config { servers: vec![(1, "")], ..Config::new(2) });
    let network = &*network;
    let gibibyte = |mut stream: TcpStream| {
        stream.read_exact(&mut [0])?;
        send(&mut stream, GIB)?;
        stream.shutdown(Shutdown::Write)
    };
    let _servers =
        [network.server(1, |addr| TcpServer::start(addr, gibibyte)), network.server(2, TcpServer::echo)];
    network.wait_for_health(1, true);
    let mut client = network.inside(Role::Client(1), || connect(network.vip()));
    client.write_all(b"!").unwrap();
    // A process without a record of the connection sends it to either server.
    network.save(&Config::new(2));
    network.wait_for_health(2, true);
    thread::scope(|scope| {
        let download = scope.spawn(|| check_to_end(&mut SlowReader::new(client)));
        for n in 1..=10 {
            program.replace();
            program.upgrade(network, n);
            assert!(!download.is_finished(), "it was over too soon to tell");
        }
        assert_eq!(download.join().unwrap(), GIB);
    });
}

fn datagrams_keep_their_server_through_upgrades(case: Case) {
    upgrade_under_datagrams(&mut Network::new(case, 1, 3));
}

/// A datagram may be lost at the moment when the old process stops: its client asks again.
pub(crate) fn upgrade_under_datagrams(network: &mut Network) {
    let case = network.case;
    let program = Program::install(network);
    let config = Config { health: UNCHECKED, ..Config::udp(ECHO, 3) };
    let at_first = Config { servers: vec![(1, "")], ..config.clone() };
    network.balance_by(program.command(network), &at_first);
    let network = &*network;
    let _servers = [1, 2, 3].map(|number| {
        let addr = (case.family.address(Role::Server(number)), ECHO).into();
        network.inside(Role::Server(number), || UdpEcho::signing(&format!("s{number} "), addr))
    });
    let begin = || -> Vec<UdpSocket> {
        network.inside(Role::Client(1), || (0..30).map(|_| socket_to(case.family.vip(ECHO))).collect())
    };
    let fetch = |stream: &UdpSocket| exchange_until_answered(stream, b"whose?");
    let streams = begin();
    let all_go_on = || streams.iter().for_each(|stream| assert_eq!(fetch(stream), "s1 whose?"));
    // The second datagram makes a stream of them.
    (0..2).for_each(|_| all_go_on());
    // A process without a record of these flows sends two thirds of them elsewhere.
    network.save(&config);
    network.wait_for_health(3, true);
    let others: BTreeSet<String> = begin().iter().map(fetch).collect();
    assert_eq!(others.into_iter().collect::<Vec<_>>(), ["s1 whose?", "s2 whose?", "s3 whose?"]);
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| until(&stop, &asked, all_go_on));
        for n in 1..=3 {
            let before = asked.load(Ordering::Relaxed);
            program.replace();
            program.upgrade(network, n);
            wait_for("datagrams", || (asked.load(Ordering::Relaxed) > before + 2).then_some(()));
        }
    });
    all_go_on();
}

fn refused_upgrade_leaves_all_flows_to_the_old_process(case: Case) {
    refuse_upgrades(&mut Network::new(case, 1, 2));
}

pub(crate) fn refuse_upgrades(network: &mut Network) {
    let program = Program::install(network);
    let config = Config { servers: vec![(1, "")], ..Config::new(1) };
    network.balance_by(program.command(network), &config);
    let network = &*network;
    let _servers = [network.server(1, TcpServer::echo), network.server(2, TcpServer::echo)];
    network.wait_for_health(1, true);
    let begin = || network.inside(Role::Client(1), || connect(network.vip()));
    let mut open: Vec<_> = (0..20).map(|_| begin()).collect();
    let mut go_on = || open.iter_mut().for_each(|stream| ping(stream).unwrap());
    let refused = |why: &str| {
        let ran = program.fetch(network);
        assert!(ran.code == Some(1) && ran.stderr.contains(why), "{why:?} is not in {ran:?}");
        network.wait_for_log("this process continues");
        ping(&mut begin()).unwrap();
    };
    go_on();
    program.replace_by("exit 3");
    refused("ended before it was ready (exit status: 3)");
    go_on();
    // Its server is no longer in the file, and the running process lets the connections finish. The
    // new process notices once it has their flows.
    program.replace();
    network.save(&Config { servers: vec![(2, "")], ..Config::new(2) });
    network.wait_for_health(2, true);
    let (stop, spoken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        // They send meanwhile: the new process sees their packets and answers none.
        scope.spawn(|| until(&stop, &spoken, &mut go_on));
        wait_for("connections that speak", || (spoken.load(Ordering::Relaxed) > 0).then_some(()));
        refused("20 of 20 open flows cannot continue in the new process");
    });
    go_on();
    network.save(&config);
    network.wait_for_health(1, true);
    program.upgrade(network, 1);
    go_on();
    ping(&mut begin()).unwrap();
}

/// Under a service manager: the new process is no child of the old one.
fn killed_new_process_leaves_no_guard_behind(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let program = Program::install(&network);
    let manager = UnixDatagram::bind(network.path("notify")).unwrap();
    thread::spawn(move || while manager.recv(&mut [0; 4096]).is_ok() {});
    let mut command = program.command(&network);
    command.env("NOTIFY_SOCKET", network.path("notify"));
    let config = Config::new(1);
    network.balance_by(command, &config);
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let mut client = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut client).unwrap();
    let old = network.convey(|convey| convey.id());
    let [own] = &guards(network)[..] else { panic!("{:?}", guards(network)) };

    // The new process requests its statistics address, and waits for an answer. By then it has
    // attached its guard.
    let statistics = SocketAddr::from(([127, 0, 0, 1], 7001));
    let name = unix::SocketAddr::from_abstract_name(format!("convey control {statistics} #0")).unwrap();
    let _silent = network.inside(Role::Balancer, || {
        (TcpListener::bind(statistics).unwrap(), UnixListener::bind_addr(&name).unwrap())
    });
    network.save_with(&format!("{}[stats]\nport = 7001\n", config.text(case)));
    network.convey(|convey| convey.signal(Signal::USR2));
    wait_for("the guard of the new process", || (guards(network).len() == 2).then_some(()));
    for process in program.processes().into_iter().filter(|process| *process != old) {
        kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    network.wait_for_log("ended before it was ready");
    wait_for("its guard to be removed", || (guards(network) == [own.clone()]).then_some(()));
    ping(&mut client).unwrap();
    network.save(&config);
    program.upgrade(network, 1);
    ping(&mut client).unwrap();
}

/// Upgrades to processes that forward as the saved file configures: a reload does not change the
/// offload.
pub(crate) fn upgrade_to(network: &mut Network, offloads: &[Offload]) {
    let program = Program::install(network);
    let config = Config::new(1);
    network.balance_by(program.command(network), &config);
    let network = &*network;
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let begin = || network.inside(Role::Client(1), || connect(network.vip()));
    let mut open: Vec<_> = (0..20).map(|_| begin()).collect();
    let mut go_on = || open.iter_mut().for_each(|stream| ping(stream).unwrap());
    go_on();
    for (n, &offload) in (1..).zip(offloads) {
        network.save_with(&config.text(Case { offload, ..network.case }));
        program.upgrade(network, n);
        go_on();
        ping(&mut begin()).unwrap();
        let forwards = match offload {
            Offload::Off => "worker",
            _ => offload.name(),
        };
        assert_eq!(network.stat(&format!("/packets/offload/{INTERFACE}")), forwards);
        // The kernel has the flows that were open before.
        wait_for("packets of open connections where they should be forwarded", || {
            go_on();
            let forwarded = network.stat("/packets/cache/forwarded").as_u64().unwrap_or_default();
            ((offload == Offload::Off) == (forwarded == 0)).then_some(())
        });
    }
}

/// A program file of its own, and how often it was replaced.
pub(crate) struct Program(PathBuf, AtomicUsize);

impl Program {
    pub(crate) fn install(network: &Network) -> Program {
        let program = Program(network.path("convey"), AtomicUsize::new(0));
        program.put(&binary_of_upgrade(0));
        program
    }

    pub(crate) fn command(&self, network: &Network) -> Command {
        network.lab.command(Role::Balancer, &self.0)
    }

    /// Processes that run the program.
    fn processes(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        all.filter(|process| fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|file| file == self.0))
            .collect()
    }

    /// Installs it again, another build if there is one: another file of the same name.
    pub(crate) fn replace(&self) {
        self.put(&binary_of_upgrade(self.1.fetch_add(1, Ordering::Relaxed) + 1));
    }

    /// Installs a shell script in its place.
    fn replace_by(&self, line: &str) {
        let script = self.0.with_extension("sh");
        fs::write(&script, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        self.put(&script);
    }

    /// Copies the program by another process. A child process that another thread starts would
    /// inherit the descriptor of the written file, and the kernel refuses to execute a file that is
    /// open for writing.
    fn put(&self, from: &Path) {
        let new = self.0.with_extension("new");
        assert_eq!(run(Command::new("cp").args([from, &new])).code, Some(0));
        fs::rename(new, &self.0).unwrap();
    }

    /// `convey upgrade`.
    pub(crate) fn fetch(&self, network: &Network) -> Ran {
        let mut command = network.lab.command(Role::Balancer, binary().get_program());
        run(command.arg("upgrade").arg("--config").arg(network.path("config.toml")))
    }

    /// Upgrades successfully, for the `n`th time.
    pub(crate) fn upgrade(&self, network: &Network, n: usize) {
        let ran = self.fetch(network);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        wait_for("the old process to say so", || {
            (network.log(Role::Balancer).matches("upgraded: process ").count() == n).then_some(())
        });
    }
}

/// Calls `f` again and again.
fn until(stop: &AtomicBool, done: &AtomicU64, mut act: impl FnMut()) {
    while !stop.load(Ordering::Relaxed) {
        act();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
