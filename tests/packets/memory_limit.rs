//! A flood of SYNs under the memory limit of a control group.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::{Process, binary, wait_for, wait_up_to};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::flood::{connections, forge};
use crate::network::Network;
use crate::raw::Wire;
use crate::turns;

pub(crate) fn tests() -> Vec<PacketTest> {
    // One mode and family: the table and its limit are the same in all.
    tests![when |case| case.is_dsr() && case.family == Family::V4 && !case.is_cached() =>
        flood_under_a_memory_limit_ends_nothing_and_its_memory_goes_back [MEMORY_GROUP],
    ]
}

/// Half of it is reserved for an upgrade.
const LIMIT: u64 = 240 << 20;

/// More than the table holds under that limit.
const SYNS: u32 = 450_000;

/// Enough to allocate the buffers of frames, which are reused afterwards.
const FIRST_SYNS: u32 = 20_000;

/// Longer than it takes to send the SYNs.
const TIMEOUTS: &str = "workers = 1\ntimeouts.half_open = 15\ntimeouts.handshake_only = 15";

fn flood_under_a_memory_limit_ends_nothing_and_its_memory_goes_back(case: Case) {
    let _turn = turns::flood();
    let network = Network::new(case, 2, 1);
    network.save(&Config { passthrough: TIMEOUTS, health: UNCHECKED, ..Config::new(1) });
    let group = MemoryGroup::new(LIMIT);
    let in_group = |words: &[&str]| {
        let mut command = network.lab.command(Role::Balancer, "sh");
        // The machine has no mounts of the host's.
        let mount = match convey_testkit::memory_groups() {
            Some(("/sys/fs/cgroup", _)) => "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
            _ => {
                "mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && \
                 mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory"
            }
        };
        // 0 is the process that writes it.
        command.stdin(File::options().write(true).open(group.0.join("cgroup.procs")).unwrap());
        command.args(["-c", &format!("echo 0 >&0 && {mount} && exec \"$@\" </dev/null"), "sh"]);
        command
            .arg(binary().get_program())
            .args(words)
            .arg(format!("--{}", case.mode.name()))
            .arg("--config")
            .arg(network.path("config.toml"));
        command.env("CONVEY_SOCKET", "").env_remove("RUST_LOG");
        command
    };
    let check = in_group(&["check"]).output().unwrap();
    let says = [check.stdout, check.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(says.contains("packet modes use at most 119 MiB of memory for "), "{says}");
    assert!(says.contains("the memory limit of 240 MiB ("), "{says}");

    let mut convey = convey_testkit::start(in_group(&[]), &network.path("balancer"));
    let mut random = fastrand::Rng::with_seed(7);
    let mut wire = network.inside(Role::Client(2), Wire::open);
    let mut send = |syns| (0..syns).for_each(|_| wire.send(&forge(network.vip(), &mut random)));
    send(FIRST_SYNS);
    wait_for("the first connections", || (connections(&network) > FIRST_SYNS / 2).then_some(()));
    let before = resident(&convey);
    send(SYNS);
    let peak = resident(&convey);
    assert!(connections(&network) > 200_000, "{:#}", network.stat(""));
    assert!(peak > before + (16 << 20), "{before} bytes before, {peak} at the end of the flood");
    wait_up_to(Duration::from_secs(60), "most of the memory to go back", || {
        (resident(&convey) < before + (peak - before) / 3).then_some(())
    });
    assert!(convey.ended().is_none());
}

/// Resident memory in bytes, without pages of files.
fn resident(convey: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", convey.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// A control group with a memory limit.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(bytes: u64) -> MemoryGroup {
        let (root, limit) = convey_testkit::memory_groups().expect("a need of this test");
        let group = Path::new(root).join(format!("convey-test-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let group = MemoryGroup(group);
        fs::write(group.0.join(limit), bytes.to_string()).unwrap();
        group
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
