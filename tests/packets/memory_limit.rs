//! A flood of SYNs under the memory limit of a control group.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::{Process, binary, wait_for, wait_up_to};

use crate::case::{Case, Family, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::flood::{connections, forge};
use crate::network::Network;
use crate::raw::Wire;

pub(crate) fn tests() -> Vec<PacketTest> {
    let check = tests![when is_for => check_names_the_memory_limit_and_what_the_modes_may_use [MEMORY_GROUP]];
    let flood = tests![long when is_for =>
        flood_under_a_memory_limit_ends_nothing_and_its_memory_goes_back [MEMORY_GROUP]];
    [check, floods(flood)].concat()
}

/// Selects one mode and family: the table and its limit are the same in all.
fn is_for(case: Case) -> bool {
    case.is_dsr() && case.family == Family::V4 && !case.is_cached()
}

/// Half of it is reserved for an upgrade.
const LIMIT: u64 = 240 << 20;

/// More than the table holds under that limit.
const SYNS: u32 = 450_000;

/// Enough to allocate the buffers of frames, which are reused afterwards.
const FIRST_SYNS: u32 = 20_000;

/// Longer than it takes to send the SYNs.
const TIMEOUTS: &str = "workers = 1\ntimeouts.half_open = 15\ntimeouts.handshake_only = 15";

fn check_names_the_memory_limit_and_what_the_modes_may_use(case: Case) {
    let (network, group) = limited(case);
    let check = in_group(&network, &group, &["check"]).output().unwrap();
    let says = [check.stdout, check.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(says.contains("packet modes use at most 119 MiB of memory for "), "{says}");
    assert!(says.contains("the memory limit of 240 MiB ("), "{says}");
}

fn flood_under_a_memory_limit_ends_nothing_and_its_memory_goes_back(case: Case) {
    let (network, group) = limited(case);
    let mut convey = convey_testkit::start(in_group(&network, &group, &[]), &network.path("balancer"));
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

/// A network with a configuration, and a group for its balancer.
fn limited(case: Case) -> (Network, MemoryGroup) {
    let network = Network::new(case, 2, 1);
    network.save(&Config { passthrough: TIMEOUTS, health: UNCHECKED, ..Config::new(1) });
    (network, MemoryGroup::new(LIMIT))
}

/// Command of convey in a control group.
fn in_group(network: &Network, group: &MemoryGroup, words: &[&str]) -> Command {
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
    command.arg(binary().get_program()).args(words);
    command.arg(format!("--{}", network.case.mode.name()));
    command.arg("--config").arg(network.path("config.toml"));
    command.env("CONVEY_SOCKET", "").env_remove("RUST_LOG");
    command
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
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = Path::new(root).join(format!("convey-test-{}-{number}", std::process::id()));
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
