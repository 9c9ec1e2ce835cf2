//! keepalived has the address while convey can serve.

use std::fs;
use std::process::Command;

use convey_testkit::{BalancerProcess, Loopback, Process, Setup, TcpServer, in_namespace};

use super::router::shipped;
use super::wait_until;

/// What the shipped file calls the address and the interface.
const VIP: &str = "198.51.100.1";
const INTERFACE: &str = "eth0";

pub(super) fn keepalived_has_the_address_while_a_server_is_up() {
    const SET_UP: &str = "ip link add eth0 type veth peer name other\nip addr add 192.0.2.2/24 dev eth0\n\
                          ip link set eth0 up\nip link set other up";
    in_namespace("announce::keepalived_has_the_address_while_a_server_is_up", SET_UP, || {
        let lab = Loopback::new();
        let server = TcpServer::named("a", lab.server(1));
        let setup = Setup::new(&lab)
            .listen(&[format!("{VIP}:8080").parse().unwrap()])
            .health("interval = 0.05\nfall = 1\nrise = 1")
            .server("a", lab.server(1), "");
        // The shipped file asks at the default address.
        let text = setup.to_string();
        let text = text.replace(
            &format!("[stats]\nlisten_addr = \"{}\"", lab.stats().ip()),
            "[stats]\nlisten_addr = \"127.0.0.1\"",
        );
        assert!(text.contains("listen_addr = \"127.0.0.1\"") && lab.stats().port() == 7000, "{text}");
        let _balancer = BalancerProcess::start(&lab, &text);

        let mut command = Command::new("keepalived");
        command.args(["--dont-fork", "--log-console", "--use-file"]).arg(shipped("keepalived"));
        for (option, name) in [("--pid", "parent"), ("--vrrp_pid", "vrrp"), ("--checkers_pid", "checkers")] {
            command.arg(option).arg(lab.directory().join(name));
        }
        let log = fs::File::create(lab.directory().join("keepalived.log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut keepalived = Process::spawn(&mut command);
        wait_until(INTERFACE, VIP, true);
        drop(server);
        wait_until(INTERFACE, VIP, false);
        let _server = TcpServer::named("a", lab.server(1));
        wait_until(INTERFACE, VIP, true);
        keepalived.signal(rustix::process::Signal::TERM);
        assert!(keepalived.wait().success());
        wait_until(INTERFACE, VIP, false);
    });
}
