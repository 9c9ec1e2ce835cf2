//! Servers with host names, and a name server whose answers change.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, NAME, Need, SERVICE, Setup, TcpServer, TestNameServer, binary, connect, fetch,
    is_refused_with_reset, ping, run, tests, tool, wait_for,
};

use crate::upgrade::Upgraded;

tests!("names":
    every_address_of_a_name_is_a_server_and_changes_are_followed [Need::DNSMASQ],
    an_answer_too_long_for_a_datagram_is_taken_whole [Need::DNSMASQ],
    a_name_server_that_dies_changes_nothing_but_what_is_told [Need::DNSMASQ],
    upgrade_without_name_servers_keeps_the_servers_of_names [Need::DNSMASQ],
    a_name_server_that_never_answers_for_aaaa_is_believed_for_a,
    name_servers_are_queried_in_order_and_the_first_reply_wins,
    other_name_servers_are_asked_as_soon_as_the_file_has_them,
    name_unresolved_at_the_start_is_served_once_it_resolves [Need::DNSMASQ],
    a_reload_from_addresses_to_names_refuses_nobody [Need::DNSMASQ],
    the_hosts_file_goes_before_name_servers,
    check_needs_no_name_server_but_tells_what_does_not_resolve,
    hundreds_of_names_at_a_silent_name_server_take_a_few_descriptors [Need::PRLIMIT],
    local_addresses_of_a_name_are_refused_unless_allowed [Need::DNSMASQ],
    a_name_with_a_thousand_silent_servers_leaves_descriptors_for_clients [Need::DNSMASQ, Need::PRLIMIT],
    excluded_addresses_of_a_name_are_logged_once_a_second [Need::DNSMASQ],
    srv_name_has_a_server_for_each_address_and_port [Need::DNSMASQ],
    a_name_may_have_underscores,
    name_servers_of_the_system_are_followed_when_they_change [Need::Namespaces],
);

fn every_address_of_a_name_is_a_server_and_changes_are_followed() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let names = TestNameServer::start(&lab, &[1, 2]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "weight = 3"));
    assert_eq!(runs(&balancer), servers(&lab, &[1, 2]));
    assert_eq!(balancer.stat(&format!("/backends/pool/servers/app~1{}/weight", lab.server(1).ip())), 3);
    let asked: BTreeSet<String> = (0..4).map(|_| fetch(lab.vip(), "/").unwrap().1).collect();
    assert_eq!(asked, BTreeSet::from(["a".to_owned(), "b".to_owned()]));

    names.answer(&[2, 3]);
    wait_for("the answer to be followed", || (runs(&balancer) == servers(&lab, &[2, 3])).then_some(()));
    let (new, old) = (lab.server(3).ip(), lab.server(1).ip());
    balancer.wait_for_log(&format!("name {NAME}: + {new}, - {old}"));
    let asked: BTreeSet<String> = (0..4).map(|_| fetch(lab.vip(), "/").unwrap().1).collect();
    assert_eq!(asked, BTreeSet::from(["b".to_owned(), "c".to_owned()]));
}

fn an_answer_too_long_for_a_datagram_is_taken_whole() {
    let lab = Loopback::new();
    let all: Vec<u8> = (1..=200).collect();
    let _names = TestNameServer::start(&lab, &all);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ""));
    assert_eq!(runs(&balancer), servers(&lab, &all));
}

fn a_name_server_that_dies_changes_nothing_but_what_is_told() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::echo(lab.server(n)));
    let names = TestNameServer::start(&lab, &[1]);
    let setup = setup(&lab, "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();

    drop(names);
    let line = balancer.wait_for_log(&format!("name {NAME} cannot be resolved: "));
    assert!(
        line.contains(" WARN ")
            && line.ends_with(&format!("the previous addresses stay in use: {}", lab.server(1).ip())),
        "{line}"
    );
    assert_eq!(balancer.stat(&format!("/names/{NAME}/resolved")), false);
    let metrics = balancer.page("/metrics").1;
    assert!(metrics.contains(&format!("convey_name_resolved{{name=\"{NAME}\"}} 0")), "{metrics}");
    ping(&mut connect(lab.vip())).unwrap();

    let _names = TestNameServer::start(&lab, &[2]);
    balancer.wait_for_log(&format!("name {NAME} is resolved again: {}", lab.server(2).ip()));
    wait_for("the new answer", || (runs(&balancer) == servers(&lab, &[2])).then_some(()));
    ping(&mut connect(lab.vip())).unwrap();
    ping(&mut held).unwrap();
    assert_eq!(balancer.log().matches("cannot be resolved").count(), 1, "told once");
}

