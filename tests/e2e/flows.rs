//! An operator lists open connections, and ends some of them.

use std::net::SocketAddr;

use convey_testkit::{
    BalancerProcess, Loopback, Ran, Setup, TcpServer, UdpClient, UdpServer, connect, ping, run, tests,
    wait_for, was_reset,
};
use serde_json::Value;

tests!("flows":
    connections_and_sessions_are_in_one_list_with_their_server_and_bytes,
    flow_list_supports_filters_groups_and_a_limit,
    killed_connection_is_reset_on_both_sides_and_others_stay,
    a_session_that_is_killed_begins_anew_with_the_next_datagram,
    client_waiting_for_a_server_is_listed_and_can_be_killed,
    a_mistake_is_told_with_what_may_have_been_meant,
);

fn flows(balancer: &BalancerProcess, line: &str) -> Ran {
    run(balancer.command().arg("flows").args(line.split_whitespace()))
}

/// The answer as JSON; the command succeeds.
fn json(balancer: &BalancerProcess, line: &str) -> Value {
    let ran = flows(balancer, &format!("{line} --json"));
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Waits until these filters select so many flows.
fn wait_for_flows(balancer: &BalancerProcess, line: &str, n: usize) -> Vec<Value> {
    wait_for(&format!("{n} flows ({line})"), || {
        let flows = json(balancer, line)["flows"].as_array().unwrap().clone();
        (flows.len() == n).then_some(flows)
    })
}

/// A second frontend of UDP at the same address, and its server.
fn with_udp(lab: &Loopback) -> Setup {
    let (vip, server) = (lab.vip(), lab.server(2));
    Setup::new(lab).server("a", lab.server(1), "").and(&format!(
        "[frontends.dns]\nlisten_addr = \"{vip}\"\nprotocol = \"udp\"\nbackend = \"names\"\n\
         [backends.names]\nhealth_check.kind = \"none\"\n[backends.names.servers]\nb.addr = \"{server}\"\n"
    ))
}

fn connections_and_sessions_are_in_one_list_with_their_server_and_bytes() {
    let lab = Loopback::new();
    let _servers = (TcpServer::echo(lab.server(1)), UdpServer::named("b", lab.server(2)));
    let balancer = BalancerProcess::start(&lab, &with_udp(&lab));
    assert_eq!(flows(&balancer, "").stdout, "no flows\n");
    let mut tcp = connect(lab.vip());
    (0..5).for_each(|_| ping(&mut tcp).unwrap());
    let udp = UdpClient::of(lab.vip());
    assert_eq!(udp.fetch(), "b");
    let all = wait_for_flows(&balancer, "--sort bytes", 2);
    let one = |key: &str, value: &str| all.iter().find(|flow| flow[key] == value).unwrap();
    let tcp_flow = one("protocol", "tcp");
    assert_eq!(tcp_flow["client"], tcp.local_addr().unwrap().to_string());
    assert_eq!([&tcp_flow["frontend"], &tcp_flow["backend"], &tcp_flow["server"]], ["web", "pool", "a"]);
    assert_eq!([&tcp_flow["mode"], &tcp_flow["state"]], ["proxy", "established"]);
    assert_eq!([&tcp_flow["bytes_rx"], &tcp_flow["bytes_tx"]], [5, 5]);
    assert_eq!(tcp_flow["server_addr"], lab.server(1).to_string());
    assert_eq!(tcp_flow["kernel"], false);
    let seen_from: SocketAddr = tcp_flow["snat_addr"].as_str().unwrap().parse().unwrap();
    assert_ne!(seen_from, tcp.local_addr().unwrap());
    let udp_flow = one("protocol", "udp");
    assert_eq!(
        [&udp_flow["frontend"], &udp_flow["server"], &udp_flow["state"]],
        ["dns", "b", "udp_answered"]
    );
    assert_eq!([&udp_flow["bytes_rx"], &udp_flow["bytes_tx"]], [4, 1]);
    let table = run(balancer.command().arg("flows").env("COLUMNS", "80"));
    assert!(table.stdout.lines().all(|line| line.chars().count() <= 80), "{table:?}");
    assert!(table.stdout.contains("pool/a") && table.stdout.contains("names/b"), "{table:?}");
    drop(tcp);
    wait_for_flows(&balancer, "--frontend web", 0);
}

fn flow_list_supports_filters_groups_and_a_limit() {
    let lab = Loopback::new();
    let _servers = (TcpServer::echo(lab.server(1)), UdpServer::named("b", lab.server(2)));
    let balancer = BalancerProcess::start(&lab, &with_udp(&lab));
    let mut held = [(); 5].map(|()| connect(lab.vip()));
    held.iter_mut().for_each(|held| ping(held).unwrap());
    let udp = UdpClient::of(lab.vip());
    udp.fetch();
    wait_for_flows(&balancer, "--state established", 5);
    let chosen = |line: &str| json(&balancer, line)["matching"].as_u64().unwrap();
    let client = held[2].local_addr().unwrap();
    assert_eq!(chosen(&format!("--client {client}")), 1);
    assert_eq!(chosen(&format!("--client {}", client.ip())), 5 + u64::from(udp_ip(&lab) == client.ip()));
    assert_eq!([chosen("--server pool/a"), chosen("--backend names"), chosen("--frontend dns")], [5, 1, 1]);
    assert_eq!([chosen("--min-bytes 2 --backend pool"), chosen("--min-bytes 3 --backend pool")], [5, 0]);
    assert_eq!([chosen("--older-than 1h"), chosen("--idle 1h"), chosen("--older-than 0s")], [0, 0, 6]);
    let count = flows(&balancer, "--count --backend pool").stdout;
    assert_eq!(count, "5 flows, 5 in, 5 out\n");
    let groups = flows(&balancer, "--count-by frontend").stdout;
    let rows: Vec<Vec<&str>> = groups.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[..2], [vec!["FRONTEND", "FLOWS", "IN", "OUT"], vec!["web", "5", "5", "5"]]);
    assert!(groups.ends_with("6 flows in all\n"), "{groups}");
    let first = json(&balancer, "--limit 2");
    assert_eq!((first["flows"].as_array().unwrap().len(), &first["more"]), (2, &Value::from(4)));
    let first = flows(&balancer, "--limit 2").stdout;
    assert!(first.ends_with("and 4 more (raise --limit, or filter)\n"), "{first}");
}

