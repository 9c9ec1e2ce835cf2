//! The process that took over, as its parent sees it where no service manager is told of it. The program that has started
//! the parent (a shell, runit, supervisord, the init of a container) takes the parent's end for the end of convey. So the
//! parent stays: it passes signals on, and ends as its heir has ended.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use convey_config::files;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::oneshot;

/// The exit code where nobody can say how it ended.
const UNKNOWN: u8 = 1;

/// A child that serves instead of this process.
pub(in crate::app) struct Heir {
    process: u32,
    /// Means this very process, also once it has ended. `None` before Linux 5.3: then it gets no signals.
    handle: Option<OwnedFd>,
    ended: oneshot::Receiver<Option<ExitStatus>>,
    code: Option<u8>,
}

impl Heir {
    pub(super) fn new(mut child: Child) -> Heir {
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        let process = child.id();
        let ended = files::begin_aside(move || child.wait().ok());
        Heir { process, handle, ended, code: None }
    }

    /// Its process id.
    pub(in crate::app) fn process(&self) -> u32 {
        self.process
    }

    /// Sends it what somebody has sent to this process.
    pub(in crate::app) fn pass_on(&self, signal: Signal) {
        if let Some(handle) = &self.handle {
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Waits until it has ended. Returns its exit code, or what a shell says of a signal. May be called again.
    pub(in crate::app) async fn end(&mut self) -> u8 {
        if let Some(code) = self.code {
            return code;
        }
        let status = (&mut self.ended).await.ok().flatten();
        *self.code.insert(status.map_or(UNKNOWN, code))
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn its_exit_code_is_told_as_a_shell_does_and_again() {
        for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
            let mut heir = Heir::new(Command::new("sh").args(["-c", script]).spawn().unwrap());
            assert_eq!((heir.end().await, heir.end().await), (expected, expected), "{script}");
        }
    }

    #[tokio::test]
    async fn it_gets_signals_and_none_once_it_has_ended() {
        let mut heir = Heir::new(Command::new("sleep").arg("100").spawn().unwrap());
        heir.pass_on(Signal::TERM);
        assert_eq!(heir.end().await, 128 + 15);
        heir.pass_on(Signal::TERM);
    }
}
