//! Real nginx as a server.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::need::tool;
use super::{Loopback, Process, wait_for};

/// One nginx process with a directory of its own. `/` answers with its name, `/up` with 200 as long as
/// there is a file `up`, everything else comes from its directory.
pub struct Nginx {
    process: Process,
    www: PathBuf,
}

impl Nginx {
    /// Starts it and waits until it answers.
    pub fn start(lab: &Loopback, name: &str, addr: SocketAddr) -> Nginx {
        let nginx = Nginx::spawn(Command::new(tool("nginx").unwrap()), lab.directory(), name, addr);
        wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        nginx
    }

    /// The same over HTTP/2 without TLS. It ends each connection in order after so many requests.
    pub fn start_http2(lab: &Loopback, name: &str, addr: SocketAddr, requests: u32) -> Nginx {
        let of = Listening { options: " http2", lines: &format!("keepalive_requests {requests};") };
        let nginx = Nginx::run(Command::new(tool("nginx").unwrap()), lab.directory(), (name, addr), of);
        wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        nginx
    }

    /// The same within TLS, with further lines of its server. `/tls` answers with its name, the version of HTTP, the name that it was asked for and the subject of the client's
    /// certificate.
    pub fn start_tls(lab: &Loopback, name: &str, addr: SocketAddr, options: &str, lines: &str) -> Nginx {
        let lines = format!(
            "{lines}\nlocation = /tls {{ return 200 \"{name} $server_protocol $ssl_server_name $ssl_client_s_dn\"; }}"
        );
        let of = Listening { options: &format!(" ssl{options}"), lines: &lines };
        let nginx = Nginx::run(Command::new(tool("nginx").unwrap()), lab.directory(), (name, addr), of);
        wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        nginx
    }

    /// Starts it with a command that is not simply its name, below a directory.
    pub fn spawn(command: Command, directory: &Path, name: &str, addr: SocketAddr) -> Nginx {
        Nginx::run(command, directory, (name, addr), Listening { options: "", lines: "" })
    }

    fn run(
        mut command: Command,
        directory: &Path,
        (name, addr): (&str, SocketAddr),
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

    /// A file that it serves.
    pub fn file(&self, name: &str) -> PathBuf {
        self.www.join(name)
    }

    /// Ends it without giving it a chance to say anything.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// How it listens, and further lines of its server.
struct Listening<'a> {
    options: &'a str,
    lines: &'a str,
}

/// A single process, so that killing it leaves no worker behind, as whoever runs the tests, and writing
/// nowhere but into its directory.
fn configuration(name: &str, addr: SocketAddr, prefix: &Path, of: Listening<'_>) -> String {
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
