//! An operator queries which server a client would get, and the client gets it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::thread;

use convey_testkit::{
    BalancerProcess, BoundClient, Loopback, Need, PATIENCE, Setup, TcpServer, UdpServer, binary,
    connect_from, fetch, fetch_from, ping, run, tests, wait_for,
};
use rustix::process::Signal;
use serde_json::Value;

tests!("explain":
    hundreds_of_connections_get_the_servers_that_are_explained,
    ten_thousand_connections_get_the_servers_that_are_explained [Need::Long],
    a_client_that_is_said_to_be_denied_is_refused,
    source_beyond_its_rate_is_explained_as_refused_after_an_upgrade,
    the_next_turn_is_foretold_and_asking_takes_none,
    open_connection_is_explained_by_its_server_after_a_drain,
    udp_session_is_explained_by_its_server_and_unknown_clients_as_new,
    explanation_names_the_file_and_line_of_the_deciding_network,
    a_file_is_asked_without_a_convey_that_runs,
    a_question_that_makes_no_sense_is_answered_with_what_would,
);

/// The answer of the control API at the statistics address.
pub(crate) fn explained(stats: SocketAddr, client: SocketAddr) -> Value {
    let (status, body) = fetch(stats, &format!("/v1/explain?client={client}&frontend=web")).unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Four servers of different weights that return their names; one of them is down.
fn four(lab: &Loopback) -> (Vec<TcpServer>, Setup) {
    let server = |n: u8| TcpServer::start(lab.server(n), move |mut stream| write!(stream, "s{n}"));
    let servers = (1..=3).map(server).collect();
    let setup = Setup::new(lab).health("kind = \"tcp\"\ninterval = 0.2\nfall = 1\nrise = 1");
    let setup = setup.server("s1", lab.server(1), "weight = 3").server("s2", lab.server(2), "");
    (servers, setup.server("s3", lab.server(3), "weight = 2").server("s4", lab.server(4), "weight = 2"))
}

fn hundreds_of_connections_get_the_servers_that_are_explained() {
    explained_servers_are_chosen(100);
}

fn ten_thousand_connections_get_the_servers_that_are_explained() {
    explained_servers_are_chosen(1_250);
}

/// Connects from four threads, each with `connections` for each algorithm.
fn explained_servers_are_chosen(connections: u16) {
    for algorithm in ["ring", "maglev"] {
        let lab = Loopback::new();
        let (_servers, setup) = four(&lab);
        let backend = format!("algorithm = \"{algorithm}\"\nhash = \"tuple\"");
        let balancer = BalancerProcess::start(&lab, &setup.backend(&backend));
        balancer.wait_for_health("s4", false);
        let lab = &lab;
        let got: Vec<String> = thread::scope(|scope| {
            let clients =
                (0..4_u8).map(|thread| scope.spawn(move || connect_as_explained(lab, thread, connections)));
            clients.collect::<Vec<_>>().into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        let mut counts = BTreeMap::<&str, usize>::new();
        got.iter().for_each(|server| *counts.entry(server).or_default() += 1);
        assert_eq!(got.len(), 4 * usize::from(connections));
        assert!(counts.len() == 3 && counts["s1"] > counts["s2"], "{algorithm}: {counts:?}");
    }
}

/// Makes connections, each from another port. Returns the servers' names.
fn connect_as_explained(lab: &Loopback, thread: u8, connections: u16) -> Vec<String> {
    let one = |n: u16| {
        // The query precedes the connection, so no open connection determines the answer.
        let client = BoundClient::new(lab.ip(100 + 25 * thread + (n % 25) as u8));
        let explanation = explained(lab.stats(), client.addr());
        assert!(explanation["flow"].is_null(), "{explanation:#}");
        let (mut stream, mut server) = (client.connect(lab.vip()).unwrap(), String::new());
        stream.read_to_string(&mut server).unwrap();
        assert_eq!(explanation["server"], server.as_str(), "{explanation:#}");
        server
    };
    (0..connections).map(one).collect()
}

fn a_client_that_is_said_to_be_denied_is_refused() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let denied = SocketAddr::new(lab.ip(200), 4_242);
    let access = format!("access.deny = [\"{}/32\"]", denied.ip());
    let setup = Setup::new(&lab).frontend(&access).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let explanation = explained(lab.stats(), denied);
    assert_eq!(
        (explanation["verdict"].as_str(), explanation["reason"].as_str()),
        (Some("refused"), Some("access_denied"))
    );
    fetch_from(denied.ip(), lab.vip(), "/").unwrap_err();
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 1);
    assert_eq!(explained(lab.stats(), SocketAddr::new(lab.ip(201), 1))["server"], "a");
    assert_eq!(fetch_from(lab.ip(201), lab.vip(), "/").unwrap().1, "a");
    let ran = run(balancer.command().args(["explain", &denied.to_string(), "web"]));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        ran.stdout.contains("is refused: access_denied")
            && ran.stdout.contains("/32 of frontends.web.access.deny"),
        "{ran:?}"
    );
}

