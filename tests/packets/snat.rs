//! Addresses that servers see in passthrough mode.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{PATIENCE, TcpServer, binary, fetch, run, wait_for};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, PORT, STATS};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        server_sees_an_snat_address_of_its_network_while_there_is_one,
        vip_is_withdrawn_once_no_snat_address_of_its_family_is_left,
        server_is_down_while_another_convey_uses_its_snat_address,
        far_snat_address_is_used_once_near_ones_are_exhausted,
    ]
}

/// Addresses of a second network on the link, of the balancer and of server 2. They are lower than
/// those of the first.
const SECOND: [&str; 2] = ["10.66.0.1", "10.66.0.5"];
const SERVER: &str = "10.66.0.2";

/// An address on the link that the balancer gets after the start.
const LATER: &str = "10.77.0.99";

fn server_sees_an_snat_address_of_its_network_while_there_is_one(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let ip = |network: &Network, role, line: &str| {
        network.lab.run(role, "ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    };
    network.lab.run(Role::Balancer, "sysctl", &["-qw", "net.ipv4.conf.all.promote_secondaries=1"]).unwrap();
    for own in SECOND {
        ip(&network, Role::Balancer, &format!("addr add {own}/24 dev {INTERFACE}"));
        ip(&network, Role::Server(1), &format!("route add unreachable {own}"));
    }
    let first = network.address(Role::Balancer).ip();
    ip(&network, Role::Server(2), &format!("addr add {SERVER}/24 dev {INTERFACE}"));
    ip(&network, Role::Server(2), &format!("route add unreachable {first}"));
    let far = network.address(Role::Server(2)).ip().to_string();
    let text = Config::new(2).text(case).replace(&format!("{far}:"), &format!("{SERVER}:"));
    fs::write(network.path("config.toml"), &text).unwrap();
    let mut check = network.lab.command(Role::Balancer, binary().get_program());
    let output =
        run(check.args(["check", "--passthrough", "--config"]).arg(network.path("config.toml"))).stdout;
    let near = network.address(Role::Server(1)).ip();
    for line in [format!("snat {first} for {near}\n"), format!("snat {} for {SERVER}\n", SECOND[0])] {
        assert!(output.contains(&line), "{line} in {output}");
    }
    network.balance_with(&text);
    let network = &network;
    let _near = network.server(1, |addr| TcpServer::named("s1", addr));
    let _far = network.server(2, |_| TcpServer::named("s2", format!("{SERVER}:{PORT}").parse().unwrap()));
    (1..=2).for_each(|server| network.wait_for_health(server, true));
    let served = || (0..40).map(|_| network.fetch(1).unwrap()).collect::<BTreeSet<String>>();
    let both = BTreeSet::from(["s1", "s2"].map(str::to_owned));
    assert_eq!(served(), both);

    ip(network, Role::Balancer, &format!("addr del {}/24 dev {INTERFACE}", SECOND[0]));
    let line = format!("new flows to {SERVER} get the SNAT address {} instead of {}", SECOND[1], SECOND[0]);
    network.wait_for_log(&line);
    assert_eq!(served(), both);
}

fn vip_is_withdrawn_once_no_snat_address_of_its_family_is_left(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let ip = |network: &Network, line: &str| {
        network.lab.run(Role::Balancer, "ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    };
    network.lab.run(Role::Balancer, "sysctl", &["-qw", "net.ipv4.conf.all.promote_secondaries=1"]).unwrap();
    let (vip, own) = (network.vip().ip(), network.address(Role::Balancer).ip());
    ip(&network, &format!("addr del {vip}/32 dev {INTERFACE}"));
    network.balance_with(&(Config::new(1).text(case) + "[announce]\nhold = 0.2\n"));
    let network = &network;
    let _server = network.server(1, |addr| TcpServer::named("s1", addr));
    let is_on_lo = || {
        let addresses = network.lab.run(Role::Balancer, "ip", &["-o", "addr", "show", "dev", "lo"]).unwrap();
        addresses.contains(&format!(" {vip}/"))
    };
    wait_for("the VIP on lo", || is_on_lo().then_some(()));

    // convey uses an address that is added later only after a restart; health checks leave by it.
    ip(network, &format!("addr add {LATER}/24 dev {INTERFACE}"));
    ip(network, &format!("addr del {own}/24 dev {INTERFACE}"));
    wait_for("the VIP to go", || (!is_on_lo()).then_some(()));
    let why =
        format!("this host has lost its SNAT addresses ({own}); restart convey to choose other addresses");
    network.wait_for_log(&why);
    let (code, output) = network.inside(Role::Balancer, || fetch(STATS.into(), "/readyz").unwrap());
    assert!(code == 503 && output.contains(&why), "{output}");
    ip(network, &format!("addr add {own}/24 dev {INTERFACE}"));
    wait_for("the VIP on lo again", || is_on_lo().then_some(()));
}

/// Port of another convey's frontend.
const OTHER: u16 = 81;

fn server_is_down_while_another_convey_uses_its_snat_address(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let run_in = |network: &Network, role, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        network.lab.run(role, words[0], &words[1..]).unwrap();
    };
    run_in(&network, Role::Balancer, "sysctl -qw net.ipv4.conf.all.promote_secondaries=1");
    for own in SECOND {
        run_in(&network, Role::Balancer, &format!("ip addr add {own}/24 dev {INTERFACE}"));
    }
    run_in(&network, Role::Server(2), &format!("ip addr add {SERVER}/24 dev {INTERFACE}"));
    let first = network.address(Role::Balancer).ip();
    let [near, far] = [1, 2].map(|server| network.address(Role::Server(server)).ip().to_string());
    let config = Config { servers: vec![(2, "")], health: UNCHECKED, ..Config::new(2) };
    let text = config.text(case).replace(&format!("{far}:"), &format!("{SERVER}:"));
    network.balance_with(&text.replace(&format!("{near}:"), "10.66.0.9:"));
    let server = |port: u16, name| {
        network.server(2, move |_| TcpServer::named(name, format!("{SERVER}:{port}").parse().unwrap()))
    };
    let (_server, _other_server) = (server(PORT, "s2"), server(OTHER, "other"));
    assert_eq!(network.fetch(1).unwrap(), "s2");

    let vip = case.family.vip(OTHER);
    let text = format!(
        "[stats]\nport = 7001\n[passthrough]\noffload = \"{}\"\nsnat_addresses = [\"{first}\", \"{}\"]\n\
         [frontends.other]\nlisten_addr = \"{vip}\"\nbackend = \"other\"\n[backends.other]\n\
         health_check.kind = \"none\"\nservers.s.addr = \"{SERVER}:{OTHER}\"\n",
        case.offload, SECOND[1]
    );
    fs::write(network.path("second.toml"), text).unwrap();
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    command.args(["--passthrough", "--config"]).arg(network.path("second.toml")).env_remove("RUST_LOG");
    let second = convey_testkit::start(command, &network.path("log"));
    let asks_other = || {
        let (_, name) = network.inside(Role::Client(1), || fetch(vip, "/")).unwrap();
        assert_eq!(name.trim(), "other");
    };
    asks_other();

    run_in(&network, Role::Balancer, &format!("ip addr del {}/24 dev {INTERFACE}", SECOND[0]));
    let health = |up: bool| {
        wait_for(&format!("the server to have up = {up}"), || {
            let health = network.stat("/backends/pool/servers/s2/health");
            (health["up"] == up).then_some(health["reason"].to_string())
        })
    };
    let reason = health(false);
    let why = format!(
        "cannot use the SNAT ports 33768-61000 of {} (passthrough.snat_ports): another process",
        SECOND[1]
    );
    assert!(reason.contains(&why), "{reason}");
    network.wait_for_log(&why);
    asks_other();

    drop(second);
    health(true);
    assert_eq!(network.fetch(1).unwrap(), "s2");
}

fn far_snat_address_is_used_once_near_ones_are_exhausted(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let run_in = |network: &Network, role, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        network.lab.run(role, words[0], &words[1..]).unwrap();
    };
    let (near, further, elsewhere) = (network.address(Role::Balancer).ip(), SECOND[0], "10.99.0.1");
    run_in(&network, Role::Balancer, &format!("ip addr add {further}/24 dev {INTERFACE}"));
    run_in(&network, Role::Balancer, "ip link add elsewhere type veth peer name peer");
    run_in(&network, Role::Balancer, "ip link set peer up");
    run_in(&network, Role::Balancer, &format!("ip addr add {elsewhere}/24 dev elsewhere"));
    run_in(&network, Role::Balancer, "ip link set elsewhere up");
    run_in(&network, Role::Server(1), &format!("ip route add {further} dev {INTERFACE}"));
    let lines = format!(
        "workers = 1\nsnat_ports = \"40000-40003\"\n\
         snat_addresses = [\"{further}\", \"{elsewhere}\", \"{near}\"]"
    );
    let config = Config { passthrough: lines.leak(), health: UNCHECKED, ..Config::new(1) };
    fs::write(network.path("config.toml"), config.text(case)).unwrap();
    let mut check = network.lab.command(Role::Balancer, binary().get_program());
    let output = run(check.args(["check", "--passthrough", "--config"]).arg(network.path("config.toml")));
    let server = network.address(Role::Server(1)).ip();
    for line in [
        format!("snat {near} for {server}\n"),
        format!("snat {further} for {server} once the ports of the other addresses are in use\n"),
    ] {
        assert!(output.stdout.contains(&line), "{line} in {output:?}");
    }
    let unused = format!(
        "convey does not use the SNAT address {elsewhere} (passthrough.snat_addresses): it belongs to the network of elsewhere"
    );
    assert!(output.stderr.contains(&unused), "{output:?}");

    network.balance(&config);
    let network = &network;
    network.wait_for_log(&unused);
    let _server = network.server(1, |addr| {
        TcpServer::start(addr, |mut stream| {
            writeln!(stream, "{}", stream.peer_addr()?.ip())?;
            stream.read(&mut [0]).map(drop)
        })
    });
    let connect = || {
        network.inside(Role::Client(1), || {
            let stream = TcpStream::connect(network.vip())?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut seen = String::new();
            BufReader::new(&stream).read_line(&mut seen)?;
            Ok::<_, io::Error>((stream, seen.trim().to_owned()))
        })
    };
    let connections: Vec<(TcpStream, String)> = (0..8).map(|_| connect().unwrap()).collect();
    let seen: Vec<&str> = connections.iter().map(|(_, seen)| seen.as_str()).collect();
    let near = near.to_string();
    assert_eq!(seen, [[near.as_str(); 4], [further; 4]].concat());
    assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(network.stat("/packets/drops/snat_exhausted"), 1);
}
