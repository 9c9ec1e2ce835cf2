//! Addresses that convey puts on an interface while it can serve.

mod bird;
mod frr;
mod keepalived;
mod left_alone;
mod router;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Process, Ran, Setup, TcpServer, binary, fetch, in_namespace, run, tests,
    wait_for,
};
use rustix::process::Signal;

use self::bird::a_router_sends_clients_here_while_a_server_is_up;
use self::frr::{FRR, a_router_hears_of_addresses_from_frr};
use self::keepalived::{
    keepalived_has_the_address_while_a_server_is_up, keepalived_moves_the_address_to_the_host_that_serves,
};
use self::left_alone::{
    address_announced_by_another_user_is_not_cleared,
    announced_address_stays_if_its_new_interface_is_missing, clear_waits_for_a_process_that_is_ending,
};

tests!("announce":
    an_address_comes_with_the_first_server_and_goes_with_the_last [Need::Namespaces, MARKS],
    command_that_withdraws_an_address_asks_for_force [Need::Namespaces, MARKS],
    an_address_goes_when_convey_begins_to_drain [Need::Namespaces, MARKS],
    an_address_of_somebody_else_stays_as_it_is [Need::Namespaces, MARKS],
    announced_addresses_of_a_killed_process_are_taken_over [Need::Namespaces, MARKS],
    an_upgrade_takes_no_address_away [Need::Namespaces, MARKS],
    upgrade_keeps_the_damping_of_an_address [Need::Namespaces, MARKS],
    a_reload_announces_elsewhere_or_no_longer [Need::Namespaces, MARKS],
    announced_address_stays_if_its_new_interface_is_missing
        [Need::Namespaces, MARKS],
    address_announced_by_another_user_is_not_cleared
        [Need::Namespaces, MARKS, Need::PYTHON],
    clear_waits_for_a_process_that_is_ending [Need::Namespaces, MARKS, Need::PYTHON],
    a_router_sends_clients_here_while_a_server_is_up
        [Need::Namespaces, MARKS, Need::CURL, Need::Tool("bird", "bird2")],
    a_router_hears_of_addresses_from_frr
        [Need::Namespaces, MARKS, Need::CURL, FRR, Need::Tool("bird", "bird2")],
    keepalived_has_the_address_while_a_server_is_up
        [Need::Namespaces, Need::CURL, Need::Tool("keepalived", "keepalived")],
    keepalived_moves_the_address_to_the_host_that_serves
        [Need::Namespaces, Need::CURL, Need::Tool("keepalived", "keepalived")],
);

const MARKS: Need = Need::Kernel(5, 18, "marks of addresses");

const VIP: &str = "10.9.9.1";

/// A frontend at this address whose server is probed frequently, with further lines of
/// `[announce]`.
fn announcing(lab: &Loopback, vip: &str, lines: &str) -> Setup {
    Setup::new(lab)
        .listen(&[format!("{vip}:8080").parse().unwrap()])
        .health("interval = 0.05\nfall = 1\nrise = 1")
        .server("a", lab.server(1), "")
        .and(&format!("[announce]\nhold = 0.2\n{lines}"))
}

fn ip(line: &str) -> String {
    let Ran { code, stdout, stderr, .. } = run(Command::new("ip").args(line.split(' ')));
    assert_eq!(code, Some(0), "ip {line}: {stderr}");
    stdout
}

/// Whether an interface has the address.
fn has(interface: &str, vip: &str) -> bool {
    ip(&format!("-o addr show dev {interface}")).contains(&format!("inet {vip}/"))
}

fn wait_until(interface: &str, vip: &str, expected: bool) {
    wait_for(&format!("{vip} on {interface}: {expected}"), || {
        (has(interface, vip) == expected).then_some(())
    });
}

fn web() -> std::net::SocketAddr {
    format!("{VIP}:8080").parse().unwrap()
}

fn an_address_comes_with_the_first_server_and_goes_with_the_last() {
    in_namespace("announce::an_address_comes_with_the_first_server_and_goes_with_the_last", "", || {
        let lab = Loopback::new();
        let mut balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        let pointer = format!("/announced/{VIP}/announced");
        balancer.wait_for_stat(&pointer, false);
        assert!(!has("lo", VIP));
        assert!(!balancer.log().contains("no interface has"), "{}", balancer.log());
        let server = TcpServer::named("a", lab.server(1));
        wait_until("lo", VIP, true);
        assert_eq!(fetch(web(), "/").unwrap(), (200, "a".to_owned()));
        balancer.wait_for_stat(&pointer, true);
        let status = run(balancer.command().arg("status"));
        assert!(status.stdout.contains(&format!("{VIP}  lo  yes")), "{}", status.stdout);
        drop(server);
        wait_until("lo", VIP, false);
        balancer.wait_for_log(
            "no server of backend pool can be chosen (1 of 1 are down); convey announces it again",
        );
        let metrics = balancer.page("/metrics").1;
        let labels = format!("{{address=\"{VIP}\",interface=\"lo\"}}");
        for line in
            [format!("convey_announced{labels} 0"), format!("convey_announce_withdrawals_total{labels} 1")]
        {
            assert!(metrics.contains(&line), "no {line} in {metrics}");
        }
        let _server = TcpServer::named("a", lab.server(1));
        wait_until("lo", VIP, true);
        ip(&format!("addr del {VIP}/32 dev lo"));
        balancer.wait_for_log("another program had removed it");
        assert!(has("lo", VIP));
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
        assert!(!has("lo", VIP));
        let events = balancer.log();
        assert!(events.contains(&format!("{VIP} withdrawn: convey stops")), "{events}");
    });
}

