//! Signals that convey obeys, and signals that it ignores.

use std::future::poll_fn;
use std::io;
use std::ops::RangeInclusive;
use std::task::Poll;

use anyhow::Context;
use log::warn;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals whose default action ends the program, but which are no request to stop. Every Rust
/// program ignores `SIGPIPE`.
const MEANINGLESS: [(i32, &str); 9] = [
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGSTKFLT, "SIGSTKFLT"),
    (libc::SIGXCPU, "SIGXCPU"),
    (libc::SIGXFSZ, "SIGXFSZ"),
    (libc::SIGVTALRM, "SIGVTALRM"),
    (libc::SIGPROF, "SIGPROF"),
    (libc::SIGIO, "SIGIO"),
    (libc::SIGPWR, "SIGPWR"),
];

/// Real-time signals that the C library leaves to programs, which are ignored too: glibc reserves
/// two for itself, musl three.
fn real_time() -> RangeInclusive<i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Signals that convey ignores. To be created before anything else starts.
pub(super) struct Harmless {
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
    meaningless: Vec<(i32, Signal)>,
}

impl Harmless {
    /// Ignores these signals from now on. To be called within a runtime.
    pub(super) fn new() -> io::Result<Harmless> {
        let numbers = MEANINGLESS.iter().map(|(number, _)| *number).chain(real_time());
        let listen = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        Ok(Harmless {
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            meaningless: numbers.map(listen).collect::<io::Result<_>>()?,
        })
    }
}

/// Runtime of the control path, which ignores harmless signals from its first moment: a reload that
/// is requested while the configuration is read follows the start.
pub(super) struct ControlRuntime {
    pub(super) runtime: Runtime,
    pub(super) harmless: Harmless,
}

impl ControlRuntime {
    /// Makes the runtime. Starts no thread.
    pub(super) fn new() -> anyhow::Result<ControlRuntime> {
        let runtime = super::runtime()?;
        let harmless = {
            let _within = runtime.enter();
            Harmless::new().context("cannot listen to signals")?
        };
        Ok(ControlRuntime { runtime, harmless })
    }
}

/// All signals.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    harmless: Harmless,
}

/// Action that a signal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Stop; the number is the signal's.
    Stop(u8),
    /// Reload the configuration.
    Reload,
    /// Reopen the files of the logs.
    Reopen,
    /// Hand over to a new process.
    Upgrade,
}

impl Wish {
    /// Signal that requests this action.
    pub(super) fn signal(self) -> rustix::process::Signal {
        use rustix::process::Signal;
        match self {
            Wish::Stop(number) => Signal::from_named_raw(i32::from(number)).unwrap_or(Signal::TERM),
            Wish::Reload => Signal::HUP,
            Wish::Reopen => Signal::USR1,
            Wish::Upgrade => Signal::USR2,
        }
    }
}

impl Signals {
    pub(super) fn new(harmless: Harmless) -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            harmless,
        })
    }

    pub(super) async fn next(&mut self) -> Wish {
        let Harmless { hang_up, user_1, user_2, meaningless } = &mut self.harmless;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Wish::Stop(15),
                _ = self.interrupt.recv() => return Wish::Stop(2),
                _ = self.quit.recv() => return Wish::Stop(3),
                _ = hang_up.recv() => return Wish::Reload,
                _ = user_1.recv() => return Wish::Reopen,
                _ = user_2.recv() => return Wish::Upgrade,
                number = first(meaningless) => warn!("{} means nothing to convey: nothing is done", name(number)),
            }
        }
    }
}

/// Number of the next signal.
async fn first(signals: &mut [(i32, Signal)]) -> i32 {
    poll_fn(|cx| {
        let come = signals
            .iter_mut()
            .find_map(|(number, signal)| signal.poll_recv(cx).is_ready().then_some(*number));
        come.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn name(number: i32) -> String {
    let found = MEANINGLESS.iter().find(|(other, _)| *other == number);
    found.map_or_else(|| format!("SIGRTMIN+{}", number - real_time().start()), |(_, name)| (*name).to_owned())
}
