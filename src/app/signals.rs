//! Signals that convey handles, and signals that it ignores.

use std::future::poll_fn;
use std::io;
use std::ops::RangeInclusive;
use std::task::Poll;

use anyhow::Context;
use log::warn;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that convey ignores because they request no stop, although their default action ends the
/// program. `SIGPIPE` is missing because every Rust program ignores it.
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

/// Real-time signals that the C library leaves to programs. convey ignores them too. glibc reserves
/// two for itself, musl three.
fn real_time() -> RangeInclusive<i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Signals whose default action convey turns off. Must be created before anything else starts.
pub(super) struct IgnoredSignals {
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
    meaningless: Vec<(i32, Signal)>,
}

impl IgnoredSignals {
    /// Turns off the default action of these signals. Must be called within a runtime.
    pub(super) fn new() -> io::Result<IgnoredSignals> {
        let numbers = MEANINGLESS.iter().map(|(number, _)| *number).chain(real_time());
        let listen = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        Ok(IgnoredSignals {
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            meaningless: numbers.map(listen).collect::<io::Result<_>>()?,
        })
    }
}

/// Runtime of the control path. It handles signals from its first moment, so a reload that is
/// requested while the configuration is read takes place after the start.
pub(super) struct ControlRuntime {
    pub(super) runtime: Runtime,
    pub(super) ignored: IgnoredSignals,
}

impl ControlRuntime {
    /// Creates the runtime. Starts no thread.
    pub(super) fn new() -> anyhow::Result<ControlRuntime> {
        let runtime = super::runtime()?;
        let ignored = {
            let _within = runtime.enter();
            IgnoredSignals::new().context("cannot listen to signals")?
        };
        Ok(ControlRuntime { runtime, ignored })
    }
}

/// All signals that convey handles or ignores.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    ignored: IgnoredSignals,
}

/// Action that a signal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalAction {
    /// Stop. Contains the number of the signal.
    Stop(u8),
    /// Reload the configuration.
    Reload,
    /// Reopen the log files.
    Reopen,
    /// Hand over to a new process.
    Upgrade,
}

impl SignalAction {
    /// Signal that requests this action.
    pub(super) fn signal(self) -> rustix::process::Signal {
        use rustix::process::Signal;
        match self {
            SignalAction::Stop(number) => Signal::from_named_raw(i32::from(number)).unwrap_or(Signal::TERM),
            SignalAction::Reload => Signal::HUP,
            SignalAction::Reopen => Signal::USR1,
            SignalAction::Upgrade => Signal::USR2,
        }
    }
}

impl Signals {
    pub(super) fn new(ignored: IgnoredSignals) -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            ignored,
        })
    }

    pub(super) async fn next(&mut self) -> SignalAction {
        let IgnoredSignals { hang_up, user_1, user_2, meaningless } = &mut self.ignored;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return SignalAction::Stop(15),
                _ = self.interrupt.recv() => return SignalAction::Stop(2),
                _ = self.quit.recv() => return SignalAction::Stop(3),
                _ = hang_up.recv() => return SignalAction::Reload,
                _ = user_1.recv() => return SignalAction::Reopen,
                _ = user_2.recv() => return SignalAction::Upgrade,
                number = first(meaningless) => warn!("ignored signal {}", name(number)),
            }
        }
    }
}

/// Waits for any of these signals and returns its number.
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
