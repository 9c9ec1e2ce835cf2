//! Name server whose answers a test can change.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::{Loopback, Process, tool, wait_for};

/// Host name for which [`TestNameServer`] has records.
pub const NAME: &str = "app.convey.test";

/// Service name (SRV) that refers to [`NAME`] on ports 8000 and 8001.
pub const SERVICE: &str = "_http._tcp.convey.test";

/// dnsmasq with records for [`NAME`], and without upstream servers. Its answers have a TTL of one
/// second.
pub struct TestNameServer<'a> {
    lab: &'a Loopback,
    process: Process,
}

impl TestNameServer<'_> {
    /// Starts a name server that answers with the addresses of these servers of the lab.
    pub fn start<'a>(lab: &'a Loopback, servers: &[u8]) -> TestNameServer<'a> {
        TestNameServer::start_with(lab, servers.iter().map(|n| lab.server(*n).ip()))
    }

    /// Starts a name server that answers with these addresses.
    pub fn start_with(lab: &Loopback, addresses: impl Iterator<Item = IpAddr>) -> TestNameServer<'_> {
        write_hosts(lab, addresses);
        let addr = TestNameServer::addr(lab);
        let mut command = Command::new(tool("dnsmasq").unwrap());
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root"]);
        command.args(["--no-resolv", "--no-hosts", "--bind-interfaces", "--log-facility=-"]);
        command.args(["--local=/convey.test/", "--local-ttl=1"]);
        command.arg(format!("--addn-hosts={}", hosts(lab).display()));
        // The service has two ports of the same name.
        command.args([8000, 8001].map(|port| format!("--srv-host={SERVICE},{NAME},{port}")));
        command.args([format!("--listen-address={}", addr.ip()), format!("--port={}", addr.port())]);
        let process = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        wait_for("dnsmasq", || TcpStream::connect(addr).ok());
        TestNameServer { lab, process }
    }

    /// Address of the name server.
    pub fn addr(lab: &Loopback) -> SocketAddr {
        SocketAddr::new(lab.ip(53), 5353)
    }

    /// Configuration lines that make convey query this name server, and accept the loopback
    /// addresses that tests use.
    pub fn dns(lab: &Loopback) -> String {
        format!("[dns]\nnameservers = \"{}\"\nallow_local = true\n", TestNameServer::addr(lab))
    }

    /// Changes the answers to the addresses of these servers.
    pub fn answer(&self, servers: &[u8]) {
        write_hosts(self.lab, servers.iter().map(|n| self.lab.server(*n).ip()));
        self.process.signal(Signal::HUP);
    }
}

fn hosts(lab: &Loopback) -> PathBuf {
    lab.directory().join("hosts")
}

fn write_hosts(lab: &Loopback, addresses: impl Iterator<Item = IpAddr>) {
    let lines: String = addresses.map(|ip| format!("{ip} {NAME}\n")).collect();
    fs::write(hosts(lab), lines).unwrap();
}