fn source_beyond_its_rate_is_explained_as_refused_after_an_upgrade() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let limits = "[frontends.web.limits]\nrate_per_source = 1\n";
    let mut balancer =
        BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), "").and(limits));
    // After an upgrade, workers and operators use the same clock, however long the first process
    // has run.
    wait_for("a while", || (balancer.stat("/uptime_seconds").as_u64()? >= 2).then_some(()));
    let is_upgraded = run(balancer.command().args(["upgrade", "--config"]).arg(balancer.config()));
    assert_eq!(is_upgraded.code, Some(0), "{is_upgraded:?}");
    let client = SocketAddr::new(lab.ip(99), 4_242);
    wait_for("it to be refused, and said to be", || {
        let is_refused = fetch_from(client.ip(), lab.vip(), "/").is_err();
        let explanation = explained(lab.stats(), client);
        (is_refused && explanation["reason"] == "source_rate").then_some(())
    });
    balancer.signal(Signal::TERM);
    balancer.wait();
}

fn the_next_turn_is_foretold_and_asking_takes_none() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let setup = Setup::new(&lab).server("a", lab.server(1), "weight = 3").server("b", lab.server(2), "");
    let setup = setup.backend("algorithm = \"round_robin\"").server("c", lab.server(3), "weight = 2");
    let balancer = BalancerProcess::start(&lab, &setup);
    let client = SocketAddr::new(lab.ip(9), 4_242);
    for _ in 0..12 {
        let explanation = explained(lab.stats(), client);
        assert_eq!(explanation["depends_on"], "other_connections", "{explanation:#}");
        assert_eq!(explanation["server"], explained(lab.stats(), client)["server"]);
        assert_eq!(explanation["server"], fetch(lab.vip(), "/").unwrap().1.as_str());
    }
    let ran = run(balancer.command().args(["server", "weight", "pool/c", "0"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = run(balancer.command().args(["explain", "127.0.0.9", "web"]));
    assert!(
        ran.code == Some(0) && ran.stdout.contains("weight 0 (overlay), share 0 %: its weight is 0"),
        "{ran:?}"
    );
}

fn open_connection_is_explained_by_its_server_after_a_drain() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::echo(lab.server(n)));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup.backend("algorithm = \"round_robin\""));
    let mut held: Vec<_> = (0..3).map(|_| connect_from(lab.ip(9), lab.vip()).unwrap()).collect();
    held.iter_mut().for_each(|stream| ping(stream).unwrap());
    let client = held[0].local_addr().unwrap();
    let server = explained(lab.stats(), client)["server"].as_str().unwrap().to_owned();
    let other = if server == "a" { "b" } else { "a" };
    let drained = run(balancer.command().args(["server", "drain", &format!("pool/{server}")]));
    assert_eq!(drained.code, Some(0), "{drained:?}");
    let ran = run(balancer.command().args(["explain", &client.to_string(), "web"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for line in [
        format!(" has a flow with pool/{server} at "),
        format!(": the flow stays with pool/{server}\n"),
        format!("the next flow gets pool/{other}, as things are now\n"),
        "has the flow; new flows skip it: draining, set by an operator\n".to_owned(),
    ] {
        assert!(ran.stdout.contains(&line), "{line}: {ran:?}");
    }
    let explanation = explained(lab.stats(), client);
    let flows = run(balancer.command().args(["flows", "--client", &client.to_string(), "--json"]));
    let listed: Value = serde_json::from_str(&flows.stdout).unwrap();
    let listed = &listed["flows"][0];
    assert_eq!(
        [&explanation["flow"]["id"], &explanation["flow"]["snat"]],
        [&listed["id"], &listed["snat_addr"]],
        "{explanation:#}"
    );
    assert_eq!(explanation["server"], listed["server"]);
    let all = run(balancer.command().args(["explain", &lab.ip(9).to_string(), "web"]));
    let counts = [
        format!("2 with pool/{server}, 1 with pool/{other}"),
        format!("2 with pool/{other}, 1 with pool/{server}"),
    ];
    assert!(
        counts.iter().any(|count| all.stdout.contains(&format!(" has 3 open flows here: {count}; "))),
        "{all:?}"
    );
    drop(held.remove(0));
    wait_for("the connection to have ended", || {
        let explanation = explained(lab.stats(), client);
        (explanation["flow"].is_null() && explanation["server"] == other).then_some(())
    });
}

fn udp_session_is_explained_by_its_server_and_unknown_clients_as_new() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| UdpServer::named(name, lab.server(n)));
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"").health("kind = \"none\"");
    let setup = setup.backend("algorithm = \"round_robin\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup.server("b", lab.server(2), ""));
    for _ in 0..2 {
        let client = UdpSocket::bind((lab.ip(1), 0)).unwrap();
        client.connect(lab.vip()).unwrap();
        let addr = client.local_addr().unwrap();
        let before = explained(lab.stats(), addr);
        assert!(before["flow"].is_null(), "{before:#}");
        client.send(b"who?").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut name = [0; 9];
        let n = client.recv(&mut name).unwrap();
        let server = String::from_utf8_lossy(&name[..n]).into_owned();
        assert_eq!(before["server"], server, "the next turn");
        let after = explained(lab.stats(), addr);
        assert_eq!(
            [&after["flow"]["server"], &after["server"]],
            [&format!("pool/{server}"), &server],
            "{after:#}"
        );
    }
}

