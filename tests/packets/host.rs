//! The machine of the balancer: its own network stack beside the traffic, and its state after
//! convey has ended.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use aya::programs::{SchedClassifier, TcAttachType};
use convey_lab::{INTERFACE, Lab, Role};
use convey_model::Offload;
use convey_testkit::{Process, Ran, TcpServer, binary, ping, run, wait_for};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::udp::{ECHO, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        the_host_sends_no_reset_of_its_own [NFT, NGINX],
        programs_on_the_balancer_reach_the_servers [CURL, NGINX],
        programs_are_detached_after_a_kill_except_the_dsr_guard [NFT],
        the_log_says_who_forwards_open_flows,
    ];
    tests.extend(tests![when |case| !case.is_cached() && case.family == Family::V4 =>
        unsent_packets_are_counted_by_cause,
    ]);
    // The family makes no difference.
    tests.extend(tests![when |case| case.is_cached() && case.family == Family::V4 =>
        xdp_program_is_detached_after_a_kill [NFT],
        capabilities_in_the_readme_suffice_for_the_flow_cache [NGINX],
        missing_capability_for_the_cache_is_logged_by_name,
        workers_forward_everything_if_bpf_is_not_permitted [NGINX],
        nft_comes_from_the_systems_directories_whatever_path_says [NFT],
        required_offload_without_bpf_is_a_start_error [NFT],
    ]);
    tests.extend(tests![when |case| {
            case.is_passthrough() && !case.is_cached() && case.family == Family::V4
        } =>
        in_a_user_namespace_buffers_are_as_large_as_the_host_allows [NGINX],
        ports_that_a_killed_convey_has_reserved_are_given_back,
        snat_ports_avoid_the_local_range_with_read_only_proc_sys,
        snat_ports_work_with_read_only_proc_sys_if_reserved_or_unneeded [NGINX],
    ]);
    tests.extend(tests![when |case| case.is_passthrough() =>
        a_frontend_may_listen_on_a_port_among_the_snat_ports,
    ]);
    tests
}

/// Rules that count resets of a machine's own stack. Packets that convey sends on packet sockets
/// bypass them. Health checks may end with a reset; their ports differ: in DSR, all ports that are
/// no frontend's.
fn reset_rules(case: Case) -> String {
    let forwarded = if case.is_dsr() { "80" } else { "{ 80, 33768-61000 }" };
    format!(
        "table inet resets {{ chain output {{ type filter hook output priority 0; \
         tcp sport {forwarded} tcp flags & rst == rst counter; }}; }}"
    )
}

/// Number of resets that the balancer's own stack has sent since [`count_resets`].
pub(crate) fn resets(lab: &Lab) -> u64 {
    let text = lab.run(Role::Balancer, "nft", &["list", "table", "inet", "resets"]).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

/// Begins to count the resets.
pub(crate) fn count_resets(lab: &Lab, case: Case) {
    lab.run(Role::Balancer, "nft", &[&reset_rules(case)]).unwrap();
}

fn the_host_sends_no_reset_of_its_own(case: Case) {
    let mut network = Network::new(case, 1, 1);
    count_resets(&network.lab, case);
    assert!(network.fetch(1).is_err());
    let before = resets(&network.lab);
    assert!(before > 0, "without convey it does");
    let _server = network.nginx(1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    for _ in 0..50 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    assert_eq!(resets(&network.lab), before);
}

fn programs_on_the_balancer_reach_the_servers(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    let url = format!("http://{}/", network.address(Role::Server(1)));
    for _ in 0..20 {
        let ran = run(network.lab.command(Role::Balancer, "curl").args(["-sS", "-m", "5", &url]));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "s1\n"), "{ran:?}");
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
}

fn the_log_says_who_forwards_open_flows(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::new(1));
    let (log, cached) = (network.log(Role::Balancer), "the kernel forwards packets of open flows, by");
    assert_eq!(log.contains(&format!("{cached} tc (tcx) on {INTERFACE}")), case.is_cached(), "{log}");
    let workers = log.contains("every packet goes through a worker") && log.contains("offload = \"off\"");
    assert_eq!(workers, !case.is_cached(), "{log}");
}

