//! Network namespaces, by their names in `ip netns`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use convey_dataplane::programs;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::LabError;
use super::janitor::{self, Janitor};
use super::programs::{find, ip, output};

/// Network namespace, by its name in `ip netns`.
///
/// A namespace is removed and its processes are killed when all namespaces that were made in the
/// same call are dropped. The same happens when the process that made them ends in any way.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    _janitor: Arc<Janitor>,
}

impl Namespace {
    /// Creates a network namespace, whose loopback interface is down.
    ///
    /// # Errors
    /// If `ip` fails, or if this process is not root.
    pub fn new() -> Result<Namespace, LabError> {
        let mut made = Namespace::of_roles(["alone"])?;
        Ok(made.pop().expect("one was asked for"))
    }

    /// Creates a namespace for each role, after removing the remains of labs whose process has
    /// ended.
    pub(super) fn of_roles(
        roles: impl IntoIterator<Item = impl std::fmt::Display>,
    ) -> Result<Vec<Namespace>, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        find("ip", "iproute2")?;
        janitor::sweep()?;
        let prefix = format!("convey-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> = roles.into_iter().map(|role| format!("{prefix}-{role}")).collect();
        // The janitor must be running before there is anything to remove.
        let janitor = Arc::new(Janitor::start(&names)?);
        ip(&[], names.iter().map(|name| format!("netns add {name}")))?;
        Ok(names.into_iter().map(|name| Namespace { name, _janitor: janitor.clone() }).collect())
    }

    /// Name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs lines of `ip` in the namespace, in one process; returns their output.
    ///
    /// # Errors
    /// If `ip` fails; the error contains its error output.
    pub fn ip(&self, lines: impl IntoIterator<Item = String>) -> Result<String, LabError> {
        ip(&["-n", &self.name], lines)
    }

    /// Creates a command that runs a program in the namespace. The program is killed when the
    /// namespace is removed.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = programs::command("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program in the namespace to its end; returns its output.
    ///
    /// # Errors
    /// If the program fails; the error contains its error output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        output(self.command(program).args(arguments), "")
    }

    /// Runs `f` on a new thread in the namespace, and waits for its result. Sockets that `f` opens
    /// stay in the namespace.
    ///
    /// # Errors
    /// If the thread may not enter the namespace.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let inside = || {
            self.join()?;
            Ok(f())
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread permanently into the namespace. Threads that this thread starts
    /// later are in the namespace too.
    ///
    /// # Errors
    /// If the thread may not enter the namespace.
    pub fn join(&self) -> Result<(), LabError> {
        join(&self.name)
    }
}

/// Moves the calling thread permanently into the namespace with this name. Another process may have
/// made the namespace.
///
/// # Errors
/// If there is no such namespace, or the thread may not enter it.
pub fn join(name: &str) -> Result<(), LabError> {
    File::open(format!("{}/{name}", janitor::NAMESPACES))
        .and_then(|file| Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?))
        .map_err(|source| LabError::System { what: format!("enter the namespace {name}"), source })
}
