//! Servers that lead back to convey.

use std::fs;
use std::net::{SocketAddr, UdpSocket};

use convey_testkit::{
    BalancerProcess, Loopback, NAME, Need, Ran, Setup, TcpServer, TestNameServer, binary, fetch,
    in_namespace, is_refused_with_reset, run, tests, wait_for,
};

tests!("loops":
    check_start_and_reload_refuse_frontends_that_are_servers_of_each_other,
    name_that_resolves_to_a_looping_frontend_is_excluded [Need::DNSMASQ],
    an_address_of_this_host_behind_a_wildcard_is_refused [Need::NFT, Need::Namespaces],
    a_connection_that_comes_back_by_a_way_nobody_sees_is_reset [Need::NFT, Need::Namespaces],
    connection_to_an_address_local_by_route_is_reset [Need::NFT, Need::Namespaces],
    a_datagram_that_comes_back_by_a_way_nobody_sees_is_dropped [Need::NFT, Need::Namespaces],
);

/// A second frontend, whose only server is at `server`.
fn back(lab: &Loopback, server: SocketAddr) -> String {
    format!(
        "[frontends.back]\nlisten_addr = \"{}\"\nbackend = \"back\"\n\
         [backends.back]\nhealth_check.kind = \"none\"\nservers.b.addr = \"{server}\"\n",
        lab.second_vip()
    )
}

fn check_start_and_reload_refuse_frontends_that_are_servers_of_each_other() {
    let lab = Loopback::new();
    let _server = TcpServer::named("b", lab.server(1));
    let chain = |last| Setup::new(&lab).server("a", lab.second_vip(), "").and(&back(&lab, last));
    let circle = chain(lab.vip());
    let message =
        format!("{} would send connections back to frontend \"web\": web -> back -> web", lab.second_vip());
    let back_told =
        format!("{} would send connections back to frontend \"back\": back -> web -> back", lab.vip());
    let is_told = |text: &str| text.contains(&message) || text.contains(&back_told);

    let checked = check(&lab, &circle);
    assert!(checked.code == Some(1) && is_told(&checked.stderr), "{checked:?}");
    let file = lab.directory().join("circle.toml");
    let started = run(binary().arg("--config").arg(&file));
    assert!(started.code == Some(1) && is_told(&started.stderr), "{started:?}");

    let balancer = BalancerProcess::start(&lab, &chain(lab.server(1)));
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()), "a chain is right");
    balancer.save(&circle);
    balancer.wait_for_log("the running configuration stays");
    assert!(is_told(&balancer.log()), "{}", balancer.log());
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
}

fn name_that_resolves_to_a_looping_frontend_is_excluded() {
    let lab = Loopback::new();
    // Servers of the name server are at 8000, as the second frontend here.
    let second = lab.server(1);
    let tables = back(&lab, lab.vip()).replace(&lab.second_vip().to_string(), &second.to_string());
    let setup = Setup::new(&lab).server("app", format!("{NAME}:8000"), "").and(&tables);
    let setup = setup.and(&TestNameServer::dns(&lab));
    let _b = TcpServer::named("b", lab.server(2));
    let names = TestNameServer::start(&lab, &[1]);
    let message = format!(
        "server pool/app/{} is not used: {second} would send connections back to frontend",
        second.ip()
    );
    assert!(check(&lab, &setup).stderr.contains(&format!("warning: {message}")));
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_log(&message);
    assert!(is_refused_with_reset(lab.vip()));

    names.answer(&[1, 2]);
    balancer.wait_for_log("backend pool serves again");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    assert_eq!(fetch(second, "/").unwrap(), (200, "b".to_owned()), "a chain is right");
}

const OWN: &str = "ip addr add 10.9.9.1/24 dev lo";

fn an_address_of_this_host_behind_a_wildcard_is_refused() {
    in_namespace("loops::an_address_of_this_host_behind_a_wildcard_is_refused", OWN, || {
        let lab = Loopback::new();
        let checked = check(&lab, &wildcard(&lab, "10.9.9.1:8080"));
        let message =
            "10.9.9.1:8080 would send connections back to frontend \"web\", which listens on 0.0.0.0:8080";
        assert!(checked.code == Some(1) && checked.stderr.contains(message), "{checked:?}");
        assert_eq!(check(&lab, &wildcard(&lab, "10.9.9.1:8081")).code, Some(0));
        assert_eq!(check(&lab, &wildcard(&lab, "10.9.9.2:8080")).code, Some(0));
    });
}

