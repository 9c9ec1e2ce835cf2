//! UDP through the proxy.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

use convey_testkit::{
    BalancerProcess, Flood, Loopback, Need, Process, Setup, TcpServer, UdpClient, UdpServer, connect, ping,
    run, tests, tool, wait_for,
};
use rustix::process::Signal;

tests!("udp":
    each_client_keeps_its_server,
    datagrams_of_any_length_arrive_whole_and_are_counted,
    thousands_of_datagrams_at_once_are_all_answered,
    a_reply_comes_from_the_address_that_was_asked,
    a_client_over_ipv6_gets_its_reply_from_the_address_it_asked [Need::Ipv6],
    a_broadcast_is_dropped_and_counted,
    a_datagram_that_says_it_comes_from_a_server_begins_no_session,
    a_silent_client_is_forgotten_and_starts_anew,
    udp_client_of_a_dead_server_moves_after_one_lost_datagram,
    a_client_of_a_server_that_a_probe_finds_dead_loses_nothing,
    refused_datagrams_take_a_server_out,
    a_client_of_the_only_server_waits_until_it_is_back,
    without_a_server_datagrams_are_dropped_and_counted,
    full_udp_frontend_evicts_old_queries_and_keeps_streams,
    a_flood_leaves_time_for_connections_reloads_and_statistics,
    a_reload_moves_only_the_clients_of_the_server_that_left,
    a_session_that_moves_to_another_server_is_timed_once,
    removed_udp_frontend_keeps_its_clients_until_it_returns,
    a_frontend_that_is_taken_away_gives_its_port_back,
    stop_serves_udp_clients_until_idle_and_accepts_no_new_ones,
    a_second_balancer_on_the_same_port_is_refused,
    frontend_without_enough_descriptors_is_refused_until_there_are,
    names_are_resolved_by_every_server [Need::DNSMASQ, Need::DIG],
);

fn each_client_keeps_its_server() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &two(&lab));
    let clients = [(); 6].map(|()| UdpClient::of(lab.vip()));
    let first = clients.each_ref().map(UdpClient::fetch);
    assert_eq!(first.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(["a", "b"]));
    for _ in 0..5 {
        assert_eq!(clients.each_ref().map(UdpClient::fetch), first);
    }
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 6);
    assert_eq!((balancer.given_to("a"), balancer.given_to("b")), (3, 3));
}

fn datagrams_of_any_length_arrive_whole_and_are_counted() {
    let lab = Loopback::new();
    let _echo = UdpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &udp(&lab).server("a", lab.server(1), ""));
    let client = UdpClient::of(lab.vip());
    let lengths = [0, 1, 1_200, 1_473, 9_000, 65_507];
    for length in lengths {
        let datagram: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
        client.send(&datagram);
        assert!(client.receive().unwrap() == datagram, "{length}");
    }
    let bytes: usize = lengths.iter().sum();
    for of in ["/frontends/web", "/backends/pool", "/backends/pool/servers/a"] {
        balancer.wait_for_stat(&format!("{of}/packets_tx"), lengths.len());
        balancer.wait_for_stat(&format!("{of}/bytes_tx"), bytes);
        assert_eq!(balancer.stat(&format!("{of}/packets_rx")), lengths.len());
        assert_eq!(balancer.stat(&format!("{of}/bytes_rx")), bytes);
    }
    assert_eq!(balancer.stat("/total_packets_rx"), lengths.len());
}

fn thousands_of_datagrams_at_once_are_all_answered() {
    const CLIENTS: u16 = 4;
    const ROUNDS: u16 = 50;
    /// As many as the socket buffers of an ordinary user hold.
    const BURST: u16 = 40;
    let lab = Loopback::new();
    let _echo = UdpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &udp(&lab).server("a", lab.server(1), ""));
    let clients: Vec<UdpClient> = (0..CLIENTS).map(|_| UdpClient::of(lab.vip())).collect();
    for round in 0..ROUNDS {
        for (number, client) in (0..).zip(&clients) {
            (0..BURST).for_each(|n| client.send(&message(number, round, n)));
        }
        for (number, client) in (0..).zip(&clients) {
            for n in 0..BURST {
                assert_eq!(client.receive().unwrap(), message(number, round, n), "in order");
            }
        }
    }
    balancer.wait_for_stat("/frontends/web/packets_tx", CLIENTS * ROUNDS * BURST);
    let drops = balancer.stat("/frontends/web/drops");
    assert!(drops.as_object().unwrap().values().all(|n| n == 0), "{drops}");
}

