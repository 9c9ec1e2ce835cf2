//! Memory bounds of packet modes, derived from the memory limit of this process's control group.

use std::fs;
use std::path::{Path, PathBuf};

use convey_config::Config;
use convey_dataplane::MAX_FRAME_MEMORY;
use convey_forward::Reservation;
use convey_model::{Mode, Offload, PacketSettings};

use super::offload;

/// Memory of an idle process in bytes, including the guard's tables in the kernel.
const AT_REST: u64 = 40 << 20;

/// Number of concurrent processes that share the limit: during an upgrade there are two.
const PROCESSES: u64 = 2;

/// Minimum memory for frames, in bytes, even under the tightest limit.
const MIN_FRAME_MEMORY: u64 = 4 << 20;

/// Minimum number of flows, even under the tightest limit.
const MIN_FLOWS: u64 = 4_096;

/// Memory for SNAT ports in bytes per flow: a closed flow may leave its port in the list of free
/// ports.
const PORT_BYTES: u64 = 24;

/// Memory limit of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemoryLimit {
    bytes: u64,
    file: PathBuf,
}

/// Upper bounds for the memory of packet modes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PacketMemory {
    /// Maximum number of concurrent flows.
    pub(super) flows: u32,
    /// Maximum memory of queued frames, in bytes.
    pub(super) frames: usize,
    bytes: u64,
    limit: Option<MemoryLimit>,
}

impl PacketMemory {
    /// Bounds under the memory limit of this process's control group.
    pub(super) fn here(config: &Config) -> PacketMemory {
        PacketMemory::of(config, tightest_limit())
    }

    fn of(config: &Config, limit: Option<MemoryLimit>) -> PacketMemory {
        let has_log = config.access_log.output.is_some();
        PacketMemory::within(limit, convey_dataplane::possible_cores(), &config.passthrough, has_log)
    }

    fn within(
        limit: Option<MemoryLimit>,
        cores: usize,
        settings: &PacketSettings,
        has_log: bool,
    ) -> PacketMemory {
        let (tables, in_kernel) = match settings.offload {
            Offload::Off => (0, 0),
            _ => (offload::table_bytes(cores), offload::FLOW_BYTES),
        };
        let at_rest = AT_REST + tables;
        let flow = Reservation::bytes(1, 1, has_log) + PORT_BYTES + in_kernel;
        let (mut flows, mut frames) = (settings.max_flows, MAX_FRAME_MEMORY as u64);
        if let Some(limit) = &limit {
            let share = limit.bytes / PROCESSES;
            frames = (share / 8).clamp(MIN_FRAME_MEMORY, frames);
            let fit = share.saturating_sub(at_rest + frames) / flow;
            flows = flows.min(fit.max(MIN_FLOWS).try_into().unwrap_or(u32::MAX));
        }
        let bytes = at_rest + frames + u64::from(flows) * flow;
        PacketMemory { flows, frames: frames as usize, bytes, limit }
    }

    /// Log line about the bounds. `None` without packet modes.
    pub(super) fn describe(&self, config: &Config) -> Option<String> {
        config.frontends_where(Mode::forwards_packets).next()?;
        let PacketMemory { flows, bytes, .. } = self;
        Some(format!(
            "packet modes use at most {} MiB of memory for {flows} flows, and twice as much during an upgrade",
            bytes >> 20
        ))
    }

    /// Warning if the memory limit is too small for the configured flows. `None` without packet
    /// modes or without a limit.
    pub(super) fn warning(&self, config: &Config) -> Option<String> {
        config.frontends_where(Mode::forwards_packets).next()?;
        let limit = self.limit.as_ref()?;
        let (named, all) = (config.passthrough.max_flows, PacketMemory::of(config, None).bytes);
        let (mib, file) = (limit.bytes >> 20, limit.file.display());
        if self.bytes > limit.bytes / PROCESSES {
            return Some(format!(
                "packet modes may use {} MiB of memory for {} flows, and twice as much during an upgrade, but the limit is \
                 {mib} MiB ({file}): the kernel may kill convey during a flood",
                self.bytes >> 20,
                self.flows
            ));
        }
        (self.flows < named).then(|| {
            format!(
                "the memory limit of {mib} MiB ({file}) allows only {} flows: passthrough.max_flows = {named} \
                 may use {} MiB, and twice as much during an upgrade",
                self.flows,
                all >> 20
            )
        })
    }
}

