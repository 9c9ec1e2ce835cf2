//! Child process that succeeds its parent in an upgrade, if no service manager is notified. The
//! program that started the parent (a shell, runit, supervisord, the init of a container) would
//! take the parent's end for the end of convey. So the parent stays: it passes signals on to the
//! child, and exits with the child's exit code.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use convey_config::files;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::oneshot;

/// Exit code if the successor's exit status is unknown.
const UNKNOWN: u8 = 1;

/// Child process that serves in place of its parent.
pub(in crate::app) struct SuccessorProcess {
    process: u32,
    /// File descriptor (pidfd) that refers to the child even after its end. `None` before Linux
    /// 5.3, where signals cannot be passed on.
    handle: Option<OwnedFd>,
    ended: oneshot::Receiver<Option<ExitStatus>>,
    code: Option<u8>,
}

impl SuccessorProcess {
    pub(super) fn new(mut child: Child) -> SuccessorProcess {
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        let process = child.id();
        let ended = files::begin_aside(move || child.wait().ok());
        SuccessorProcess { process, handle, ended, code: None }
    }

    /// Id of the child.
    pub(in crate::app) fn process(&self) -> u32 {
        self.process
    }

    /// Passes on to the child a signal that this process received.
    pub(in crate::app) fn pass_on(&self, signal: Signal) {
        if let Some(handle) = &self.handle {
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Waits for the child's end. Returns its exit code; for a child that a signal killed, the code
    /// that a shell uses. May be called again.
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
            let mut child = SuccessorProcess::new(Command::new("sh").args(["-c", script]).spawn().unwrap());
            assert_eq!((child.end().await, child.end().await), (expected, expected), "{script}");
        }
    }

    #[tokio::test]
    async fn successor_gets_signals_until_it_has_ended() {
        let mut child = SuccessorProcess::new(Command::new("sleep").arg("100").spawn().unwrap());
        child.pass_on(Signal::TERM);
        assert_eq!(child.end().await, 128 + 15);
        child.pass_on(Signal::TERM);
    }
}
