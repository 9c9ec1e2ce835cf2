//! Tasks (threads) and memory that a configuration needs. If they are missing, a start fails with
//! an error message, and `check` reports them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use convey_config::Config;
use convey_forward::Reservation;
use convey_model::Mode;
use rustix::process::{Resource, getrlimit, getuid};

use super::memory::PacketMemory;
use super::paths::Threads;

/// Tasks of every process: control, health checks, log, statistics, two for watching files, and one
/// that reads files.
const TASKS_OF_ALL: u64 = 7;

/// Minimum number of threads of packet modes besides workers: one that transmits, and one that
/// captures.
const TASKS_BESIDE_PACKET_WORKERS: u64 = 2;

/// Number of tasks that this process needs for this configuration.
pub(super) fn tasks(config: &Config, threads: Threads) -> u64 {
    let beside = if threads.packets > 0 { TASKS_BESIDE_PACKET_WORKERS } else { 0 };
    let disk = if serves_files(config) { convey_http::MIN_DISK_THREADS as u64 } else { 0 };
    let sources = config.backends.iter().any(|backend| backend.discovery.is_some());
    let others = [config.access_log.output.is_some(), sources, config.acme.is_some()].map(u64::from);
    TASKS_OF_ALL + threads.columns() as u64 + beside + disk + others.iter().sum::<u64>()
}

/// Whether a backend serves files in place of servers.
pub(super) fn serves_files(config: &Config) -> bool {
    config.backends.iter().any(|backend| backend.files.is_some())
}

/// Error message if the host does not allow enough tasks for this configuration. `None` if it does.
pub(super) fn missing_tasks(config: &Config, threads: Threads) -> Option<String> {
    let needed = tasks(config, threads);
    let TaskLimit { left, by } = tasks_left()?;
    let own = own_tasks();
    (needed > left + own).then(|| {
        format!(
            "this configuration needs {needed} tasks (threads), but the limit here is {} ({by})",
            left + own
        )
    })
}

/// Error message if the host lacks the memory for this configuration. `None` if there is enough.
pub(super) fn missing_memory(config: &Config, packet_workers: usize) -> Option<String> {
    config.frontends_where(Mode::forwards_packets).next()?;
    let (flows, workers) = (PacketMemory::here(config).flows, packet_workers as u32);
    let has_log = config.access_log.output.is_some();
    let error = Reservation::new(flows, workers, has_log).err()?;
    let bytes = Reservation::bytes(flows, workers, has_log);
    Some(format!(
        "passthrough.max_flows = {flows} needs {bytes} bytes ({} MiB) of memory, which this host does not have: {error}; \
         set fewer flows",
        bytes >> 20
    ))
}

/// Error message if packet modes lack the memory for an access log, which a reload may turn on.
/// `None` if there is enough.
pub(super) fn missing_notes(config: &Config) -> Option<String> {
    config.access_log.output.as_ref()?;
    let error = Reservation::of_notes(PacketMemory::here(config).flows).err()?;
    Some(format!("no memory for the access-log records of passthrough.max_flows flows: {error}"))
}

/// Number of tasks that can still be created, and the name of the limit.
struct TaskLimit {
    left: u64,
    by: String,
}

/// The tightest limit on tasks. `None` if there is no limit.
fn tasks_left() -> Option<TaskLimit> {
    let of_groups = control_groups().into_iter().filter_map(|group| limit_of_group(&group));
    of_groups.chain(limit_of_user()).min_by_key(|limit| limit.left)
}

/// Limit of this user's tasks (`RLIMIT_NPROC`). `None` for root, to whom the limit does not apply.
fn limit_of_user() -> Option<TaskLimit> {
    let user = getuid();
    let limit = getrlimit(Resource::Nproc).current.filter(|_| !user.is_root())?;
    let is_theirs = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.uid() == user.as_raw());
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path()).filter(is_theirs);
    let used: u64 = processes.map(|path| entries(&path.join("task"))).sum();
    Some(TaskLimit { left: limit.saturating_sub(used), by: format!("RLIMIT_NPROC is {limit}") })
}

/// This process's control group of version 2, and its ancestors.
fn control_groups() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned);
    let root = Path::new("/sys/fs/cgroup");
    let place = own.map(|own| root.join(own));
    let groups = place.iter().flat_map(|place| place.ancestors()).take_while(|group| group.starts_with(root));
    groups.map(Path::to_owned).collect()
}

fn limit_of_group(group: &Path) -> Option<TaskLimit> {
    let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (most, now) = (number("pids.max")?, number("pids.current")?);
    let by = format!("{} is {most}", group.join("pids.max").display());
    Some(TaskLimit { left: most.saturating_sub(now), by })
}

fn own_tasks() -> u64 {
    entries(Path::new("/proc/self/task"))
}

fn entries(directory: &Path) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_a_control_group_is_what_is_left_of_it() {
        let group = tempfile::tempdir().unwrap();
        assert!(limit_of_group(group.path()).is_none(), "the root group has none");
        fs::write(group.path().join("pids.current"), "7\n").unwrap();
        fs::write(group.path().join("pids.max"), "max\n").unwrap();
        assert!(limit_of_group(group.path()).is_none());
        fs::write(group.path().join("pids.max"), "12\n").unwrap();
        assert_eq!(limit_of_group(group.path()).unwrap().left, 5);
    }
}
