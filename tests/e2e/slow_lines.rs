//! Clients on slow lines, in every version of HTTP.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

use bytes::Buf;
use convey_testkit::{
    BalancerProcess, Loopback, Need, TcpServer, TestAuthority, TlsClient, TlsSettings, connect, in_namespace,
    tests, wait_for,
};
use futures_util::future::join_all;
use http::Request;
use socket2::{Domain, Socket, Type};

use super::http::client::read_head;
use super::http2::block_on;
use super::http2::client::Client as Http2Client;
use super::http3::client::{Clients as Http3Clients, uri};
use super::http3::{authority, site};

tests!("slow_lines":
    slow_line_keeps_its_servers_while_it_moves [Need::Namespaces],
    streams_of_a_slow_line_get_room_by_turns,
);

/// Simultaneous long responses on each connection over HTTP/2 and HTTP/3.
const STREAMS: usize = 3;

const CONNECTIONS: usize = 4;

/// Rate of a slow line in bytes a second, and of one that hardly moves.
const SLOW: u64 = 10_000;
const TRICKLE: u64 = 100;

/// Connects to this address through a slow line, with this rate for responses in bytes a second.
fn tcp_line(to: SocketAddr, rate: Arc<AtomicU64>) -> TcpStream {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = connect(listener.local_addr().unwrap());
    let (mut near, _) = listener.accept().unwrap();
    let far = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    far.set_recv_buffer_size(4096).unwrap();
    far.connect(&to.into()).unwrap();
    let mut far = TcpStream::from(far);
    let (mut from, mut towards) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    thread::spawn(move || io::copy(&mut from, &mut towards));
    thread::spawn(move || -> io::Result<()> {
        loop {
            let mut part = vec![0; rate.load(Ordering::Relaxed) as usize / 20];
            let len = far.read(&mut part)?;
            near.write_all(&part[..len])?;
            sleep(Duration::from_millis(50));
        }
    });
    client
}

/// A slow line for datagrams. Returns its address.
fn udp_line(to: SocketAddr, rate: Arc<AtomicU64>) -> SocketAddr {
    let near = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let far = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    // A longer queue would be a delay of many seconds.
    far.set_recv_buffer_size(8192).unwrap();
    far.connect(&to.into()).unwrap();
    let far = Arc::new(UdpSocket::from(far));
    let (addr, client) = (near.local_addr().unwrap(), Arc::new(Mutex::new(None)));
    let (from, towards, seen) = (near.clone(), far.clone(), client.clone());
    thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((len, sender)) = from.recv_from(&mut datagram) {
            *seen.lock().unwrap() = Some(sender);
            let _ = towards.send(&datagram[..len]);
        }
    });
    thread::spawn(move || {
        let mut datagram = [0; 2048];
        loop {
            let Ok(len) = far.recv(&mut datagram) else { continue };
            sleep(Duration::from_secs_f64(len as f64 / rate.load(Ordering::Relaxed) as f64));
            let client = client.lock().unwrap().unwrap();
            let _ = near.send_to(&datagram[..len], client);
        }
    });
    addr
}

/// Reads a response that does not end, and counts its bytes.
fn read_http1(mut client: impl Read + Write, taken: &AtomicU64) {
    let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut part = [0; 4096];
    while let Ok(len @ 1..) = client.read(&mut part) {
        taken.fetch_add(len as u64, Ordering::Relaxed);
    }
}

fn read_http2(line: TcpStream, taken: &AtomicU64) {
    block_on(async {
        line.set_nonblocking(true).unwrap();
        let client = Http2Client::over(tokio::net::TcpStream::from_std(line).unwrap()).await;
        let read = async || {
            let (response, _stream) = client.begin(Request::get("http://a/").body(()).unwrap(), true).await;
            let mut body = response.await.unwrap().into_body();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).unwrap();
                taken.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
        };
        join_all((0..STREAMS).map(|_| read())).await;
    });
}