fn message(client: u16, round: u16, n: u16) -> Vec<u8> {
    [client, round, n].iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn a_reply_comes_from_the_address_that_was_asked() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let anywhere = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), lab.v6(0).port());
    let _balancer =
        BalancerProcess::start(&lab, &udp(&lab).listen(&[anywhere]).server("a", lab.server(1), ""));
    for host in [1, 2, 77] {
        assert_eq!(UdpClient::of(SocketAddr::new(lab.ip(host), anywhere.port())).fetch(), "a");
    }
}

fn a_client_over_ipv6_gets_its_reply_from_the_address_it_asked() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let (anywhere, here) = (SocketAddr::new("::".parse().unwrap(), lab.v6(0).port()), lab.v6(1));
    let listen = udp(&lab).listen(&[anywhere, here]).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &listen);
    for port in [anywhere.port(), here.port()] {
        let client = UdpClient::of(SocketAddr::new(here.ip(), port));
        assert_eq!([client.fetch(), client.fetch()], ["a", "a"]);
    }
}

fn a_broadcast_is_dropped_and_counted() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let anywhere = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), lab.v6(0).port());
    let balancer =
        BalancerProcess::start(&lab, &udp(&lab).listen(&[anywhere]).server("a", lab.server(1), ""));
    let client = UdpSocket::bind((lab.ip(1), 0)).unwrap();
    client.set_broadcast(true).unwrap();
    client.send_to(b"who?", (IpAddr::from([127, 255, 255, 255]), anywhere.port())).unwrap();
    // Each worker has a socket there, and each socket gets the datagram.
    let workers = available_parallelism().unwrap().get();
    balancer.wait_for_stat("/frontends/web/drops/not_unicast", workers);
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 0);
    let here = SocketAddr::new(lab.ip(1), anywhere.port());
    assert_eq!(UdpClient::of(here).fetch(), "a");
}

fn a_datagram_that_says_it_comes_from_a_server_begins_no_session() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let setup = udp(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "weight = 0");
    let balancer = BalancerProcess::start(&lab, &setup);
    let b = UdpSocket::bind(lab.server(2)).unwrap();
    b.send_to(b"who?", lab.vip()).unwrap();
    balancer.wait_for_stat("/frontends/web/drops/loop", 1);
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 0);

    let client = UdpSocket::bind((lab.server(2).ip(), 0)).unwrap();
    client.send_to(b"who?", lab.vip()).unwrap();
    assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1, "a server may be an ordinary client");
}

fn a_silent_client_is_forgotten_and_starts_anew() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    // Longer than a busy machine delays an answer, which would otherwise find no session.
    let balancer = BalancerProcess::start(&lab, &two(&lab).timeouts("udp_idle = 1"));
    let sockets = balancer.fds_at_rest().sockets;
    let client = UdpClient::of(lab.vip());
    let first = client.fetch();
    balancer.wait_for_stat("/frontends/web/current_connections", 0);
    assert_eq!(balancer.stat("/backends/pool/current_connections"), 0);
    assert_ne!(client.fetch(), first, "the other one's turn");
    balancer.wait_for_stat("/frontends/web/current_connections", 0);
    // There may be fewer sockets: the connection of the statistics request was about to be closed.
    wait_for("its socket to be closed", || (balancer.fds().sockets <= sockets).then_some(()));
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 2);
    let ended = balancer.stat("/frontends/web/ended");
    assert!(ended.as_object().unwrap().values().all(|n| n == 0), "an end like any other: {ended}");
}

fn udp_client_of_a_dead_server_moves_after_one_lost_datagram() {
    let lab = Loopback::new();
    let [a, _b] = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &two(&lab));
    let client = client_of(&lab, "a");
    drop(a);
    // The kernel limits its "port unreachable" messages a second for all tests together
    // (net.ipv4.icmp_msgs_per_sec).
    wait_for("a refusal", || {
        client.send(b"lost");
        (balancer.stat("/backends/pool/servers/a/connect_failures") == 1).then_some(())
    });
    assert_eq!([client.fetch(), client.fetch()], ["b", "b"]);
    assert_eq!(balancer.stat("/backends/pool/servers/b/retries"), 1);
    assert_eq!(balancer.stat("/backends/pool/servers/a/current_connections"), 0);
    assert_eq!(balancer.stat("/backends/pool/servers/a/up"), true, "nobody probes it");
}

