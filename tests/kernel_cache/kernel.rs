//! The programs in the kernel, and what they do with a frame.

use aya::programs::{TestRun, TestRunOptions};
use convey::dataplane::{KernelCache, Sizes};

/// Room for what a test puts there.
pub(crate) const SIZES: Sizes = Sizes { entries: 1024, next_hops: 16, parties: 16 };

/// Why there is nothing to be run.
pub(crate) fn missing() -> Option<String> {
    let error = KernelCache::load(&SIZES).err()?;
    match rustix::process::geteuid().is_root() {
        true => None, // to be found out by the tests
        false => Some(format!("{error} (run as root)")),
    }
}

/// What a program says of a frame, and the frame as it leaves it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) verdict: i32,
    pub(crate) frame: Vec<u8>,
}

/// Runs a program on a frame once. Programs of tc and XDP are given it as from the loopback interface.
pub(crate) fn run<P>(program: &P, frame: &[u8]) -> Run
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = aya::TestRunResult>,
{
    let mut out = vec![0; frame.len() + 256];
    let options =
        TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::default() };
    let result = program.test_run(options).unwrap();
    out.truncate(result.data_size_out as usize);
    Run { verdict: result.return_value as i32, frame: out }
}
