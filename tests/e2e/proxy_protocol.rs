//! PROXY headers: trusted senders, the client in the header, and invalid headers.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use convey_model::{Protocol, ProxyVersion};
use convey_proxy_protocol::{Addresses, parse, write};
use convey_testkit::{
    BalancerProcess, Loopback, Need, PATIENCE, Setup, TcpServer, UdpServer, connect, connect_from, tests,
    wait_for, was_reset,
};

tests!("proxy_protocol":
    proxy_header_address_is_used_for_balancing_limits_and_logs,
    connections_without_a_valid_proxy_header_reach_no_server,
    reload_switches_proxy_headers_for_new_connections_only,
    clients_that_wait_for_a_full_server_reach_it_behind_their_header,
    each_datagram_to_a_server_has_a_header_over_ipv4_and_ipv6 [Need::Ipv6],
    datagrams_of_many_clients_behind_one_proxy_get_their_replies,
);

/// A proxy's host.
pub(crate) const PROXY: u8 = 50;

pub(crate) fn trusting(lab: &Loopback, more: &str) -> String {
    format!("accept_proxy = true\ntrusted_proxies = [\"{}\", \"::1\"]\n{more}", lab.ip(PROXY))
}

/// A line of version 1 for a client of 198.51.100.0/24.
pub(crate) fn line(client: u8, port: u16) -> String {
    format!("PROXY TCP4 198.51.100.{client} 203.0.113.1 {port} 443\r\n")
}

/// A connection of the proxy's that begins with these bytes.
pub(crate) fn open(lab: &Loopback, begin: &[u8]) -> TcpStream {
    let mut stream = connect_from(lab.ip(PROXY), lab.vip()).unwrap();
    stream.write_all(begin).unwrap();
    stream
}

