//! Processes of an upgrade: a balancer whose program can be replaced, and successors of another
//! version.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Ran, binary, binary_of_upgrade, copy_program, run, wait_for,
};
use rustix::net::{RecvFlags, SendFlags, recv};
use rustix::process::{Pid, Signal, kill_process};

/// Variable that makes this program a successor with another format: see [`another_version`].
pub(super) const ROLE: &str = "CONVEY_TEST_SUCCESSOR";

/// File that makes such a successor wait before it is ready, and the file that it writes then.
const WAITS: &str = "waits";
const OFFERED: &str = "offered";

/// A balancer with a program file of its own, and the processes that have replaced it. A service
/// manager accepts each, so that earlier ones end.
pub(crate) struct Upgraded<'a> {
    pub(super) lab: &'a Loopback,
    pub(crate) first: BalancerProcess,
    pub(super) program: PathBuf,
    pub(super) replaced: AtomicUsize,
    pub(super) processes: Vec<Pid>,
    pub(super) manager: UnixDatagram,
}

impl<'a> Upgraded<'a> {
    pub(crate) fn start(lab: &'a Loopback, setup: &impl Display) -> Upgraded<'a> {
        let program = lab.directory().join("convey");
        copy_program(binary_of_upgrade(0), &program);
        let socket = lab.directory().join("notify");
        // A lab may have had another one.
        let _ = fs::remove_file(&socket);
        let manager = UnixDatagram::bind(&socket).unwrap();
        let hears = manager.try_clone().unwrap();
        thread::spawn(move || while hears.recv(&mut [0; 4096]).is_ok_and(|len| len > 0) {});
        let mut command = Command::new(&program);
        command.env("NOTIFY_SOCKET", socket);
        let first = BalancerProcess::start_with(lab, setup, command);
        Upgraded { lab, first, program, replaced: AtomicUsize::new(0), processes: Vec::new(), manager }
    }

    /// Installs a program again, another build if there is one: another file of the same name.
    pub(crate) fn replace_program(&self) {
        let new = self.lab.directory().join("convey.new");
        copy_program(binary_of_upgrade(self.replaced.fetch_add(1, Ordering::Relaxed) + 1), &new);
        fs::rename(new, &self.program).unwrap();
    }

    /// Installs a shell script in its place.
    pub(super) fn replace_program_by(&mut self, line: &str) {
        replace_by_script(self.lab, &self.program, line);
    }

    /// `convey upgrade`.
    pub(super) fn fetch(&self) -> Ran {
        let config = self.lab.directory().join("config.toml");
        // With an invalid file, the process is found by its statistics address, if it is the only
        // one.
        let known = fs::read_to_string(&config).unwrap().contains("[stats]");
        let named = self.lab.directory().join("named.toml");
        if known {
            fs::copy(&config, &named).unwrap();
        }
        run(binary().arg("upgrade").arg("--config").arg(named))
    }

    /// Upgrades successfully.
    pub(crate) fn upgrade(&mut self) {
        let ran = self.fetch();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        self.wait_for_process();
    }

    /// Waits for another process that serves.
    pub(super) fn wait_for_process(&mut self) {
        let n = self.processes.len();
        let process = wait_for("the next process", || {
            let log = self.first.log();
            let line = log.lines().filter_map(|line| line.split_once("upgraded: process ")).nth(n)?.1;
            line.split(' ').next()?.parse().ok()
        });
        self.processes.push(Pid::from_raw(process).unwrap());
    }

    /// Waits until the processes between the first and the last have ended.
    pub(crate) fn wait_for_the_last(&self) {
        wait_for("the processes between to end", || (self.still_running() == 1).then_some(()));
    }

    /// Waits until all processes after the first have ended.
    pub(crate) fn wait_for_all(&self) {
        wait_for("the processes to end", || (self.still_running() == 0).then_some(()));
    }

    /// Number of running processes after the first one.
    pub(crate) fn still_running(&self) -> usize {
        // Their new parent may reap them late.
        let runs = |process: &&Pid| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        self.processes.iter().filter(runs).count()
    }
}

impl Drop for Upgraded<'_> {
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| _ = kill_process(*process, Signal::KILL));
        let _ = self.manager.shutdown(Shutdown::Both);
    }
}

/// Installs a shell script in the place of a program.
pub(super) fn replace_by_script(lab: &Loopback, program: &Path, line: &str) {
    let [script, new] = ["script", "convey.new"].map(|name| lab.directory().join(name));
    fs::write(&script, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&script, &new);
    fs::rename(new, program).unwrap();
}

/// Installs a new version in the place of a program that never gets ready. It writes its process id
/// to the returned file once it has the old process's state.
pub(crate) fn replace_by_one_that_waits(lab: &Loopback, program: &Path) -> PathBuf {
    let (this, folder) = (std::env::current_exe().unwrap(), lab.directory());
    fs::write(folder.join(WAITS), "").unwrap();
    replace_by_script(lab, program, &format!("exec env {ROLE}={} {}", folder.display(), this.display()));
    folder.join(OFFERED)
}

/// If this program is started in the place of convey, it announces other formats. Returns whether
/// it was.
pub(crate) fn another_version() -> bool {
    let role = std::env::var_os(ROLE);
    let is_one = role.is_some();
    if let Some(folder) = role.filter(|role| role != "1") {
        serve_when_told(Path::new(&folder));
    } else if is_one {
        let stdin = io::stdin();
        let _ = recv(&stdin, &mut [0; 1024][..], RecvFlags::empty());
        let hello = br#"{"Hello":{"formats":[98,99],"program":"9.0.0"}}"#;
        rustix::net::send(&stdin, hello, SendFlags::empty()).unwrap();
        let _ = recv(&stdin, &mut [0; 1024][..], RecvFlags::empty());
    }
    is_one
}

/// A new process that serves once a file `serve` exists in the folder. It writes `may-serve`
/// before. If a file `waits` exists, it never gets ready, and writes `offered`.
pub(super) fn serve_when_told(folder: &Path) {
    let stdin = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let hear_until = |last: &str| while !receive_message(&stdin).starts_with(last) {};
    hear_until("{\"Hello\"");
    send_message(&stdin, r#"{"Hello":{"formats":[2],"program":"9.0.0"}}"#);
    hear_until("\"Offered\"");
    if folder.join(WAITS).exists() {
        fs::write(folder.join(OFFERED), format!("{}\n", std::process::id())).unwrap();
        wait_for("a signal that ends this process", || None::<()>);
    }
    send_message(&stdin, r#"{"Prepared":{"statistics":false,"control":false}}"#);
    hear_until("\"Go\"");
    fs::write(folder.join("may-serve"), format!("{}\n", std::process::id())).unwrap();
    wait_for("the word to serve", || folder.join("serve").exists().then_some(()));
    send_message(&stdin, "\"Ready\"");
    wait_for("a signal that ends this process", || None::<()>);
}

pub(super) fn send_message(to: &OwnedFd, message: &str) {
    rustix::net::send(to, message.as_bytes(), SendFlags::empty()).unwrap();
}

pub(super) fn receive_message(from: &OwnedFd) -> String {
    let mut bytes = vec![0; 65_536];
    let (len, _) = recv(from, &mut bytes[..], RecvFlags::empty()).unwrap();
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}
