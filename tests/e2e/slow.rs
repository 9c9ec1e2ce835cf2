//! Slow, silent or rude clients and servers do not affect others.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Fds, Loopback, Need, Nginx, Setup, TcpServer, clock, connect, fetch, in_namespace,
    reset, send, tests, wait_for,
};

tests!("slow":
    clients_that_do_not_read_stall_nobody [Need::NGINX],
    unread_responses_stay_at_the_servers [Need::Long, Need::NFT, Need::Namespaces, Need::NGINX],
    a_server_that_never_answers_stalls_nobody,
    five_hundred_clients_that_reset_their_download_leak_nothing [Need::NGINX],
    a_hundred_clients_that_reset_a_stuck_upload_leak_nothing,
);

const MIB: u64 = 1024 * 1024;

fn clients_that_do_not_read_stall_nobody() {
    let lab = Loopback::new();
    let nginx = Nginx::start(&lab, "a", lab.server(1));
    send(&mut File::create(nginx.file("big")).unwrap(), 32 * MIB).unwrap();
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let _slow: Vec<TcpStream> = (0..20).map(|_| download(&lab)).collect();
    wait_for("all downloads to have begun", || {
        let first_bytes = 20 * 100_000;
        (balancer.stat("/total_bytes_tx").as_u64().unwrap() > first_bytes).then_some(())
    });
    all_are_served(&lab, lab.server(1), "a\n");
    balancer.wait_for_stat("/current_connections", 20);
}

fn unread_responses_stay_at_the_servers() {
    // Like on a network: on loopback a segment has 64 KiB, and only a few fit. With a receive
    // buffer of this maximum, 8 directions in each worker have more than the others.
    let set_up = "ip link set lo mtu 1500\necho 4096 131072 33554432 > /proc/sys/net/ipv4/tcp_rmem";
    in_namespace("slow::unread_responses_stay_at_the_servers", set_up, || {
        const CLIENTS: usize = 24;
        let lab = Loopback::new();
        let nginx = Nginx::start(&lab, "a", lab.server(1));
        send(&mut File::create(nginx.file("big")).unwrap(), 64 * MIB).unwrap();
        let _balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
        let _never: Vec<TcpStream> = (0..CLIENTS).map(|_| download(&lab)).collect();
        let held = at_rest(&lab);
        assert!(held.len() >= CLIENTS && held.iter().all(|held| *held <= 256 * 1024), "{held:?}");
        // A few of the flowing connections have wider windows.
        let mut stopped: Vec<TcpStream> = (0..CLIENTS).map(|_| download(&lab)).collect();
        thread::scope(|scope| {
            stopped.iter_mut().for_each(|client| {
                scope.spawn(|| drain(client, 2 * MIB as usize));
            });
        });
        let held = at_rest(&lab);
        let wide = held.iter().filter(|held| **held > 256 * 1024).count();
        let few = 8 * available_parallelism().unwrap().get();
        assert!(held.len() >= 2 * CLIENTS && wide <= few, "{held:?}");
        all_are_served(&lab, lab.server(1), "a\n");
    });
}

fn drain(client: &mut TcpStream, bytes: usize) {
    let mut buffer = vec![0; 256 * 1024];
    let mut left = bytes;
    while left > 0 {
        left = left.saturating_sub(client.read(&mut buffer).unwrap());
    }
}

/// Unread bytes in each connection to a server, once their number is stable.
fn at_rest(lab: &Loopback) -> Vec<u64> {
    let mut before = (received(lab), clock());
    wait_for("all that can move to have moved", || {
        let now = received(lab);
        if now != before.0 || now.is_empty() {
            before = (now, clock());
        }
        (before.1.elapsed() > Duration::from_millis(500)).then(|| before.0.clone())
    })
}

fn received(lab: &Loopback) -> Vec<u64> {
    let SocketAddr::V4(server) = lab.server(1) else { panic!("it has IPv4") };
    let (ip, port) = (u32::from(*server.ip()).swap_bytes(), server.port());
    let to_server = format!("{ip:08X}:{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let of_ours = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[2] == to_server)
            .then(|| u64::from_str_radix(fields[4].split_once(':').unwrap().1, 16).unwrap())
    });
    of_ours.collect()
}

