//! A site of many servers: two network namespaces, convey in one, nginx for all addresses of the servers in the other.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use convey_testkit::{Process, TestNamespace, binary, run};
use tempfile::TempDir;

/// The networks, the file and the servers.
pub(crate) struct Site {
    balancer: TestNamespace,
    _servers: TestNamespace,
    _nginx: Process,
    folder: TempDir,
}

/// Each server is asked once a minute.
const INTERVAL: u32 = 60;
/// The longest that anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);

impl Site {
    pub(crate) fn new() -> Site {
        let (balancer, servers) = (TestNamespace::new(), TestNamespace::new());
        balancer.link(("eth0", "02:00:00:00:00:01"), &servers, ("eth0", "02:00:00:00:00:02"));
        balancer.ip("addr add 10.0.0.1/16 dev eth0");
        servers.ip("addr add 10.0.0.2/16 dev eth0");
        balancer.ip("route add 10.128.0.0/9 via 10.0.0.2");
        servers.ip("route add local 10.128.0.0/9 dev lo");
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("nginx.conf");
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        let text = format!(
            "daemon off; pid {}; error_log /dev/null; load_module {module};\nevents {{ worker_connections 4096; }}\n\
             stream {{ server {{ listen 0.0.0.0:9000 backlog=4096; return \"\"; }} }}\n",
            folder.path().join("nginx.pid").display()
        );
        fs::write(&config, text).unwrap();
        let nginx = Process::spawn(servers.command("nginx").arg("-c").arg(config));
        Site { balancer, _servers: servers, _nginx: nginx, folder }
    }

    /// Writes the file; each server has weight 1.
    pub(crate) fn write(&self, frontends: usize, backends: usize, servers: usize) -> PathBuf {
        let mut text = String::new();
        for n in 0..frontends {
            let (port, backend) = (1000 + n, n % backends);
            let _ = writeln!(
                text,
                "[frontends.f{n}]\nlisten_addr = \"10.0.0.1:{port}\"\nbackend = \"b{backend}\""
            );
        }
        let each = servers / backends;
        for backend in 0..backends {
            let _ = writeln!(
                text,
                "[backends.b{backend}]\nalgorithm = \"maglev\"\nhealth_check.interval = {INTERVAL}"
            );
            for server in 0..each {
                let n = backend * each + server;
                let (a, b, c) = (128 + n / 62_500, n / 250 % 250, n % 250 + 1);
                let _ =
                    writeln!(text, "servers.s{server} = {{ addr = \"10.{a}.{b}.{c}:9000\", weight = 1 }}");
            }
        }
        fs::write(self.file(), text).unwrap();
        self.file()
    }

    /// Has convey check the file.
    pub(crate) fn check(&self) {
        let mut command = self.convey();
        let ran = run(command.args(["check", "--passthrough", "--config"]).arg(self.file()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    fn convey(&self) -> Command {
        self.balancer.command(binary().get_program())
    }
}

/// A convey that serves the site.
pub(crate) struct Running<'a> {
    site: &'a Site,
    convey: Process,
}

impl Running<'_> {
    pub(crate) fn start(site: &Site) -> Running<'_> {
        let mut command = site.convey();
        command.arg("--passthrough").arg("--config").arg(site.file());
        command.arg("--socket").arg(site.folder.path().join("socket"));
        let log = fs::File::create(site.folder.path().join("log")).unwrap();
        let convey = Process::spawn(command.stdout(log.try_clone().unwrap()).stderr(log));
        Running { site, convey }
    }

    /// Waits until a page of its statistics says that all is well.
    pub(crate) fn wait_for(&mut self, page: &str) {
        let url = format!("http://127.0.0.1:7000/{page}");
        self.wait(page, || {
            let mut curl = self.site.balancer.command("curl");
            run(curl.args(["-s", "-f", "-m", "10", "-o", "/dev/null", &url])).code == Some(0)
        });
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        let log = self.site.folder.path().join("log");
        self.wait(text, || fs::read_to_string(&log).is_ok_and(|log| log.contains(text)));
    }

    /// Takes a server out, or back.
    pub(crate) fn take_out(&self, server: &str, is_out: bool) {
        let mut command = self.site.convey();
        command.arg("--socket").arg(self.site.folder.path().join("socket"));
        command.args(["server", if is_out { "maint" } else { "ready" }, server]);
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    /// The CPU time it has had.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// What it has in memory.
    pub(crate) fn memory_kb(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.convey.id())).unwrap()
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let log = || fs::read_to_string(self.site.folder.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}: {:?}", log().lines().last());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
