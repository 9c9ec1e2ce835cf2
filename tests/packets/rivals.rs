//! A second process on the balancer.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{Process, binary, run, wait_for};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, PORT};
use crate::upgrade::Program;

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        vip_in_use_is_refused_to_a_second_process[NGINX],
        a_second_process_forwards_other_addresses_and_takes_one_that_becomes_free[NGINX],
        upgrade_takes_nothing_of_another_process[NGINX],
    ];
    tests.extend(tests![when Case::is_cached =>
        names_bound_by_ordinary_users_do_not_prevent_forwarding [NGINX],
        vip_of_a_service_user_is_refused_to_root [NGINX],
    ]);
    tests
}

/// Port of a frontend that no other process has.
const OTHER: u16 = 81;

fn vip_in_use_is_refused_to_a_second_process(case: Case) {
    let network = balanced(case);
    let _server = network.nginx(1);
    let vip = network.vip();
    let refused = run(&mut Second::new(&network, &[PORT], "40000-40999").command());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let error =
        format!("convey: cannot forward packets to {vip}: another process on this host already does this");
    assert!(refused.stderr.contains(&error), "{refused:?}");
    if case.is_passthrough() {
        let refused = run(&mut Second::new(&network, &[OTHER], "33768-61000").command());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let own = case.family.address(Role::Balancer);
        let error = format!(
            "cannot use the SNAT ports 33768-61000 of {own} (passthrough.snat_ports): another process"
        );
        assert!(refused.stderr.contains(&error), "{refused:?}");
    }
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
}

fn a_second_process_forwards_other_addresses_and_takes_one_that_becomes_free(case: Case) {
    let network = balanced(case);
    let _server = network.nginx(1);
    let second = Second::new(&network, &[OTHER], "40000-40999");
    let running = convey_testkit::start(second.command(), &network.path("log"));
    let log = || fs::read_to_string(network.path("log")).unwrap();
    let says = |text: &str| wait_for(text, || log().contains(text).then_some(()));

    let _second = Second::new(&network, &[OTHER, PORT], "40000-40999");
    running.signal(Signal::HUP);
    says("second.toml not reloaded");
    assert_eq!(network.fetch(1).unwrap(), "s1");

    network.save(&Config { web: false, ..config() });
    wait_for("the frontend to be free", || {
        let before = log().len();
        running.signal(Signal::HUP);
        wait_for("the end of a reload", || (log().len() > before).then_some(()));
        log().contains("frontend f80: added").then_some(())
    });
    assert_eq!(network.fetch(1).unwrap(), "s1");
}

fn upgrade_takes_nothing_of_another_process(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let program = Program::install(&network);
    network.balance_by(program.command(&network), &config());
    let _server = network.nginx(1);
    let (spare, prefix) = match case.family {
        Family::V4 => ("10.66.0.1", 24),
        Family::V6 => ("fd66::1", 64),
    };
    let address = format!("{spare}/{prefix}");
    network.lab.run(Role::Balancer, "ip", &["addr", "add", &address, "dev", INTERFACE, "nodad"]).unwrap();
    let mut second = Second::new(&network, &[OTHER], "33768-61000");
    second.set_snat_address(spare);
    let third = convey_testkit::start(second.command(), &network.path("log"));
    let holder = format!("another process on this host already does this: convey (process {})", third.id());
    let refused = |text: &str, why: &str| {
        network.save_with(text);
        let ran = program.fetch(&network);
        let why = format!("{why}: {holder}");
        assert!(ran.code == Some(1) && ran.stderr.contains(&why), "{why:?} is not in {ran:?}");
        network.wait_for_log("this process continues");
        assert_eq!(network.fetch(1).unwrap(), "s1");
    };
    let vip = case.family.vip(OTHER);
    let server = SocketAddr::new(case.family.address(Role::Server(1)), OTHER);
    let with_frontend = format!(
        "{}[frontends.other]\nlisten_addr = \"{vip}\"\nbackend = \"other\"\n\
         [backends.other]\nhealth_check.kind = \"none\"\nservers.s1.addr = \"{server}\"\n",
        config().text(case)
    );
    refused(&with_frontend, &format!("cannot forward packets to {vip}"));
    if case.is_passthrough() {
        let with_spare = format!("[passthrough]\nsnat_addresses = [\"{spare}\"]");
        let text = config().text(case).replace("[passthrough]", &with_spare);
        refused(&text, &format!("cannot use the SNAT ports 33768-61000 of {spare} (passthrough.snat_ports)"));
    }
    network.save_with(&with_frontend);
    drop(third);
    program.upgrade(&network, 1);
    program.upgrade(&network, 2);
    assert_eq!(network.fetch(1).unwrap(), "s1");
}

