//! DSR by the destination MAC alone: servers have the VIP.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use convey_lab::{INTERFACE, LabPlan, Role, VIP, VIP_V6};
use convey_testkit::{check_to_end, run, send, wait_for};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, PORT};
use crate::udp::{ECHO, UdpEcho, datagram, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![when Case::is_dsr =>
        servers_that_have_the_vip_share_its_clients [NGINX],
        answers_of_servers_that_have_the_vip_do_not_pass_the_balancer [CURL, NGINX],
        datagrams_reach_servers_that_have_the_vip,
        server_routed_off_the_link_gets_no_packets_until_it_returns,
        server_hides_its_vip_until_the_script_takes_it_down [NGINX],
    ];
    // IPv6 needs no setting that could be taken back.
    tests.extend(tests![when |case| case.is_dsr() && case.family == Family::V4 =>
        server_hides_its_second_vip_after_the_script_removed_the_first [NGINX],
    ]);
    tests
}

const SCRIPT: &str = "tc/dsr-server-l2.sh";

/// The backend of servers that have the VIP.
pub(crate) const BACKEND: &str = "algorithm = \"maglev\"\nhash = \"tuple\"\ndsr = \"l2\"";

fn servers_that_have_the_vip_share_its_clients(case: Case) {
    let mut network = prepared(case, 2);
    let everywhere = (case.family.any(), PORT).into();
    let _servers = [network.nginx_on(1, everywhere), network.nginx_on(2, everywhere)];
    network.balance(&Config { backend: BACKEND, ..Config::new(2) });
    let answers: BTreeSet<String> = (0..50).map(|_| network.fetch(1).unwrap()).collect();
    assert_eq!(answers.into_iter().collect::<Vec<_>>(), ["s1", "s2"]);
    let neighbour =
        network.lab.run(Role::Client(1), "ip", &["neigh", "show", &network.vip().ip().to_string()]);
    let neighbour = neighbour.unwrap();
    assert!(neighbour.contains("02:00:0a:4d:00:01"), "not the balancer's: {neighbour}");
}

fn answers_of_servers_that_have_the_vip_do_not_pass_the_balancer(case: Case) {
    const LENGTH: u64 = 32 << 20;
    let mut network = prepared(case, 1);
    let nginx = network.nginx_on(1, (case.family.any(), PORT).into());
    send(&mut std::fs::File::create(nginx.file("big")).unwrap(), LENGTH).unwrap();
    network.balance(&Config { backend: BACKEND, ..Config::new(1) });
    let before = network.received(Role::Balancer);
    let got = network.path("got");
    let mut curl = network.client(1, "curl");
    curl.args(["-sS", "--fail", "-o"]).arg(&got).arg(format!("http://{}/big", network.vip()));
    let ran = run(&mut curl);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(check_to_end(&mut std::fs::File::open(got).unwrap()), LENGTH);
    let passed = network.received(Role::Balancer) - before;
    assert!(passed < LENGTH / 10, "{passed} bytes of an answer of {LENGTH} passed");
}

fn datagrams_reach_servers_that_have_the_vip(case: Case) {
    let mut network = prepared(case, 2);
    network.balance(&Config { backend: BACKEND, health: UNCHECKED, ..Config::udp(ECHO, 2) });
    let vip = case.family.vip(ECHO);
    let _echos = [1, 2].map(|number| network.inside(Role::Server(number), || UdpEcho::start(vip)));
    for (seed, length) in [1, 1400, 4096, 1, 1400, 4096].into_iter().enumerate() {
        let sent = datagram(length, seed as u8);
        let answer = network.inside(Role::Client(1), || exchange(&socket_to(vip), &sent));
        let is_same = answer.as_ref().is_ok_and(|answer| *answer == sent);
        assert!(is_same, "number {seed}, {length} bytes: {:?}; {:#}", answer.err(), network.stat("/packets"));
    }
}

