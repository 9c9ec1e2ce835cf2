//! A site of many servers: two network namespaces, convey in one, nginx for all addresses of the
//! servers in the other.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use convey_testkit::{Process, TestNamespace, binary, run};
use tempfile::TempDir;

use crate::Size;

/// Networks, configuration file and servers.
pub(crate) struct Site {
    pub(crate) balancer: TestNamespace,
    pub(crate) servers: TestNamespace,
    _nginx: Process,
    folder: TempDir,
}

/// Interval of a server's health check in seconds.
pub(crate) const INTERVAL: u32 = 60;

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
        Site { balancer, servers, _nginx: nginx, folder }
    }

    /// Writes the configuration; each server has weight 1.
    pub(crate) fn write(&self, size: Size) -> PathBuf {
        let Size { mode, frontends, backends, servers } = size;
        let mut text = format!("mode = \"{mode}\"\n");
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

    /// Runs `convey check` on the file.
    pub(crate) fn check(&self) {
        let mut command = self.convey();
        let ran = run(command.args(["check", "--config"]).arg(self.file()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    /// Path of the configuration.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("config.toml")
    }

    /// Path of a file beside the configuration.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn convey(&self) -> Command {
        self.balancer.command(binary().get_program())
    }
}
