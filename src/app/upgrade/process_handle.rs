//! Handle of a process, which need not be a child of this process.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

/// Upper bound for the wait until a killed process has ended.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between checks whether the process has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Handle of a process.
#[derive(Debug)]
pub(super) struct ProcessHandle {
    id: u32,
    means: Means,
}

#[derive(Debug)]
enum Means {
    /// File descriptor of the process (pidfd). It refers to this process even after its end.
    Descriptor(OwnedFd),
    /// Process id, if pidfds are not available: before Linux 5.3, or in a sandbox.
    Number(Pid),
    /// The process had already ended when it was to be opened.
    Ended,
}

impl ProcessHandle {
    /// Opens the process with this id.
    pub(super) fn open(id: u32) -> ProcessHandle {
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let means = match pid.map(|pid| (pid, pidfd_open(pid, PidfdFlags::empty()))) {
            Some((_, Ok(descriptor))) => Means::Descriptor(descriptor),
            None | Some((_, Err(Errno::SRCH))) => Means::Ended,
            Some((pid, Err(_))) => Means::Number(pid),
        };
        ProcessHandle { id, means }
    }

    /// Id of the process.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Kills the process and waits for its end. Returns whether the process has ended within
    /// [`KILL_TIMEOUT`]. If it has, all of its descriptors are closed.
    pub(super) fn kill(&self) -> bool {
        // An error can be ignored here: the process then does not end, which the wait below
        // detects.
        let _ = match &self.means {
            Means::Descriptor(descriptor) => pidfd_send_signal(descriptor, Signal::KILL),
            Means::Number(pid) => kill_process(*pid, Signal::KILL),
            Means::Ended => Ok(()),
        };
        (0..KILL_TIMEOUT.as_millis() / LOOK.as_millis()).any(|_| self.ends_within_a_look())
    }

    fn ends_within_a_look(&self) -> bool {
        match &self.means {
            Means::Descriptor(descriptor) => {
                let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
                let mut ended = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
                poll(&mut ended, Some(&patience)).is_ok_and(|ended| ended > 0)
            }
            Means::Number(pid) => {
                let has_ended = test_kill_process(*pid) == Err(Errno::SRCH);
                if !has_ended {
                    thread::sleep(LOOK);
                }
                has_ended
            }
            Means::Ended => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("100").spawn().unwrap()
    }

    #[test]
    fn killed_process_has_ended_once_kill_returns() {
        for _ in 0..20 {
            let mut child = sleeper();
            assert!(ProcessHandle::open(child.id()).kill());
            assert!(child.try_wait().unwrap().is_some());
        }
    }

    #[test]
    fn process_without_a_descriptor_is_killed_by_its_number() {
        let mut child = sleeper();
        let handle = ProcessHandle { id: child.id(), means: Means::Number(Pid::from_child(&child)) };
        // The parent reaps the process, as a service manager does.
        let reaper = thread::Builder::new().spawn(move || child.wait().unwrap()).unwrap();
        assert!(handle.kill());
        assert!(!reaper.join().unwrap().success());
    }

    #[test]
    fn process_that_has_ended_takes_no_wait() {
        let mut child = sleeper();
        let before = ProcessHandle::open(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(before.kill());
        assert!(matches!(ProcessHandle::open(0).means, Means::Ended) && ProcessHandle::open(0).kill());
    }
}
