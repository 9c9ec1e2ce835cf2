//! Connections in DSR mode that outlast the process: killed, stopped, or followed by another
//! balancer.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_testkit::{Nginx, Process, binary, check_to_end, connect, run, send, wait_for};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::network::{Network, PORT};
use crate::slow_download::{assert_under_way, assert_whole, under_way};
use crate::takeover::move_vip;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_dsr() && (case.family == Family::V4 || case.is_cached()) =>
        a_kill_and_a_new_start_cut_no_download [CURL, NGINX],
        downloads_survive_a_stop_and_start_which_release_the_port_meanwhile [NGINX],
        downloads_survive_takeover_of_a_killed_balancer_by_a_standby [ARPING, CURL, NGINX],
        clear_command_removes_the_guard_of_a_killed_process [NGINX],
        failed_start_and_proxy_keep_the_guard_of_a_killed_process [NGINX],
        clear_keeps_a_guard_that_another_user_has_bound [NGINX],
        a_start_takes_away_the_guards_of_its_own_frontends_only [NGINX],
    ]
}

/// Size of a client's download, so that it is under way meanwhile.
const BYTES: u64 = 64 << 20;

fn a_kill_and_a_new_start_cut_no_download(case: Case) {
    let (mut network, _servers) = balanced(case, Config::new(2));
    let downloads = under_way::<6>(&network);
    kill(&network);
    // A client that comes meanwhile tries again.
    let late = late_download(&network);
    wait_for_acknowledgements(&network);
    network.start_again();
    assert_under_way(&downloads);
    assert_whole(downloads, BYTES);
    assert_late_one_whole(late);
    assert!(
        network.log(Role::Balancer).contains("removed the guard of dsr frontends that an earlier convey")
    );
    assert_eq!(filters(&network), 1, "that of the process that runs");
}

fn downloads_survive_a_stop_and_start_which_release_the_port_meanwhile(case: Case) {
    let (mut network, _servers) = balanced(case, Config { timeouts: "drain = 0.3", ..Config::new(2) });
    let downloads = under_way::<6>(&network);
    network.convey(|convey| convey.signal(Signal::TERM));
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
    let log = network.log(Role::Balancer);
    assert!(log.contains("6 connections in dsr mode continue once convey starts again"), "{log}");
    assert!(log.contains("`convey clear` removes the filter"), "{log}");
    wait_for_acknowledgements(&network);
    let other = network.inside(Role::Balancer, || TcpListener::bind(network.vip()).unwrap());
    let client = network.inside(Role::Client(1), || connect(network.vip()));
    drop((other.accept().unwrap(), client, other));
    network.start_again();
    assert_under_way(&downloads);
    assert_whole(downloads, BYTES);
}

fn downloads_survive_takeover_of_a_killed_balancer_by_a_standby(case: Case) {
    let mut network = Network::planned(case, &LabPlan::new(1, 2).standby());
    let _servers = serve(&network);
    network.balance(&Config::new(2));
    let _standby = network.start_standby();
    let downloads = under_way::<6>(&network);
    kill(&network);
    let late = late_download(&network);
    wait_for_acknowledgements(&network);
    move_vip(&network, Role::Balancer, Role::Standby);
    assert_under_way(&downloads);
    assert_whole(downloads, BYTES);
    assert_late_one_whole(late);
}

fn clear_command_removes_the_guard_of_a_killed_process(case: Case) {
    let (network, _servers) = balanced(case, Config::new(2));
    let [download] = under_way(&network);
    assert_eq!(clear(&network), "no leftovers of an earlier convey found\n", "it is in use");
    assert_eq!(filters(&network), 1);
    kill(&network);
    let check =
        run(convey(&network).arg("check").arg("--dsr").arg("--config").arg(network.path("config.toml")));
    assert!(check.stderr.contains("`convey clear` removes it"), "{check:?}");
    let removed = format!(
        "removed the guard of dsr frontends that an earlier convey left on {INTERFACE}: dsr_guard {}",
        network.vip()
    );
    let output = clear(&network);
    let others = output.lines().skip(1).filter(|line| !line.contains("neighbour"));
    assert!(output.starts_with(&removed) && others.count() == 0, "{output}");
    assert_eq!(filters(&network), 0);
    assert_eq!(clear(&network), "no leftovers of an earlier convey found\n");
    assert!(download.fails(), "the host's stack answers again");
}

fn failed_start_and_proxy_keep_the_guard_of_a_killed_process(case: Case) {
    let (mut network, _servers) = balanced(case, Config::new(2));
    kill(&network);
    let left = guards(&network);
    assert_eq!(left.len(), 1);
    let statistics = network.inside(Role::Balancer, || TcpListener::bind("127.0.0.1:7000").unwrap());
    let failed = run(convey(&network).arg("--dsr").arg("--config").arg(network.path("config.toml")));
    assert!(failed.code == Some(1) && failed.stderr.contains("cannot serve statistics"), "{failed:?}");
    assert_eq!(guards(&network), left, "after a start that failed");
    drop(statistics);

    let list = network.path("servers.txt");
    fs::write(&list, "127.0.0.1:1\n").unwrap();
    let mut proxy = convey(&network);
    proxy.args(["--listen", "7777", "--servers"]).arg(list);
    let proxy = convey_testkit::start(proxy, &network.path("proxy.log"));
    assert_eq!(guards(&network), left, "after the start of a proxy");
    drop(proxy);

    network.start_again();
    let own = guards(&network);
    assert!(own.len() == 1 && own != left, "{own:?} instead of {left:?}");
}

