//! A server that answers no client in mode `dsr`: a check via the VIP or clients' handshakes detect
//! each fault.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_testkit::wait_for;

use crate::case::{Case, PacketTest, floods, tests};
use crate::config::Config;
use crate::flood::forge;
use crate::l2;
use crate::network::{Network, PORT};
use crate::scarce::under_attack;

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![when Case::is_dsr =>
        check_via_the_vip_names_the_cause_of_each_fault [NFT, NGINX],
        check_via_the_vip_finds_every_fault_of_an_l2_server [NFT, NGINX],
        server_is_ejected_while_its_clients_get_no_reply [NGINX],
    ];
    tests.extend(floods(tests![when Case::is_dsr =>
        forged_syns_that_are_repeated_take_no_server_out [NGINX],
    ]));
    tests.extend(tests![handshakes_are_counted_at_each_server[NGINX],]);
    tests
}

const VIA: &str = "kind = \"tcp\"\nvia = \"vip\"\ninterval = 0.3\ntimeout = 0.3\nfall = 2\nrise = 1";

/// Clients' connections go to both, and three failures are enough.
const OUTLIER: &str = "algorithm = \"maglev\"\nhash = \"tuple\"\n\
    outlier_detection = { consecutive_failures = 3, base_ejection_time = 2 }";

/// A fault of server 1: the commands that cause it, the commands that fix it, and its log message.
struct Fault {
    made: Vec<String>,
    mended: Vec<String>,
    told: &'static str,
}

fn nft(rule: &str, family: &str, told: &'static str) -> Fault {
    let table =
        "nft add table inet fault; nft add chain inet fault in '{ type filter hook input priority 0 ; }'";
    Fault {
        made: vec![format!("{table}; nft add rule inet fault in {family} {rule}")],
        mended: vec!["nft delete table inet fault".to_owned()],
        told,
    }
}

fn check_via_the_vip_names_the_cause_of_each_fault(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    network.balance(&Config { health: VIA, ..Config::new(2) });
    let (family, balancer) = (saddr(case), case.family.address(Role::Balancer));
    let [up, down, wrong_port] = [("up", "80"), ("down", "80"), ("up", "81")].map(|(action, ports)| {
        let vip = case.family.vip(0).ip();
        let server = case.family.address(Role::Server(1));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tc/dsr-server-nft.sh");
        format!(
            "INTERFACE={INTERFACE} VIP={vip} PORTS={ports} SERVER={server} BALANCERS={balancer} {script} {action}"
        )
    });
    let told = "answers instead of VIP";
    let not_ours = format!("!= {balancer} tcp dport {PORT}");
    let faults = [
        Fault { made: vec![down.clone()], mended: vec![up.clone()], told },
        Fault { made: vec![down, wrong_port], mended: vec![up], told },
        nft(&format!("{not_ours} drop"), family, "a firewall drops the packets"),
        nft(&format!("{not_ours} reject with tcp reset"), family, "a firewall rejects them"),
    ];
    each_is_found(&network, &faults);
}

fn check_via_the_vip_finds_every_fault_of_an_l2_server(case: Case) {
    let mut network = l2::planned(case, &LabPlan::new(1, 2));
    let everywhere = (case.family.any(), PORT).into();
    let _servers = [network.nginx_on(1, everywhere), network.nginx_on(2, everywhere)];
    network.balance(&Config { health: VIA, backend: l2::BACKEND, ..Config::new(2) });
    let vip = case.family.vip(0).ip();
    let length = if vip.is_ipv4() { 32 } else { 128 };
    let daddr = saddr(case).replace("saddr", "daddr");
    let to_vip = format!("{vip} tcp dport {PORT}");
    let nodad = if vip.is_ipv4() { "" } else { " nodad" };
    let without_vip = Fault {
        made: vec![format!("ip addr del {vip}/{length} dev lo")],
        mended: vec![format!("ip addr add {vip}/{length} dev lo{nodad}")],
        told: "the server does not have the VIP",
    };
    let faults = [
        without_vip,
        nft(&format!("{to_vip} drop"), &daddr, "a firewall drops the packets"),
        nft(&format!("{to_vip} reject with tcp reset"), &daddr, "a firewall rejects them"),
    ];
    each_is_found(&network, &faults);
}

/// Checks that for each fault, server 1 goes down with a reason that names the cause, server 2
/// serves clients, and server 1 comes back.
fn each_is_found(network: &Network, faults: &[Fault]) {
    for Fault { made, mended, told } in faults {
        [1, 2].iter().for_each(|server| network.wait_for_health(*server, true));
        wait_for("both to serve", || {
            (answering_servers(network) == BTreeSet::from(["s1".to_owned(), "s2".to_owned()])).then_some(())
        });
        run(network, Role::Server(1), made);
        network.wait_for_health(1, false);
        let reason = network.stat("/backends/pool/servers/s1/health/reason");
        let reason = reason.as_str().unwrap();
        let vip = format!("VIP {}", network.vip());
        assert!(reason.contains(told) && reason.contains(&vip), "{made:?}: {reason}");
        let line = format!("server pool/s1 ({}) is down", network.address(Role::Server(1)));
        network.wait_for_log(&line);
        assert_eq!(answering_servers(network), BTreeSet::from(["s2".to_owned()]));
        assert_eq!(network.stat("/backends/pool/servers/s2/up"), true);
        run(network, Role::Server(1), mended);
    }
    network.wait_for_health(1, true);
}