/// The tightest memory limit of this process's control group and its ancestors. `None` if none has
/// a limit.
fn tightest_limit() -> Option<MemoryLimit> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(&groups).into_iter().filter_map(limit_in).min_by_key(|limit| limit.bytes)
}

/// Paths of files that may contain a limit, for cgroup versions 2 and 1. `groups` is the content of
/// `/proc/self/cgroup`.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let own = Path::new(root).join(path.trim_start_matches('/'));
        let around = own.ancestors().take_while(|group| group.starts_with(root));
        files.extend(around.map(|group| group.join(name)));
    }
    files
}

fn limit_in(file: PathBuf) -> Option<MemoryLimit> {
    // Values that mean "no limit": version 2 contains the word "max", version 1 a number larger
    // than the memory of any machine.
    const NONE: u64 = 1 << 60;
    let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok().filter(|bytes| *bytes < NONE)?;
    Some(MemoryLimit { bytes, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limit(mib: u64) -> Option<MemoryLimit> {
        Some(MemoryLimit { bytes: mib * MIB, file: "memory.max".into() })
    }

    fn within(mib: u64, settings: &PacketSettings) -> PacketMemory {
        PacketMemory::within(limit(mib), 2, settings, true)
    }

    #[test]
    fn packet_modes_of_two_processes_take_no_more_than_a_memory_limit() {
        let usual = PacketSettings::default();
        for mib in [160, 200, 320, 512, 1_000, 4_000] {
            let memory = within(mib, &usual);
            assert!(2 * memory.bytes <= mib * MIB, "{memory:?}");
            assert!(memory.flows >= 4_096 && memory.frames as u64 >= 4 * MIB, "{memory:?}");
        }
        let without = PacketMemory::within(None, 2, &usual, true);
        assert_eq!((without.flows, without.frames), (1_000_000, MAX_FRAME_MEMORY));
        assert_eq!((within(4_000, &usual).flows, within(4_000, &usual).bytes), (1_000_000, without.bytes));
        let few = PacketSettings { max_flows: 1_000, ..usual.clone() };
        assert_eq!(within(320, &few).flows, 1_000, "the file names fewer");
        let by_workers = PacketSettings { offload: Offload::Off, ..usual.clone() };
        assert!(within(512, &by_workers).flows > 2 * within(512, &usual).flows);
    }

    #[test]
    fn counters_of_many_cores_leave_room_for_fewer_flows() {
        let [few, many] =
            [2, 128].map(|cores| PacketMemory::within(limit(1_000), cores, &PacketSettings::default(), true));
        assert!(many.flows + 100_000 < few.flows, "{few:?}, {many:?}");
        assert!(2 * many.bytes <= 1_000 * MIB);
    }

    #[test]
    fn memory_limits_are_those_of_the_group_and_those_around_it() {
        let of_v2 = limit_files("0::/system.slice/convey.service\n");
        let paths = ["/system.slice/convey.service", "/system.slice", ""];
        assert_eq!(of_v2, paths.map(|path| PathBuf::from(format!("/sys/fs/cgroup{path}/memory.max"))));
        let of_v1 = limit_files("12:cpu,cpuacct:/a\n4:memory:/a:b\n1:name=systemd:/x\n0::/\n");
        assert_eq!(
            of_v1,
            ["memory/a:b/memory.limit_in_bytes", "memory/memory.limit_in_bytes", "memory.max"]
                .map(|path| Path::new("/sys/fs/cgroup").join(path))
        );
    }
}