fn clear_keeps_a_guard_that_another_user_has_bound(case: Case) {
    let (network, _servers) = balanced(case, Config::new(2));
    kill(&network);
    let script = "use Socket; $| = 1; socket(my $s, PF_UNIX, SOCK_DGRAM, 0);
        bind($s, pack('S a*', 1, \"\\0convey filters 0xc00001 #1\")) or die; print 'bound'; sleep 600";
    let bound = network.path("bound");
    let mut user = network.lab.command(Role::Balancer, "setpriv");
    user.args(["--reuid", "65534", "--clear-groups", "perl", "-e", script]);
    let user = Process::spawn(user.stdout(File::create(&bound).unwrap()));
    wait_for("the name to be bound", || (fs::read_to_string(&bound).unwrap() == "bound").then_some(()));
    let ran = run(convey(&network).arg("clear"));
    assert!(!ran.stdout.contains("filter") && ran.stderr.contains("user 65534 has bound"), "{ran:?}");
    assert_eq!(filters(&network), 1);
    drop(user);
    wait_for("the guard to be nobody's", || {
        run(convey(&network).arg("clear"));
        (filters(&network) == 0).then_some(())
    });
}

fn a_start_takes_away_the_guards_of_its_own_frontends_only(case: Case) {
    let (mut network, _servers) = balanced(case, Config::new(2));
    let downloads = under_way::<1>(&network);
    kill(&network);
    let left = guards(&network);
    let vip = network.vip();
    assert!(left[0].contains(&format!("{vip}")), "{left:?} says whom it guards");
    // This standby has only one of the two frontends.
    network.balance(&Config { web: false, ..Config::new(2) });
    assert_eq!(guards(&network).len(), 2);
    assert!(guards(&network).contains(&left[0]));
    network.wait_for_log("stays until it expires, because it guards other");
    wait_for_acknowledgements(&network);
    kill(&network);
    assert_eq!(guards(&network).len(), 2);
    network.balance(&Config::new(2));
    assert_eq!(guards(&network).len(), 1, "that of the process that runs");
    assert_under_way(&downloads);
    assert_whole(downloads, BYTES);
    // A reload is another set.
    network.save(&Config { web: false, timeouts: "drain = 0.1", ..Config::new(2) });
    wait_for("the guard to say so", || (!guards(&network)[0].contains(&format!("{vip}"))).then_some(()));
}

fn balanced(case: Case, config: Config) -> (Network, [Nginx; 2]) {
    let mut network = Network::new(case, 1, 2);
    let servers = serve(&network);
    network.balance(&config);
    (network, servers)
}

fn serve(network: &Network) -> [Nginx; 2] {
    [1, 2].map(|number| {
        let nginx =
            network.nginx_on(number, (network.case.family.address(Role::Server(number)), PORT).into());
        send(&mut File::create(nginx.file("big")).unwrap(), BYTES).unwrap();
        nginx
    })
}

/// A client that comes while no balancer forwards, and tries again.
fn late_download(network: &Network) -> (Process, PathBuf) {
    let path = network.path("late");
    let mut curl = network.client(1, "curl");
    curl.args(["-sS", "--fail", "-m", "60", "-o"]).arg(&path).arg(format!("http://{}/big", network.vip()));
    (Process::spawn(&mut curl), path)
}

fn assert_late_one_whole((mut curl, path): (Process, PathBuf)) {
    assert!(curl.wait().success());
    assert_eq!(check_to_end(&mut File::open(path).unwrap()), BYTES);
}

fn kill(network: &Network) {
    network.convey(|convey| {
        convey.signal(Signal::KILL);
        convey.wait();
    });
}

/// Waits until the balancer's host has received some of the clients' acknowledgements.
fn wait_for_acknowledgements(network: &Network) {
    let before = network.received(Role::Balancer);
    wait_for("acknowledgements", || (network.received(Role::Balancer) > before + 300).then_some(()));
}

fn convey(network: &Network) -> std::process::Command {
    network.lab.command(Role::Balancer, binary().get_program())
}

/// Output of `convey clear`.
fn clear(network: &Network) -> String {
    let ran = run(convey(network).arg("clear"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout
}

/// Number of guards that outlast their process.
fn filters(network: &Network) -> usize {
    guards(network).len()
}

/// Guards that outlast their process, one line each.
pub(crate) fn guards(network: &Network) -> Vec<String> {
    let shown =
        network.lab.run(Role::Balancer, "tc", &["filter", "show", "dev", INTERFACE, "ingress"]).unwrap();
    shown.lines().filter(|line| line.contains("dsr_guard")).map(str::to_owned).collect()
}