fn programs_are_detached_after_a_kill_except_the_dsr_guard(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::new(1));
    // The guard and the cache each are a program.
    let expected = if case.is_cached() { 2 } else { 1 };
    assert_eq!(tcx_programs(&network), expected);
    kill(&network);
    if case.is_dsr() {
        return; // `outlast` tells what that does
    }
    // The host's stack answers again.
    let refused = network.inside(Role::Client(1), || TcpStream::connect(network.vip()).unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

fn xdp_program_is_detached_after_a_kill(case: Case) {
    let mut network = Network::new(Case { offload: Offload::Xdp, ..case }, 1, 1);
    network.balance(&Config::new(1));
    assert!(link(&network).contains("prog/xdp"), "{}", link(&network));
    kill(&network);
}

/// Kills the balancer, and waits until none of its programs is attached any more.
fn kill(network: &Network) {
    network.convey(|convey| convey.signal(Signal::KILL));
    wait_for("the balancer to end", || network.convey(|convey| convey.ended()));
    wait_for("its programs to be gone", || {
        (tcx_programs(network) == 0 && !link(network).contains("prog/xdp")).then_some(())
    });
    let lines = |program, arguments: &[&str]| network.lab.run(Role::Balancer, program, arguments).unwrap();
    assert_eq!(lines("nft", &["list", "ruleset"]), "");
    let filters = lines("tc", &["filter", "show", "dev", INTERFACE, "ingress"]);
    let is_others = |line: &&str| line.contains("handle") && !line.contains("dsr_guard");
    assert_eq!(filters.lines().filter(is_others).count(), 0, "{filters}");
    assert_eq!(filters.contains("dsr_guard"), network.case.is_dsr(), "{filters}");
    let has_clsact = lines("tc", &["qdisc", "show", "dev", INTERFACE]).contains("clsact");
    assert_eq!(has_clsact, network.case.is_dsr());
}

/// Number of programs on the balancer's ingress.
fn tcx_programs(network: &Network) -> usize {
    let query = || SchedClassifier::query_tcx(INTERFACE, TcAttachType::Ingress).unwrap().1.len();
    network.inside(Role::Balancer, query)
}

/// The balancer's interface, with the XDP program if there is one.
fn link(network: &Network) -> String {
    network.lab.run(Role::Balancer, "ip", &["-details", "link", "show", "dev", INTERFACE]).unwrap()
}

/// Runs convey as root with all rights for networks, but not for kernel programs.
fn without_bpf(network: &Network) -> Command {
    bounded(network, "-bpf,-perfmon,-sys_admin")
}

/// Runs convey as root with these capabilities.
fn bounded(network: &Network, capabilities: &str) -> Command {
    let mut command = network.lab.command(Role::Balancer, "setpriv");
    command.args(["--bounding-set", capabilities]).arg(binary().get_program());
    command
}

fn capabilities_in_the_readme_suffice_for_the_flow_cache(case: Case) {
    let readme = include_str!("../../README.md");
    let row = readme.lines().find(|line| line.starts_with("| privileges")).unwrap();
    let listed = row.split('`').filter_map(|word| word.strip_prefix("CAP_"));
    let capabilities: String = listed.map(|name| format!(",+{}", name.to_lowercase())).collect();
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    let command = bounded(&network, &format!("-all{capabilities}"));
    network.balance_by(command, &Config { health: UNCHECKED, ..Config::new(1) });
    assert_eq!(network.fetch(1).unwrap(), "s1");
    assert_eq!(network.stat(&format!("/packets/offload/{INTERFACE}")), "tc");
    let log = network.log(Role::Balancer);
    assert!(log.contains("a BPF program on tcx\n"), "{log}");
}

fn missing_capability_for_the_cache_is_logged_by_name(case: Case) {
    let mut network = Network::new(Case { offload: Offload::Auto, ..case }, 1, 1);
    network.balance_by(bounded(&network, "-perfmon,-sys_admin"), &Config::new(1));
    let log = network.log(Role::Balancer);
    let told = "kernel's flow cache: cannot load the flow cache: this process lacks CAP_PERFMON\n";
    assert!(log.contains(told), "{log}");
}

fn workers_forward_everything_if_bpf_is_not_permitted(case: Case) {
    let mut network = Network::new(Case { offload: Offload::Auto, ..case }, 1, 1);
    let _server = network.nginx(1);
    network.balance_by(without_bpf(&network), &Config { health: UNCHECKED, ..Config::new(1) });
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    assert_eq!(network.stat(&format!("/packets/offload/{INTERFACE}")), "worker");
    let log = network.log(Role::Balancer);
    let told: Vec<&str> = log.lines().filter(|line| line.contains("goes through a worker")).collect();
    let [line] = told[..] else { panic!("one line says so: {log}") };
    for part in ["WARN", "several times the CPU", "CAP_BPF", "Operation not permitted"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(log.contains("nftables, table netdev convey_"), "{log}");
}

fn unsent_packets_are_counted_by_cause(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::udp(ECHO, 1) });
    let client = network.inside(Role::Client(1), || socket_to(case.family.vip(ECHO)));
    // The client's datagrams are one stream, which the worker forwards as they arrive.
    for (limit, reason) in [("3kb", "interface_refused"), ("100mb", "send_buffer_full")] {
        let shaped = format!("qdisc replace dev {INTERFACE} root tbf rate 8kbit burst 2kb limit {limit}");
        network.lab.run(Role::Balancer, "tc", &shaped.split(' ').collect::<Vec<_>>()).unwrap();
        wait_for(reason, || {
            for _ in 0..1000 {
                let _ = client.send(&[7; 1000]);
            }
            (network.stat(&format!("/packets/drops/{reason}")).as_u64() > Some(0)).then_some(())
        });
        network.lab.run(Role::Balancer, "tc", &["qdisc", "del", "dev", INTERFACE, "root"]).unwrap();
    }
    assert_eq!(network.stat("/packets/drops/transmit_failed"), 0);
}

