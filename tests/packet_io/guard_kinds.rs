//! Packets that the guard keeps from the host's stack, by protocol, family and kind of packet.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use convey_dataplane::testing::{BufferPool, Capture, GuardKind, Replies, Wake};
use convey_dataplane::{CaptureFilter, Guard, Selection};
use convey_testkit::{PATIENCE, TestNamespace, wait_for};

use super::guard::{load, with};
use super::packet::{TestFrame, endpoint, packet, send};
use super::tcp::{accept, connecting};
use super::tests;

/// All tests, with one kind of guard.
pub(crate) fn tests(kind: GuardKind) -> impl Iterator<Item = (String, impl FnOnce() + Send + 'static)> {
    let tests = tests![
        clients_get_no_answer_of_the_host_whatever_they_speak,
        replies_of_servers_get_no_answer_of_the_host_whatever_they_speak,
        extension_headers_and_fragments_hide_nothing_from_the_guard,
        later_fragments_of_dropped_packets_do_not_stay_at_the_host,
        priority_tags_hide_nothing_from_the_guard,
        programs_on_the_balancer_keep_their_datagrams,
        programs_on_the_balancer_keep_their_connections_over_ipv6,
        open_connections_at_a_draining_frontend_stay_with_convey,
    ];
    with(kind, tests)
}

const BALANCER: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

/// A balancer with the VIPs 10.78.0.1 and fd78::1, and another machine (addresses that end in 2),
/// which is client and server.
pub(crate) struct Pair {
    pub(crate) balancer: TestNamespace,
    pub(crate) other: TestNamespace,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        let (balancer, other) = (TestNamespace::new(), TestNamespace::new());
        balancer.link(("front", "02:00:00:00:00:0b"), &other, ("eth0", "02:00:00:00:00:0c"));
        for net in ["10.78.0.", "fd78::"] {
            let len = if net.contains(':') { 64 } else { 24 };
            balancer.ip(&format!("addr add {net}1/{len} dev front"));
            other.ip(&format!("addr add {net}2/{len} dev eth0"));
            // The entry is permanent: the balancer need not wait for answers of the other machine.
            balancer.ip(&format!("neigh add {net}2 lladdr 02:00:00:00:00:0c dev front"));
        }
        balancer.exec("sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
        Pair { balancer, other }
    }

    fn guard(&self, kind: GuardKind) -> Guard {
        self.balancer.enter(|| load(kind, &selection(), "front"))
    }

    /// Number of packets, from port 4000 or 8000 of the other machine, that the balancer's stack
    /// answers with RST or an ICMP error. Answers arrive in the order of the questions: the last
    /// one is for an unguarded port.
    pub(crate) fn answers(&self, packets: &[TestFrame]) -> usize {
        let clients = ["10.78.0.2:4000", "10.78.0.2:8000", "10.78.0.2:9", "[fd78::2]:4000", "[fd78::2]:8000"];
        let frontends = clients.iter().map(|text| endpoint(text)).collect();
        let filter = CaptureFilter::new(&Selection { frontends, draining: [].into(), replies: None });
        let index = self.other.index("eth0");
        let (mut capture, _handle) = self.other.enter(|| Capture::open(index, &filter).unwrap());
        let last = packet(BALANCER, "10.78.0.2:9", "10.78.0.1:9");
        send(&self.other, "eth0", &[packets, &[last]].concat());
        let (mut spare, mut frames) = (BufferPool::default(), Vec::new());
        let is_last = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 6 && frame[36..38] == [0, 9];
        loop {
            assert_ne!(capture.read_batch(&mut spare, &mut frames), Wake::Stopped);
            if let Some(at) = frames.iter().position(|buffer| is_last(buffer.frame())) {
                return at;
            }
        }
    }
}

/// TCP port 80 and UDP port 53 are frontends, port 8000 of the other machine is a server of both
/// protocols.
fn selection() -> Selection {
    let all = |texts: &[&str]| texts.iter().map(|text| endpoint(text)).collect();
    let replies = Replies {
        servers: all(&["10.78.0.2:8000", "10.78.0.2:8000/udp", "[fd78::2]:8000", "[fd78::2]:8000/udp"]),
        snat_addresses: ["10.78.0.1".parse().unwrap(), "fd78::1".parse().unwrap()].into(),
        snat_ports: 33768..=61000,
    };
    let frontends = all(&["10.78.0.1:80", "10.78.0.1:53/udp", "[fd78::1]:80", "[fd78::1]:53/udp"]);
    Selection { frontends, draining: [].into(), replies: Some(replies) }
}

/// A port for a program of the balancer: one of ours if the guard can detect ports in use by
/// programs.
fn program_port(kind: GuardKind) -> u16 {
    match kind {
        GuardKind::Tcx => 40000,
        GuardKind::Nftables => 33000,
    }
}

/// A packet of the client to this destination.
pub(crate) fn client(dst: &str) -> TestFrame {
    packet(BALANCER, if dst.starts_with('[') { "[fd78::2]:4000" } else { "10.78.0.2:4000" }, dst)
}

