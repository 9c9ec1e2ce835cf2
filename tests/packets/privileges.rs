//! convey as a user other than root, with only the rights that its modes need.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{binary, copy_program, wait_for};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    // The family makes no difference.
    tests![when |case| case.is_cached() && case.family == Family::V4 =>
        user_with_its_required_capabilities_forwards_in_the_kernel_and_reloads [NGINX],
        ordinary_user_needs_little_locked_memory_and_no_bpffs [NGINX],
    ]
}

fn user_with_its_required_capabilities_forwards_in_the_kernel_and_reloads(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    let text = |server| {
        let config = Config { servers: vec![(server, "")], health: UNCHECKED, ..Config::new(2) };
        config.text(case) + "[privileges]\nuser = \"nobody\"\nlandlock = true\n"
    };
    fs::set_permissions(network.path(""), Permissions::from_mode(0o755)).unwrap();
    network.balance_with(&text(1));
    assert_eq!(network.fetch(1).unwrap(), "s1");
    assert_eq!(network.stat(&format!("/packets/offload/{INTERFACE}")), "tc");

    let status =
        network.convey(|convey| fs::read_to_string(format!("/proc/{}/status", convey.id())).unwrap());
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    assert!(!field("Uid").split('\t').any(|id| id == "0"), "{status}");
    // Network administration, raw sockets, BPF and its tracing.
    let needed: u64 = (1 << 12) | (1 << 13) | (1 << 38) | (1 << 39);
    assert_eq!(u64::from_str_radix(&field("CapEff"), 16).unwrap(), needed, "{status}");
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));

    network.save_with(&text(2));
    wait_for("the other server", || (network.fetch(1).ok()? == "s2").then_some(()));
    let log = network.log(Role::Balancer);
    assert!(log.contains("INFO  privileges: user nobody with CAP_NET_ADMIN, CAP_NET_RAW"), "{log}");
    assert!(!log.contains("Permission denied") && !log.contains("not permitted"), "{log}");
}

/// Started as by the systemd unit.
fn ordinary_user_needs_little_locked_memory_and_no_bpffs(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    fs::set_permissions(network.path(""), Permissions::from_mode(0o755)).unwrap();
    let program = network.path("convey");
    copy_program(binary().get_program(), &program);
    let mut command = network.lab.command(Role::Balancer, "unshare");
    command.args(["--mount", "sh", "-c", "umount -l /sys/fs/bpf 2>/dev/null; exec \"$@\"", "sh"]);
    command.args(["prlimit", "--memlock=65536:131072", "setpriv", "--reuid", "65534", "--regid", "65534"]);
    let capabilities = "-all,+net_bind_service,+net_raw,+net_admin,+bpf,+perfmon";
    command.args(["--clear-groups", "--bounding-set", capabilities, "--inh-caps", capabilities]);
    command.args(["--ambient-caps", capabilities]).arg(program);
    network.balance_by(command, &Config { health: UNCHECKED, ..Config::new(1) });
    assert_eq!(network.fetch(1).unwrap(), "s1");
    assert_eq!(network.stat(&format!("/packets/offload/{INTERFACE}")), "tc");
    // Before Linux 5.11 the kernel's tables are locked memory: convey takes as much as it may.
    let limits =
        network.convey(|convey| fs::read_to_string(format!("/proc/{}/limits", convey.id())).unwrap());
    let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    let locked: Vec<&str> = locked.split_whitespace().skip(3).take(2).collect();
    assert_eq!(locked[0], "131072", "{limits}");
    // No frontend is proxied: the capability for that is given up, by all threads.
    let threads = network.convey(|convey| fs::read_dir(format!("/proc/{}/task", convey.id())).unwrap());
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for set in ["CapPrm:\t", "CapEff:\t", "CapInh:\t", "CapAmb:\t"] {
            let held = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
            assert_eq!(u64::from_str_radix(held, 16).unwrap() & (1 << 10), 0, "{set}{status}");
        }
    }
}