fn nft_comes_from_the_systems_directories_whatever_path_says(case: Case) {
    let mut network = Network::new(Case { offload: Offload::Off, ..case }, 1, 1);
    let (folder, ran) = (network.path("bin"), network.path("ran"));
    fs::create_dir(&folder).unwrap();
    let nft = folder.join("nft");
    fs::write(&nft, format!("#!/bin/sh\ntouch {}\nexec /usr/sbin/nft \"$@\"\n", ran.display())).unwrap();
    fs::set_permissions(&nft, Permissions::from_mode(0o755)).unwrap();
    let mut command = without_bpf(&network);
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()));
    network.balance_by(command, &Config::new(1));
    let log = network.log(Role::Balancer);
    assert!(log.contains("nftables, table netdev convey_"), "{log}");
    assert!(!ran.exists(), "a program of somebody else's ran as root");
}

fn required_offload_without_bpf_is_a_start_error(case: Case) {
    let network = Network::new(case, 1, 1);
    let path = network.path("config.toml");
    fs::write(&path, Config::new(1).text(case)).unwrap();
    let mode = format!("--{}", case.mode.name());
    let ran = run(without_bpf(&network).arg(mode).arg("--config").arg(path));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in [
        "passthrough.offload = \"tc\" is not available (\"auto\" falls back to workers)",
        "CAP_BPF",
        "Operation not permitted",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
}

/// The process has all rights in the network of the namespace, and none outside of it.
fn in_a_user_namespace_buffers_are_as_large_as_the_host_allows(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    let namespace =
        Process::spawn(Command::new("unshare").args(["--map-root-user", "--net", "sleep", "100"]));
    let place = format!("/proc/{}", namespace.id());
    wait_for("the namespace", || {
        let is_other =
            fs::read_link(format!("{place}/ns/net")).ok()? != fs::read_link("/proc/self/ns/net").ok()?;
        (is_other && !fs::read_to_string(format!("{place}/uid_map")).ok()?.is_empty()).then_some(())
    });
    let inside = |namespaces: &[&str], line: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &namespace.id().to_string(), "--preserve-credentials"]).args(namespaces);
        command.args(line.split_whitespace());
        command
    };
    // Moves the balancer's interface there.
    network
        .lab
        .run(Role::Balancer, "ip", &["link", "set", INTERFACE, "netns", &namespace.id().to_string()])
        .unwrap();
    for line in [
        "link set lo up".to_owned(),
        format!("addr add {}/24 dev {INTERFACE}", case.family.address(Role::Balancer)),
        format!("addr add {}/32 dev {INTERFACE}", network.vip().ip()),
        format!("link set {INTERFACE} up"),
    ] {
        let ran = run(&mut inside(&["--net"], &format!("ip {line}")));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let program = binary().get_program().to_owned();
    let mut command = inside(&["--net", "--user"], "");
    command.arg(program);
    network.balance_by(command, &Config { health: UNCHECKED, ..Config::new(1) });
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    let log = network.log(Role::Balancer);
    assert_eq!(log.matches("net.core.rmem_max").count(), 1, "{log}");
}