fn a_client_of_a_server_that_a_probe_finds_dead_loses_nothing() {
    let lab = Loopback::new();
    let [a, _b] = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &two(&lab).health("interval = 0.1\nfall = 2"));
    let client = client_of(&lab, "a");
    drop(a);
    balancer.wait_for_health("a", false);
    assert_eq!(client.fetch(), "b");
    let _a = UdpServer::named("a", lab.server(1));
    balancer.wait_for_health("a", true);
    assert_eq!(client.fetch(), "b", "it stays");
}

fn refused_datagrams_take_a_server_out() {
    let lab = Loopback::new();
    let [a, _b] = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &two(&lab).health("interval = 3600\nfall = 3"));
    for name in ["a", "b"] {
        balancer.wait_for_stat(&format!("/backends/pool/servers/{name}/health/reason"), "datagram answered");
    }
    drop(a);
    let _clients: Vec<UdpClient> = (0..6)
        .map(|_| {
            let client = UdpClient::of(lab.vip());
            assert_eq!(client.insist().0, "b");
            client
        })
        .collect();
    balancer.wait_for_health("a", false);
    let line = balancer.wait_for_log("is down");
    assert!(line.contains("3 connects in a row failed: Connection refused"), "{line}");
}

fn a_client_of_the_only_server_waits_until_it_is_back() {
    let lab = Loopback::new();
    let a = UdpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &udp(&lab).server("a", lab.server(1), ""));
    let client = UdpClient::of(lab.vip());
    assert_eq!(client.fetch(), "a");
    drop(a);
    // The kernel sends a limited number of these errors a second, including those of other tests.
    wait_for("a refusal", || {
        client.send(b"anybody?");
        (balancer.stat("/backends/pool/connect_failures").as_u64() > Some(0)).then_some(())
    });
    let _a = UdpServer::named("a", lab.server(1));
    assert_eq!(client.insist().0, "a");
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 1);
}

fn without_a_server_datagrams_are_dropped_and_counted() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &two(&lab).health("interval = 0.1\nfall = 1"));
    balancer.wait_for_stat("/backends/pool/servers_up", 0);
    let client = UdpClient::of(lab.vip());
    (0..3).for_each(|_| client.send(b"anybody?"));
    balancer.wait_for_stat("/frontends/web/drops/no_server", 3);
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 0);
    let metrics = balancer.page("/metrics").1;
    let sample = "convey_frontend_datagrams_dropped_total{frontend=\"web\",reason=\"no_server\"} 3";
    assert!(metrics.lines().any(|line| line == sample), "{metrics}");
    let _a = UdpServer::named("a", lab.server(1));
    balancer.wait_for_health("a", true);
    assert_eq!(client.fetch(), "a");
}

fn full_udp_frontend_evicts_old_queries_and_keeps_streams() {
    const LIMIT: u64 = 8;
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let full = udp(&lab).frontend(&format!("protocol = \"udp\"\nmax_connections = {LIMIT}"));
    let balancer = BalancerProcess::start(&lab, &full.server("a", lab.server(1), ""));
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    let streams = [(); 2].map(|()| UdpClient::of(lab.vip()));
    streams.iter().for_each(|client| assert_eq!([client.fetch(), client.fetch()], ["a", "a"]));
    let new: Vec<UdpClient> = (0..80).map(|_| UdpClient::of(lab.vip())).collect();
    new.iter().for_each(|client| client.send(b"who?"));
    // Streams of one worker cannot make room for streams of another.
    let mut begun = 0;
    wait_for("every client to be served or refused", || {
        begun = number("/frontends/web/total_connections");
        (begun + number("/frontends/web/drops/max_connections") == 82).then_some(())
    });
    assert!(begun > LIMIT, "{begun}");
    assert_eq!(number("/frontends/web/current_connections"), LIMIT);
    assert_eq!(number("/frontends/web/ended/evicted"), begun - LIMIT);
    streams.iter().for_each(|client| assert_eq!(client.fetch(), "a"));
    assert_eq!(number("/frontends/web/total_connections"), begun, "they still had their sessions");
}

