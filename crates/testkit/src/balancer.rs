//! Runs convey, the program under test.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, DirEntry, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use super::{Loopback, Process, fetch, wait_for, whole_lines};

/// A running `convey`. Its log is printed if the test fails.
pub struct BalancerProcess {
    process: Process,
    directory: PathBuf,
    /// Name of the configuration file.
    file: &'static str,
    stats: SocketAddr,
}

/// Open descriptors of a process, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fds {
    /// Sockets of any kind.
    pub sockets: usize,
    /// Ends of pipes.
    pub pipes: usize,
}

impl Fds {
    fn of(descriptors: &BTreeMap<u64, PathBuf>) -> Fds {
        let count =
            |kind: &str| descriptors.values().filter(|link| link.to_string_lossy().starts_with(kind)).count();
        Fds { sockets: count("socket:"), pipes: count("pipe:") }
    }
}

/// Command for the program under test: `CONVEY_BIN`, or the binary that cargo built next to this
/// test.
pub fn binary() -> Command {
    let path = std::env::var_os("CONVEY_BIN").map_or_else(built, PathBuf::from);
    let mut command = Command::new(path);
    // Many convey processes run concurrently, and the host may run its own convey.
    command.env_remove("RUST_LOG").env("CONVEY_SOCKET", "");
    command
}

/// Path of the binary for the `n`th upgrade of a test. For odd `n` it is `CONVEY_OTHER_BIN`, a
/// different build, if that is set; otherwise [`binary`].
pub fn binary_of_upgrade(n: usize) -> PathBuf {
    let other = std::env::var_os("CONVEY_OTHER_BIN").filter(|_| n % 2 == 1);
    other.map_or_else(|| binary().get_program().into(), PathBuf::from)
}

/// Path of the binary that cargo built: `target/PROFILE/convey`, for a test in
/// `target/PROFILE/deps`.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("convey");
    assert!(path.is_file(), "{} is not built: run `cargo build` for this profile", path.display());
    path
}

/// File name of the control socket in the directory of a [`BalancerProcess`].
const CONTROL_SOCKET: &str = "control.sock";

/// Log line that convey writes when its start is complete. `tests/guest/lab.sh` waits for the same
/// line.
pub const READY: &str = "statistics on http://";

/// Waits until the log file contains `READY`.
pub fn wait_until_ready(convey: &mut Process, log: &Path) {
    wait_for("convey to be ready", || {
        let (ended, log) = (convey.ended(), read(log));
        assert!(ended.is_none(), "convey ended: {ended:?}\n{log}");
        log.contains(READY).then_some(())
    });
}

/// Starts convey with its log in a file, and waits until convey is ready.
pub fn start(mut command: Command, log: &Path) -> Process {
    let file = File::create(log).unwrap();
    command.env_remove("RUST_LOG").stdout(file.try_clone().unwrap()).stderr(file);
    let mut convey = Process::spawn(&mut command);
    wait_until_ready(&mut convey, log);
    convey
}

impl BalancerProcess {
    /// Starts convey and waits until it serves.
    pub fn start(lab: &Loopback, config: &impl Display) -> BalancerProcess {
        BalancerProcess::start_with(lab, config, binary())
    }

    /// Starts convey with a command other than [`binary`].
    pub fn start_with(lab: &Loopback, config: &impl Display, command: Command) -> BalancerProcess {
        BalancerProcess::start_in(lab, "config.toml", config, command)
    }

    /// Starts convey with a list of servers, `hosts.txt`, in place of a configuration file.
    pub fn start_with_list(lab: &Loopback, list: &str) -> BalancerProcess {
        let mut command = binary();
        command.args(["--listen", &lab.vip().to_string(), "--stats", &lab.stats().to_string()]);
        command.args(["--servers", "hosts.txt"]);
        BalancerProcess::start_in(lab, "hosts.txt", &list, command)
    }

    fn start_in(
        lab: &Loopback,
        file: &'static str,
        config: &impl Display,
        mut command: Command,
    ) -> BalancerProcess {
        let directory = lab.directory().to_owned();
        fs::write(directory.join(file), config.to_string()).unwrap();
        command.current_dir(&directory).env("CONVEY_SOCKET", directory.join(CONTROL_SOCKET));
        let names_it = |argument: &OsStr| argument == "--config" || argument == "--servers";
        if !command.get_args().any(names_it) {
            // Pass the file explicitly, because the convey package may have installed a file in
            // /etc.
            command.args(["--config", file]);
        }
        let process = start(command, &directory.join("log"));
        BalancerProcess { process, directory, file, stats: lab.stats() }
    }

