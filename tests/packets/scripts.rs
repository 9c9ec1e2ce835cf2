//! Scripts that an operator runs by hand.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use convey_lab::{LabPlan, Role, VIP, VIP_V6};
use convey_testkit::{Ran, fetch, run};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::host::{count_resets, resets};
use crate::network::Network;
use crate::udp::{ECHO, UdpEcho, datagram};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![when |case| case.family == Family::V4 && case.is_cached() =>
        the_guard_by_hand_keeps_traffic_from_the_host [CURL, IPTABLES, NFT, NGINX],
    ];
    tests.extend(tests![when Case::is_dsr =>
        replies_get_the_vip_until_the_script_takes_it_down [CURL, NGINX],
        large_answers_get_the_vip_in_every_fragment,
        an_answer_of_another_port_or_protocol_keeps_its_address [PING],
    ]);
    tests.extend(tests![when |case| case.is_dsr() && case.family == Family::V4 && case.is_cached() =>
        scripts_say_what_they_take [IPTABLES],
        scripts_fail_where_they_would_change_nothing,
        scripts_check_what_they_have_set,
        nft_script_takes_every_name_of_an_interface [NFT],
        l2_script_gives_settings_of_arp_back,
        guard_scripts_wait_for_others_that_change_rules,
        tunnel_script_that_fails_leaves_no_vip,
    ]);
    tests
}

fn the_guard_by_hand_keeps_traffic_from_the_host(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    count_resets(&network.lab, case);
    let name = format!("iptables/{}.sh", case.mode.name());
    let variables = [
        ("VIP", &*VIP.to_string()),
        ("PORTS", "80"),
        ("SERVERS", "10.77.0.11:80"),
        ("SNAT_ADDRESSES", "10.77.0.1"),
    ];
    // Twice each: the second time changes nothing.
    for action in ["up", "up"] {
        network.script(Role::Balancer, &name, action, &variables);
    }
    network.balance(&Config { passthrough: "guard = false", ..Config::new(1) });
    network.wait_for_health(1, true);
    for _ in 0..50 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    let health = network.stat("/backends/pool/servers/s1/up");
    assert_eq!((resets(&network.lab), health), (0, true.into()));
    let url = format!("http://{}/", network.address(Role::Server(1)));
    let curl = run(network.lab.command(Role::Balancer, "curl").args(["-sS", "-m", "5", &url]));
    assert_eq!(curl.stdout, "s1\n", "{curl:?}");
    for action in ["down", "down"] {
        network.script(Role::Balancer, &name, action, &variables);
    }
    let left = network.lab.run(Role::Balancer, "iptables-save", &[]).unwrap();
    assert!(!left.contains("CONVEY"), "{left}");
    let _ = network.inside(Role::Client(1), || fetch(network.vip(), "/"));
    // With the flow cache, the host's stack gets too few packets of a connection.
    if !case.is_cached() {
        assert!(resets(&network.lab) > 0, "without the rules the host answers");
    }
}

fn replies_get_the_vip_until_the_script_takes_it_down(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    let asked = |network: &Network| {
        let ran = network.run(1, "curl", &["-s", "-m", "1", &format!("http://{}/", network.vip())]);
        (ran.code == Some(0)).then_some(ran.stdout)
    };
    assert_eq!(asked(&network).as_deref(), Some("s1\n"));
    for _ in 0..2 {
        nft(&network, "down");
        assert_eq!(asked(&network), None, "nobody waits for replies of the server's address");
    }
    for _ in 0..2 {
        nft(&network, "up");
        assert_eq!(asked(&network).as_deref(), Some("s1\n"));
    }
    network.wait_for_health(1, true);
}

/// Only the first fragment of a datagram has its port.
fn large_answers_get_the_vip_in_every_fragment(case: Case) {
    let network = Network::new(case, 1, 1);
    let _echo = echo(&network, ECHO);
    let sent = datagram(4096, 1);
    let (got, from) = answer(&network, Role::Client(1), ECHO, &sent);
    assert_eq!(from, case.family.vip(ECHO));
    assert!(got == sent, "{} bytes came back, or others", got.len());
    let (_, from) = answer(&network, Role::Balancer, ECHO, &sent);
    assert_eq!(from.ip(), case.family.address(Role::Server(1)), "a health check wants the server's own");
}

