//! Source addresses of connections to servers, and the number of proxy workers.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};

use convey_testkit::{
    BalancerProcess, Loopback, PATIENCE, Setup, TcpServer, TestHttpServer, UdpClient, UdpServer, binary,
    connect, run, tests, wait_for,
};

use super::http::client::Client;

tests!("source":
    connections_and_checks_come_from_the_source,
    datagrams_and_checks_come_from_the_source,
    reload_changes_the_source_and_reuses_no_older_connection,
    source_that_the_host_lacks_is_reported_and_no_fault_of_the_server,
    servers_of_the_other_family_serve_clients_if_a_source_is_missing,
    missing_source_of_udp_evicts_no_session_of_others,
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

/// Addresses that no interface has: one of each family.
const MISSING: [&str; 2] = ["192.0.2.77", "2001:db8::77"];

/// Pool with one IPv4 server, and more IPv6 servers than a client tries. The host lacks the IPv6
/// source.
fn mixed(lab: &Loopback) -> Setup {
    let source = format!("source = [\"{}\", \"{}\"]", lab.ip(SOURCE), MISSING[1]);
    let setup = Setup::new(lab).backend(&source).server("a", lab.server(1), "");
    (1..=5).fold(setup, |setup, n| setup.server(&format!("c{n}"), format!("[2001:db8::{n}]:80"), ""))
}

fn servers_of_the_other_family_serve_clients_if_a_source_is_missing() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let tcp = format!("[frontends.raw]\nlisten_addr = \"{}\"\nbackend = \"pool\"\n", lab.second_vip());
    let setup = mixed(&lab).frontend("mode = \"http\"").and(&tcp);
    let balancer = BalancerProcess::start(&lab, &setup);
    for vip in [lab.vip(), lab.second_vip()] {
        let statuses = [(); 12].map(|()| Client::new(vip).get("a", "/").status);
        assert_eq!(statuses, [200; 12], "{vip}");
    }
    balancer.wait_for_log(&format!("no interface of this host has the source address {}", MISSING[1]));
    assert_eq!(balancer.stat("/backends/pool/servers/c1/health/up"), true);

    let lab = Loopback::new();
    let _server = UdpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &mixed(&lab).frontend("protocol = \"udp\""));
    let clients = [(); 12].map(|()| UdpClient::of(lab.vip()));
    assert_eq!(clients.each_ref().map(|client| client.fetch()), [(); 12].map(|()| "a"));
}

fn missing_source_of_udp_evicts_no_session_of_others() {
    let lab = Loopback::new();
    let _server = UdpServer::named("a", lab.server(1));
    let strange = format!(
        "[frontends.other]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"other\"\n\
         [backends.other]\nsource = \"{}\"\nhealth_check.kind = \"none\"\nservers.a.addr = \"{}\"\n",
        lab.second_vip(),
        MISSING[0],
        lab.server(1)
    );
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"").server("a", lab.server(1), "").and(&strange);
    let balancer = BalancerProcess::start(&lab, &setup);
    let clients = [(); 20].map(|()| UdpClient::of(lab.vip()));
    clients.iter().for_each(|client| assert_eq!(client.fetch(), "a"));
    let strangers = [(); 40].map(|()| UdpClient::of(lab.second_vip()));
    strangers.iter().for_each(|client| client.send(b"who?"));
    balancer.wait_for_stat("/frontends/other/drops/no_server", 40);
    assert_eq!(balancer.stat("/frontends/other/drops/no_resources"), 0);
    assert_eq!(balancer.stat("/frontends/web/ended/evicted"), 0);
    clients.iter().for_each(|client| assert_eq!(client.fetch(), "a"));
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 20, "they kept their sessions");
    balancer.wait_for_log(&format!(
        "server other/a: no interface of this host has the source address {}",
        MISSING[0]
    ));
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