    /// Path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.directory.join(CONTROL_SOCKET)
    }

    /// Command for the convey CLI that connects to this process's control socket.
    pub fn command(&self) -> Command {
        let mut command = binary();
        command.env("CONVEY_SOCKET", self.control_socket());
        command
    }

    /// Path of the configuration file.
    pub fn config(&self) -> PathBuf {
        self.directory.join(self.file)
    }

    /// Saves the configuration as editors do: a new file replaces the old one.
    pub fn save(&self, config: &impl Display) {
        let new = self.directory.join("new");
        fs::write(&new, config.to_string()).unwrap();
        fs::rename(new, self.config()).unwrap();
    }

    /// Saves the configuration over the old one, in the same file.
    pub fn save_in_place(&self, config: &impl Display) {
        fs::write(self.config(), config.to_string()).unwrap();
    }

    /// Returns all text that convey has logged and printed.
    pub fn log(&self) -> String {
        whole_lines(&self.directory.join("log"))
    }

    /// Waits for a log line that contains `text`, and returns the line.
    pub fn wait_for_log(&self, text: &str) -> String {
        wait_for(&format!("a line of the log with {text:?}"), || {
            self.log().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
    }

    /// Returns the contents of `/stats`.
    pub fn stats(&self) -> Value {
        serde_json::from_str(&self.page("/stats").1).unwrap()
    }

    /// Returns the status and body of a page at the statistics address.
    pub fn page(&self, path: &str) -> (u16, String) {
        fetch(self.stats, path).unwrap()
    }

    /// Returns the value at a JSON pointer in `/stats`.
    pub fn stat(&self, pointer: &str) -> Value {
        let stats = self.stats();
        stats.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {stats:#}")).clone()
    }

    /// Waits until the value at a JSON pointer in `/stats` equals `expected`.
    pub fn wait_for_stat(&self, pointer: &str, expected: impl Into<Value>) {
        let expected = expected.into();
        wait_for(&format!("{pointer} = {expected} in /stats"), || {
            (self.stats().pointer(pointer) == Some(&expected)).then_some(())
        });
    }

    /// Waits until `/stats` reports a server of the pool as up or down.
    pub fn wait_for_health(&self, server: &str, up: bool) {
        self.wait_for_stat(&format!("/backends/pool/servers/{server}/up"), up);
    }

    /// Number of connections that a server of the pool has received so far.
    pub fn given_to(&self, server: &str) -> u64 {
        self.stat(&format!("/backends/pool/servers/{server}/total_connections")).as_u64().unwrap()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until the process has ended, and returns its exit code.
    pub fn wait(&mut self) -> i32 {
        self.process.wait().code().expect("ended by itself")
    }

    /// Counts open descriptors. An earlier read of the statistics has no influence, because its
    /// connection is already closed.
    pub fn fds(&self) -> Fds {
        Fds::of(&self.descriptors())
    }

    /// Counts open descriptors once their number is stable, because a start continues for a moment
    /// after convey is ready.
    pub fn fds_at_rest(&self) -> Fds {
        Fds::of(&self.descriptors_at_rest())
    }

    /// Target of each open descriptor.
    fn descriptors(&self) -> BTreeMap<u64, PathBuf> {
        let entries = fs::read_dir(self.proc("fd")).unwrap().flatten();
        let number = |entry: &DirEntry| entry.file_name().to_string_lossy().parse().unwrap();
        entries.filter_map(|entry| Some((number(&entry), fs::read_link(entry.path()).ok()?))).collect()
    }

    fn descriptors_at_rest(&self) -> BTreeMap<u64, PathBuf> {
        let mut before = BTreeMap::new();
        wait_for("the same descriptors to be open twice", || {
            thread::sleep(Duration::from_millis(20));
            let now = self.descriptors();
            (std::mem::replace(&mut before, now.clone()) == now).then_some(now)
        })
    }

    /// Limits the open files of the process so that it can open exactly `n` more.
    pub fn leave_descriptors(&self, n: usize) {
        let open = self.descriptors_at_rest();
        // The kernel always assigns the lowest free descriptor number.
        let last = (0..).filter(|number| !open.contains_key(number)).nth(n).unwrap();
        let pid = Pid::from_raw(self.process.id() as i32);
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(pid, Resource::Nofile, Rlimit { current: Some(last), maximum }).unwrap();
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = read(&self.proc("status"));
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Path of a file in the process's directory in `/proc`.
    pub fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.process.id()))
    }
}

impl Drop for BalancerProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the balancer in the test that failed ---\n{}---", self.log());
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
