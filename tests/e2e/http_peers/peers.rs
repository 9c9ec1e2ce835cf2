//! nginx, HAProxy and convey with equal rules.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use convey_testkit::{BalancerProcess, Loopback, Process, connect_from, tool, wait_for};

use super::Clients;
use super::case::Case;
use crate::http::client::read_head;

/// The running peers, in the order of [`super::case::PEERS`].
pub(super) struct Peers {
    addrs: [SocketAddr; 3],
    _convey: BalancerProcess,
    _others: [Process; 2],
}

impl Peers {
    pub(super) fn start(lab: &Loopback, clients: &Clients) -> Peers {
        let addrs = [SocketAddr::new(lab.ip(20), 8080), SocketAddr::new(lab.ip(21), 8080), lab.vip()];
        let filled = |rules: &str, listen: SocketAddr| {
            let values = [
                ("@listen@", listen.to_string()),
                ("@site@", lab.server(1).to_string()),
                ("@api@", lab.server(2).to_string()),
                ("@v2@", lab.server(3).to_string()),
                ("@office@", clients.office.to_string()),
                ("@dir@", lab.directory().display().to_string()),
                ("@stats_ip@", lab.stats().ip().to_string()),
            ];
            values.iter().fold(rules.to_owned(), |text, (name, value)| text.replace(name, value))
        };
        let nginx = nginx(lab.directory(), &filled(include_str!("nginx.conf"), addrs[0]));
        let haproxy = haproxy(lab.directory(), &filled(include_str!("haproxy.cfg"), addrs[1]));
        let convey = BalancerProcess::start(lab, &filled(include_str!("convey.toml"), addrs[2]));
        for addr in addrs {
            wait_for(&format!("a peer on {addr}"), || TcpStream::connect(addr).ok());
        }
        Peers { addrs, _convey: convey, _others: [nginx, haproxy] }
    }

    /// Answer of peer number `n`, in the form of `requests.txt`.
    pub(super) fn answer(&self, n: usize, case: &Case, clients: &Clients) -> String {
        let client = if case.is_from_office { clients.office } else { clients.usual };
        let mut stream = connect_from(client, self.addrs[n]).unwrap();
        // A peer may refuse a request before it has read the whole.
        let _ = stream.write_all(&case.request);
        let head = final_head(&mut stream, &case.name);
        case.answer(head.as_deref()).replace(&client.to_string(), "CLIENT")
    }
}

/// Head of the response after interim responses. `None` if the response has none (HTTP/0.9).
fn final_head(stream: &mut TcpStream, name: &str) -> Option<String> {
    loop {
        let mut begin = [0; 5];
        stream.read_exact(&mut begin).unwrap_or_else(|error| panic!("{name}: {error}"));
        if begin != *b"HTTP/" {
            return None;
        }
        let head = read_head(stream).unwrap_or_else(|error| panic!("{name}: {error}"));
        if !head.starts_with("1.1 1") {
            return Some(head);
        }
    }
}

fn nginx(directory: &Path, config: &str) -> Process {
    fs::write(directory.join("nginx.conf"), config).unwrap();
    let mut command = Command::new(tool("nginx").unwrap());
    command.arg("-p").arg(directory).args(["-c", "nginx.conf", "-e", "error.log"]);
    Process::spawn(command.current_dir(directory).stderr(Stdio::null()))
}

fn haproxy(directory: &Path, config: &str) -> Process {
    let file = directory.join("haproxy.cfg");
    fs::write(&file, config).unwrap();
    let mut command = Command::new(tool("haproxy").unwrap());
    Process::spawn(command.args(["-db", "-q", "-f"]).arg(file).stderr(Stdio::null()))
}