fn server(dst: &str) -> TestFrame {
    packet(BALANCER, if dst.starts_with('[') { "[fd78::2]:8000" } else { "10.78.0.2:8000" }, dst)
}

fn clients_get_no_answer_of_the_host_whatever_they_speak(kind: GuardKind) {
    let pair = Pair::new();
    let ours = ["10.78.0.1:80", "10.78.0.1:53/udp", "[fd78::1]:80", "[fd78::1]:53/udp"].map(client);
    assert_eq!(pair.answers(&ours), 4, "without a guard");
    let _guard = pair.guard(kind);
    assert_eq!(pair.answers(&ours), 0);
    let others = ["10.78.0.1:80/udp", "10.78.0.1:53", "[fd78::1]:80/udp", "[fd78::1]:53"].map(client);
    assert_eq!(pair.answers(&others), 4, "a port belongs to one protocol");
}

fn replies_of_servers_get_no_answer_of_the_host_whatever_they_speak(kind: GuardKind) {
    let pair = Pair::new();
    let _guard = pair.guard(kind);
    for vip in ["10.78.0.1", "[fd78::1]"] {
        for protocol in ["", "/udp"] {
            let to = |port: u16| format!("{vip}:{port}{protocol}");
            assert_eq!(pair.answers(&[server(&to(33768)), server(&to(61000))]), 0);
            assert_eq!(pair.answers(&[server(&to(33767))]), 1, "not a port of ours");
            assert_eq!(pair.answers(&[client(&to(40000))]), 1, "not a server");
        }
    }
}

fn extension_headers_and_fragments_hide_nothing_from_the_guard(kind: GuardKind) {
    let pair = Pair::new();
    let frontends = ["10.78.0.1:80", "10.78.0.1:53/udp", "[fd78::1]:80", "[fd78::1]:53/udp"];
    let mut kinds: Vec<Vec<TestFrame>> = frontends.iter().map(|dst| client(dst).in_two().to_vec()).collect();
    for dst in ["[fd78::1]:80", "[fd78::1]:53/udp"] {
        for extension in [0, 44, 60] {
            kinds.push(vec![client(dst).extension(extension)]);
        }
        // Hop-by-hop options come first if they come.
        let seven = (0..7).fold(client(dst), |packet, _| packet.extension(60));
        kinds.push(vec![seven.extension(0)]);
    }
    for packets in &kinds {
        assert_eq!(pair.answers(packets), 1, "without a guard: {:x?}", packets[0].0);
    }
    let _guard = pair.guard(kind);
    for packets in &kinds {
        assert_eq!(pair.answers(packets), 0, "{:x?}", packets[0].0);
    }
    if kind == GuardKind::Tcx {
        let late = client("[fd78::1]:80").extension(0).extension(60);
        assert_eq!(pair.answers(&[late]), 1, "no worker takes options for every hop behind others");
    }
    let elsewhere = ["10.78.0.1:54/udp", "[fd78::1]:54/udp"].map(|dst| client(dst).in_two()).concat();
    assert_eq!(pair.answers(&elsewhere), 2, "other fragments reach the host");
}

fn priority_tags_hide_nothing_from_the_guard(kind: GuardKind) {
    let pair = Pair::new();
    let [priority, vlan, service] = [[0x81, 0, 0xe0, 0], [0x81, 0, 0, 7], [0x88, 0xa8, 0, 0]];
    let frontends = ["10.78.0.1:80", "10.78.0.1:53/udp", "[fd78::1]:80", "[fd78::1]:53/udp"];
    let frames = |tags: &[[u8; 4]]| frontends.map(|dst| client(dst).tagged(tags));
    let taken: [&[_]; 4] = [&[priority], &[service], &[priority; 2], &[service, priority, priority]];
    for tags in taken {
        assert_eq!(pair.answers(&frames(tags)), 4, "without a guard: {tags:x?}");
    }
    assert_eq!(pair.answers(&frames(&[vlan])), 0, "the host is in no VLAN");
    let guard = pair.guard(kind);
    let counted = || match kind {
        GuardKind::Tcx => guard.stacked_tags().count(),
        GuardKind::Nftables => {
            let text = pair.balancer.exec("nft list counters");
            let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
            words.nth(1).unwrap().parse().unwrap()
        }
    };
    for (tags, expected) in taken.into_iter().zip([0, 0, 4, 8]) {
        assert_eq!((pair.answers(&frames(tags)), counted()), (0, expected), "{tags:x?}");
    }
    let elsewhere = ["10.78.0.1:54/udp", "[fd78::1]:54/udp"].map(|dst| client(dst).tagged(&[priority]));
    assert_eq!(pair.answers(&elsewhere), 2, "other frames with a priority tag reach the host");
}