fn a_flood_leaves_time_for_connections_reloads_and_statistics() {
    let lab = Loopback::new();
    let workers = available_parallelism().unwrap().get();
    let _silent = UdpSocket::bind(lab.server(1)).unwrap();
    let _echo = TcpServer::echo(lab.server(2));
    // Each datagram comes from a new client, for which another session is evicted. That takes far
    // longer than sending, so no worker ever sees the end of the flood.
    let full = format!("protocol = \"udp\"\nmax_connections = {}", 8 * workers);
    let tcp = |name: &str, addr| format!("[frontends.{name}]\nlisten_addr = \"{addr}\"\nbackend = \"tcp\"\n");
    let setup = udp(&lab)
        .frontend(&full)
        .server("a", lab.server(1), "")
        .and(&format!("[backends.tcp.servers.echo]\naddr = \"{}\"\n", lab.server(2)))
        .and(&tcp("beside", lab.second_vip()));
    let balancer = BalancerProcess::start(&lab, &setup);
    let overruns = || balancer.stat("/frontends/web/drops/receive_overrun").as_u64().unwrap();

    let _flood = Flood::start(lab.vip(), 32 * workers);
    wait_for("more than the workers can take", || (overruns() > 0).then_some(()));
    // Enough connections for all workers to have some.
    let mut clients: Vec<TcpStream> = (0..8 * workers).map(|_| connect(lab.second_vip())).collect();
    clients.iter_mut().for_each(|client| ping(client).unwrap());
    let new = SocketAddr::new(lab.ip(2), 8080);
    balancer.save(&setup.and(&tcp("new", new)));
    balancer.wait_for_log("reload: ");
    ping(&mut connect(new)).unwrap();
    let before = overruns();
    wait_for("the flood to be too much still", || (overruns() > before).then_some(()));
}

fn a_reload_moves_only_the_clients_of_the_server_that_left() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &two(&lab));
    let (of_a, of_b) = (client_of(&lab, "a"), client_of(&lab, "b"));
    let sessions = balancer.stat("/total_connections");
    balancer.save(&udp(&lab).server("b", lab.server(2), "weight = 7"));
    balancer.wait_for_log("reload: backend pool: - ");
    assert_eq!((of_a.fetch().as_str(), of_b.fetch().as_str()), ("b", "b"));
    balancer.save(&two(&lab));
    balancer.wait_for_log("reload: backend pool: + ");
    assert_eq!((of_a.fetch().as_str(), of_b.fetch().as_str()), ("b", "b"));
    assert_eq!(balancer.stat("/total_connections"), sessions, "the same sessions all the time");
}

fn a_session_that_moves_to_another_server_is_timed_once() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &two(&lab));
    let client = UdpClient::of(lab.vip());
    assert_eq!(client.fetch(), "a");
    let only_b = udp(&lab).server("b", lab.server(2), "");
    balancer.save(&only_b);
    balancer.wait_for_log("reload: backend pool: - ");
    assert_eq!(client.fetch(), "b");
    balancer.wait_for_stat("/backends/pool/servers/b/current_connections", 1);
    assert_eq!(balancer.stat("/backends/pool/session_seconds/count"), 0, "it is not over");
    balancer.save(&only_b.timeouts("udp_idle = 0.1"));
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    assert_eq!(balancer.stat("/backends/pool/session_seconds/count"), 1);
}

fn removed_udp_frontend_keeps_its_clients_until_it_returns() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let here = udp(&lab).server("a", lab.server(1), "");
    let elsewhere = here.clone().listen(&[lab.second_vip()]);
    let balancer = BalancerProcess::start(&lab, &here);
    // Enough clients for all workers to have some.
    let known: Vec<UdpClient> = (0..20).map(|_| UdpClient::of(lab.vip())).collect();
    known.iter().for_each(|client| assert_eq!(client.fetch(), "a"));
    balancer.save(&elsewhere);
    assert_eq!(UdpClient::of(lab.second_vip()).insist().0, "a");
    let new = UdpClient::of(lab.vip());
    new.send(b"who?");
    balancer.wait_for_stat("/frontends/web/drops/draining", 1);
    known.iter().for_each(|client| assert_eq!(client.fetch(), "a"));

    balancer.save(&here);
    assert_eq!(new.insist().0, "a");
    known.iter().for_each(|client| assert_eq!(client.fetch(), "a"));
    assert_eq!(balancer.stat("/frontends/web/ended/cut"), 0);
}

fn a_frontend_that_is_taken_away_gives_its_port_back() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let here = udp(&lab).timeouts("drain = 0.2").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &here);
    let client = UdpClient::of(lab.vip());
    assert_eq!(client.fetch(), "a");
    balancer.save(&here.listen(&[lab.second_vip()]));
    let _other = wait_for("the port to be free", || UdpSocket::bind(lab.vip()).ok());
    assert_eq!(balancer.stat("/frontends/web/ended/cut"), 1);
    assert_eq!(balancer.stat("/frontends/web/current_connections"), 0);
}