fn server_routed_off_the_link_gets_no_packets_until_it_returns(case: Case) {
    let mut network = prepared(case, 2);
    network.balance(&Config { backend: BACKEND, health: UNCHECKED, ..Config::udp(ECHO, 1) });
    let vip = case.family.vip(ECHO);
    let _echo = network.inside(Role::Server(1), || UdpEcho::start(vip));
    let [server, other] = [1, 2].map(|number| case.family.address(Role::Server(number)).to_string());
    let answers = || {
        network.inside(Role::Client(1), || {
            let socket = socket_to(vip);
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            exchange(&socket, &datagram(100, 1)).is_ok()
        })
    };
    let log = |text: &str| network.log(Role::Balancer).matches(text).count();
    wait_for("the server to be reached", || answers().then_some(()));
    let by_other = ["route", "add", &server, "via", &other, "dev", INTERFACE];
    network.lab.run(Role::Balancer, "ip", &by_other).unwrap();
    let off = format!(
        "server pool/s1 ({}) is no longer on the link",
        SocketAddr::new(server.parse().unwrap(), ECHO)
    );
    wait_for("the balancer to notice", || (log(&off) == 1).then_some(()));
    assert!(!answers());
    assert!(network.stat("/packets/drops/server_not_on_link").as_u64() > Some(0));
    network
        .lab
        .run(Role::Balancer, "ip", &["route", "del", &server, "via", &other, "dev", INTERFACE])
        .unwrap();
    wait_for("the server to be reached again", || answers().then_some(()));
    assert_eq!((log(&off), log("is on the link again")), (1, 1));
}

/// Runs without a balancer: a route leads the client straight to the server.
fn server_hides_its_vip_until_the_script_takes_it_down(case: Case) {
    let network = Network::bare(case, &LabPlan::new(1, 1));
    let vip = network.vip();
    let (address, client) = (vip.ip().to_string(), Role::Client(1));
    let ip = |role, arguments: &[&str]| network.lab.run(role, "ip", arguments).unwrap();
    ip(Role::Balancer, &["addr", "flush", "dev", INTERFACE]);
    let script = |action| network.script(Role::Server(1), SCRIPT, action, &[("VIP", &both())]);
    ["up", "up"].iter().for_each(|action| script(action));
    let _server = network.nginx_on(1, (case.family.any(), PORT).into());
    let connects = || network.inside(client, || connects_to(vip));
    assert!(!connects(), "somebody said to have the VIP");
    let server = case.family.address(Role::Server(1)).to_string();
    ip(client, &["route", "add", &address, "via", &server, "dev", INTERFACE]);
    assert!(connects());
    ["down", "down"].iter().for_each(|action| script(action));
    assert!(!connects());
    assert_eq!(ip(Role::Server(1), &["-brief", "addr", "show", "to", &address]), "");
    let left = network.lab.run(Role::Server(1), "sysctl", &["-n", "net.ipv4.conf.all.arp_ignore"]).unwrap();
    assert_eq!(left.trim(), "0");
}

/// Runs without a balancer, too.
fn server_hides_its_second_vip_after_the_script_removed_the_first(case: Case) {
    const SECOND: &str = "10.77.0.101";
    let network = Network::bare(case, &LabPlan::new(1, 1));
    let script = |action, vip: &str| network.script(Role::Server(1), SCRIPT, action, &[("VIP", vip)]);
    script("up", &both());
    script("up", SECOND);
    let _server = network.nginx_on(1, (case.family.any(), PORT).into());
    let second = (SECOND.parse::<std::net::IpAddr>().unwrap(), PORT).into();
    let connects = || network.inside(Role::Client(1), || connects_to(second));
    let setting = |name| {
        let name = format!("net.ipv4.conf.all.{name}");
        network.lab.run(Role::Server(1), "sysctl", &["-n", &name]).unwrap().trim().to_owned()
    };
    let settings = || ["arp_ignore", "arp_announce"].map(setting);
    script("down", &both());
    assert_eq!(settings(), ["1", "2"]);
    assert!(!connects(), "the server said to have the VIP that is left");
    script("down", SECOND);
    assert_eq!(settings(), ["0", "0"]);
}

/// Whether a host answers before the kernel finds that no host has the address, which takes 3
/// seconds.
fn connects_to(addr: SocketAddr) -> bool {
    TcpStream::connect_timeout(&addr, Duration::from_secs(5)).is_ok()
}

pub(crate) fn prepared(case: Case, servers: u8) -> Network {
    planned(case, &LabPlan::new(1, servers))
}

/// A lab whose servers have the VIP.
pub(crate) fn planned(case: Case, plan: &LabPlan) -> Network {
    let network = Network::bare(case, plan);
    let servers = network.lab.machines().iter().filter(|role| matches!(role, Role::Server(_)));
    servers.for_each(|role| network.script(*role, SCRIPT, "up", &[("VIP", &both())]));
    network
}

fn both() -> String {
    format!("{VIP} {VIP_V6}")
}
