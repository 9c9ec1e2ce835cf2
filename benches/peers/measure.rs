//! Meters of processor time and memory.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use convey_testkit::clock;

/// Meter that runs from its start to its stop.
pub(crate) struct Meter<'a> {
    processes: &'a [u32],
    start: Reading,
}

/// Processor time.
pub(crate) struct Used {
    /// Time of all cores for any work: processes, the kernel, interrupts.
    pub(crate) machine: Duration,
    /// Time of the processes.
    pub(crate) processes: CpuTime,
}

/// Processor time of processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    /// Time in the kernel: system calls, and network work that the kernel charges to the process.
    pub(crate) system: Duration,
}

struct Reading {
    at: Instant,
    /// Number of cores.
    cores: u32,
    /// Time in which cores were idle, waited for a disk, or were stolen by the hypervisor.
    unused: Duration,
    processes: Duration,
    /// Ticks of the kernel's clock at which the processes ran in user space, and in the kernel.
    ticks: [u64; 2],
}

impl CpuTime {
    /// Divides a time in proportion to the ticks in user space and in the kernel.
    fn divided(total: Duration, [user, system]: [u64; 2]) -> CpuTime {
        let share = user as f64 / (user + system).max(1) as f64;
        let user = total.mul_f64(share);
        CpuTime { user, system: total.saturating_sub(user) }
    }

    pub(crate) fn total(self) -> Duration {
        self.user + self.system
    }
}

impl Meter<'_> {
    pub(crate) fn start(processes: &[u32]) -> Result<Meter<'_>> {
        Ok(Meter { processes, start: Reading::now(processes)? })
    }

    pub(crate) fn stop(self) -> Result<Used> {
        let end = Reading::now(self.processes)?;
        let passed = (end.at - self.start.at) * end.cores;
        Ok(Used {
            machine: passed.saturating_sub(end.unused - self.start.unused),
            processes: CpuTime::divided(
                end.processes.saturating_sub(self.start.processes),
                [0, 1].map(|n| end.ticks[n].saturating_sub(self.start.ticks[n])),
            ),
        })
    }
}

impl Reading {
    /// Used time is the total minus the unused time: the kernel accounts idle time exactly, but
    /// attributes the rest by sampling at its tick.
    fn now(processes: &[u32]) -> Result<Reading> {
        let stat = read("/proc/stat")?;
        let cores = stat.lines().filter(|line| line.starts_with("cpu")).count() as u32 - 1;
        let sum = stat.lines().next().unwrap_or_default();
        let field = |n: usize| sum.split_whitespace().nth(n).and_then(|field| field.parse::<u64>().ok());
        let [idle, iowait, steal] = [4, 5, 8].map(|n| field(n).unwrap_or_default());
        let unused = Duration::from_millis((idle + iowait + steal) * 1000 / TICKS_PER_SECOND);
        let mut ticks = [0; 2];
        for pid in processes {
            let [user, system] = cpu_ticks(*pid)?;
            ticks = [ticks[0] + user, ticks[1] + system];
        }
        let processes = processes.iter().map(|pid| cpu_time(*pid)).sum::<Result<Duration>>()?;
        Ok(Reading { at: clock(), cores, unused, processes, ticks })
    }
}

/// Unit of `/proc/stat` (USER_HZ), equal on every architecture that matters.
const TICKS_PER_SECOND: u64 = 100;

/// Processor time of a process so far: all of its threads, in nanoseconds (`/proc/PID/stat` has
/// hundredths of a second only).
fn cpu_time(pid: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("a balancer is gone")?;
    let mut sum = 0;
    for thread in threads.flatten() {
        // A thread may end between listing and reading.
        let Ok(line) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        sum += line.split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(Duration::from_nanos(sum))
}

/// Time of a process in user space and in the kernel so far, in hundredths of a second. Most kernels
/// sample it at their tick, so it only serves to divide the time of [`cpu_time`].
fn cpu_ticks(pid: u32) -> Result<[u64; 2]> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    // The program's name, in brackets, may contain blanks.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields).context("no name in stat")?;
    let field = |n: usize| fields.split(' ').nth(n).and_then(|field| field.parse().ok());
    let (user, system) = field(11).zip(field(12)).context("no times in stat")?;
    Ok([user, system])
}

/// Resident memory in bytes. A page shared by several processes counts for each of them in
/// proportion.
pub(crate) fn memory(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|pid| proportional(*pid)).sum()
}

fn proportional(pid: u32) -> Result<u64> {
    let rollup = read(&format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kibibytes.context("no Pss in smaps_rollup")? * 1024)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.to_owned())
}