fn command_that_withdraws_an_address_asks_for_force() {
    in_namespace("announce::command_that_withdraws_an_address_asks_for_force", "", || {
        let lab = Loopback::new();
        let _server = TcpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
        for line in
            ["server drain pool/a", "server maint pool/a", "server weight pool/a 0", "backend maint pool"]
        {
            let refused = run(balancer.command().args(line.split(' ')));
            let why = format!("convey withdraws {VIP}; use --force to continue anyway");
            assert!(refused.code == Some(1) && refused.stderr.contains(&why), "{line}: {refused:?}");
        }
        assert!(has("lo", VIP));
        let forced = run(balancer.command().args(["server", "maint", "pool/a", "--force"]));
        assert_eq!(forced.code, Some(0), "{forced:?}");
        wait_until("lo", VIP, false);
    });
}

fn an_address_goes_when_convey_begins_to_drain() {
    in_namespace("announce::an_address_goes_when_convey_begins_to_drain", "", || {
        let lab = Loopback::new();
        let _server = TcpServer::named("a", lab.server(1));
        let setup = announcing(&lab, VIP, "").timeouts("drain_delay = 600");
        let mut balancer = BalancerProcess::start(&lab, &setup);
        wait_until("lo", VIP, true);
        balancer.signal(Signal::TERM);
        wait_until("lo", VIP, false);
        balancer.wait_for_log(&format!("{VIP} withdrawn from lo: convey is draining"));
        assert_eq!(balancer.page("/healthz").0, 200);
        assert_eq!(balancer.page("/readyz").0, 503);
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
    });
}

fn an_address_of_somebody_else_stays_as_it_is() {
    in_namespace("announce::an_address_of_somebody_else_stays_as_it_is", "", || {
        let lab = Loopback::new();
        ip(&format!("addr add {VIP}/32 dev lo"));
        let server = TcpServer::named("a", lab.server(1));
        let mut balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        let message = format!("convey does not announce {VIP}: this host has the address already");
        balancer.wait_for_log(&message);
        drop(server);
        balancer.wait_for_log("backend pool has no server left");
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
        assert!(has("lo", VIP));
        assert_eq!(balancer.log().matches(&message).count(), 1, "{}", balancer.log());
        let cleared = run(binary().args(["clear", "--addresses"]));
        assert!(cleared.code == Some(0) && has("lo", VIP), "{cleared:?}");
    });
}

fn announced_addresses_of_a_killed_process_are_taken_over() {
    in_namespace("announce::announced_addresses_of_a_killed_process_are_taken_over", "", || {
        let lab = Loopback::new();
        let setup = announcing(&lab, VIP, "");
        let server = TcpServer::named("a", lab.server(1));
        let kill = || {
            let balancer = BalancerProcess::start(&lab, &setup);
            wait_until("lo", VIP, true);
            let ran = run(balancer.command().args(["clear", "--addresses"]));
            assert!(ran.stdout.contains("no announced address") && has("lo", VIP), "it is in use: {ran:?}");
            let file = balancer.config();
            // Ended by SIGKILL.
            drop(balancer);
            assert!(has("lo", VIP));
            file
        };
        let file = kill();
        let found = run(binary().args(["doctor", "--json", "--config"]).arg(file)).stdout;
        let fix = format!("ip addr del {VIP}/32 dev lo");
        assert!(found.contains("\"announced-stale\"") && found.contains(&fix), "{found}");

        // Without a server, convey withdraws the address.
        drop(server);
        let balancer = BalancerProcess::start(&lab, &setup);
        wait_until("lo", VIP, false);
        balancer.wait_for_log(&format!("{VIP} withdrawn from lo"));
        let server = TcpServer::named("a", lab.server(1));
        wait_until("lo", VIP, true);
        drop(balancer);

        // A configuration without the address.
        let other = announcing(&lab, "10.9.9.2", "");
        let balancer = BalancerProcess::start(&lab, &other);
        wait_until("lo", "10.9.9.2", true);
        wait_until("lo", VIP, false);
        drop((balancer, server));

        let cleared = run(binary().args(["clear", "--addresses"]));
        assert!(
            cleared.code == Some(0) && cleared.stdout.contains("removed the address 10.9.9.2"),
            "{cleared:?}"
        );
        assert!(!has("lo", "10.9.9.2"));
    });
}