fn names_bound_by_ordinary_users_do_not_prevent_forwarding(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let own = case.family.address(Role::Balancer);
    let names = [
        format!("convey {}", network.vip()),
        format!("convey {} #0123456789abcdef", network.vip()),
        format!("convey {own} ports 33768-61000"),
        "convey filters 0xc00001".to_owned(),
    ];
    let script = "use Socket; $| = 1;
        for (@ARGV) { socket(my $s, PF_UNIX, SOCK_DGRAM, 0); bind($s, pack('S a*', 1, \"\\0$_\")) or die; push @s, $s }
        print 'bound'; sleep 600";
    let bound = network.path("bound");
    let mut user = network.lab.command(Role::Balancer, "setpriv");
    user.args(["--reuid", "65534", "--clear-groups", "perl", "-e", script]).args(&names);
    let _user = Process::spawn(user.stdout(fs::File::create(&bound).unwrap()));
    wait_for("the names to be bound", || (fs::read_to_string(&bound).unwrap() == "bound").then_some(()));
    network.balance(&config());
    let log = network.log(Role::Balancer);
    assert!(log.contains(&format!("user 65534 has bound `@{}`", names[0])), "{log}");
    let _server = network.nginx(1);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    let refused = run(&mut Second::new(&network, &[PORT], "40000-40999").command());
    assert!(refused.stderr.contains("another process on this host already does this"), "{refused:?}");
}

fn vip_of_a_service_user_is_refused_to_root(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let mut command = network.lab.command(Role::Balancer, "setpriv");
    // The last capability gives access to this test's files.
    let capabilities = "+net_raw,+net_admin,+bpf,+perfmon,+dac_override";
    command.args(["--reuid", "65534", "--clear-groups", "--inh-caps", capabilities]);
    command.args(["--ambient-caps", capabilities]).arg(binary().get_program());
    network.balance_by(command, &config());
    let _server = network.nginx(1);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    let refused = run(&mut Second::new(&network, &[PORT], "40000-40999").command());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("another process on this host already does this"), "{refused:?}");
    assert_eq!(network.fetch(1).unwrap(), "s1");
}

/// A balancer in front of one server.
fn balanced(case: Case) -> Network {
    let mut network = Network::new(case, 1, 1);
    network.balance(&config());
    network
}

fn config() -> Config {
    Config { health: UNCHECKED, timeouts: "drain = 0.1", ..Config::new(1) }
}

/// A second process with statistics of its own, and one frontend for each of these ports.
struct Second<'a>(&'a Network);

impl Second<'_> {
    fn new<'a>(network: &'a Network, listen: &[u16], snat_ports: &str) -> Second<'a> {
        let mut text = format!(
            "[stats]\nport = 7001\n[passthrough]\noffload = \"{}\"\nsnat_ports = \"{snat_ports}\"\n",
            network.case.offload
        );
        for port in listen {
            let (vip, mut server) = (network.case.family.vip(*port), network.address(Role::Server(1)));
            server.set_port(*port);
            text += &format!(
                "[frontends.f{port}]\nlisten_addr = \"{vip}\"\nbackend = \"b{port}\"\n\
                 [backends.b{port}]\nhealth_check.kind = \"none\"\nservers.s1.addr = \"{server}\"\n"
            );
        }
        fs::write(network.path("second.toml"), text).unwrap();
        Second(network)
    }

    /// Sets the address that servers see in passthrough.
    fn set_snat_address(&mut self, address: &str) {
        let path = self.0.path("second.toml");
        let named = format!("[passthrough]\nsnat_addresses = [\"{address}\"]");
        let text = fs::read_to_string(&path).unwrap().replace("[passthrough]", &named);
        fs::write(path, text).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = self.0.lab.command(Role::Balancer, binary().get_program());
        command.arg(format!("--{}", self.0.case.mode.name())).arg("--config").arg(self.0.path("second.toml"));
        command.env_remove("RUST_LOG");
        command
    }
}
