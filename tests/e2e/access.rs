//! Access lists, by client address.

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, UdpServer, connect_from, is_refused_with_reset_from, ping,
    tests, wait_for, was_reset,
};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

use crate::proxy_protocol::{PROXY, datagram, line, open, trusting};
use crate::shares::{is_answered_eventually, udp_client};

tests!("access":
    denied_client_is_reset_and_takes_no_slot_or_server,
    saved_list_of_100_000_networks_ends_connections_of_denied_clients_only,
    waiting_client_is_reset_when_a_reload_denies_it,
    a_list_with_a_mistake_changes_nothing_and_its_line_is_told,
    datagrams_of_who_is_denied_begin_no_session_and_end_one,
    access_lists_and_limits_apply_to_the_proxy_header_address,
    datagrams_behind_a_proxy_are_admitted_by_their_header_address,
);

fn denied_client_is_reset_and_takes_no_slot_or_server() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = of(&lab, &format!("allow = [\"{}\"]", lab.ip(50)));
    let balancer = BalancerProcess::start(&lab, &setup.frontend("max_connections = 1"));
    assert!((0..5).all(|_| is_refused_with_reset_from(lab.ip(66), lab.vip())));
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 5);
    assert_eq!((balancer.given_to("a"), balancer.stat("/frontends/web/total_connections")), (0, 0.into()));
    let mut let_in = connect_from(lab.ip(50), lab.vip()).unwrap();
    ping(&mut let_in).unwrap();
    // Also while other clients fill the frontend.
    assert!(is_refused_with_reset_from(lab.ip(66), lab.vip()));
    ping(&mut let_in).unwrap();
}

fn saved_list_of_100_000_networks_ends_connections_of_denied_clients_only() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let list = |last: &str| {
        let mut text = "# as some publish them\n".to_owned();
        (0..100_000_u32).for_each(|n| {
            writeln!(text, "11.{}.{}.{}/31 ; SBL{n}", n >> 15, (n >> 7) & 255, (2 * n) & 255).unwrap()
        });
        fs::write(lab.directory().join("blocked.txt"), text + last).unwrap();
    };
    list("");
    let balancer = BalancerProcess::start(&lab, &of(&lab, "deny = \"@blocked.txt\""));
    let mut held = [50, 66].map(|host| connect_from(lab.ip(host), lab.vip()).unwrap());
    held.iter_mut().for_each(|client| ping(client).unwrap());
    list(&format!("{} # found out\n", lab.ip(66)));
    let [mut let_in, mut denied] = held;
    assert!(was_reset(&mut denied));
    balancer.wait_for_log("reload: frontend web: access networks: 1 added and 0 removed");
    assert_eq!(balancer.stat("/frontends/web/ended/access_denied"), 1);
    assert!(is_refused_with_reset_from(lab.ip(66), lab.vip()));
    ping(&mut let_in).unwrap();
    // An empty list denies no client. convey logs that, for it may be a mistake.
    fs::write(lab.directory().join("blocked.txt"), "# nobody\n").unwrap();
    balancer.wait_for_log("blocked.txt contains no networks now; before this reload, it contained 100001");
    wait_for("it to be let in again", || ping(&mut connect_from(lab.ip(66), lab.vip()).ok()?).ok());
}

fn waiting_client_is_reset_when_a_reload_denies_it() {
    for (of_frontend, of_server, queue) in [
        ("max_connections = 1", "", "/frontends/web/waiting_connections"),
        ("", "max_connections = 1", "/backends/pool/waiting_connections"),
    ] {
        let lab = Loopback::new();
        let _server = TcpServer::echo(lab.server(1));
        let setup = |deny: &str| {
            let access = format!("[frontends.web.access]\n{deny}\n");
            Setup::new(&lab).server("a", lab.server(1), of_server).frontend(of_frontend).and(&access)
        };
        let balancer = BalancerProcess::start(&lab, &setup(""));
        let mut held = connect_from(lab.ip(50), lab.vip()).unwrap();
        ping(&mut held).unwrap();
        let mut waiting = connect_from(lab.ip(66), lab.vip()).unwrap();
        balancer.wait_for_stat(queue, 1);
        balancer.save(&setup(&format!("deny = \"{}\"", lab.ip(66))));
        assert!(was_reset(&mut waiting));
        balancer.wait_for_stat("/frontends/web/ended/access_denied", 1);
        balancer.wait_for_stat(queue, 0);
        ping(&mut held).unwrap();
    }
}

