use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use convey_model::{BodyPattern, HttpCheck, ProxyVersion, fixture};
use convey_proxy_protocol::local;

fn check(kind: ProbeKind) -> HealthCheck {
    let (interval, timeout) = (Duration::from_millis(20), Duration::from_secs(2));
    HealthCheck { interval, timeout, ..fixture::health_check(kind) }
}

fn http() -> HealthCheck {
    check(ProbeKind::Http(HttpCheck {
        path: "/up".into(),
        expected_status: vec![200..=299],
        ..HttpCheck::default()
    }))
}

fn key(addr: SocketAddr) -> ServerKey {
    ServerKey { backend: "web".into(), server: "a".into(), addr }
}

/// Server that answers every connection with `response`, and closes it.
async fn server(response: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    addr
}

async fn first_outcome(addr: SocketAddr, check: HealthCheck) -> ProbeOutcome {
    let (sender, mut receiver) = mpsc::channel(1);
    let mut schedule = Schedule::new(sender, 16);
    schedule.set(HashMap::from([(key(addr), check)]));
    receiver.recv().await.unwrap()
}

#[tokio::test]
async fn a_listening_server_passes_the_tcp_probe_again_and_again() {
    let addr = server("").await;
    let (sender, mut receiver) = mpsc::channel(1);
    let mut schedule = Schedule::new(sender, 16);
    schedule.set(HashMap::from([(key(addr), check(ProbeKind::Tcp))]));
    for _ in 0..3 {
        let outcome = receiver.recv().await.unwrap();
        assert_eq!(outcome.finding, Finding::Answer, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_closed_port_fails_with_the_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let outcome = first_outcome(addr, check(ProbeKind::Tcp)).await;
    assert_eq!(outcome.finding, Finding::Failure);
    assert!(outcome.reason.starts_with("connect failed: Connection refused"), "{}", outcome.reason);
}

#[tokio::test]
async fn an_http_probe_reads_the_status() {
    let good = server("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(first_outcome(good, http()).await.finding, Finding::Answer);
    let bad = server("HTTP/1.1 503 Sorry\r\ncontent-length: 0\r\n\r\n").await;
    let outcome = first_outcome(bad, http()).await;
    assert_eq!(outcome.reason, "HTTP status 503, expected 200-299");
}

#[tokio::test]
async fn an_http_probe_matches_the_body_however_it_is_framed() {
    let expected_body = Some(BodyPattern::parse("^ready$").unwrap());
    let check = check(ProbeKind::Http(HttpCheck { expected_body, ..HttpCheck::default() }));
    let unlike = "HTTP status 200, but the body does not match \"^ready$\"";
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready", "HTTP status 200"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nrea\r\n2\r\ndy\r\n0\r\n\r\n",
            "HTTP status 200",
        ),
        ("HTTP/1.0 200 OK\r\n\r\nready", "HTTP status 200"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nmaintenance", unlike),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", unlike),
        ("HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nready", "HTTP status 503, expected 200-399"),
    ];
    for (response, told) in cases {
        assert_eq!(first_outcome(server(response).await, check.clone()).await.reason, told, "{response}");
    }
    let broken_off = server("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nready").await;
    let outcome = first_outcome(broken_off, check).await;
    assert!(outcome.reason.starts_with("HTTP failed: "), "{}", outcome.reason);
}

#[tokio::test]
async fn an_http_probe_reads_no_more_of_a_body_than_it_matches() {
    let expected_body = Some(BodyPattern::parse("ready").unwrap());
    let check = check(ProbeKind::Http(HttpCheck { expected_body, ..HttpCheck::default() }));
    let response = format!("HTTP/1.1 200 OK\r\n\r\n{}ready", " ".repeat(BodyPattern::MAX_BODY));
    let outcome = first_outcome(server(response.leak()).await, check).await;
    let told = "HTTP status 200, but the body does not match \"ready\" in its first 64 KiB";
    assert_eq!(outcome.reason, told);
}

#[tokio::test]
async fn a_check_begins_with_the_header_that_servers_expect() {
    for (version, kind) in
        ProxyVersion::ALL.map(|version| [(version, ProbeKind::Tcp), (version, http().kind)]).concat()
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (sender, _outcomes) = mpsc::channel(1);
        let mut schedule = Schedule::new(sender, 16);
        let check = HealthCheck { send_proxy: Some(version), ..check(kind) };
        schedule.set(HashMap::from([(key(listener.local_addr().unwrap()), check)]));
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = vec![0; local(version).len()];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, local(version));
    }
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (sender, _outcomes) = mpsc::channel(1);
    let mut schedule = Schedule::new(sender, 16);
    let check = HealthCheck { send_proxy: Some(ProxyVersion::V2), ..check(ProbeKind::Udp) };
    schedule.set(HashMap::from([(key(socket.local_addr().unwrap()), check)]));
    let mut heard = [0; 99];
    let len = socket.recv(&mut heard).await.unwrap();
    assert_eq!(&heard[..len], local(ProxyVersion::V2));
}

