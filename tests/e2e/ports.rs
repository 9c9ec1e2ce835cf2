//! Frontends that listen on a range of ports.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, UdpClient, UdpServer, binary, connect, fetch,
    ftp_server, ping, run, tests, tool,
};
use rustix::process::{Resource, getrlimit};

tests!("ports":
    passive_ftp_is_served_by_the_server_of_the_control_connection [Need::CURL],
    udp_port_pair_of_a_client_leads_to_one_server,
    ports_of_a_range_lead_to_the_single_server_port,
    reload_changes_a_port_range_and_keeps_open_connections,
    invalid_port_ranges_are_refused_with_their_place,
);

/// The backend of servers that share clients by their address.
const BY_CLIENT: &str = "algorithm = \"maglev\"\nhash = \"source\"";

fn passive_ftp_is_served_by_the_server_of_the_control_connection() {
    let lab = Loopback::new();
    let ftp = |n, name| ftp_server(at(lab.server(n).ip(), 2121), 21000..=21010, name);
    let _servers = [ftp(1, "one"), ftp(2, "two"), ftp(3, "three")];
    let ports = [format!("{}:2121", lab.ip(1)), format!("{}:21000-21010", lab.ip(1))];
    let setup = (1..=3).fold(setup(&lab, &ports).backend(BY_CLIENT).health("port = 2121"), |setup, n| {
        setup.server(&format!("s{n}"), lab.server(n).ip(), "")
    });
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut served = BTreeSet::new();
    for host in 100..130 {
        let mut curl = Command::new(tool("curl").unwrap());
        curl.args(["-sS", "--interface", &lab.ip(host).to_string(), &format!("ftp://{}/file", ports[0])]);
        let ran = run(&mut curl);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "client {host}");
        served.insert(ran.stdout);
    }
    assert_eq!(served, ["one", "two", "three"].map(str::to_owned).into());
    let expected = serde_json::json!(ports);
    assert_eq!(balancer.stat("/frontends/web/listen_addr"), expected, "one frontend");
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 60);
    assert_eq!(
        balancer.stat("/backends/pool/retries"),
        0,
        "no data connection was refused by another server first"
    );
    assert_eq!(balancer.stat("/backends/pool/servers/s1/addr"), lab.server(1).ip().to_string());
}

fn udp_port_pair_of_a_client_leads_to_one_server() {
    let lab = Loopback::new();
    let name = |n: u8, port: u16| -> &'static str { format!("{n} {port}").leak() };
    let server = |n: u8, port: u16| UdpServer::named(name(n, port), at(lab.server(n).ip(), port));
    let _servers: Vec<UdpServer> = (1..=3)
        .flat_map(|n| (30_000..30_004).map(move |port| (n, port)))
        .map(|(n, port)| server(n, port))
        .collect();
    let setup = setup(&lab, &[format!("{}:30000-30003", lab.ip(1))]).frontend("protocol = \"udp\"");
    let setup = (1..=3)
        .fold(setup.backend(BY_CLIENT), |setup, n| setup.server(&format!("s{n}"), lab.server(n).ip(), ""));
    let balancer = BalancerProcess::start(&lab, &setup);
    let fetch = |port| UdpClient::of(at(lab.ip(1), port)).fetch();
    let answers: Vec<String> = (30_000..30_004).map(fetch).collect();
    let (server, _) = answers[0].split_once(' ').unwrap();
    let expected: Vec<String> = (30_000..30_004).map(|port| format!("{server} {port}")).collect();
    assert_eq!(answers, expected);
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 4);
}

fn ports_of_a_range_lead_to_the_single_server_port() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let listen = format!("{}:9000-9009", lab.ip(1));
    let limited = setup(&lab, &[listen]).frontend("max_connections = 1").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &limited);
    for port in 9_000..=9_009 {
        assert_eq!(fetch(at(lab.ip(1), port), "/").unwrap(), (200, "a".to_owned()), "{port}");
    }
    assert_eq!(balancer.given_to("a"), 10);
    assert!(TcpStream::connect(at(lab.ip(1), 9_010)).is_err());
}