fn read(stream: &mut TcpStream, len: usize) -> String {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Whether a connection from this host is reset though it begins with a valid header. The reset may
/// come before `connect` returns.
fn is_refused(lab: &Loopback, host: u8) -> bool {
    let attempt = connect_from(lab.ip(host), lab.vip()).and_then(|mut stream| {
        stream.write_all(line(7, 1000).as_bytes())?;
        stream.read(&mut [0])
    });
    attempt.is_err_and(|error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn proxy_header_address_is_used_for_balancing_limits_and_logs() {
    let lab = Loopback::new();
    let _servers = [1, 2, 3, 4].map(|n| TcpServer::echo(lab.server(n)));
    let mut setup = Setup::new(&lab)
        .frontend(&trusting(&lab, "max_connections_per_client = 2"))
        .backend("algorithm = \"maglev\"\nhash = \"source\"\nsend_proxy = \"v1\"");
    for (name, n) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        setup = setup.server(name, lab.server(n), "");
    }
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = Vec::new();
    // Enough clients for each server to get some.
    for client in 1..=60 {
        for port in [1000, 2000] {
            // Bytes after the header in its segment are not lost, and the header is passed on
            // unmodified.
            let line = line(client, port);
            let mut stream = open(&lab, format!("{line}hello").as_bytes());
            assert_eq!(read(&mut stream, line.len() + 5), format!("{line}hello"));
            held.push(stream);
        }
    }
    // All came from one address: if convey hashed that, one server would have all of them, and the
    // limit would have been two.
    let given = ["a", "b", "c", "d"].map(|name| balancer.given_to(name));
    assert!(given.iter().all(|given| *given > 0 && *given % 2 == 0), "each client's go together: {given:?}");
    assert!(was_reset(&mut open(&lab, line(7, 3000).as_bytes())));
    // The same client, in the notation of a proxy that listens by IPv6.
    let mapped = "PROXY TCP6 ::ffff:198.51.100.7 ::ffff:203.0.113.1 3001 443\r\n";
    assert!(was_reset(&mut open(&lab, mapped.as_bytes())));
    balancer.wait_for_stat("/frontends/web/ended/client_limit", 2);
    balancer.wait_for_log("client 198.51.100.7 has used its share of connections");
    let bytes = balancer.stat("/frontends/web/bytes_rx");
    assert_eq!(bytes, 5 * held.len(), "headers are none of a client's bytes");
}

fn connections_without_a_valid_proxy_header_reach_no_server() {
    let lab = Loopback::new();
    let (_server, heard) = TcpServer::holding(lab.server(1));
    let setup = Setup::new(&lab).frontend(&trusting(&lab, "")).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut late = open(&lab, b"PROXY TCP4 198.51.100.7 ");
    let mut silent = open(&lab, b"");
    let wrong = [
        &b"GET / HTTP/1.1\r\nHost: convey\r\n\r\n"[..],
        b"PROXY TCP4 198.51.100.7 203.0.113.1 1000\r\n",
        b"PROXY TCP4 198.51.100.7 203.0.113.1 1000 443\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0cshort",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0",
    ];
    let refused = |bytes: &[u8]| {
        let mut stream = open(&lab, bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        was_reset(&mut stream)
    };
    wrong.iter().for_each(|bytes| assert!(refused(bytes), "{:?}", String::from_utf8_lossy(bytes)));
    balancer.wait_for_stat("/frontends/web/ended/proxy_header_invalid", wrong.len());
    balancer.wait_for_log(&format!("a connection from {} is reset (accept_proxy): ", lab.ip(PROXY)));

    // An untrusted sender is refused, whatever it sends.
    assert!(is_refused(&lab, 51));
    balancer.wait_for_stat("/frontends/web/ended/proxy_untrusted", 1);
    balancer.wait_for_log(&format!("{} is not in trusted_proxies", lab.ip(51)));

    assert!(was_reset(&mut late) && was_reset(&mut silent));
    balancer.wait_for_stat("/frontends/web/ended/proxy_header_timeout", 2);
    // A connection that is closed at once is no fault.
    drop(open(&lab, b""));
    balancer.wait_for_stat("/frontends/web/total_connections", wrong.len() + 3);
    balancer.wait_for_stat("/current_connections", 0);
    assert_eq!(balancer.stat("/frontends/web/ended/proxy_header_invalid"), wrong.len());
    assert_eq!((balancer.given_to("a"), heard.lock().unwrap().len()), (0, 0));
}

fn reload_switches_proxy_headers_for_new_connections_only() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = |frontend: &str, backend: &str| {
        Setup::new(&lab).frontend(frontend).backend(backend).server("a", lab.server(1), "")
    };
    let balancer = BalancerProcess::start(&lab, &setup("", ""));
    let echo = |stream: &mut TcpStream| {
        stream.write_all(b"hello").unwrap();
        read(stream, 5)
    };
    let mut plain = connect(lab.vip());
    assert_eq!(echo(&mut plain), "hello");

    balancer.save(&setup("", "send_proxy = \"v1\""));
    balancer.wait_for_log("backend pool: send_proxy none -> v1");
    let mut sends = connect_from(lab.ip(99), lab.vip()).unwrap();
    let (client, vip) = (sends.local_addr().unwrap(), lab.vip());
    let header = format!("PROXY TCP4 {} {} {} {}\r\n", client.ip(), vip.ip(), client.port(), vip.port());
    // The header arrives before the client has sent a byte.
    assert_eq!(read(&mut sends, header.len()), header);

    balancer.save(&setup(&trusting(&lab, ""), "send_proxy = \"v1\""));
    balancer.wait_for_log("frontend web: accept_proxy false -> true");
    let mut accepts = open(&lab, line(7, 1000).as_bytes());
    assert_eq!(read(&mut accepts, line(7, 1000).len()), line(7, 1000));
    assert!(is_refused(&lab, 99));

    balancer.save(&setup("", ""));
    balancer.wait_for_log("frontend web: accept_proxy true -> false");
    for mut stream in [plain, sends, accepts, connect(lab.vip())] {
        assert_eq!(echo(&mut stream), "hello");
    }
}

fn clients_that_wait_for_a_full_server_reach_it_behind_their_header() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab)
        .frontend(&trusting(&lab, "max_connections = 3"))
        .backend("send_proxy = \"v1\"")
        .server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let begin = |client: u8| format!("{}{client}", line(client, 1));
    let mut streams: Vec<(u8, TcpStream)> =
        (1..=9).map(|client| (client, open(&lab, begin(client).as_bytes()))).collect();
    balancer.wait_for_stat("/frontends/web/current_connections", 3);
    // The kernel spreads connections over the workers, so that any server may be next.
    while !streams.is_empty() {
        let served = wait_for("one that is served", || {
            streams.iter_mut().position(|(_, stream)| {
                stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
                stream.peek(&mut [0]).is_ok()
            })
        });
        let (client, mut stream) = streams.remove(served);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(read(&mut stream, begin(client).len()), begin(client));
    }
}