fn stop_serves_udp_clients_until_idle_and_accepts_no_new_ones() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let mut balancer = BalancerProcess::start(&lab, &udp(&lab).server("a", lab.server(1), ""));
    let client = UdpClient::of(lab.vip());
    assert_eq!(client.fetch(), "a");
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 1 open connections have 30s to finish");
    wait_for("a new client to be left out", || {
        UdpClient::of(lab.vip()).send(b"who?");
        (balancer.stat("/frontends/web/drops/draining").as_u64() > Some(0)).then_some(())
    });
    assert_eq!(client.fetch(), "a");
    assert_eq!(balancer.wait(), 0);
    assert!(balancer.log().contains("stopped: every connection had ended"));
}

fn a_second_balancer_on_the_same_port_is_refused() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &two(&lab));
    let other = Loopback::new();
    std::fs::write(
        other.directory().join("config.toml"),
        two(&lab).to_string().replace(
            &format!("listen_addr = \"{}\"", lab.stats().ip()),
            &format!("listen_addr = \"{}\"", other.stats().ip()),
        ),
    )
    .unwrap();
    let ran = run(convey_testkit::binary().current_dir(other.directory()));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains(&format!("cannot listen on {}/udp: Address already in use", lab.vip())),
        "{ran:?}"
    );
    drop(balancer);
}

fn frontend_without_enough_descriptors_is_refused_until_there_are() {
    let lab = Loopback::new();
    let _a = UdpServer::named("a", lab.server(1));
    let setup = udp(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let both = setup.listen(&[lab.vip(), lab.second_vip()]);

    // Each worker needs two. One is missing.
    balancer.leave_descriptors(2 * available_parallelism().unwrap().get() - 1);
    balancer.save(&both);
    balancer.wait_for_log(&format!("cannot listen on {}/udp: Too many open files", lab.second_vip()));
    assert!(UdpSocket::bind(lab.second_vip()).is_ok(), "no worker listens");

    balancer.leave_descriptors(1_000);
    balancer.signal(Signal::HUP);
    assert_eq!(UdpClient::of(lab.second_vip()).insist().0, "a");
    // Enough connections for all workers to have some.
    for _ in 0..20 {
        assert_eq!(UdpClient::of(lab.second_vip()).fetch(), "a");
    }
}

fn names_are_resolved_by_every_server() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| dnsmasq(name, lab.server(n)));
    let balancer = BalancerProcess::start(&lab, &two(&lab).health("kind = \"tcp\"\ninterval = 0.1"));
    let mut names = BTreeSet::new();
    for _ in 0..20 {
        let (ip, port) = (format!("@{}", lab.vip().ip()), lab.vip().port().to_string());
        let dig = run(Command::new(tool("dig").unwrap()).args([
            &ip,
            "-p",
            &port,
            "+tries=1",
            "+time=5",
            "+short",
            "who.convey.test",
            "TXT",
        ]));
        assert_eq!(dig.code, Some(0), "{dig:?}");
        names.insert(dig.stdout.trim().trim_matches('"').to_owned());
    }
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b"]);
    balancer.wait_for_stat("/frontends/web/packets_tx", 20);
}

/// Starts a DNS server that resolves its own name.
fn dnsmasq(name: &str, addr: SocketAddr) -> Process {
    let mut command = Command::new(tool("dnsmasq").unwrap());
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=", "--group="]);
    command.args(["--no-resolv", "--no-hosts", "--bind-interfaces", "--log-facility=-"]);
    command.args([format!("--listen-address={}", addr.ip()), format!("--port={}", addr.port())]);
    command.arg(format!("--txt-record=who.convey.test,{name}"));
    let server = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_for("dnsmasq", || TcpStream::connect(addr).ok());
    server
}

/// A frontend for UDP.
fn udp(lab: &Loopback) -> Setup {
    Setup::new(lab).frontend("protocol = \"udp\"")
}

/// Setup with two servers.
fn two(lab: &Loopback) -> Setup {
    udp(lab).server("a", lab.server(1), "").server("b", lab.server(2), "")
}

fn servers(lab: &Loopback) -> [UdpServer; 2] {
    [UdpServer::named("a", lab.server(1)), UdpServer::named("b", lab.server(2))]
}

/// A client of a certain server.
fn client_of(lab: &Loopback, server: &str) -> UdpClient {
    wait_for("a client of the server", || {
        Some(UdpClient::of(lab.vip())).filter(|client| client.fetch() == server)
    })
}
