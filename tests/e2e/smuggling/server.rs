//! Popular servers, each with a log of the requests that it has received.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use convey_testkit::{Loopback, Process, tool, wait_for};

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Nginx,
    Haproxy,
    Node,
    /// Python's `http.server`, which closes each connection after a response. It answers with 404;
    /// the other servers answer with the path.
    Python,
}

/// A running one.
pub(super) struct RealServer {
    log: PathBuf,
    _process: Process,
}

impl RealServer {
    pub(super) fn start(lab: &Loopback, kind: Kind, addr: SocketAddr) -> RealServer {
        let (dir, log) = (lab.directory().join("server"), lab.directory().join("requests.log"));
        fs::create_dir(&dir).unwrap();
        let out = File::create(&log).unwrap();
        let [config, script] = ["server.conf", "server.js"].map(|name| dir.join(name));
        let mut command = match kind {
            Kind::Nginx => {
                fs::write(&config, nginx(addr, &dir.display().to_string(), &log.display().to_string()))
                    .unwrap();
                let mut command = Command::new(tool("nginx").unwrap());
                command.arg("-p").arg(&dir).arg("-c").arg(&config).arg("-e").arg(dir.join("error.log"));
                command
            }
            Kind::Haproxy => {
                fs::write(&config, haproxy(addr)).unwrap();
                let mut command = Command::new(tool("haproxy").unwrap());
                command.arg("-db").arg("-f").arg(&config);
                command
            }
            Kind::Node => {
                fs::write(&script, NODE).unwrap();
                let mut command = Command::new(tool("node").unwrap());
                command.arg(&script).arg(addr.port().to_string()).arg(addr.ip().to_string());
                command
            }
            Kind::Python => {
                let mut command = Command::new(tool("python3").unwrap());
                command.args(["-u", "-m", "http.server", &addr.port().to_string(), "--bind"]);
                command.arg(addr.ip().to_string()).arg("--directory").arg(&dir);
                command
            }
        };
        command.stdout(out.try_clone().unwrap()).stderr(out);
        let process = Process::spawn(&mut command);
        wait_for(&format!("{kind:?} on {addr}"), || TcpStream::connect(addr).ok());
        RealServer { log, _process: process }
    }

    /// Its log so far.
    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }
}

const NODE: &str = "
const [port, host] = process.argv.slice(2);
require('http').createServer((request, response) => {
    console.log(request.method, request.url);
    request.resume().on('end', () => response.end(request.url));
}).listen(Number(port), host);
";

fn haproxy(addr: SocketAddr) -> String {
    format!(
        "global
    log stdout format raw local0
defaults
    mode http
    timeout client 30s
    timeout server 30s
    timeout connect 5s
frontend web
    bind {addr}
    log global
    log-format \"%r\"
    http-request return status 200 content-type text/plain lf-string \"%[path]\"
"
    )
}

fn nginx(addr: SocketAddr, dir: &str, log: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|what| format!("    {what}_temp_path {dir}/{what};\n"))
        .collect();
    format!(
        "daemon off;
master_process off;
pid {dir}/pid;
events {{ worker_connections 512; }}
http {{
    access_log {log};
{temporary}
    server {{
        listen {addr};
        location / {{ return 200 \"$uri\\n\"; }}
    }}
}}
"
    )
}