/// A datagram of a client behind a header of version 2.
pub(crate) fn datagram(client: SocketAddr, asked: SocketAddr, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let addresses = Addresses { source: client, destination: asked, transport: Protocol::Udp };
    // With an additional field: a unique id.
    write(ProxyVersion::V2, Some(addresses), &[5, 0, 2, b'i', b'd'], &mut bytes);
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn each_datagram_to_a_server_has_a_header_over_ipv4_and_ipv6() {
    let lab = Loopback::new();
    for (vip, server) in [(lab.vip(), lab.server(1)), (lab.v6(0), lab.v6(1))] {
        let _server = UdpServer::echo(server);
        let setup = Setup::new(&lab)
            .listen(&[vip])
            .frontend("protocol = \"udp\"")
            .backend("send_proxy = \"v2\"")
            .health("kind = \"udp\"\ninterval = 0.1\ntimeout = 0.1")
            .server("a", server, "");
        let balancer = BalancerProcess::start(&lab, &setup);
        let client = UdpSocket::bind((vip.ip(), 0)).unwrap();
        client.connect(vip).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        // Several datagrams are forwarded by one system call.
        let sent: Vec<String> = (0..5).map(|n| format!("datagram {n}")).collect();
        sent.iter().for_each(|text| _ = client.send(text.as_bytes()).unwrap());
        let mut buffer = [0; 999];
        for text in sent {
            let len = client.recv(&mut buffer).unwrap();
            let header = parse(&buffer[..len]).unwrap();
            let (source, transport) = (client.local_addr().unwrap(), Protocol::Udp);
            assert_eq!(header.addresses, Some(Addresses { source, destination: vip, transport }));
            assert_eq!(&buffer[header.len..len], text.as_bytes());
        }
        // The server echoes the header of the check, too: an answer.
        balancer.wait_for_stat("/backends/pool/servers/a/health/reason", "datagram answered");
    }
}

fn datagrams_of_many_clients_behind_one_proxy_get_their_replies() {
    let lab = Loopback::new();
    let _server = UdpServer::start(lab.server(1), |question, answer| answer(question));
    let setup = |backend: &str| {
        let frontend = trusting(&lab, "protocol = \"udp\"\nmax_connections_per_client = 1");
        Setup::new(&lab).frontend(&frontend).backend(backend).server("a", lab.server(1), "")
    };
    let balancer = BalancerProcess::start(&lab, &setup(""));
    let socket = |ip: IpAddr| {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.connect(lab.vip()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let asked = "203.0.113.1:53".parse().unwrap();
    let client = |n: u8| SocketAddr::from(([198, 51, 100, n], 1_000));
    let proxy = socket(lab.ip(PROXY));
    let mut buffer = [0; 999];
    let mut heard = |len: usize| {
        let mut texts: Vec<Vec<u8>> = (0..len)
            .map(|_| {
                let len = proxy.recv(&mut buffer).unwrap();
                buffer[..len].to_vec()
            })
            .collect();
        texts.sort();
        texts
    };
    for n in 1..=5 {
        proxy.send(&datagram(client(n), asked, &format!("of {n}"))).unwrap();
    }
    let expected: Vec<Vec<u8>> = (1..=5).map(|n| format!("of {n}").into_bytes()).collect();
    assert_eq!(heard(5), expected, "without headers");
    assert_eq!(balancer.stat("/frontends/web/current_connections"), 5, "a session each");

    // To a server that expects them, headers go on with their fields.
    balancer.save(&setup("send_proxy = \"v2\""));
    balancer.wait_for_log("send_proxy none -> v2");
    let sent = datagram(client(1), asked, "again");
    proxy.send(&sent).unwrap();
    assert_eq!(heard(1), [sent]);

    socket(lab.ip(PROXY)).send(b"who?").unwrap();
    balancer.wait_for_stat("/frontends/web/drops/proxy_header_invalid", 1);
    let stranger = socket(lab.ip(51));
    stranger.send(&datagram(client(1), asked, "x")).unwrap();
    balancer.wait_for_stat("/frontends/web/drops/proxy_untrusted", 1);
    balancer.wait_for_log(&format!("dropped a datagram of {}", lab.ip(51)));
    stranger.set_nonblocking(true).unwrap();
    assert_eq!(stranger.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
