//! One network namespace.

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

/// A network namespace, by the name that `ip netns` knows. It is gone, with whatever runs in it, when this and those made
/// together with it are dropped, and when the process ends in any other way.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    _janitor: Arc<Janitor>,
}

impl Namespace {
    /// Makes one. It has a loopback interface, which is down.
    ///
    /// # Errors
    /// What `ip` said, or that we are not root.
    pub fn new() -> Result<Namespace, LabError> {
        let mut made = Namespace::of_roles(["alone"])?;
        Ok(made.pop().expect("one was asked for"))
    }

    /// Makes one for each role, and first removes what is left of processes that are gone.
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
        // In charge before there is anything to clear away.
        let janitor = Arc::new(Janitor::start(&names)?);
        ip(&[], names.iter().map(|name| format!("netns add {name}")))?;
        Ok(names.into_iter().map(|name| Namespace { name, _janitor: janitor.clone() }).collect())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs lines of `ip` on it, in one process; what they printed.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn ip(&self, lines: impl IntoIterator<Item = String>) -> Result<String, LabError> {
        ip(&["-n", &self.name], lines)
    }

    /// A command that runs a program in it. A program that still runs at the end is killed.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = programs::command("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program in it to its end; what it printed.
    ///
    /// # Errors
    /// What the program said, if it failed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        output(self.command(program).args(arguments), "")
    }

    /// Does `f` on a thread that is in it, and waits for that. Sockets made there stay in it.
    ///
    /// # Errors
    /// The thread may not enter it.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let inside = || {
            self.join()?;
            Ok(f())
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into it for good; threads it starts from now on are there too.
    ///
    /// # Errors
    /// The thread may not enter it.
    pub fn join(&self) -> Result<(), LabError> {
        join(&self.name)
    }
}

/// Moves the calling thread for good into the namespace of this name, which another process may have made.
///
/// # Errors
/// There is no such namespace, or the thread may not enter it.
pub fn join(name: &str) -> Result<(), LabError> {
    File::open(format!("{}/{name}", janitor::NAMESPACES))
        .and_then(|file| Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?))
        .map_err(|source| LabError::System { what: format!("enter the namespace {name}"), source })
}
