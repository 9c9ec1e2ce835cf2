//! Clock of BPF programs: `CLOCK_MONOTONIC` without the offset of a time namespace.

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that this process's time namespace adds to `CLOCK_MONOTONIC`.
static OFFSET: LazyLock<i128> = LazyLock::new(|| {
    let offsets = fs::read_to_string("/proc/self/timens_offsets");
    offsets.ok().and_then(|text| monotonic_offset(&text)).unwrap_or_default()
});

/// Current time as `bpf_ktime_get_ns` returns it. The first call reads a file in `/proc`.
pub fn kernel_time() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let here = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    Duration::from_nanos(u64::try_from(here - *OFFSET).unwrap_or_default())
}

/// Offset of the monotonic clock in nanoseconds, from the text of `/proc/PID/timens_offsets`:
/// seconds, which may be negative, and nanoseconds.
fn monotonic_offset(text: &str) -> Option<i128> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn offsets_of_a_time_namespace_are_read() {
        let text = "monotonic       86400         5\nboottime            7         0\n";
        assert_eq!(monotonic_offset(text), Some(86_400_000_000_005));
        assert_eq!(monotonic_offset("monotonic -1 500000000\n"), Some(-500_000_000));
        assert_eq!(["", "monotonic", "monotonic x 0"].map(monotonic_offset), [None; 3]);
    }

    #[test]
    fn kernel_time_is_the_same_in_every_time_namespace() {
        const INSIDE: &str = "CONVEY_TEST_IN_TIME_NAMESPACE";
        if std::env::var_os(INSIDE).is_some() {
            println!("{}", kernel_time().as_nanos());
            return;
        }
        for offset in ["8640000", "1000"] {
            let mut command = Command::new("unshare");
            command.args(["--time", "--fork", &format!("--monotonic={offset}")]);
            command.arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
            command.args([
                "--exact",
                "--nocapture",
                "kernel_clock::tests::kernel_time_is_the_same_in_every_time_namespace",
            ]);
            let before = kernel_time().as_nanos();
            let Ok(ran) = command.output() else { return };
            if !ran.status.success() {
                eprintln!("no time namespace: {}", String::from_utf8_lossy(&ran.stderr));
                return;
            }
            let text = String::from_utf8_lossy(&ran.stdout).into_owned();
            let inside: u128 = text.lines().find_map(|line| line.trim().parse().ok()).expect("a time");
            assert!((before..=kernel_time().as_nanos()).contains(&inside), "{inside} after {before}");
        }
    }
}
