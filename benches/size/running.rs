//! Running convey, and its state as seen from outside.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use convey_testkit::{Process, run};

use crate::site::Site;

/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(90);

/// Running convey that serves the site.
pub(crate) struct Running<'a> {
    pub(crate) site: &'a Site,
    convey: Process,
}

impl Running<'_> {
    pub(crate) fn start(site: &Site) -> Running<'_> {
        let mut command = site.convey();
        command.arg("--config").arg(site.file());
        command.arg("--socket").arg(site.path("socket"));
        let log = fs::File::create(site.path("log")).unwrap();
        let convey = Process::spawn(command.stdout(log.try_clone().unwrap()).stderr(log));
        Running { site, convey }
    }

    /// Waits until a page of the statistics reports success.
    pub(crate) fn wait_for(&mut self, page: &str) {
        let url = format!("http://127.0.0.1:7000/{page}");
        self.wait(page, || {
            let mut curl = self.site.balancer.command("curl");
            run(curl.args(["-s", "-f", "-m", "10", "-o", "/dev/null", &url])).code == Some(0)
        });
    }

    /// Path of the log.
    pub(crate) fn log(&self) -> PathBuf {
        self.site.path("log")
    }

    /// Waits for a text in the log.
    pub(crate) fn wait_for_log(&self, text: &str) {
        self.wait(text, || fs::read_to_string(self.log()).is_ok_and(|log| log.contains(text)));
    }

    /// Takes a server out of rotation, or puts it back.
    pub(crate) fn take_out(&self, server: &str, is_out: bool) {
        let mut command = self.site.convey();
        command.arg("--socket").arg(self.site.path("socket"));
        command.args(["server", if is_out { "maint" } else { "ready" }, server]);
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// Resident memory in kilobytes.
    pub(crate) fn memory_kb(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Number of open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.convey.id())).unwrap().count()
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.convey.id())).unwrap()
    }

    /// Waits until a condition holds.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let last =
                || fs::read_to_string(self.log()).unwrap_or_default().lines().last().map(str::to_owned);
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}: {:?}", last());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
