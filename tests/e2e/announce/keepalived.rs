//! Failover by keepalived: the address is on one of two hosts, whose convey can serve.

use std::fs;
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Process, Setup, TcpServer, TestNamespace, binary, in_namespace, wait_for,
};
use rustix::process::Signal;

use super::router::shipped;
use super::{has, ip, wait_until};

/// Address, interface and priority in the shipped file.
const VIP: &str = "198.51.100.1";
const INTERFACE: &str = "eth0";
const PRIORITY: &str = "priority 150";

/// Setup of the first host in a test.
const SET_UP: &str = "ip link add eth0 type veth peer name other\nip addr add 192.0.2.2/24 dev eth0\n\
                      ip link set eth0 up\nip link set other up";

pub(super) fn keepalived_has_the_address_while_a_server_is_up() {
    in_namespace("announce::keepalived_has_the_address_while_a_server_is_up", SET_UP, || {
        let lab = Loopback::new();
        let server = TcpServer::named("a", lab.server(1));
        let _balancer = BalancerProcess::start(&lab, &config(&lab));
        let mut keepalived = keepalived(Command::new("keepalived"), &lab, PRIORITY);
        wait_until(INTERFACE, VIP, true);
        drop(server);
        wait_until(INTERFACE, VIP, false);
        let _server = TcpServer::named("a", lab.server(1));
        wait_until(INTERFACE, VIP, true);
        keepalived.signal(Signal::TERM);
        assert!(keepalived.wait().success());
        wait_until(INTERFACE, VIP, false);
    });
}

pub(super) fn keepalived_moves_the_address_to_the_host_that_serves() {
    in_namespace("announce::keepalived_moves_the_address_to_the_host_that_serves", "", || {
        let namespace = TestNamespace::new();
        ip(&format!("link add eth0 type veth peer name eth0 netns {}", namespace.name()));
        ip("addr add 192.0.2.2/24 dev eth0");
        ip("link set eth0 up");
        namespace.ip("addr add 192.0.2.3/24 dev eth0");
        namespace.ip("link set eth0 up");
        let (lab, of_second) = (Loopback::new(), Loopback::new());
        let server = TcpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &config(&lab));
        let _keepalived = keepalived(Command::new("keepalived"), &lab, PRIORITY);
        let _balancer = BalancerProcess::start_with(
            &of_second,
            &config(&of_second),
            namespace.command(binary().get_program()),
        );
        let _keepalived = keepalived(namespace.command("keepalived"), &of_second, "priority 100");
        let server_of_second = namespace.enter(|| TcpServer::named("a", of_second.server(1)));
        let second = SecondHost { namespace: &namespace, server: Some(server_of_second) };
        let is_on = |what: &str, first: bool| {
            wait_for(what, || {
                let on_second = second.namespace.ip("addr show dev eth0").contains(&format!("inet {VIP}/"));
                (has(INTERFACE, VIP) == first && on_second != first).then_some(())
            });
        };
        is_on("the first host to have it", true);
        drop(server);
        is_on("the second host to have it, for the first has no server", false);
        let _server = TcpServer::named("a", lab.server(1));
        is_on("the first host to have it again", true);
        balancer.signal(Signal::KILL);
        is_on("the second host to have it, for the first has no convey", false);
    });
}

/// A server in another namespace. To end it takes a connection, which has to be made there.
struct SecondHost<'a> {
    namespace: &'a TestNamespace,
    server: Option<TcpServer>,
}

impl Drop for SecondHost<'_> {
    fn drop(&mut self) {
        let server = self.server.take();
        self.namespace.enter(|| drop(server));
    }
}

/// Configuration with the first server, and with statistics on the port that the shipped file
/// checks.
fn config(lab: &Loopback) -> String {
    let setup = Setup::new(lab)
        .listen(&[format!("{VIP}:8080").parse().unwrap()])
        .health("interval = 0.05\nfall = 1\nrise = 1")
        .server("a", lab.server(1), "");
    let text = setup.to_string();
    let text = text.replace(
        &format!("[stats]\nlisten_addr = \"{}\"", lab.stats().ip()),
        "[stats]\nlisten_addr = \"127.0.0.1\"",
    );
    assert!(text.contains("listen_addr = \"127.0.0.1\"") && lab.stats().port() == 7000, "{text}");
    text
}

/// keepalived with the shipped file, and this text in place of its priority.
fn keepalived(mut command: Command, lab: &Loopback, priority: &str) -> Process {
    let text = fs::read_to_string(shipped("keepalived")).unwrap();
    assert!(text.contains(PRIORITY));
    let file = lab.directory().join("keepalived.conf");
    fs::write(&file, text.replace(PRIORITY, priority)).unwrap();
    command.args(["--dont-fork", "--log-console", "--use-file"]).arg(file);
    for (option, name) in [("--pid", "parent"), ("--vrrp_pid", "vrrp"), ("--checkers_pid", "checkers")] {
        command.arg(option).arg(lab.directory().join(name));
    }
    let log = fs::File::create(lab.directory().join("keepalived.log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    Process::spawn(&mut command)
}