/// gRPC listens like this, on the SNAT address.
fn a_frontend_may_listen_on_a_port_among_the_snat_ports(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let own = case.family.address(Role::Balancer);
    let listen = |ports: &[u16]| -> &'static str {
        let frontend = |port: &u16| {
            let addr = SocketAddr::new(own, *port);
            format!("[frontends.on_{port}]\nlisten_addr = \"{addr}\"\nbackend = \"pool\"\n")
        };
        ports.iter().map(frontend).collect::<String>().leak()
    };
    let passthrough = format!("workers = 2\nsnat_addresses = \"{own}\"\nsnat_ports = \"50050-50055\"").leak();
    let config = |ports| Config { frontend: listen(ports), passthrough, health: UNCHECKED, ..Config::new(1) };
    network.balance(&config(&[50_051]));
    let _server = network.server(1, TcpServer::echo);
    let vip = network.vip();
    let connect = |to: SocketAddr| {
        network.inside(Role::Client(1), || TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok())
    };
    let ping_all = |streams: &mut Vec<TcpStream>| streams.iter_mut().for_each(|stream| ping(stream).unwrap());
    // Enough connections, on whichever workers, that all workers run out of ports.
    let fill = |streams: &mut Vec<TcpStream>, to: &[SocketAddr]| {
        for to in to.iter().cycle().take(60) {
            streams.extend(connect(*to));
            ping_all(streams);
        }
        streams.len()
    };
    let mut streams = Vec::new();
    assert_eq!(fill(&mut streams, &[vip, (own, 50_051).into()]), 5, "one port is left out");
    // Now a frontend uses a port that is in use.
    network.save(&config(&[50_051, 50_052]));
    network.wait_for_log("on_50052");
    ping_all(&mut streams);
    streams.clear();
    let to = [vip, (own, 50_051).into(), (own, 50_052).into()];
    wait_for("ports to be given back", || (fill(&mut streams, &to) >= 4).then_some(()));
    assert_eq!(fill(&mut streams, &to), 4, "two ports are left out");
}

const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Reserved ports of the balancer.
fn reserved(network: &Network) -> String {
    network.lab.run(Role::Balancer, "cat", &[RESERVED]).unwrap().trim().to_owned()
}

fn reserve(network: &Network, ports: &str) {
    let line = format!("net.ipv4.ip_local_reserved_ports={ports}");
    network.lab.run(Role::Balancer, "sysctl", &["-qw", &line]).unwrap();
}

fn ports_that_a_killed_convey_has_reserved_are_given_back(case: Case) {
    let mut network = Network::new(case, 1, 1);
    reserve(&network, "40000,62000");
    let end = |network: &Network, signal| {
        network.convey(|convey| convey.signal(signal));
        wait_for("the balancer to end", || network.convey(|convey| convey.ended()));
    };
    for _ in 0..2 {
        network.balance(&Config::new(1));
        assert_eq!(reserved(&network), "33768-61000,62000");
        end(&network, Signal::KILL);
        assert_eq!(reserved(&network), "33768-61000,62000");
    }
    network.balance(&Config { passthrough: "snat_ports = \"20000-20999\"", ..Config::new(1) });
    assert_eq!(reserved(&network), "20000-20999,40000,62000", "at the start");
    end(&network, Signal::TERM);
    assert_eq!(reserved(&network), "40000,62000", "at the stop");

    network.balance(&Config::new(1));
    end(&network, Signal::KILL);
    let cleared = run(network.lab.command(Role::Balancer, binary().get_program()).arg("clear"));
    let given_back = "released the reserved ports 33768-39999,40001-61000 of a killed convey\n";
    assert!(cleared.stdout.ends_with(given_back), "{cleared:?}");
    assert_eq!(reserved(&network), "40000,62000", "by `convey clear`");

    network.balance(&Config::new(1));
    end(&network, Signal::KILL);
    let mut dsr = network.lab.command(Role::Balancer, binary().get_program());
    let dsr = Process::spawn(dsr.arg("--dsr").arg("--config").arg(network.path("config.toml")));
    wait_for("the ports to be given back in dsr mode", || {
        (reserved(&network) == "40000,62000").then_some(())
    });
    drop(dsr);

    network.balance(&Config::new(1));
    end(&network, Signal::KILL);
    let servers = network.path("servers.txt");
    fs::write(&servers, "127.0.0.1:1\n").unwrap();
    let mut proxy = network.lab.command(Role::Balancer, binary().get_program());
    let _proxy = Process::spawn(proxy.args(["--listen", "7777", "--servers"]).arg(servers));
    wait_for("the ports to be given back by a proxy", || (reserved(&network) == "40000,62000").then_some(()));
}