fn reload_changes_a_port_range_and_keeps_open_connections() {
    let lab = Loopback::new();
    let _servers: Vec<TcpServer> =
        [9_001, 9_019].map(|port| TcpServer::echo(at(lab.server(1).ip(), port))).into();
    let wide = |last: u16| {
        let listen = format!("{}:9000-{last}", lab.ip(1));
        setup(&lab, &[listen]).server("a", lab.server(1).ip(), "")
    };
    let balancer = BalancerProcess::start(&lab, &wide(9_009));
    let [inside, beyond] = [9_001, 9_019].map(|port| at(lab.ip(1), port));
    let mut held = connect(inside);
    ping(&mut held).unwrap();
    assert!(TcpStream::connect(beyond).is_err());
    balancer.save(&wide(9_019));
    let [narrow, widened] = [9_009, 9_019].map(|last| format!("{}:9000-{last}", lab.ip(1)));
    balancer.wait_for_log(&format!("reload: frontend web: - {narrow}, + {widened}"));
    let mut new = connect(beyond);
    ping(&mut new).unwrap();
    ping(&mut held).unwrap();
    balancer.save(&wide(9_009));
    balancer.wait_for_log(&format!("reload: frontend web: - {widened}, + {narrow}"));
    assert!(TcpStream::connect(beyond).is_err());
    [&mut new, &mut held].into_iter().for_each(|stream| ping(stream).unwrap());
    ping(&mut connect(inside)).unwrap();
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 3, "its counters go on");
}

fn invalid_port_ranges_are_refused_with_their_place() {
    let lab = Loopback::new();
    let with = |listen: &str, server: &str, health: &str| {
        setup(&lab, &[listen.to_owned()]).health(health).server("a", server, "").to_string()
    };
    let check = |text: &str| {
        fs::write(lab.directory().join("config.toml"), text).unwrap();
        run(binary().current_dir(lab.directory()).args(["check", "--config", "config.toml"]))
    };
    let refused = |text: &str| {
        let ran = check(text);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.stderr
    };
    let (range, unchecked) = (format!("{}:20000-21023", lab.ip(1)), "kind = \"none\"");
    assert_eq!(check(&with(&range, "10.0.0.1", unchecked)).code, Some(0));

    let wide = refused(&with(&format!("{}:20000-21024", lab.ip(1)), "10.0.0.1", unchecked));
    assert!(wide.contains("config.toml:2:16: frontends.web.listen_addr: "), "{wide}");
    assert!(wide.contains("has 1025 ports; a range in proxy mode has at most 1024"), "{wide}");
    let backwards = refused(&with(&format!("{}:21000-20000", lab.ip(1)), "10.0.0.1", unchecked));
    assert!(
        backwards.contains("listen_addr: a range of ports begins with the lower port, found "),
        "{backwards}"
    );
    let unprobed = refused(&with(&range, "10.0.0.1", ""));
    assert!(
        unprobed
            .contains("servers.a.addr: found \"10.0.0.1\" without a port, so health checks have no port; "),
        "{unprobed}"
    );
    let second = format!("[frontends.other]\nlisten_addr = \"{}:21023\"\nbackend = \"pool\"\n", lab.ip(1));
    let taken = refused(&(with(&range, "10.0.0.1", unchecked) + &second));
    assert!(
        taken.contains(&format!("other.listen_addr: {}:21023 is taken by frontends.web.", lab.ip(1))),
        "{taken}"
    );

    // With more sockets than half of the descriptors, the program does not start.
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    fs::write(lab.directory().join("config.toml"), with(&range, "10.0.0.1", unchecked)).unwrap();
    let few = limit.min(1_024);
    let mut command = Command::new("sh");
    command
        .current_dir(lab.directory())
        .args(["-c", &format!("ulimit -n {few}; exec \"$0\" --config config.toml")]);
    let ran = run(command.arg(binary().get_program()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!((ran.stderr + &ran.stdout).contains("the 1024 ports of frontends in proxy mode need "));
}

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

/// A frontend with these addresses and ports.
fn setup(lab: &Loopback, listen: &[String]) -> Setup {
    Setup::new(lab).listen_on(listen)
}