#[tokio::test]
async fn a_server_that_speaks_no_http_fails_the_http_probe() {
    let addr = server("SSH-2.0-OpenSSH_9.2\r\n").await;
    let outcome = first_outcome(addr, http()).await;
    assert!(outcome.finding == Finding::Failure && outcome.reason.starts_with("HTTP failed"), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_never_answers_fails_by_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut check = http();
    check.timeout = Duration::from_millis(50);
    let outcome = first_outcome(listener.local_addr().unwrap(), check).await;
    assert_eq!(outcome.reason, "no answer within 50ms");
}

async fn udp_outcome(server: &UdpSocket, timeout: u64) -> ProbeOutcome {
    let check = HealthCheck { timeout: Duration::from_millis(timeout), ..check(ProbeKind::Udp) };
    first_outcome(server.local_addr().unwrap(), check).await
}

#[tokio::test]
async fn a_udp_server_may_answer_the_empty_datagram_or_keep_silent() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let answer = async {
        let (length, client) = server.recv_from(&mut [0; 9]).await.unwrap();
        server.send_to(b"hello", client).await.unwrap();
        length
    };
    let (length, answered) = tokio::join!(answer, udp_outcome(&server, 2000));
    let answered = (length, answered.finding, answered.reason.as_str());
    assert_eq!(answered, (0, Finding::Answer, "datagram answered"));
    let silent = udp_outcome(&server, 50).await;
    let silent = (silent.finding, silent.reason.as_str());
    assert_eq!(silent, (Finding::Silence, "datagram not refused within 50ms"));
}

#[tokio::test]
async fn a_udp_port_that_nobody_has_is_refused_in_both_families() {
    for ip in ["127.0.0.1:0", "[::1]:0"] {
        let addr = UdpSocket::bind(ip).await.unwrap().local_addr().unwrap();
        let outcome = first_outcome(addr, check(ProbeKind::Udp)).await;
        assert_eq!(outcome.finding, Finding::Failure);
        assert!(outcome.reason.starts_with("datagram refused: Connection refused"), "{}", outcome.reason);
    }
}

#[tokio::test]
async fn refused_probe_is_repeated_soon_until_the_server_is_down() {
    for kind in [ProbeKind::Tcp, ProbeKind::Udp] {
        let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let hour = Duration::from_secs(3600);
        let check = HealthCheck { interval: hour, fall: 3, ..check(kind) };
        let (sender, mut receiver) = mpsc::channel(9);
        let mut schedule = Schedule::new(sender, 16);
        schedule.set(HashMap::from([(key(addr), check)]));
        for _ in 0..3 {
            assert_eq!(receiver.recv().await.unwrap().finding, Finding::Failure);
        }
        tokio::time::sleep(5 * REFUSED_AGAIN).await;
        assert!(receiver.try_recv().is_err(), "the next is due in an hour");
    }
}

fn confirmation(server: ServerKey, check: &HealthCheck, from: Option<IpAddr>) -> Confirmation {
    Confirmation { server, check: check.clone(), configured: check.clone(), from }
}

#[tokio::test]
async fn a_probe_that_confirms_is_made_at_once_and_says_so() {
    let (addr, closed) = (server("").await, "127.0.0.1:1".parse().unwrap());
    let (sender, mut receiver) = mpsc::channel(9);
    let mut schedule = Schedule::new(sender, 16);
    for (addr, kind, finding) in [
        (addr, ProbeKind::Tcp, Finding::Answer),
        (closed, ProbeKind::Tcp, Finding::Failure),
        (closed, ProbeKind::Udp, Finding::Failure),
    ] {
        schedule.confirm(confirmation(key(addr), &check(kind), None));
        let outcome = receiver.recv().await.unwrap();
        assert_eq!((outcome.finding, outcome.confirms), (finding, true), "{outcome:?}");
    }
}