/// A command like in a container. There, `/run` may be read-only as well.
fn contained(network: &Network) -> Command {
    const CONTAINED: &str = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && \
        mount -t tmpfs -o ro none /run && exec \"$@\"";
    let mut command = network.lab.command(Role::Balancer, "unshare");
    command.args(["--mount", "sh", "-c", CONTAINED, "sh"]).arg(binary().get_program());
    command
}

/// Runs a command like in a container until it ends on its own.
fn run_contained(network: &Network, command: &[&str]) -> Ran {
    let path = network.path("config.toml");
    run(contained(network).args(command).arg("--passthrough").arg("--config").arg(path))
}

fn snat_ports_avoid_the_local_range_with_read_only_proc_sys(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let usual = Config { health: UNCHECKED, ..Config::new(1) };
    fs::write(network.path("config.toml"), usual.text(case)).unwrap();
    let check = run_contained(&network, &["check"]);
    assert_eq!(check.code, Some(0), "{check:?}");
    for part in [
        "warning: passthrough uses the SNAT ports 5535-32767",
        "Read-only file system",
        "may take 33768-60999 of them",
        "docker run --sysctl net.ipv4.ip_local_reserved_ports=33768-61000",
    ] {
        assert!(check.stderr.contains(part), "{part}: {check:?}");
    }
    assert!(check.stdout.contains("5535-32767"), "{check:?}");

    network.balance_by(contained(&network), &usual);
    let log = network.log(Role::Balancer);
    assert_eq!(log.matches("passthrough uses the SNAT ports 5535-32767").count(), 1, "{log}");
    let listener =
        network.inside(Role::Server(1), || TcpListener::bind(network.address(Role::Server(1))).unwrap());
    for _ in 0..20 {
        let client = network.inside(Role::Client(1), || TcpStream::connect(network.vip()).unwrap());
        let (mut server, seen_as) = listener.accept().unwrap();
        assert!((5535..=32767).contains(&seen_as.port()), "{seen_as}");
        server.write_all(b"!").unwrap();
        (&client).read_exact(&mut [0]).unwrap();
    }
    network.convey(|convey| convey.signal(Signal::HUP));
    network.wait_for_log("no effective changes");
}

fn snat_ports_work_with_read_only_proc_sys_if_reserved_or_unneeded(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    let usual = Config { health: UNCHECKED, ..Config::new(1) };
    let outside = Config { passthrough: "snat_ports = \"20000-20999\"", ..usual.clone() };
    for (reserved_already, config) in [("33768-61000", &usual), ("", &outside)] {
        reserve(&network, reserved_already);
        network.balance_by(contained(&network), config);
        assert_eq!(network.fetch(1).unwrap(), "s1");
        assert_eq!(reserved(&network), reserved_already);
        let log = network.log(Role::Balancer);
        assert_eq!(log.contains("are not reserved and need not be"), reserved_already.is_empty(), "{log}");
        assert!(!log.contains("passthrough uses the SNAT ports"), "{log}");
        network.convey(|convey| convey.signal(Signal::TERM));
        wait_for("the balancer to end", || network.convey(|convey| convey.ended()));
        assert!(!network.log(Role::Balancer).contains("still holds"), "{}", network.log(Role::Balancer));
    }
    // The kernel hands out all.
    network.lab.run(Role::Balancer, "sysctl", &["-qw", "net.ipv4.ip_local_port_range=1024 65535"]).unwrap();
    fs::write(network.path("config.toml"), usual.text(case)).unwrap();
    for command in [&["check"][..], &[]] {
        let ran = run_contained(&network, command);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        for part in ["Read-only file system", "outside of net.ipv4.ip_local_port_range (1024-65535)"] {
            assert!(ran.stderr.contains(part), "{part}: {ran:?}");
        }
    }
}