fn a_list_with_a_mistake_changes_nothing_and_its_line_is_told() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let list = lab.directory().join("office.txt");
    fs::write(&list, lab.ip(50).to_string()).unwrap();
    let balancer = BalancerProcess::start(&lab, &of(&lab, "allow = [\"@office.txt\"]"));
    fs::write(&list, format!("{}\n10.0.0.1/8\n", lab.ip(66))).unwrap();
    balancer.wait_for_log(
        "office.txt:2:1: frontends.web.access.allow: the line is not a network; allowed: a network",
    );
    balancer.wait_for_log("config.toml not reloaded: the running configuration stays");
    ping(&mut connect_from(lab.ip(50), lab.vip()).unwrap()).unwrap();
    assert!(is_refused_with_reset_from(lab.ip(66), lab.vip()));
    // Once the list is fixed, convey reads it again by itself.
    fs::write(&list, format!("{}\n10.0.0.0/8\n", lab.ip(66))).unwrap();
    wait_for("the list to be read again", || ping(&mut connect_from(lab.ip(66), lab.vip()).ok()?).ok());
}

fn datagrams_of_who_is_denied_begin_no_session_and_end_one() {
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = |access: &str| of(&lab, access).frontend("protocol = \"udp\"");
    let balancer = BalancerProcess::start(&lab, &setup(""));
    let [denied, let_in] = [66, 50].map(|host| udp_client(lab.ip(host), lab.vip()));
    assert!(is_answered_eventually(&denied) && is_answered_eventually(&let_in));
    balancer.save(&setup(&format!("deny = \"{}\"", lab.ip(66))));
    balancer.wait_for_stat("/frontends/web/ended/access_denied", 1);
    denied.send(b"!").unwrap();
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 1);
    balancer.wait_for_stat("/frontends/web/current_connections", 1);
    assert!(is_answered_eventually(&let_in));
}

fn access_lists_and_limits_apply_to_the_proxy_header_address() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    // The proxy itself is in no list.
    let setup = |deny: &str| {
        of(&lab, &format!("allow = [\"198.51.100.0/24\"]\ndeny = [{deny}]"))
            .frontend(&trusting(&lab, ""))
            .and("[frontends.web.limits]\nconnections_per_source = 1\n")
    };
    let balancer = BalancerProcess::start(&lab, &setup("\"198.51.100.6\""));
    assert!(was_reset(&mut open(&lab, line(6, 1000).as_bytes())));
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 1);
    let mut held = [7, 8].map(|client| open(&lab, line(client, 1000).as_bytes()));
    held.iter_mut().for_each(|stream| ping(stream).unwrap());
    assert!(was_reset(&mut open(&lab, line(7, 2000).as_bytes())));
    balancer.wait_for_stat("/frontends/web/refused/source_connections", 1);
    // A connection whose PROXY header is incomplete, so that its client is not known yet.
    let mut unnamed = open(&lab, &line(7, 3000).as_bytes()[..9]);
    balancer.wait_for_stat("/frontends/web/current_connections", 3);
    balancer.save(&setup("\"198.51.100.6\", \"198.51.100.7\""));
    let [mut denied, mut let_in] = held;
    assert!(was_reset(&mut denied));
    balancer.wait_for_stat("/frontends/web/ended/access_denied", 1);
    unnamed.write_all(&line(7, 3000).as_bytes()[9..]).unwrap();
    assert!(was_reset(&mut unnamed));
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 2);
    ping(&mut let_in).unwrap();
}

fn datagrams_behind_a_proxy_are_admitted_by_their_header_address() {
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = of(&lab, "deny = \"198.51.100.6\"").frontend(&trusting(&lab, "protocol = \"udp\""));
    let balancer = BalancerProcess::start(&lab, &setup);
    let proxy = udp_client(lab.ip(PROXY), lab.vip());
    let of_client =
        |n: u8| datagram(([198, 51, 100, n], 1_000).into(), "203.0.113.1:53".parse().unwrap(), "?");
    proxy.send(&of_client(6)).unwrap();
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 1);
    proxy.send(&of_client(7)).unwrap();
    let mut heard = [0; 9];
    assert_eq!(proxy.recv(&mut heard).unwrap(), 1, "nothing has come of the other");
    balancer.wait_for_stat("/frontends/web/current_connections", 1);
}

fn of(lab: &Loopback, access: &str) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "").and(&format!("[frontends.web.access]\n{access}\n"))
}