fn upgrade_without_name_servers_keeps_the_servers_of_names() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::named("app", lab.server(n)));
    let names = TestNameServer::start(&lab, &[1, 2]);
    let mut upgraded = Upgraded::start(&lab, &setup(&lab, ""));
    drop(names);
    upgraded.first.wait_for_log(&format!("name {NAME} cannot be resolved: "));
    for _ in 0..2 {
        upgraded.upgrade();
        for _ in 0..4 {
            assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "app".to_owned()));
        }
        assert_eq!(runs(&upgraded.first), servers(&lab, &[1, 2]));
        assert_eq!(upgraded.first.page("/readyz").0, 200);
    }
    assert!(!upgraded.first.log().contains("has no server left"), "{}", upgraded.first.log());
    let _names = TestNameServer::start(&lab, &[2]);
    wait_for("the new answer", || (runs(&upgraded.first) == servers(&lab, &[2])).then_some(()));
}

fn a_name_server_that_never_answers_for_aaaa_is_believed_for_a() {
    let lab = Loopback::new();
    answer_for_a(TestNameServer::addr(&lab), lab.server(1).ip(), ForAaaa::Drop);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ""));
    assert_eq!(runs(&balancer), servers(&lab, &[1]));
    balancer.wait_for_log(&format!("name {NAME}: its AAAA records cannot be looked up: no answer within 1s"));
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());
    assert_eq!(balancer.stat(&format!("/names/{NAME}/resolved")), true);
    assert!(balancer.page("/metrics").1.contains(&format!("convey_name_resolved{{name=\"{NAME}\"}} 1")));
}

fn other_name_servers_are_asked_as_soon_as_the_file_has_them() {
    let lab = Loopback::new();
    let other = SocketAddr::new(lab.ip(54), 5353);
    answer_for_a(TestNameServer::addr(&lab), lab.server(1).ip(), ForAaaa::SayNone);
    answer_for_a(other, lab.server(2).ip(), ForAaaa::SayNone);
    let before = setup(&lab, "").to_string();
    let balancer = BalancerProcess::start(&lab, &before);
    assert_eq!(runs(&balancer), servers(&lab, &[1]));
    balancer.save(&before.replace(&TestNameServer::addr(&lab).to_string(), &other.to_string()));
    wait_for("the other's answer", || (runs(&balancer) == servers(&lab, &[2])).then_some(()));
}

fn name_servers_are_queried_in_order_and_the_first_reply_wins() {
    let lab = Loopback::new();
    let [silent, other] = [54, 55].map(|host| SocketAddr::new(lab.ip(host), 5353));
    let _silent = UdpSocket::bind(silent).unwrap();
    answer_for_a(TestNameServer::addr(&lab), lab.server(1).ip(), ForAaaa::SayNone);
    answer_for_a(other, lab.server(2).ip(), ForAaaa::SayNone);
    let named = |setup: Setup, n| setup.server(&format!("s{n}"), format!("s{n}.convey.test:8000"), "");
    let asked = format!("nameservers = [\"{silent}\", \"{}\", \"{other}\"]", TestNameServer::addr(&lab));
    let setup = (0..8).fold(Setup::new(&lab), named).and(&format!("[dns]\nallow_local = true\n{asked}\n"));
    let balancer = BalancerProcess::start(&lab, &setup);
    let expected: BTreeSet<String> = (0..8).map(|n| format!("s{n}/{}", lab.server(1).ip())).collect();
    wait_for("the names to be resolved", || (runs(&balancer).len() == 8).then_some(()));
    assert_eq!(runs(&balancer), expected);
}

