//! Source addresses of connections to servers, and the number of proxy workers.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};

use convey_testkit::{
    BalancerProcess, Loopback, PATIENCE, Setup, TcpServer, TestHttpServer, UdpClient, binary, connect, run,
    tests, wait_for,
};

use super::http::client::Client;

tests!("source":
    connections_and_checks_come_from_the_source,
    datagrams_and_checks_come_from_the_source,
    reload_changes_the_source_and_reuses_no_older_connection,
    source_that_the_host_lacks_is_reported_and_no_fault_of_the_server,
    number_of_workers_is_configured,
);

/// Address that connections to servers come from.
const SOURCE: u8 = 40;

fn source(lab: &Loopback, host: u8) -> String {
    format!("source = \"{}\"", lab.ip(host))
}

fn connections_and_checks_come_from_the_source() {
    let lab = Loopback::new();
    let peers: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
    let seen = peers.clone();
    let _server = TcpServer::start(lab.server(1), move |mut stream: TcpStream| {
        seen.lock().unwrap().push(stream.peer_addr()?.ip());
        stream.write_all(b"hello")
    });
    let setup = Setup::new(&lab).backend(&source(&lab, SOURCE)).health("interval = 0.05");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    balancer.wait_for_health("a", true);
    let mut hello = String::new();
    std::io::Read::read_to_string(&mut connect(lab.vip()), &mut hello).unwrap();
    assert_eq!(hello, "hello");
    // The connection of the client, and some checks.
    wait_for("checks", || (peers.lock().unwrap().len() > 4).then_some(()));
    assert!(peers.lock().unwrap().iter().all(|peer| *peer == lab.ip(SOURCE)), "{peers:?}");
    assert_eq!(balancer.stat("/backends/pool/source/0"), lab.ip(SOURCE).to_string());
    let explained = run(balancer.command().args(["explain", "127.0.0.1", "web"]));
    let step = format!("convey connects to {} from {}", lab.server(1), lab.ip(SOURCE));
    assert!(explained.stdout.contains(&step), "{explained:?}");
    let status = run(balancer.command().arg("status"));
    assert!(status.stdout.contains(&format!("up, source {}", lab.ip(SOURCE))), "{status:?}");
}

fn datagrams_and_checks_come_from_the_source() {
    let lab = Loopback::new();
    let socket = UdpSocket::bind(lab.server(1)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"").backend(&source(&lab, SOURCE));
    let setup = setup.health("kind = \"udp\"\ninterval = 0.05");
    let _balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let clients = [(); 3].map(|()| UdpClient::of(lab.vip()));
    clients.iter().for_each(|client| client.send(b"who?"));
    let (mut checks, mut requests, mut buffer) = (0, 0, [0; 64]);
    while checks == 0 || requests < 3 {
        let received = socket.recv_from(&mut buffer);
        let (len, from) = received.unwrap_or_else(|error| panic!("{error} after {checks}, {requests}"));
        assert_eq!(from.ip(), lab.ip(SOURCE));
        match &buffer[..len] {
            b"who?" => {
                requests += 1;
                socket.send_to(b"me", from).unwrap();
            }
            _ => checks += 1,
        }
    }
    assert!(clients.iter().all(|client| client.receive().unwrap() == b"me"));
}

fn reload_changes_the_source_and_reuses_no_older_connection() {
    let lab = Loopback::new();
    let server = TestHttpServer::start(lab.server(1), |_, stream| {
        let peer = stream.peer_addr()?.ip().to_string();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{peer}", peer.len())
    });
    let setup = |source: &str| {
        let setup = Setup::new(&lab).frontend("mode = \"http\"").health("kind = \"none\"");
        setup.backend(source).server("a", lab.server(1), "")
    };
    let balancer = BalancerProcess::start(&lab, &setup(&source(&lab, SOURCE)));
    let mut client = Client::new(lab.vip());
    let ask = |client: &mut Client| client.get("a", "/").body;
    assert_eq!([ask(&mut client), ask(&mut client)], [(); 2].map(|()| lab.ip(SOURCE).to_string()));
    assert_eq!(server.connections(), 1, "kept alive");
    balancer.save(&setup(&source(&lab, SOURCE + 1)));
    let change = format!("source {} -> {}", lab.ip(SOURCE), lab.ip(SOURCE + 1));
    balancer.wait_for_log(&format!("backend pool: {change}"));
    assert_eq!([ask(&mut client), ask(&mut client)], [(); 2].map(|()| lab.ip(SOURCE + 1).to_string()));
    assert_eq!(server.connections(), 2);
}

fn source_that_the_host_lacks_is_reported_and_no_fault_of_the_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).frontend("mode = \"http\"").backend("source = \"192.0.2.77\"");
    let setup = setup.health("interval = 0.05").server("a", lab.server(1), "");
    fs::write(lab.directory().join("check.toml"), setup.to_string()).unwrap();
    let checked = run(binary().current_dir(lab.directory()).args(["check", "--config", "check.toml"]));
    assert_eq!(checked.code, Some(0), "a standby starts before it has its address: {checked:?}");
    let warning = "backend pool: source: no interface has 192.0.2.77 yet: connections to servers can come from it \
                   after an interface gets the address";
    assert!(checked.stderr.contains(warning), "{checked:?}");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_log(warning);
    assert_eq!(Client::new(lab.vip()).get("a", "/").status, 503);
    balancer.wait_for_log("no interface of this host has the source address 192.0.2.77");
    assert_eq!(balancer.stat("/backends/pool/servers/a/health/up"), true);
}

fn number_of_workers_is_configured() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup =
        |workers: u16| format!("workers = {workers}\n{}", Setup::new(&lab).server("a", lab.server(1), ""));
    let balancer = BalancerProcess::start(&lab, &setup(3));
    let names = fs::read_dir(balancer.proc("task")).unwrap();
    let names = names.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let workers = names.filter(|name| name.starts_with("proxy-")).count();
    assert_eq!(workers, 3);
    balancer.save(&setup(2));
    balancer.wait_for_log("workers 3 -> 2");
    fs::write(lab.directory().join("check.toml"), setup(999)).unwrap();
    let checked = run(binary().current_dir(lab.directory()).args(["check", "--config", "check.toml"]));
    assert!(checked.stderr.contains("warning: workers: 999 threads share the "), "{checked:?}");
}