fn an_answer_of_another_port_or_protocol_keeps_its_address(case: Case) {
    const OTHER: u16 = 77;
    let network = Network::new(case, 1, 1);
    let _echo = echo(&network, OTHER);
    let server = case.family.address(Role::Server(1));
    let (_, from) = answer(&network, Role::Client(1), OTHER, &datagram(4096, 1));
    assert_eq!(from.ip(), server);
    let ping = network.run(1, "ping", &["-n", "-c", "1", "-W", "5", &server.to_string()]);
    assert_eq!(ping.code, Some(0), "{ping:?}");
    // The error of a closed port reveals its source address.
    let refused = network.inside(Role::Client(1), || {
        let socket = crate::udp::socket_to((server, ECHO).into());
        crate::udp::exchange(&socket, b"anybody?").unwrap_err()
    });
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

fn nft_script_takes_every_name_of_an_interface(case: Case) {
    let network = Network::bare(case, &LabPlan::new(1, 1));
    let server = Role::Server(1);
    for name in ["br-lan", "wan+1", "eth0.100", "a*", "vpn@2"] {
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            network.lab.run(server, "ip", &words).unwrap();
        };
        ip(&format!("link add name {name} type veth peer name odd"));
        ip(&format!("addr add 10.99.0.1/24 dev {name}"));
        let variables = [
            ("VIP", "10.77.0.100"),
            ("PORTS", "80"),
            ("SERVER", "10.99.0.1"),
            ("BALANCERS", "10.99.0.2"),
            ("INTERFACE", name),
        ];
        for action in ["up", "up", "check", "down"] {
            network.script(server, "tc/dsr-server-nft.sh", action, &variables);
        }
        ip(&format!("link del {name}"));
    }
}

fn l2_script_gives_settings_of_arp_back(case: Case) {
    let network = Network::bare(case, &LabPlan::new(1, 1));
    let server = Role::Server(1);
    let settings = ["net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce"];
    let read = || settings.map(|name| network.lab.run(server, "sysctl", &["-n", name]).unwrap());
    network.lab.run(server, "sysctl", &["-qw", &format!("{}=2", settings[0])]).unwrap();
    let before = read();
    for action in ["up", "up", "check", "down", "down"] {
        network.script(server, "tc/dsr-server-l2.sh", action, &[("VIP", "10.88.0.1")]);
    }
    assert_eq!(read(), before);
}