/// The server's kernel limits ICMP errors separately for each address to which it sends them. So a
/// refusal can still arrive at the second address.
#[tokio::test]
async fn udp_confirmations_are_also_sent_from_a_second_address() {
    let echo = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addr = echo.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 64];
        while let Ok((len, client)) = echo.recv_from(&mut bytes).await {
            if client.ip() == IpAddr::from([127, 0, 0, 2]) {
                echo.send_to(&bytes[..len], client).await.unwrap();
            }
        }
    });
    let (sender, mut receiver) = mpsc::channel(9);
    let mut schedule = Schedule::new(sender, 16);
    // The last address is not an address of this host.
    for (from, finding) in [
        (None, Finding::Silence),
        (Some([127, 0, 0, 2]), Finding::Answer),
        (Some([192, 0, 2, 1]), Finding::Silence),
    ] {
        let check = HealthCheck { timeout: Duration::from_millis(100), ..check(ProbeKind::Udp) };
        schedule.confirm(confirmation(key(addr), &check, from.map(IpAddr::from)));
        assert_eq!(receiver.recv().await.unwrap().finding, finding, "{from:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_no_longer_wanted_is_no_longer_probed() {
    let addr = server("").await;
    let (sender, mut receiver) = mpsc::channel(1);
    let mut schedule = Schedule::new(sender, 16);
    schedule.set(HashMap::from([(key(addr), check(ProbeKind::Tcp))]));
    receiver.recv().await.unwrap();
    schedule.set(HashMap::new());
    drop(schedule);
    // The channel closes after the task has ended, because the task holds the last sender.
    while receiver.recv().await.is_some() {}
}

#[tokio::test]
async fn concurrent_probes_are_bounded_and_every_server_is_probed() {
    use std::sync::atomic::AtomicUsize;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let most = Arc::new(AtomicUsize::new(0));
    let (open, top) = (Arc::new(AtomicUsize::new(0)), most.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            top.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let open = open.clone();
            tokio::spawn(async move {
                // Sends nothing until the peer closes.
                while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    let (sender, mut receiver) = mpsc::channel(1);
    let mut schedule = Schedule::new(sender, 8);
    let check =
        HealthCheck { timeout: Duration::from_millis(20), interval: Duration::from_secs(60), ..http() };
    let servers = (0..60).map(|n| ServerKey { server: n.to_string(), ..key(addr) });
    schedule.set(servers.map(|server| (server, check.clone())).collect());
    let mut probed = std::collections::HashSet::new();
    while probed.len() < 60 {
        probed.insert(receiver.recv().await.unwrap().server.server);
    }
    // The server may not have noticed yet that the peer has closed some connections.
    assert!(most.load(Ordering::Relaxed) <= 2 * 6, "{most:?} were open at once");
}
#[tokio::test]
async fn confirming_probes_wait_at_most_once_per_server() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (sender, mut receiver) = mpsc::channel(1);
    // The limit allows one confirming probe at a time.
    let mut schedule = Schedule::new(sender, 4);
    let check = HealthCheck { timeout: Duration::from_millis(50), ..http() };
    let server = |n: u8| ServerKey { server: format!("s{n}"), ..key(silent) };
    for n in (0..100).map(|n| n % 3) {
        schedule.confirm(confirmation(server(n), &check, None));
    }
    assert_eq!(schedule.confirming.len(), 3);
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(receiver.recv().await.unwrap().server);
    }
    found.sort();
    assert_eq!(found, [0, 1, 2].map(server));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(receiver.try_recv().is_err(), "none besides");
    // A server that fails clients again is probed again.
    schedule.confirm(confirmation(server(1), &check, None));
    assert_eq!(receiver.recv().await.unwrap().server, server(1));
}

#[tokio::test]
async fn while_nobody_takes_what_probes_found_no_more_are_made() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (sender, receiver) = mpsc::channel(2);
    let mut schedule = Schedule::new(sender, 16);
    let server = key(listener.local_addr().unwrap());
    schedule.set(HashMap::from([(server, check(ProbeKind::Tcp))]));
    let mut probes = 0;
    while tokio::time::timeout(Duration::from_millis(500), listener.accept()).await.is_ok() {
        probes += 1;
        assert!(probes <= 3, "two are told, and one waits for room");
    }
    assert_eq!((probes, receiver.len()), (3, 2));
}