fn a_server_that_never_answers_stalls_nobody() {
    let lab = Loopback::new();
    let _silent = TcpServer::silent(lab.server(1));
    let _swift = TcpServer::named("swift", lab.server(2));
    let slow_frontend = format!(
        "[frontends.slow]\nlisten_addr = \"{}\"\nbackend = \"slow\"\n[backends.slow.servers.silent]\naddr = \"{}\"\n",
        lab.second_vip(),
        lab.server(1)
    );
    let setup = Setup::new(&lab).server("swift", lab.server(2), "").and(&slow_frontend);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut waiting: Vec<TcpStream> = (0..50).map(|_| connect(lab.second_vip())).collect();
    waiting.iter_mut().for_each(|stream| stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    balancer.wait_for_stat("/backends/slow/current_connections", 50);
    all_are_served(&lab, lab.server(2), "swift");
    assert_eq!(balancer.stat("/frontends/slow/current_connections"), 50);
}

fn five_hundred_clients_that_reset_their_download_leak_nothing() {
    let lab = Loopback::new();
    let nginx = Nginx::start(&lab, "a", lab.server(1));
    send(&mut File::create(nginx.file("big")).unwrap(), 32 * MIB).unwrap();
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let base = balancer.fds_at_rest();
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mut stream = download(&lab);
                    // Well into the part that is spliced.
                    stream.read_exact(&mut vec![0; 300_000]).unwrap();
                    reset(stream);
                }
            });
        }
    });
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 500);
    nothing_is_left(&balancer, base);
}

fn a_hundred_clients_that_reset_a_stuck_upload_leak_nothing() {
    let lab = Loopback::new();
    let (_server, _held) = TcpServer::holding(lab.server(1));
    let setup = Setup::new(&lab).timeouts("idle = 20").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let base = balancer.fds_at_rest();
    for _ in 0..100 {
        let mut stream = connect(lab.vip());
        stream.set_write_timeout(Some(Duration::from_millis(2))).unwrap();
        // The other side reads nothing, so all buffers fill up.
        let stuck = send(&mut stream, 1024 * MIB).unwrap_err();
        assert_eq!(stuck.kind(), ErrorKind::WouldBlock);
        reset(stream);
    }
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 100);
    nothing_is_left(&balancer, base);
}

/// A client that has requested the big file and has not read anything.
fn download(lab: &Loopback) -> TcpStream {
    let mut stream = connect(lab.vip());
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: convey\r\n\r\n").unwrap();
    stream
}

/// Sends two hundred requests, none of which waits for a slow client: the median takes at most
/// twenty times as long as the median of requests straight to the server, sent in turns with them.
fn all_are_served(lab: &Loopback, server: SocketAddr, answer: &str) {
    let timed = |addr| {
        let start = clock();
        assert_eq!(fetch(addr, "/").unwrap(), (200, answer.to_owned()));
        start.elapsed()
    };
    let (mut times, mut directly): (Vec<_>, Vec<_>) =
        (0..200).map(|_| (timed(lab.vip()), timed(server))).unzip();
    times.sort_unstable();
    directly.sort_unstable();
    let (half, control) = (times[100], directly[100]);
    assert!(half < 20 * control, "half of them took {half:?} and longer, {control:?} without convey");
}

/// Checks that no connection and no socket is left, and only the pipes that are kept for reuse.
fn nothing_is_left(balancer: &BalancerProcess, base: Fds) {
    const KEPT: usize = 64;
    balancer.wait_for_stat("/current_connections", 0);
    let ends_of_pipes = 2 * KEPT * available_parallelism().unwrap().get();
    wait_for("the descriptors to be given back", || {
        let Fds { sockets, pipes } = balancer.fds();
        (sockets == base.sockets && pipes <= base.pipes + ends_of_pipes).then_some(())
    });
}