/// Stand-ins for iptables record their arguments.
fn guard_scripts_wait_for_others_that_change_rules(_: Case) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    for name in ["iptables", "ip6tables", "iptables-restore", "ip6tables-restore"] {
        let program = folder.path().join(name);
        fs::write(&program, format!("#!/bin/sh\necho \"$0 $*\" >>{}\n", log.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for script in ["iptables/dsr.sh", "iptables/passthrough.sh"] {
        for action in ["up", "status", "down"] {
            let mut command = std::process::Command::new("sh");
            command.arg(path(script)).arg(action).env("PATH", &search).env("VIP", "10.77.0.100");
            command.env("PORTS", "80").env("SERVERS", "10.77.0.11:80").env("SNAT_ADDRESSES", "10.77.0.1");
            let ran = run(&mut command);
            assert_eq!(ran.code, Some(0), "{script} {action}: {ran:?}");
        }
    }
    let calls = fs::read_to_string(&log).unwrap();
    assert!(calls.lines().count() > 20 && calls.lines().all(|call| call.contains(" -w 30 ")), "{calls}");
}

fn scripts_say_what_they_take(_: Case) {
    for script in [
        "vagrant/provision.sh",
        "tc/dsr-server.sh",
        "tc/dsr-server-nft.sh",
        "tc/dsr-server-l2.sh",
        "iptables/dsr.sh",
    ] {
        let ran = run(std::process::Command::new("sh").arg(path(script)));
        assert_eq!(ran.code, Some(2), "{script}");
        assert!(ran.stderr.starts_with("usage: "), "{}", ran.stderr);
    }
    let mut tc = std::process::Command::new("sh");
    tc.arg(path("tc/dsr-server.sh")).arg("up").env("VIP", VIP_V6.to_string());
    tc.envs([("PORTS", "80"), ("SERVER", "fd77::11"), ("BALANCERS", "fd77::1")]);
    let ran = run(&mut tc);
    assert!(ran.code == Some(1) && ran.stderr.contains("use dsr-server-nft.sh"), "{ran:?}");
}

fn scripts_fail_where_they_would_change_nothing(case: Case) {
    let network = Network::bare(case, &LabPlan::new(1, 1));
    for script in ["tc/dsr-server.sh", "tc/dsr-server-nft.sh"] {
        for (name, value, output) in [
            ("INTERFACE", "eth7", "INTERFACE: there is no eth7; found: lo eth0"),
            ("SERVER", "10.77.0.12", "SERVER: this host has no address 10.77.0.12"),
            ("SERVER", "web", "found web; allowed: "),
            ("VIP", "10.77.0.x", "found 10.77.0.x; allowed: "),
            ("PORTS", "http", "PORTS: found http; allowed: "),
            ("PORTS", "80 65536", "allowed: 1 to 65535"),
            ("PROTOCOLS", "sctp", "PROTOCOLS: found sctp; allowed: tcp, udp"),
        ] {
            let ran = set_up(&network, script, "up", &[(name, value)]);
            assert!(ran.code == Some(1) && ran.stderr.contains(output), "{script} {name}={value}: {ran:?}");
        }
        for action in ["down", "check"] {
            let ran = set_up(&network, script, action, &[("INTERFACE", "eth7")]);
            assert!(
                ran.code == Some(1) && ran.stderr.contains("there is no eth7"),
                "{script} {action}: {ran:?}"
            );
        }
    }
    let l2 = |action, vip| set_up(&network, "tc/dsr-server-l2.sh", action, &[("VIP", vip)]);
    for (vip, output) in [("web", "VIP: found web; allowed: "), ("10.77.0.11", "is an address of eth0")] {
        let ran = l2("up", vip);
        assert!(ran.code == Some(1) && ran.stderr.contains(output), "{vip}: {ran:?}");
    }
}

fn tunnel_script_that_fails_leaves_no_vip(case: Case) {
    let network = Network::bare(case, &LabPlan::new(1, 1));
    // The last step fails here; where the kernel lacks the devices, an earlier one does.
    let programs = tempfile::tempdir().unwrap();
    let nft = programs.path().join("nft");
    fs::write(&nft, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&nft, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.path().display());
    let variables = [("KIND", "ipip"), ("MSS", "clamp"), ("PATH", &*path)];
    let ran = set_up(&network, "tc/dsr-server-tunnel.sh", "up", &variables);
    assert!(ran.code == Some(1) && ran.stderr.contains("all changes are undone"), "{ran:?}");
    let lo = run(network.lab.command(Role::Server(1), "ip").args(["addr", "show", "dev", "lo"]));
    assert!(lo.code == Some(0) && !lo.stdout.contains(&VIP.to_string()), "{lo:?}");
}

/// Excludes the script with tc, which requires a kernel with `action nat`.
fn scripts_check_what_they_have_set(case: Case) {
    let network = Network::bare(case, &LabPlan::new(1, 1));
    for (script, missing) in [
        ("tc/dsr-server-nft.sh", "answers that leave by eth0 do not get the source 10.77.0.100"),
        ("tc/dsr-server-l2.sh", "lo does not have 10.77.0.100"),
    ] {
        let check = || set_up(&network, script, "check", &[]);
        let is_missing = |ran: &Ran| ran.code == Some(1) && ran.stderr.contains(missing);
        assert!(is_missing(&check()), "{:?}", check());
        assert_eq!(set_up(&network, script, "up", &[]).code, Some(0));
        assert_eq!(check().code, Some(0), "{:?}", check());
        let other = set_up(&network, script, "check", &[("VIP", "10.77.0.10")]);
        assert_eq!(other.code, Some(1), "{other:?}");
        assert_eq!(set_up(&network, script, "down", &[]).code, Some(0));
        assert!(is_missing(&check()), "{:?}", check());
    }
}

/// Runs a script on the server, with these variables in place of the right ones.
fn set_up(network: &Network, script: &str, action: &str, other: &[(&str, &str)]) -> Ran {
    let right = [
        ("VIP", "10.77.0.100"),
        ("PORTS", "80"),
        ("SERVER", "10.77.0.11"),
        ("BALANCERS", "10.77.0.1"),
        ("INTERFACE", "eth0"),
    ];
    let mut command = network.lab.command(Role::Server(1), "sh");
    run(command.arg(path(script)).arg(action).envs(right).envs(other.iter().copied()))
}

fn nft(network: &Network, action: &str) {
    let family = network.case.family;
    let address = |role| family.address(role).to_string();
    let variables = [
        ("VIP", &*family.vip(0).ip().to_string()),
        ("PORTS", "80"),
        ("SERVER", &address(Role::Server(1))),
        ("BALANCERS", &address(Role::Balancer)),
    ];
    network.script(Role::Server(1), "tc/dsr-server-nft.sh", action, &variables);
}

fn echo(network: &Network, port: u16) -> UdpEcho {
    let addr = (network.case.family.address(Role::Server(1)), port).into();
    network.inside(Role::Server(1), || UdpEcho::start(addr))
}

/// Answer of the server to a datagram that is sent to its own address, and its source.
fn answer(network: &Network, role: Role, port: u16, sent: &[u8]) -> (Vec<u8>, std::net::SocketAddr) {
    let family = network.case.family;
    network.inside(role, || {
        let socket = UdpSocket::bind((family.any(), 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send_to(sent, (family.address(Role::Server(1)), port)).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        (buffer[..n].to_vec(), from)
    })
}

fn path(script: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(script)
}
