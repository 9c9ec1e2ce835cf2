//! Kernel programs, and their verdicts on frames.

use std::sync::LazyLock;

use aya::programs::{SocketFilter, TestRun, TestRunOptions, TestRunResult};
use convey_dataplane::Sizes;
use convey_dataplane::testing::KernelCache;

/// Map sizes for the entries of a test.
pub(crate) const SIZES: Sizes = Sizes { entries: 1024, next_hops: 16, counter_ids: 16 };

/// Reason why the programs cannot run.
pub(crate) fn missing() -> Option<String> {
    static MISSING: LazyLock<Option<String>> = LazyLock::new(find_missing);
    MISSING.clone()
}

fn find_missing() -> Option<String> {
    let error = KernelCache::load(&SIZES).err()?;
    match rustix::process::geteuid().is_root() {
        true => None, // to be found out by the tests
        false => Some(format!("{error} (run as root)")),
    }
}

/// Verdict of a program on a frame, and the frame after it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) verdict: i32,
    pub(crate) frame: Vec<u8>,
}

/// Runs a program on a frame once. Programs of tc and XDP are given it as from the loopback
/// interface.
pub(crate) fn run<P: Runs>(program: &P, frame: &[u8]) -> Run {
    run_with(program, frame, None)
}

/// Runs a program on a super-frame, which will be cut into packets with `segment_size` bytes of
/// payload.
pub(crate) fn run_super_frame<P: Runs>(program: &P, frame: &[u8], segment_size: u16) -> Run {
    // `gso_size` in `struct __sk_buff`.
    let mut context = [0; 192];
    context[176..180].copy_from_slice(&u32::from(segment_size).to_ne_bytes());
    run_with(program, frame, Some(&context))
}

/// Whether a filter of packet sockets accepts a frame.
pub(crate) fn passes_filter(filter: &SocketFilter, frame: &[u8]) -> bool {
    // Tried, a filter is given a frame without the Ethernet header; of a packet socket's it is with
    // it.
    let frame = [&frame[..14], frame].concat();
    match run(filter, &frame).verdict {
        0 => false,
        -1 => true,
        other => panic!("the filter takes {other} bytes"),
    }
}

fn run_with<P: Runs>(program: &P, frame: &[u8], context: Option<&[u8]>) -> Run {
    let mut out = vec![0; frame.len() + 256];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: context,
        ..Default::default()
    };
    let result = program.test_run(options).unwrap();
    out.truncate(result.data_size_out as usize);
    Run { verdict: result.return_value as i32, frame: out }
}

/// Present time on the clock of the kernel's programs.
pub(crate) fn now() -> u64 {
    read(rustix::time::ClockId::Monotonic)
}

/// Last tick of the kernel's clock, which its programs use for the time of a packet.
pub(crate) fn last_tick() -> u64 {
    read(rustix::time::ClockId::MonotonicCoarse)
}

fn read(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A program that supports test runs.
pub(crate) trait Runs: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = TestRunResult> {}

impl<P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = TestRunResult>> Runs for P {}
