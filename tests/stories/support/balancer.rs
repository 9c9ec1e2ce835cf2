//! The program under test.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use super::{Lab, Process, ask, wait_for};

/// A running `convey`. Its log is shown if the story fails.
pub(crate) struct Balancer {
    process: Process,
    directory: PathBuf,
    /// The name of its configuration.
    file: &'static str,
    stats: SocketAddr,
}

/// The descriptors of a process, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fds {
    pub(crate) sockets: usize,
    pub(crate) pipes: usize,
}

/// A command that runs the program under test.
pub(crate) fn binary() -> Command {
    let path = std::env::var_os("CONVEY_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_convey").into());
    let mut command = Command::new(path);
    command.env_remove("RUST_LOG");
    command
}

impl Balancer {
    /// Starts it and waits until it serves.
    pub(crate) fn start(lab: &Lab, config: &impl Display) -> Balancer {
        Balancer::start_with(lab, config, binary())
    }

    /// Starts it with a command that is not simply [`binary`].
    pub(crate) fn start_with(lab: &Lab, config: &impl Display, command: Command) -> Balancer {
        Balancer::start_in(lab, "config.toml", config, command)
    }

    /// Starts it without a configuration file, with a list of servers: `hosts.txt`.
    pub(crate) fn start_with_list(lab: &Lab, list: &str) -> Balancer {
        let mut command = binary();
        command.args(["--listen", &lab.vip().to_string(), "--stats", &lab.stats().to_string()]);
        command.args(["--servers", "hosts.txt"]);
        Balancer::start_in(lab, "hosts.txt", &list, command)
    }

    fn start_in(lab: &Lab, file: &'static str, config: &impl Display, mut command: Command) -> Balancer {
        let directory = lab.directory().to_owned();
        fs::write(directory.join(file), config.to_string()).unwrap();
        let log = File::create(directory.join("log")).unwrap();
        command.current_dir(&directory).stdout(log.try_clone().unwrap()).stderr(log);
        let process = Process::spawn(&mut command);
        let mut balancer = Balancer { process, directory, file, stats: lab.stats() };
        let process = std::cell::RefCell::new(&mut balancer.process);
        let log = balancer.directory.join("log");
        wait_for("the balancer to start", || {
            let log = read(&log);
            let ended = process.borrow_mut().ended();
            assert!(ended.is_none(), "the balancer ended: {ended:?}\n{log}");
            log.contains("statistics on http://").then_some(())
        });
        balancer
    }

    /// The configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory.join(self.file)
    }

    /// Saves the configuration as editors do: a new file takes the name of the old.
    pub(crate) fn save(&self, config: &impl Display) {
        let new = self.directory.join("new");
        fs::write(&new, config.to_string()).unwrap();
        fs::rename(new, self.config()).unwrap();
    }

    /// Saves the configuration over the old one, in the same file.
    pub(crate) fn save_in_place(&self, config: &impl Display) {
        fs::write(self.config(), config.to_string()).unwrap();
    }

    /// Everything it has logged and printed.
    pub(crate) fn log(&self) -> String {
        read(&self.directory.join("log"))
    }

    /// Waits for a line of the log that contains `text`; returns it.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        wait_for(&format!("a line of the log with {text:?}"), || {
            self.log().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
    }

    /// What `/stats` says.
    pub(crate) fn stats(&self) -> Value {
        serde_json::from_str(&self.page("/stats").1).unwrap()
    }

    /// Status and body of a page of the statistics.
    pub(crate) fn page(&self, path: &str) -> (u16, String) {
        ask(self.stats, path).unwrap()
    }

    /// A number or other value of `/stats` by its JSON pointer.
    pub(crate) fn stat(&self, pointer: &str) -> Value {
        let stats = self.stats();
        stats.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {stats:#}")).clone()
    }

    /// Waits until a value of `/stats` is as expected.
    pub(crate) fn wait_for_stat(&self, pointer: &str, expected: impl Into<Value>) {
        let expected = expected.into();
        wait_for(&format!("{pointer} = {expected} in /stats"), || {
            (self.stats().pointer(pointer) == Some(&expected)).then_some(())
        });
    }

    /// Waits until a server of the pool is considered up, or down.
    pub(crate) fn wait_for_health(&self, server: &str, up: bool) {
        self.wait_for_stat(&format!("/backends/pool/servers/{server}/up"), up);
    }

    /// Connections that a server of the pool has been given so far.
    pub(crate) fn given_to(&self, server: &str) -> u64 {
        self.stat(&format!("/backends/pool/servers/{server}/total_connections")).as_u64().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for its end; returns the exit code.
    pub(crate) fn wait(&mut self) -> i32 {
        self.process.wait().code().expect("ended by itself")
    }

    /// Open descriptors. The connection that asks for statistics is none of them: it is over.
    pub(crate) fn fds(&self) -> Fds {
        let links = fs::read_dir(self.proc("fd")).unwrap().flatten();
        let kinds: Vec<PathBuf> = links.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        let count = |kind: &str| kinds.iter().filter(|link| link.to_string_lossy().starts_with(kind)).count();
        Fds { sockets: count("socket:"), pipes: count("pipe:") }
    }

    /// Lowers or raises its limit of open files, so that it can open this many more.
    pub(crate) fn leave_descriptors(&self, n: usize) {
        let open = || -> BTreeSet<u64> {
            let open = fs::read_dir(self.proc("fd")).unwrap().flatten();
            open.map(|entry| entry.file_name().to_string_lossy().parse().unwrap()).collect()
        };
        // The connection that asked for statistics last may be about to be closed.
        let mut before = BTreeSet::new();
        let open = wait_for("the same descriptors to be open twice", || {
            thread::sleep(Duration::from_millis(20));
            let now = open();
            (std::mem::replace(&mut before, now.clone()) == now).then_some(now)
        });
        // The next to be opened always gets the lowest number that is free.
        let last = (0..).filter(|number| !open.contains(number)).nth(n).unwrap();
        let pid = Pid::from_raw(self.process.id() as i32);
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(pid, Resource::Nofile, Rlimit { current: Some(last), maximum }).unwrap();
    }

    /// Resident memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = read(&self.proc("status"));
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// A file of its directory in `/proc`.
    pub(crate) fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.process.id()))
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the balancer in the story that failed ---\n{}---", self.log());
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