/// Records each address that comes or goes.
struct Monitor {
    _process: Process,
    file: PathBuf,
}

impl Monitor {
    fn start(lab: &Loopback) -> Monitor {
        let file = lab.directory().join("monitor");
        let mut command = Command::new("ip");
        command.args(["-o", "monitor", "address"]).stdout(File::create(&file).unwrap());
        let monitor = Monitor { _process: Process::spawn(&mut command), file };
        // Waits until the monitor listens.
        wait_for("the monitor to listen", || {
            ip("addr add 10.9.9.98/32 dev lo");
            ip("addr del 10.9.9.98/32 dev lo");
            monitor.lines().contains("10.9.9.98").then_some(())
        });
        monitor
    }

    fn lines(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    /// All events so far.
    fn all(&self) -> String {
        ip("addr add 10.9.9.99/32 dev lo");
        wait_for("the monitor to tell everything", || {
            Some(self.lines()).filter(|lines| lines.contains("10.9.9.99"))
        })
    }
}

fn an_upgrade_takes_no_address_away() {
    in_namespace("announce::an_upgrade_takes_no_address_away", "", || {
        let lab = Loopback::new();
        let server = TcpServer::named("a", lab.server(1));
        let mut first = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
        let monitor = Monitor::start(&lab);
        for _ in 0..3 {
            let upgraded = run(first.command().arg("upgrade"));
            assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
            assert_eq!(fetch(web(), "/").unwrap(), (200, "a".to_owned()));
            first.wait_for_stat(&format!("/announced/{VIP}/announced"), true);
        }
        let message = monitor.all();
        assert!(!message.contains(&format!(" {VIP}/")), "{message}");
        // The last process announces it as the first did.
        drop(server);
        wait_until("lo", VIP, false);
        let _server = TcpServer::named("a", lab.server(1));
        wait_until("lo", VIP, true);
        first.signal(Signal::TERM);
        assert_eq!(first.wait(), 0);
        wait_until("lo", VIP, false);
    });
}

fn upgrade_keeps_the_damping_of_an_address() {
    in_namespace("announce::upgrade_keeps_the_damping_of_an_address", "", || {
        let lab = Loopback::new();
        let server = TcpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
        drop(server);
        wait_until("lo", VIP, false);
        let withdrawals = format!("/announced/{VIP}/withdrawals");
        balancer.wait_for_stat(&withdrawals, 1);
        assert_eq!(run(balancer.command().arg("upgrade")).code, Some(0));
        balancer.wait_for_stat(&withdrawals, 1);
        let server = TcpServer::named("a", lab.server(1));
        wait_until("lo", VIP, true);
        drop(server);
        wait_until("lo", VIP, false);
        balancer.wait_for_stat(&withdrawals, 2);
        // The second withdrawal in a row doubles `hold`.
        balancer.wait_for_log("convey announces it again once a frontend has been able to serve for 400ms");
    });
}

fn a_reload_announces_elsewhere_or_no_longer() {
    const SET_UP: &str = "ip link add vips type veth peer name other\nip link set vips up";
    in_namespace("announce::a_reload_announces_elsewhere_or_no_longer", SET_UP, || {
        let lab = Loopback::new();
        let _server = TcpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &announcing(&lab, VIP, ""));
        wait_until("lo", VIP, true);
        balancer.save(&announcing(&lab, VIP, "interface = 'vips'"));
        wait_until("vips", VIP, true);
        wait_until("lo", VIP, false);
        balancer.save(&announcing(&lab, "10.9.9.2", "interface = 'vips'"));
        wait_until("vips", "10.9.9.2", true);
        wait_until("vips", VIP, false);
        balancer.save(&announcing(&lab, "10.9.9.2", "interface = 'vips'\nmin_servers = 2"));
        wait_until("vips", "10.9.9.2", false);
        balancer.wait_for_log("only 1 servers of backend pool can be chosen: announce.min_servers is 2");
        balancer.save(&announcing(&lab, "10.9.9.2", "interface = 'nowhere'"));
        balancer.wait_for_log("there is no interface nowhere");
        balancer.save(&announcing(&lab, "10.9.9.2", "interface = 'vips'"));
        wait_until("vips", "10.9.9.2", true);
        let without = announcing(&lab, "10.9.9.2", "").to_string();
        balancer.save(&without.replace("[announce]\nhold = 0.2\n", ""));
        wait_until("vips", "10.9.9.2", false);
    });
}
