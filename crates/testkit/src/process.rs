//! Processes that cannot outlive their test.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use tempfile::tempfile;

use super::wait::{PATIENCE, wait_up_to};

/// Output of a command that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Exit code. `None` if a signal ended the command.
    pub code: Option<i32>,
    /// Standard output of the command.
    pub stdout: String,
    /// Standard error of the command.
    pub stderr: String,
}

/// Runs a command and waits until it ends.
pub fn run(command: &mut Command) -> Ran {
    run_up_to(PATIENCE, command)
}

/// Runs a command and waits until it ends, with a custom timeout.
pub(crate) fn run_up_to(patience: Duration, command: &mut Command) -> Ran {
    let (stdout, stderr) = (tempfile().unwrap(), tempfile().unwrap());
    command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let code = Process::spawn(command).wait_up_to(patience).code();
    Ran { code, stdout: read(stdout), stderr: read(stderr) }
}

/// Copies a program that a test is about to run. A separate process (`cp`) writes the copy. If this
/// process wrote it, a child that another thread starts would inherit the open file, and the kernel
/// does not run a file that is open for writing.
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let ran = run(Command::new("cp").arg(from.as_ref()).arg(to));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Running process. Dropping this value kills the process. If the tests themselves are killed, the
/// kernel kills the process too.
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts a process.
    pub fn spawn(command: &mut Command) -> Process {
        let name = command.get_program().to_string_lossy().into_owned();
        let die_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        #[expect(unsafe_code, reason = "nothing else runs between fork and exec")]
        // SAFETY: between fork and exec, the closure makes one system call and accesses only its
        // own memory.
        unsafe {
            command.pre_exec(die_with_parent);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Process { child, name }
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Takes the standard input and output of the process. The command must pipe both.
    pub fn pipes(&mut self) -> (ChildStdin, ChildStdout) {
        (self.child.stdin.take().unwrap(), self.child.stdout.take().unwrap())
    }

    /// Takes the standard input of the process. The command must pipe it.
    pub fn keys(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Waits until the process has ended by itself. Panics after a timeout.
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_up_to(PATIENCE)
    }

    fn wait_up_to(&mut self, patience: Duration) -> ExitStatus {
        let child = std::cell::RefCell::new(&mut self.child);
        wait_up_to(patience, &format!("the end of {}", self.name), || child.borrow_mut().try_wait().unwrap())
    }

    /// Exit status. `None` while the process runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read(mut file: File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}
