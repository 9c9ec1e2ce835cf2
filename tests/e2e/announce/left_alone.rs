//! Addresses that are left behind, and their owners.

use std::process::Command;

use convey_testkit::{BalancerProcess, Loopback, Process, TcpServer, binary, in_namespace, run, wait_for};

use super::{VIP, announcing, has, wait_until};

pub(super) fn announced_address_stays_if_its_new_interface_is_missing() {
    const NAME: &str = "announce::announced_address_stays_if_its_new_interface_is_missing";
    in_namespace(NAME, "", || {
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

/// Starts a balancer that announces the address, and ends it by SIGKILL.
fn leave_the_address_behind() -> Loopback {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
    wait_until("lo", VIP, true);
    drop(balancer);
    lab
}

/// A process that binds the announcement's socket name, between these lines of Python.
fn name_owner(before: &str, after: &str) -> Process {
    let program = format!(
        "import ctypes, os, socket, threading, time\n{before}\n\
         s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.bind('\\0convey announces {VIP} #1')\n{after}"
    );
    Process::spawn(Command::new("python3").args(["-c", &program]))
}

/// A service runs as a user of its own, while an operator clears as root.
pub(super) fn address_announced_by_another_user_is_not_cleared() {
    in_namespace("announce::address_announced_by_another_user_is_not_cleared", "", || {
        let _lab = leave_the_address_behind();
        let owner = name_owner("os.setuid(65534)", "time.sleep(60)");
        let names = || std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        wait_for("the name of nobody's process", || names().contains("@convey announces").then_some(()));
        let clear = || run(binary().args(["clear", "--addresses"])).stdout;
        let said = clear();
        assert!(said.contains("no announced address") && has("lo", VIP), "{said}");
        let stays = format!("the address {VIP} stays on lo: python3 (process {}) announces it", owner.id());
        assert!(said.contains(&stays), "{said}");
        drop(owner);
        wait_for("nobody's process to end", || (!names().contains("@convey announces")).then_some(()));
        assert!(clear().contains(&format!("removed the address {VIP}")));
    });
}

/// The kernel closes a killed process's sockets only when its memory is freed; some threads may
/// outlast the first one.
pub(super) fn clear_waits_for_a_process_that_is_ending() {
    in_namespace("announce::clear_waits_for_a_process_that_is_ending", "", || {
        let lab = leave_the_address_behind();
        let ends =
            "threading.Thread(target=time.sleep, args=[60]).start()\nctypes.CDLL(None).pthread_exit(None)";
        let owner = name_owner("", ends);
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", owner.id())).unwrap_or_default();
        wait_for("the first thread to end", || stat().contains(") Z ").then_some(()));
        let said = lab.directory().join("clear");
        let output = std::fs::File::create(&said).unwrap();
        let mut clear = Process::spawn(
            binary().args(["clear", "--addresses"]).stdout(output.try_clone().unwrap()).stderr(output),
        );
        let said = || std::fs::read_to_string(&said).unwrap();
        wait_for("clear to wait", || said().contains("waiting for the end of").then_some(()));
        drop(owner);
        assert_eq!(clear.wait().code(), Some(0), "{}", said());
        assert!(said().contains(&format!("removed the address {VIP}")) && !has("lo", VIP), "{}", said());
    });
}