fn read_http3(line: SocketAddr, authority: &TestAuthority, taken: [&AtomicU64; STREAMS]) {
    block_on(async {
        let clients = Http3Clients::trusting(authority);
        let client = clients.connect(line).await;
        let read = async |taken: &AtomicU64| {
            let mut call = client.begin(Request::get(uri("/")).body(()).unwrap()).await.unwrap();
            call.finish().await.unwrap();
            call.recv_response().await.unwrap();
            while let Ok(Some(data)) = call.recv_data().await {
                taken.fetch_add(data.remaining() as u64, Ordering::Relaxed);
            }
        };
        join_all(taken.map(read)).await;
    });
}

/// A server whose responses do not end.
fn endless_server(lab: &Loopback) -> TcpServer {
    TcpServer::start(lab.server(1), |mut stream| {
        read_head(&mut stream)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40)?;
        while stream.write_all(&[b'x'; 65_536]).is_ok() {}
        Ok(())
    })
}

fn slow_line_keeps_its_servers_while_it_moves() {
    // Room in the send buffer comes in steps of 40 kB: at this rate, every four seconds.
    let set_up = "ip link set lo mtu 1500\necho 4096 131072 131072 > /proc/sys/net/ipv4/tcp_wmem";
    in_namespace("slow_lines::slow_line_keeps_its_servers_while_it_moves", set_up, || {
        let lab = Loopback::new();
        let authority = authority(&lab);
        let _server = endless_server(&lab);
        let plain = format!(
            "[frontends.plain]\nmode = \"http\"\nlisten_addr = \"{}\"\nbackend = \"pool\"",
            lab.second_vip()
        );
        let balancer = BalancerProcess::start(&lab, &site(&lab, "").timeouts("idle = 1").and(&plain));
        let rate = Arc::new(AtomicU64::new(SLOW));
        let (tls, vip) = (TlsSettings::trusting(&authority).client(), lab.vip());
        let line = |to| tcp_line(to, rate.clone());
        let within_tls = TlsClient::over(line(vip), "site.example", &tls).unwrap();
        let (http1, http2) = (line(lab.second_vip()), line(lab.second_vip()));
        let quic = udp_line(vip, rate.clone());
        let taken: [Arc<AtomicU64>; CONNECTIONS] = Default::default();
        let [by_http1, by_tls, by_http2, by_http3] = taken.clone();
        thread::spawn(move || read_http1(http1, &by_http1));
        thread::spawn(move || read_http1(within_tls, &by_tls));
        thread::spawn(move || read_http2(http2, &by_http2));
        thread::spawn(move || read_http3(quic, &authority, [&*by_http3; STREAMS]));
        wait_for("80 kB of each connection", || {
            taken.iter().all(|taken| taken.load(Ordering::Relaxed) > 80_000).then_some(())
        });
        assert_eq!(balancer.stat("/backends/pool/current_connections"), 2 + 2 * STREAMS);
        rate.store(TRICKLE, Ordering::Relaxed);
        balancer.wait_for_stat("/backends/pool/current_connections", 0);
        for frontend in ["web", "plain"] {
            let stat = |name| format!("/frontends/{frontend}/{name}/client_too_slow");
            balancer.wait_for_stat(&stat("ended"), 1);
            balancer.wait_for_stat(&stat("drops"), STREAMS);
        }
    });
}

fn streams_of_a_slow_line_get_room_by_turns() {
    // The library keeps 1 MiB for a connection. Its streams fill that first.
    const ALL: u64 = 4 << 20;
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = endless_server(&lab);
    let _balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    let line = udp_line(lab.vip(), Arc::new(AtomicU64::new(50 * SLOW)));
    let taken: [Arc<AtomicU64>; STREAMS] = Default::default();
    let by_stream = taken.clone();
    thread::spawn(move || read_http3(line, &authority, by_stream.each_ref().map(|taken| &**taken)));
    let taken = || taken.each_ref().map(|taken| taken.load(Ordering::Relaxed));
    wait_for("4 MiB", || (taken().iter().sum::<u64>() > ALL).then_some(()));
    let taken = taken();
    assert!(taken.iter().all(|taken| *taken > ALL / STREAMS as u64 / 2), "{taken:?}");
}