fn name_unresolved_at_the_start_is_served_once_it_resolves() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ""));
    let line = balancer.wait_for_log(&format!("name {NAME} cannot be resolved: "));
    assert!(line.ends_with("it has no servers until a lookup succeeds"), "{line}");
    balancer.wait_for_log("backend pool has no server left: its clients are refused");
    assert!(is_refused_with_reset(lab.vip()));

    let _names = TestNameServer::start(&lab, &[1]);
    balancer.wait_for_log("backend pool serves again");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
}

fn a_reload_from_addresses_to_names_refuses_nobody() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let _names = TestNameServer::start(&lab, &[2]);
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    balancer.save(&setup(&lab, ""));
    wait_for("the name to be served", || (fetch(lab.vip(), "/").unwrap().1 == "b").then_some(()));
    balancer.wait_for_log(&format!(
        "reload: backend pool: + pool/app ({NAME}:8000), - pool/a ({})",
        lab.server(1)
    ));
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());
}

fn the_hosts_file_goes_before_name_servers() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("app", "LocalHost:8000", "").and(&TestNameServer::dns(&lab));
    let balancer = BalancerProcess::start(&lab, &setup);
    assert!(runs(&balancer).contains("app/127.0.0.1"), "{:#}", balancer.stats());
    assert_eq!(balancer.stat("/names/localhost/lookup_failures"), 0);
}

fn check_needs_no_name_server_but_tells_what_does_not_resolve() {
    let lab = Loopback::new();
    let file = lab.directory().join("named.toml");
    fs::write(&file, setup(&lab, "weight = 2").to_string()).unwrap();
    let ran = run(binary().args(["check", "--config"]).arg(file));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.starts_with(&format!("warning: name {NAME} cannot be resolved now: ")), "{ran:?}");
    let row = format!("server app  {NAME}:8000  weight 2, for each address of the name");
    assert!(ran.stdout.contains(&row), "{ran:?}");
}

fn hundreds_of_names_at_a_silent_name_server_take_a_few_descriptors() {
    let lab = Loopback::new();
    let _silent = UdpSocket::bind(TestNameServer::addr(&lab)).unwrap();
    let named = |setup: Setup, n| setup.server(&format!("s{n}"), format!("s{n}.convey.test:8000"), "");
    let setup = (0..400).fold(Setup::new(&lab), named).and(&TestNameServer::dns(&lab));
    // The number of concurrent lookups follows from the limit, which is the same everywhere here.
    let mut command = Command::new(tool("prlimit").unwrap());
    command.arg("--nofile=1024:1024").arg(binary().get_program());
    let balancer = BalancerProcess::start_with(&lab, &setup, command);
    // Six for each of the 10 that are looked up at once, after a while.
    let sockets = || {
        thread::sleep(Duration::from_millis(20));
        balancer.fds().sockets
    };
    let most = (0..100).map(|_| sockets()).max().unwrap();
    assert!((10..200).contains(&most), "{most} sockets");
}

fn local_addresses_of_a_name_are_refused_unless_allowed() {
    let lab = Loopback::new();
    let local = lab.server(1).ip();
    let answer = [local, [169, 254, 169, 254].into(), [192, 0, 2, 7].into()];
    let _names = TestNameServer::start_with(&lab, answer.into_iter());
    let allowed = setup(&lab, "").to_string();
    let balancer = BalancerProcess::start(&lab, &allowed.replace("allow_local = true\n", ""));
    assert_eq!(runs(&balancer), BTreeSet::from(["app/192.0.2.7".to_owned()]));
    balancer.wait_for_log(&format!(
        "{local} and 1 more are not used as servers: they belong to this host or link"
    ));
    balancer.save(&allowed);
    wait_for("all to be allowed", || (runs(&balancer).len() == 3).then_some(()));
    balancer.wait_for_log("reload: dns.allow_local false -> true");
}