/// Source address of a client that binds none.
fn udp_ip(lab: &Loopback) -> std::net::IpAddr {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(lab.vip()).unwrap();
    socket.local_addr().unwrap().ip()
}

fn killed_connection_is_reset_on_both_sides_and_others_stay() {
    let lab = Loopback::new();
    let (_server, accepted) = TcpServer::holding(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let [mut victim, mut other] = [(); 2].map(|()| connect(lab.vip()));
    let listed = wait_for_flows(&balancer, "--state established", 2);
    wait_for("the server to have both", || (accepted.lock().unwrap().len() == 2).then_some(()));
    let client = victim.local_addr().unwrap().to_string();
    let flow = listed.iter().find(|flow| flow["client"] == *client).unwrap();
    let (id, seen_from) = (flow["id"].as_str().unwrap(), flow["snat_addr"].as_str().unwrap().to_owned());
    let killed = flows(&balancer, &format!("kill {id}"));
    assert_eq!(killed.code, Some(0), "{killed:?}");
    assert_eq!(killed.stdout, format!("{id}: ended, {client} of web, server pool/a\n"));
    assert!(was_reset(&mut victim));
    let mut at_server = accepted.lock().unwrap();
    for stream in at_server.iter_mut() {
        let is_victims = stream.peer_addr().is_ok_and(|peer| peer.to_string() == seen_from);
        stream.set_nonblocking(!is_victims).unwrap();
        if is_victims {
            assert!(was_reset(stream));
        }
    }
    drop(at_server);
    wait_for_flows(&balancer, "", 1);
    balancer.wait_for_stat("/frontends/web/ended/killed", 1);
    let again = flows(&balancer, &format!("kill {id}"));
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), ""));
    assert!(again.stderr.contains(&format!("there is no flow {id}: it has ended")), "{again:?}");
    let events = run(balancer.command().args(["status", "--events"])).stdout;
    assert!(events.contains(&format!("has ended the flow {client} -> {}", lab.vip())), "{events}");
    other.set_nonblocking(true).unwrap();
    let waits = std::io::Read::read(&mut other, &mut [0]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "the other one goes on");
}

fn a_session_that_is_killed_begins_anew_with_the_next_datagram() {
    let lab = Loopback::new();
    let _server = UdpServer::named("b", lab.server(2));
    let balancer = BalancerProcess::start(&lab, &with_udp(&lab));
    let client = UdpClient::of(lab.vip());
    client.fetch();
    let before = wait_for_flows(&balancer, "--frontend dns", 1);
    let id = before[0]["id"].as_str().unwrap();
    assert_eq!(flows(&balancer, &format!("kill {id}")).code, Some(0));
    wait_for_flows(&balancer, "", 0);
    client.fetch();
    let after = wait_for_flows(&balancer, "--frontend dns", 1);
    assert_ne!(after[0]["id"], id);
    assert_eq!(balancer.stat("/frontends/dns/ended/killed"), 1);
}

fn client_waiting_for_a_server_is_listed_and_can_be_killed() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 600").server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut served = connect(lab.vip());
    ping(&mut served).unwrap();
    let mut waits = connect(lab.vip());
    let waiting = wait_for_flows(&balancer, "--state connecting", 1);
    assert_eq!(waiting[0]["client"], waits.local_addr().unwrap().to_string());
    assert!(waiting[0]["server"].is_null());
    assert_eq!(flows(&balancer, &format!("kill {}", waiting[0]["id"].as_str().unwrap())).code, Some(0));
    assert!(was_reset(&mut waits));
    ping(&mut served).unwrap();
    balancer.wait_for_stat("/frontends/web/ended/killed", 1);
}

fn a_mistake_is_told_with_what_may_have_been_meant() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    for (line, message) in [
        ("--state establishd", "did you mean `established`?"),
        ("--frontend wbe", "there is no frontend wbe; did you mean `web`?"),
        ("--backend pol", "there is no backend pol; did you mean `pool`?"),
        ("--server pool/b", "there is no server b"),
        ("--client 10.0.0.0/33", "expected IP[/LEN][:PORT]"),
        ("--limit 10001", "the maximum is 10000"),
        ("kill p0", "is not a flow ID"),
    ] {
        let ran = flows(&balancer, line);
        assert_eq!(ran.code, Some(1), "{line}: {ran:?}");
        assert!(ran.stderr.contains(message), "{line}: {ran:?}");
    }
    assert_eq!(flows(&balancer, "--sort size").code, Some(2));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    assert_eq!(wait_for_flows(&balancer, "--frontend web", 1).len(), 1);
}
