//! Addresses that stay where they are, and whose.

use std::process::Command;

use convey_testkit::{BalancerProcess, Loopback, Process, TcpServer, binary, in_namespace, run, wait_for};

use super::{VIP, announcing, has, wait_until};

pub(super) fn while_the_interface_is_missing_an_address_is_where_it_was_as_long_as_it_can_serve() {
    const STORY: &str =
        "announce::while_the_interface_is_missing_an_address_is_where_it_was_as_long_as_it_can_serve";
    in_namespace(STORY, "", || {
        let lab = Loopback::new();
        let server = TcpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
        balancer.save(&announcing(&lab, VIP, "interface = 'nowhere'"));
        balancer.wait_for_log("there is no interface nowhere");
        assert!(has("lo", VIP), "a slip of the pen takes the balancer off the network");
        drop(server);
        wait_until("lo", VIP, false);
        let _server = TcpServer::named("a", lab.server(1));
        balancer.wait_for_log("server pool/a");
        balancer.save(&announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
    });
}

/// A service runs as a user of its own; whoever clears up is root.
pub(super) fn what_another_users_convey_announces_is_not_cleared() {
    in_namespace("announce::what_another_users_convey_announces_is_not_cleared", "", || {
        let lab = Loopback::new();
        let server = TcpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
        // Ended by SIGKILL.
        drop((balancer, server));
        let program = format!(
            "import os, socket, time\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
             s.bind('\\0convey announces {VIP} #1')\ntime.sleep(60)"
        );
        let owner = Process::spawn(Command::new("python3").args(["-c", &program]));
        let names = || std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        wait_for("the name of nobody's process", || names().contains("@convey announces").then_some(()));
        let clear = || run(binary().args(["clear", "--addresses"])).stdout;
        let said = clear();
        assert!(said.contains("no address is left") && has("lo", VIP), "{said}");
        drop(owner);
        wait_for("nobody's process to end", || (!names().contains("@convey announces")).then_some(()));
        assert!(clear().contains(&format!("removed the address {VIP}")));
    });
}
