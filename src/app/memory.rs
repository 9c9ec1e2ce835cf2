//! Memory that packet modes may take: no more than the limit of this process's control group leaves.

use std::fs;
use std::path::{Path, PathBuf};

use super::offload;
use crate::config::Config;
use crate::dataplane::MAX_FRAME_MEMORY;
use crate::forward::Reservation;
use crate::model::{Mode, Offload, PacketSettings};

/// Memory of a process at rest, with the kernel's programs and their tables.
const AT_REST: u64 = 64 << 20;

/// Memory for frames under the tightest limit.
const MIN_FRAME_MEMORY: u64 = 4 << 20;

/// Flows under the tightest limit.
const MIN_FLOWS: u64 = 4_096;

/// Bytes for SNAT ports that a flow may leave behind, in a list of free ones.
const PORT_BYTES: u64 = 24;

/// Memory limit of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemoryLimit {
    bytes: u64,
    file: PathBuf,
}

/// What packet modes take at most.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PacketMemory {
    /// Flows at once.
    pub(super) flows: u32,
    /// Bytes of frames that wait.
    pub(super) frames: usize,
    bytes: u64,
    limit: Option<MemoryLimit>,
}

impl PacketMemory {
    /// As this process's control group permits.
    pub(super) fn here(config: &Config) -> PacketMemory {
        PacketMemory::within(tightest_limit(), &config.passthrough, config.access_log.output.is_some())
    }

    fn within(limit: Option<MemoryLimit>, settings: &PacketSettings, has_log: bool) -> PacketMemory {
        let in_kernel = if settings.offload == Offload::Off { 0 } else { offload::FLOW_BYTES };
        let flow = Reservation::bytes(1, 1, has_log) + PORT_BYTES + in_kernel;
        let (mut flows, mut frames) = (settings.max_flows, MAX_FRAME_MEMORY as u64);
        if let Some(limit) = &limit {
            frames = (limit.bytes / 8).clamp(MIN_FRAME_MEMORY, frames);
            let fit = limit.bytes.saturating_sub(AT_REST + frames) / flow;
            flows = flows.min(fit.max(MIN_FLOWS).try_into().unwrap_or(u32::MAX));
        }
        let bytes = AT_REST + frames + u64::from(flows) * flow;
        PacketMemory { flows, frames: frames as usize, bytes, limit }
    }

    /// A line for an operator, if the configuration has packet modes.
    pub(super) fn describe(&self, config: &Config) -> Option<String> {
        config.frontends_where(Mode::forwards_packets).next()?;
        let PacketMemory { flows, bytes, .. } = self;
        Some(format!("packet modes take at most {} MiB of memory, with {flows} flows", bytes >> 20))
    }

    /// A warning, if the limit leaves room for fewer flows than the file names.
    pub(super) fn warning(&self, config: &Config) -> Option<String> {
        config.frontends_where(Mode::forwards_packets).next()?;
        let limit = self.limit.as_ref()?;
        let (named, all) = (config.passthrough.max_flows, PacketMemory::needed(config));
        let (mib, file) = (limit.bytes >> 20, limit.file.display());
        if self.bytes > limit.bytes {
            return Some(format!(
                "the memory limit, {mib} MiB ({file}), is less than packet modes may take: {} MiB with {} flows; \
                 a flood may end convey",
                self.bytes >> 20,
                self.flows
            ));
        }
        (self.flows < named).then(|| {
            format!(
                "the memory limit, {mib} MiB ({file}), leaves room for {} flows: passthrough.max_flows = {named} \
                 may take {} MiB",
                self.flows,
                all >> 20
            )
        })
    }

    /// Bytes without a limit.
    fn needed(config: &Config) -> u64 {
        PacketMemory::within(None, &config.passthrough, config.access_log.output.is_some()).bytes
    }
}

/// The tightest limit of this process's control group and the groups around it.
fn tightest_limit() -> Option<MemoryLimit> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(&groups).into_iter().filter_map(limit_in).min_by_key(|limit| limit.bytes)
}

/// Files that may have a limit, by the content of `/proc/self/cgroup`: of version 2 and of version 1.
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
    // Version 1 has a number of pages that no machine has where there is no limit, version 2 the word "max".
    const NONE: u64 = 1 << 60;
    let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok().filter(|bytes| *bytes < NONE)?;
    Some(MemoryLimit { bytes, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn within(mib: u64, settings: &PacketSettings) -> PacketMemory {
        let limit = MemoryLimit { bytes: mib * MIB, file: "memory.max".into() };
        PacketMemory::within(Some(limit), settings, true)
    }

    #[test]
    fn packet_modes_take_no_more_than_a_memory_limit() {
        let settings = PacketSettings::default();
        for mib in [80, 100, 160, 256, 512, 1_000, 4_000] {
            let memory = within(mib, &settings);
            assert!(memory.bytes <= mib * MIB, "{memory:?}");
            assert!(memory.flows >= 4_096 && memory.frames as u64 >= 4 * MIB, "{memory:?}");
        }
        let without = PacketMemory::within(None, &settings, true);
        assert_eq!((without.flows, without.frames), (1_000_000, MAX_FRAME_MEMORY));
        assert_eq!(
            (within(4_000, &settings).flows, within(4_000, &settings).bytes),
            (1_000_000, without.bytes)
        );
        let few = PacketSettings { max_flows: 1_000, ..settings.clone() };
        assert_eq!(within(160, &few).flows, 1_000, "the file names fewer");
        let by_workers = PacketSettings { offload: Offload::Off, ..settings.clone() };
        assert!(within(256, &by_workers).flows > 2 * within(256, &settings).flows);
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