fn explanation_names_the_file_and_line_of_the_deciding_network() {
    let lab = Loopback::new();
    let (list, denied) = (lab.directory().join("blocked.txt"), lab.ip(66));
    fs::write(&list, format!("# found out\n192.0.2.0/24 ; SBL1\n{denied}\n")).unwrap();
    let access = format!("[frontends.web.access]\ndeny = [\"{}\", \"@blocked.txt\"]\n", lab.ip(67));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&access);
    let balancer = BalancerProcess::start(&lab, &setup);
    let access = |client: std::net::IpAddr| {
        let explanation = explained(lab.stats(), SocketAddr::new(client, 4_242));
        let steps = explanation["steps"].as_array().unwrap();
        steps.iter().find(|step| step["subject"] == "access").unwrap()["message"].as_str().unwrap().to_owned()
    };
    let in_list = format!("{denied} is in {denied}/32 of frontends.web.access.deny");
    assert_eq!(access(denied), format!("{in_list}: line 3 of blocked.txt"));
    let other = lab.ip(67);
    assert_eq!(access(other), format!("{other} is in {other}/32 of frontends.web.access.deny"));
    let free = lab.ip(68);
    assert_eq!(access(free), format!("{free} is in no network of frontends.web.access.deny"));
    // With an invalid line in the file, the loaded list stays in force.
    fs::write(&list, format!("{denied}\nnonsense\n")).unwrap();
    balancer.wait_for_log("blocked.txt:2:1: frontends.web.access.deny: the line is not a network");
    assert_eq!(
        access(denied),
        format!("{in_list}: line 1 of blocked.txt, which has changed since it was loaded")
    );
    fs::write(&list, "nonsense\n").unwrap();
    assert!(access(denied).contains("blocked.txt has changed since it was loaded; "), "{}", access(denied));
    fs::remove_file(&list).unwrap();
    assert!(
        access(denied).contains("blocked.txt may contain the network, but could not be read: No such file"),
        "{}",
        access(denied)
    );
}

fn a_file_is_asked_without_a_convey_that_runs() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "backup = true");
    let setup = setup.backend("algorithm = \"maglev\"");
    let path = lab.directory().join("config.toml");
    fs::write(&path, setup.to_string()).unwrap();
    let explain = |options: &[&str]| {
        let file = path.to_str().unwrap();
        run(binary().args(["explain", "--config", file, "203.0.113.9:4242", "web"]).args(options))
    };
    let ran = explain(&[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let vip = lab.vip();
    let head =
        format!("203.0.113.9:4242 at frontend web ({vip}, proxy tcp) gets pool/a at {}\n", lab.server(1));
    assert!(ran.stdout.starts_with(&head), "{ran:?}");
    assert!(
        ran.stdout.contains("share 0 %: a backup, not used while other servers are available\n"),
        "{ran:?}"
    );
    let dry: Value = serde_json::from_str(&explain(&["--json"]).stdout).unwrap();
    let _balancer = BalancerProcess::start(&lab, &setup);
    let running = explained(lab.stats(), "203.0.113.9:4242".parse().unwrap());
    assert_eq!((&dry["server"], &dry["servers"][1]), (&running["server"], &running["servers"][1]));
}

fn a_question_that_makes_no_sense_is_answered_with_what_would() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let explain = |client, frontend| run(balancer.command().args(["explain", client, frontend]));
    let ran = explain("203.0.113.9", "wep");
    assert!(
        ran.code == Some(1) && ran.stderr.contains("there is no frontend wep; did you mean `web`?"),
        "{ran:?}"
    );
    let ran = explain("2001:db8::9", "web");
    assert!(ran.code == Some(1) && ran.stderr.contains("listens on no IPv6 address"), "{ran:?}");
    let ran = explain("somebody", "web");
    assert!(ran.code == Some(2) && ran.stderr.contains("expected an address such as 203.0.113.9"), "{ran:?}");
}
