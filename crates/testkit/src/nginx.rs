//! Real nginx as a backend server.

use std::fmt::Display;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::need::tool;
use super::{Loopback, Process, wait_for};

/// nginx process with its own directory. `/` answers with the server's name, `/up` with status 200
/// while the file `up` exists, and other paths serve files of the directory.
pub struct Nginx {
    process: Process,
    www: PathBuf,
}

impl Nginx {
    /// Starts nginx and waits until it answers.
    pub fn start(lab: &Loopback, name: &str, addr: SocketAddr) -> Nginx {
        let nginx = Nginx::spawn(Command::new(tool("nginx").unwrap()), lab.directory(), name, addr);
        wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        nginx
    }

    /// Starts nginx with HTTP/2 without TLS. nginx closes each connection gracefully after
    /// `requests` requests.
    pub fn start_http2(lab: &Loopback, name: &str, addr: SocketAddr, requests: u32) -> Nginx {
        let of = Listening { options: " http2", lines: &format!("keepalive_requests {requests};") };
        let nginx = Nginx::run(Command::new(tool("nginx").unwrap()), lab.directory(), (name, &addr), of);
        wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        nginx
    }

    /// Starts nginx with TLS. `lines` are added to its server block. `/tls` answers with the
    /// server's name, the HTTP version, the requested server name and the subject of the client's
    /// certificate.
    pub fn start_tls(lab: &Loopback, name: &str, addr: SocketAddr, options: &str, lines: &str) -> Nginx {
        let lines = format!(
            "{lines}\nlocation = /tls {{ return 200 \"{name} $server_protocol $ssl_server_name $ssl_client_s_dn\"; }}"
        );
        let of = Listening { options: &format!(" ssl{options}"), lines: &lines };
        let nginx = Nginx::run(Command::new(tool("nginx").unwrap()), lab.directory(), (name, &addr), of);
        wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        nginx
    }

    /// Starts nginx on a unix socket, and waits until it answers. `/seen` answers with the host of
    /// the request, and the number of requests on the connection.
    pub fn start_unix(lab: &Loopback, name: &str, path: &Path) -> Nginx {
        let of = Listening {
            options: "",
            lines: "location = /seen { return 200 \"$http_host $connection_requests\"; }",
        };
        let addr = format!("unix:{}", path.display());
        let nginx = Nginx::run(Command::new(tool("nginx").unwrap()), lab.directory(), (name, &addr), of);
        wait_for(&format!("nginx on {addr}"), || UnixStream::connect(path).ok());
        nginx
    }

    /// Starts nginx with a custom command, in a subdirectory of `directory`.
    pub fn spawn(command: Command, directory: &Path, name: &str, addr: SocketAddr) -> Nginx {
        Nginx::run(command, directory, (name, &addr), Listening { options: "", lines: "" })
    }

    fn run(
        mut command: Command,
        directory: &Path,
        (name, addr): (&str, &dyn Display),
        of: Listening<'_>,
    ) -> Nginx {
        let prefix = directory.join(name);
        let www = prefix.join("www");
        fs::create_dir_all(&www).unwrap();
        fs::write(www.join("up"), "up\n").unwrap();
        let config = prefix.join("nginx.conf");
        fs::write(&config, configuration(name, addr, &prefix, of)).unwrap();
        let errors = prefix.join("error.log");
        command.arg("-p").arg(&prefix).arg("-c").arg(&config).arg("-e").arg(&errors);
        let process = Process::spawn(command.stderr(Stdio::null()));
        Nginx { process, www }
    }

    /// Path of a file that nginx serves.
    pub fn file(&self, name: &str) -> PathBuf {
        self.www.join(name)
    }

    /// Kills nginx immediately, without a graceful stop.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Options of the `listen` line, and more lines of the server block.
struct Listening<'a> {
    options: &'a str,
    lines: &'a str,
}

/// Configuration for a single nginx process, so that a kill leaves no worker behind. nginx runs as
/// the user of the tests, and writes only to its own directory.
fn configuration(name: &str, addr: &dyn Display, prefix: &Path, of: Listening<'_>) -> String {
    let Listening { options, lines } = of;
    let dir = prefix.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|what| format!("    {what}_temp_path {dir}/{what};\n"))
        .collect();
    format!(
        "daemon off;
master_process off;
pid {dir}/pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
{temporary}
    server {{
        listen {addr}{options} backlog=4096;
        {lines}
        root {dir}/www;
        location = / {{ return 200 \"{name}\\n\"; }}
        location = /up {{ try_files /up =503; }}
    }}
}}
"
    )
}