fn a_name_with_a_thousand_silent_servers_leaves_descriptors_for_clients() {
    let lab = Loopback::new();
    let _served = TcpServer::named("served", lab.server(1));
    // Any address of the loopback accepts connections on this port, and sends nothing.
    let silent = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    thread::spawn(move || {
        let held: Vec<_> = silent.incoming().map_while(Result::ok).collect();
        drop(held);
    });
    let address = |n: u16| IpAddr::from([127, 255, (n >> 8) as u8, n as u8]);
    let _names = TestNameServer::start_with(&lab, (1..=1_300).map(address));
    let named = format!(
        "[frontends.many]\nlisten_addr = \"{}\"\nbackend = \"many\"\n\
         [backends.many]\nhealth_check = {{ kind = \"http\", timeout = 0.5, interval = 0.5 }}\n\
         [backends.many.servers.app]\naddr = \"{NAME}:{port}\"\n{}",
        lab.second_vip(),
        TestNameServer::dns(&lab)
    );
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&named);
    let mut command = Command::new(tool("prlimit").unwrap());
    command.arg("--nofile=1024:1024").arg(binary().get_program());
    let balancer = BalancerProcess::start_with(&lab, &setup, command);
    let addresses = balancer.stat(&format!("/names/{NAME}/addresses"));
    assert_eq!(addresses.as_array().unwrap().len(), 1_024);
    balancer.wait_for_log(&format!("name {NAME}: + {}", address(1)));
    assert!(
        balancer.log().contains(" more; the name has 1300 addresses; convey uses only 1024 of them"),
        "{}",
        balancer.log()
    );

    let down = || balancer.stat("/backends/many/servers_up").as_u64().unwrap() < 1_024;
    let mut most = 0;
    wait_for("probes to find out", || {
        most = most.max(balancer.fds().sockets);
        assert_eq!(fetch(lab.vip(), "/").unwrap().1, "served");
        (down() && balancer.log().contains("the limit of open files permits only 48 checks at the same time"))
            .then_some(())
    });
    assert!(most < 200, "{most} sockets");
    assert!(!balancer.log().contains("cannot be probed"), "{}", balancer.log());
    let lines = balancer.log().lines().filter(|line| line.contains("many/app")).count();
    assert!(lines < 50, "{lines} lines about the servers of one name\n{}", balancer.log());
}

/// Reaction of a name server to queries for AAAA records.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ForAaaa {
    Drop,
    SayNone,
}

fn excluded_addresses_of_a_name_are_logged_once_a_second() {
    let lab = Loopback::new();
    let (first, second): (Vec<u8>, Vec<u8>) = ((1..=40).collect(), (1..=80).collect());
    let names = TestNameServer::start(&lab, &first);
    let listen: Vec<SocketAddr> = second.iter().map(|n| lab.server(*n)).chain([lab.vip()]).collect();
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "").listen(&listen));
    let left_out = || -> Vec<String> {
        balancer.log().lines().filter(|line| line.contains(" not used: ")).map(str::to_owned).collect()
    };
    balancer.wait_for_log("and 39 more addresses of pool/app are not used");
    names.answer(&second);
    wait_for("the new addresses to be told of", || (left_out().len() > 1).then_some(()));
    assert_eq!(left_out().len(), 2, "{:#?}", left_out());
}