/// Sends packets to a server at 192.0.2.1 back to this host.
const NAT: &str = "ip addr add 10.9.9.1/24 dev lo
    ip route add 192.0.2.0/24 dev lo
    nft add table ip nat
    nft add chain ip nat output '{ type nat hook output priority -100; }'
    nft add rule ip nat output ip daddr 192.0.2.1 dnat to 10.9.9.1";

fn a_connection_that_comes_back_by_a_way_nobody_sees_is_reset() {
    in_namespace("loops::a_connection_that_comes_back_by_a_way_nobody_sees_is_reset", NAT, || {
        const CLIENTS: usize = 3;
        let lab = Loopback::new();
        let balancer = BalancerProcess::start(&lab, &wildcard(&lab, "192.0.2.1:8080"));
        let base = balancer.fds_at_rest().sockets;
        for _ in 0..CLIENTS {
            assert!(is_refused_with_reset("10.9.9.1:8080".parse().unwrap()));
        }
        balancer.wait_for_log("convey resets a connection that it opened itself");
        let ended = balancer.stat("/frontends/web/ended/loop").as_u64().unwrap();
        assert!(ended >= CLIENTS as u64, "{ended}");
        // The first meets one more of ours before they are remembered.
        let total = balancer.stat("/frontends/web/total_connections").as_u64().unwrap();
        assert!(total <= 2 * CLIENTS as u64, "{total} connections for {CLIENTS} clients");
        wait_for("the descriptors to be given back", || (balancer.fds().sockets == base).then_some(()));
    });
}

const ROUTE: &str = "ip addr add 10.9.9.1/24 dev lo
    ip route add local 192.0.2.0/24 dev lo";

fn connection_to_an_address_local_by_route_is_reset() {
    in_namespace("loops::connection_to_an_address_local_by_route_is_reset", ROUTE, || {
        let lab = Loopback::new();
        let trusting = wildcard(&lab, "192.0.2.1:8080").frontend("trusted_clients = [\"192.0.2.0/24\"]");
        let balancer = BalancerProcess::start(&lab, &trusting);
        let base = balancer.fds_at_rest().sockets;
        (0..3).for_each(|_| assert!(is_refused_with_reset("10.9.9.1:8080".parse().unwrap())));
        let total = balancer.stat("/frontends/web/total_connections").as_u64().unwrap();
        assert!(total <= 9, "{total} connections for 3 clients");
        wait_for("the descriptors to be given back", || (balancer.fds().sockets == base).then_some(()));
    });
}

fn a_datagram_that_comes_back_by_a_way_nobody_sees_is_dropped() {
    in_namespace("loops::a_datagram_that_comes_back_by_a_way_nobody_sees_is_dropped", NAT, || {
        let lab = Loopback::new();
        let balancer =
            BalancerProcess::start(&lab, &wildcard(&lab, "192.0.2.1:8080").frontend("protocol = \"udp\""));
        let clients = [(); 3].map(|()| UdpSocket::bind("10.9.9.1:0").unwrap());
        for client in &clients {
            client.send_to(b"!", "10.9.9.1:8080").unwrap();
        }
        wait_for("each to come back once", || {
            (balancer.stat("/frontends/web/drops/loop").as_u64().unwrap() >= 3).then_some(())
        });
        let sessions = balancer.stat("/frontends/web/total_connections").as_u64().unwrap();
        assert!(sessions <= 6, "{sessions} sessions of 3 clients");
    });
}

/// A frontend on every address whose only server is at `server`.
fn wildcard(lab: &Loopback, server: &str) -> Setup {
    Setup::new(lab).listen(&["0.0.0.0:8080".parse().unwrap()]).server("a", server, "")
}

fn check(lab: &Loopback, setup: &Setup) -> Ran {
    let file = lab.directory().join("circle.toml");
    fs::write(&file, setup.to_string()).unwrap();
    run(binary().args(["check", "--config"]).arg(file))
}