fn later_fragments_of_dropped_packets_do_not_stay_at_the_host(kind: GuardKind) {
    let pair = Pair::new();
    let _guard = pair.guard(kind);
    let families = [("10.78.0.1:", "IpReasmReqds"), ("[fd78::1]:", "Ip6ReasmReqds")];
    for (vip, counter) in families {
        // Fragments that the host has got.
        let kept = || {
            let text = pair.balancer.exec(&format!("nstat -asz {counter}"));
            let mut words = text.split_whitespace().skip_while(|word| *word != counter);
            words.nth(1).unwrap().parse::<u32>().unwrap()
        };
        let sent_by = |from: fn(&str) -> TestFrame, port: &str| from(&format!("{vip}{port}")).in_two();
        for of_ours in [sent_by(client, "80"), sent_by(client, "53/udp"), sent_by(server, "40000/udp")] {
            assert_eq!((pair.answers(&of_ours), kept()), (0, 0));
        }
        // Their fragment ids are the same as above.
        for of_the_host in [sent_by(client, "54/udp"), sent_by(server, "54/udp")] {
            let before = kept();
            assert_eq!((pair.answers(&of_the_host), kept() - before), (1, 2));
        }
        let [first, last] = sent_by(client, "53/udp");
        let before = kept();
        assert_eq!((pair.answers(&[last, first]), kept() - before), (0, 1), "nobody knows whose it is");
    }
}

/// Most programs never connect a UDP socket.
fn programs_on_the_balancer_keep_their_datagrams(kind: GuardKind) {
    let pair = Pair::new();
    let _guard = pair.guard(kind);
    let port = program_port(kind);
    for (own, server) in [
        ("10.78.0.1", "10.78.0.2:8000"),
        ("0.0.0.0", "10.78.0.2:8000"),
        ("[fd78::1]", "[fd78::2]:8000"),
        ("[::]", "[fd78::2]:8000"),
    ] {
        let own = &format!("{own}:{port}");
        let bind = |addr: &str| {
            let socket = wait_for("the port", || UdpSocket::bind(addr).ok());
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let service = pair.other.enter(|| bind(server));
        for connects in [false, true] {
            let program = pair.balancer.enter(|| bind(own));
            if connects {
                program.connect(server).unwrap();
                program.send(b"question").unwrap();
            } else {
                program.send_to(b"question", server).unwrap();
            }
            let (_, asker) = service.recv_from(&mut [0; 16]).unwrap();
            service.send_to(b"answer", asker).unwrap();
            let mut bytes = [0; 16];
            let len = program.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"answer", "{own}");
        }
        drop(service);
        if kind == GuardKind::Tcx {
            let vip = if own.contains('.') { "10.78.0.1" } else { "[fd78::1]" };
            let late = self::server(&format!("{vip}:{port}/udp"));
            wait_for("no answer", || (pair.answers(std::slice::from_ref(&late)) == 0).then_some(())); // its port is ours again
        }
    }
}

fn programs_on_the_balancer_keep_their_connections_over_ipv6(kind: GuardKind) {
    let pair = Pair::new();
    let _guard = pair.guard(kind);
    let server = pair.other.enter(|| TcpListener::bind("[fd78::2]:8000").unwrap());
    pair.balancer.enter(|| {
        let _listener = TcpListener::bind("[::]:40001").unwrap();
        let program = connecting(&format!("[fd78::1]:{}", program_port(kind)), "[fd78::2]:8000");
        let accepted = accept(&server);
        assert_eq!(accepted.peer_addr().unwrap().port(), program_port(kind));
        transfer(&program.into(), &accepted);
    });
    let _listener = pair.balancer.enter(|| wait_for("the port", || TcpListener::bind("[::]:40001").ok()));
    assert_eq!(pair.answers(&[self::server("[fd78::1]:40001")]), 0, "a listener has no part in it");
}

fn open_connections_at_a_draining_frontend_stay_with_convey(kind: GuardKind) {
    let pair = Pair::new();
    let mut guard = pair.guard(kind);
    let serving = selection();
    let draining = Selection { frontends: [].into(), draining: serving.frontends.clone(), ..serving };
    guard.select(&draining).unwrap();
    for vip in ["10.78.0.1", "[fd78::1]"] {
        let (web, dns) = (format!("{vip}:80"), format!("{vip}:53/udp"));
        assert_eq!(pair.answers(&[client(&web).under_way(), client(&dns)]), 0);
        assert_eq!(pair.answers(&[client(&web)]), 1, "what begins is refused by the host");
        let listener = pair.balancer.enter(|| TcpListener::bind(&web).unwrap());
        let opened =
            pair.other.enter(|| TcpStream::connect_timeout(&web.parse().unwrap(), PATIENCE).unwrap());
        let accepted = accept(&listener);
        transfer(&accepted, &opened);
        transfer(&opened, &accepted);
    }
}

/// Sends data from one end of a connection, and receives it at the other.
fn transfer(mut listening: &TcpStream, mut speaking: &TcpStream) {
    listening.set_nonblocking(false).unwrap();
    listening.set_read_timeout(Some(PATIENCE)).unwrap();
    speaking.write_all(b"hello").unwrap();
    let mut bytes = [0; 5];
    listening.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
}