/// Answers to clients go by a gateway that forwards nothing. Probes do not notice: the balancer is
/// not behind the gateway.
fn server_is_ejected_while_its_clients_get_no_reply(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    network.balance(&Config { backend: OUTLIER, ..Config::new(2) });
    [1, 2].iter().for_each(|server| network.wait_for_health(*server, true));
    assert_eq!(answering_servers(&network), BTreeSet::from(["s1".to_owned(), "s2".to_owned()]));
    let client = case.family.address(Role::Client(1));
    let length = if client.is_ipv4() { 32 } else { 128 };
    let no_router = case.family.address(Role::Server(2));
    let route = |action: &str| {
        let route = format!("ip route {action} {client}/{length} via {no_router} dev {INTERFACE}");
        run(&network, Role::Server(1), &[route]);
    };
    let ejections = || network.stat("/backends/pool/servers/s1/ejections").as_u64().unwrap();
    assert_eq!(ejections(), 0);
    route("add");
    wait_for("the server to be ejected", || {
        connect_many(&network);
        (ejections() > 0).then_some(())
    });
    let log = network.log(Role::Balancer);
    assert!(log.contains("no handshake completed"), "{log}");
    assert_eq!(network.stat("/backends/pool/servers/s1/up"), true, "its check sees nothing of it");
    route("del");
    wait_for("the server to be back", || {
        let is_in = network.stat("/backends/pool/servers/s1/ejected").is_null();
        (is_in && answering_servers(&network).contains("s1")).then_some(())
    });
    assert_eq!(answering_servers(&network), BTreeSet::from(["s1".to_owned(), "s2".to_owned()]));
    assert_eq!(network.stat("/backends/pool/servers/s2/ejections"), 0);
}

/// Each forged SYN comes three times, like that of a client without an answer.
fn forged_syns_that_are_repeated_take_no_server_out(case: Case) {
    const EACH: u64 = 2_000;
    let mut network = Network::new(case, 2, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    network.balance(&Config { backend: OUTLIER, ..Config::new(2) });
    [1, 2].iter().for_each(|server| network.wait_for_health(*server, true));
    let (vip, mut random) = (network.vip(), fastrand::Rng::with_seed(7));
    let (mut syn, mut left) = (Vec::new(), 0);
    let forged = || {
        if left == 0 {
            (syn, left) = (forge(vip, &mut random), 3);
        }
        left -= 1;
        syn.clone()
    };
    let of = |server: &str, what: &str| {
        network.stat(&format!("/backends/pool/servers/{server}/{what}")).as_u64().unwrap()
    };
    let repeated = |server| of(server, "handshakes/syn_repeated");
    under_attack(&network, 5, forged, || {
        wait_for("SYNs to have come again at both servers", || {
            network.fetch(1).unwrap();
            (repeated("s1").min(repeated("s2")) > EACH).then_some(())
        });
    });
    assert_eq!(["s1", "s2"].map(|server| of(server, "ejections")), [0, 0]);
    let log = network.log(Role::Balancer);
    assert!(!log.contains("no handshake completed"), "{log}");
    assert_eq!(answering_servers(&network), BTreeSet::from(["s1".to_owned(), "s2".to_owned()]));
}

fn handshakes_are_counted_at_each_server(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    network.balance(&Config::new(2));
    (0..40).for_each(|_| drop(network.fetch(1).unwrap()));
    let all = |what: &str| -> u64 {
        let of = |server| network.stat(&format!("/backends/pool/servers/{server}/handshakes/{what}"));
        ["s1", "s2"].map(|server| of(server).as_u64().unwrap()).iter().sum()
    };
    wait_for("all handshakes to be told of", || (all("completed") == 40).then_some(()));
    assert_eq!(all("started"), 40);
}

/// Names of the servers that answer 30 clients.
fn answering_servers(network: &Network) -> BTreeSet<String> {
    (0..30).filter_map(|_| network.fetch(1).ok()).collect()
}

/// Ten clients at once that wait for an answer as long as it takes to repeat a SYN twice.
fn connect_many(network: &Network) {
    let vip = network.vip();
    network.inside(Role::Client(1), || {
        let connect = || TcpStream::connect_timeout(&vip, Duration::from_millis(3_500)).is_ok();
        thread::scope(|scope| (0..10).for_each(|_| drop(scope.spawn(connect))));
    });
}

fn run(network: &Network, role: Role, commands: &[String]) {
    for command in commands {
        network.lab.run(role, "sh", &["-c", command]).unwrap();
    }
}

/// Name of the source address in nftables.
fn saddr(case: Case) -> &'static str {
    if case.family.any().is_ipv4() { "ip saddr" } else { "ip6 saddr" }
}