fn srv_name_has_a_server_for_each_address_and_port() {
    let lab = Loopback::new();
    let names = TestNameServer::start(&lab, &[1, 2]);
    let at = |n: u8, port: u16| SocketAddr::new(lab.server(n).ip(), port);
    let expected = |addresses: &[SocketAddr]| -> BTreeSet<String> {
        addresses.iter().map(|addr| format!("app/{addr}")).collect()
    };
    let _servers = [("a", at(1, 8000)), ("b", at(2, 8001))].map(|(name, addr)| TcpServer::named(name, addr));
    let setup = Setup::new(&lab).server("app", SERVICE, "weight = 3").and(&TestNameServer::dns(&lab));
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(runs(&balancer), expected(&[at(1, 8000), at(1, 8001), at(2, 8000), at(2, 8001)]));
    let shown = balancer.stat(&format!("/names/{SERVICE}/addresses"));
    assert_eq!(shown[0].as_str(), Some(&*at(1, 8000).to_string()), "{shown}");
    let asked: BTreeSet<String> = (0..8).map(|_| fetch(lab.vip(), "/").unwrap().1).collect();
    assert_eq!(
        asked,
        BTreeSet::from(["a".to_owned(), "b".to_owned()]),
        "a client whose connect fails goes on"
    );

    names.answer(&[2]);
    let left = expected(&[at(2, 8000), at(2, 8001)]);
    wait_for("the answer to be followed", || (runs(&balancer) == left).then_some(()));
    balancer.wait_for_log(&format!("name {SERVICE}: - {}, - {}", at(1, 8000), at(1, 8001)));
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "b");
}

fn a_name_may_have_underscores() {
    let lab = Loopback::new();
    answer_for_a(TestNameServer::addr(&lab), lab.server(1).ip(), ForAaaa::SayNone);
    let setup =
        Setup::new(&lab).server("app", "my_app_1.convey.test:8000", "").and(&TestNameServer::dns(&lab));
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(runs(&balancer), servers(&lab, &[1]));
}

fn name_servers_of_the_system_are_followed_when_they_change() {
    let lab = Loopback::new();
    let [dead, other] = [54, 55].map(|host| SocketAddr::new(lab.ip(host), 53));
    answer_for_a(other, lab.server(1).ip(), ForAaaa::SayNone);
    let file = lab.directory().join("resolv.conf");
    fs::write(&file, format!("nameserver {}\n", dead.ip())).unwrap();
    let script = "mount --bind resolv.conf /etc/resolv.conf && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", script]).arg(binary().get_program());
    let setup = Setup::new(&lab).server("app", format!("{NAME}:8000"), "").and("[dns]\nallow_local = true\n");
    let balancer = BalancerProcess::start_with(&lab, &setup, command);
    balancer.wait_for_log(&format!("name {NAME} cannot be resolved: {}", dead.ip()));
    fs::write(&file, format!("nameserver {}\n", other.ip())).unwrap();
    balancer.wait_for_log(&format!("name {NAME} is resolved again: {}", lab.server(1).ip()));
}

/// A name server that answers queries for A records with this address, and a TTL of a day.
pub(crate) fn answer_for_a(at: SocketAddr, address: IpAddr, for_aaaa: ForAaaa) {
    let IpAddr::V4(address) = address else { panic!("{address} is no address of an A record") };
    let socket = UdpSocket::bind(at).unwrap();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((_, client)) = socket.recv_from(&mut question) {
            // A header of 12 bytes, a name that ends in 0, type and class.
            let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_for_a = question[end - 4..end - 2] == [0, 1];
            let header = |records| [&question[..2], &[0x81, 0x80, 0, 1, 0, records, 0, 0, 0, 0]].concat();
            let answer = if is_for_a {
                let record = [0xc0, 12, 0, 1, 0, 1, 0, 1, 0x51, 0x80, 0, 4];
                [&header(1), &question[12..end], &record, &address.octets()].concat()
            } else if for_aaaa == ForAaaa::SayNone {
                [&header(0), &question[12..end]].concat()
            } else {
                continue;
            };
            socket.send_to(&answer, client).unwrap();
        }
    });
}

/// A server [`NAME`], looked up at the lab's name server.
fn setup(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).server("app", format!("{NAME}:8000"), lines).and(&TestNameServer::dns(lab))
}

/// Names of the servers in the running pool.
fn runs(balancer: &BalancerProcess) -> BTreeSet<String> {
    balancer.stats()["backends"]["pool"]["servers"].as_object().unwrap().keys().cloned().collect()
}

/// Names of the servers of [`NAME`].
fn servers(lab: &Loopback, numbers: &[u8]) -> BTreeSet<String> {
    let ip = |n: &u8| -> IpAddr { lab.server(*n).ip() };
    numbers.iter().map(|n| format!("app/{}", ip(n))).collect()
}
