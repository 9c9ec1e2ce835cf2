//! Lab of the bench: a client, the balancer and two servers, each in a network namespace.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Result, bail, ensure};
use convey_lab::{Lab, Role, VIP};
use convey_testkit::{Process, TestAuthority, raise_file_limit, tool, wait_for};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::extra::Extra;
use crate::http::{LARGE, SMALL};
use crate::peer::{Peer, STREAM_MODULE};

/// Servers, each an nginx in its own namespace.
pub(crate) const SERVERS: [Role; 2] = [Role::Server(1), Role::Server(2)];

/// Files of the servers: names and sizes in bytes.
const FILES: [(&str, usize); 7] = [
    SMALL,
    ("10k", 10 * 1024),
    ("16k", 16 * 1024),
    ("40k", 40 * 1024),
    ("80k", 80 * 1024),
    LARGE,
    ("10m", 10 * 1024 * 1024),
];

/// Required programs, and the Debian packages that have them.
const TOOLS: [(&str, &str); 7] = [
    ("ip", "iproute2"),
    ("nginx", "nginx-light"),
    ("haproxy", "haproxy"),
    ("wrk", "wrk"),
    ("h2load", "nghttp2-client"),
    ("nft", "nftables"),
    ("apache2", "apache2"),
];

/// Connections that every peer is configured for, if the limit of open files allows it.
const CONNECTIONS: u64 = 12_000;

/// Ratio of connections to open files: convey keeps three eighths of its limit for pipes and
/// itself.
const CONNECTIONS_OF_FILES: (u64, u64) = (5, 16);

/// Name in the certificate of all peers.
pub(crate) const NAME: &str = "peers.example";

/// Lab with running servers.
pub(crate) struct Site {
    _servers: Vec<Process>,
    directory: TempDir,
    pub(crate) lab: Lab,
    /// Authority that issued the certificate of all peers.
    pub(crate) authority: TestAuthority,
    /// Programs that the user has built.
    pub(crate) extra: Extra,
}

/// Checks the requirements, and raises the limit of open files for this process and its children.
pub(crate) fn check() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "needs root, for network namespaces; try sudo");
    let missing = TOOLS.iter().find(|(program, _)| tool(program).is_none());
    if let Some((program, package)) = missing {
        bail!("{program} is not installed (Debian package {package})");
    }
    if !Path::new(STREAM_MODULE).exists() {
        bail!("there is no {STREAM_MODULE} (Debian package libnginx-mod-stream)");
    }
    raise_file_limit();
    let (share, files) = CONNECTIONS_OF_FILES;
    let wanted = Some(CONNECTIONS * files / share);
    if getrlimit(Resource::Nofile).current < wanted {
        // Some root users may not raise the limit. Then there are fewer connections.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: wanted });
    }
    Ok(())
}

/// Connections that every peer is configured for.
pub(crate) fn connections() -> u64 {
    let (share, files) = CONNECTIONS_OF_FILES;
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(CONNECTIONS, |limit| CONNECTIONS.min(limit / files * share))
}

/// Number of processors.
pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Threads of a client at full speed: an even number, for the two servers.
pub(crate) fn client_threads() -> usize {
    cores().div_ceil(2).next_multiple_of(SERVERS.len())
}

impl Site {
    /// Builds the lab and starts the servers.
    pub(crate) fn new(extra: Extra) -> Result<Site> {
        let lab = Lab::new(1, SERVERS.len() as u8)?;
        let directory = tempfile::Builder::new().prefix("convey-peers-").tempdir()?;
        let authority = TestAuthority::new("peers");
        let certificate = authority.issue(&[NAME]);
        certificate.save(directory.path(), "site");
        // HAProxy needs chain and key in one file.
        fs::write(directory.path().join("both.pem"), certificate.chain + &certificate.key)?;
        let mut site = Site { _servers: Vec::new(), directory, lab, authority, extra };
        // Apache reads the files as another user.
        fs::set_permissions(site.path(""), Permissions::from_mode(0o755))?;
        fs::create_dir(site.path("www"))?;
        for (name, size) in FILES {
            fs::write(site.path("www").join(name), "x".repeat(size))?;
        }
        for role in [Role::Client(1), Role::Balancer] {
            site.have_enough_ports(role)?;
        }
        for role in SERVERS {
            site._servers.push(site.serve(role)?);
        }
        Ok(site)
    }

    /// Gives a namespace more ports than the default, for the rate of new connections: a client
    /// that closes first leaves ports in TIME_WAIT, and the search for a free port soon costs more
    /// than the connection. The manual of HAProxy advises this.
    fn have_enough_ports(&self, role: Role) -> Result<()> {
        // The content of this folder depends on the network namespace of the thread that opens it.
        let set = || -> std::io::Result<()> {
            fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535")?;
            fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")
        };
        Ok(self.lab.enter(role, set)??)
    }

    /// Path of a file of this run.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a configuration from a template: words between `@` are replaced.
    pub(crate) fn configure(&self, name: &str, template: &str, words: &[(&str, String)]) -> Result<PathBuf> {
        let common = [
            ("DIRECTORY", self.directory.path().display().to_string()),
            ("CORES", cores().to_string()),
            ("CONNECTIONS", connections().to_string()),
            // Both sides of a connection count, and some workers get more connections than others.
            ("WORKER_CONNECTIONS", (connections() * 5 / 2 / cores() as u64).to_string()),
            ("VIP", VIP.to_string()),
            ("BALANCER", Role::Balancer.address().to_string()),
            ("SERVER1", SERVERS[0].address().to_string()),
            ("SERVER2", SERVERS[1].address().to_string()),
        ];
        let mut text = template.to_owned();
        for (word, value) in common.iter().chain(words) {
            text = text.replace(&format!("@{word}@"), value);
        }
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Processes in the balancer's namespace.
    pub(crate) fn balancers(&self) -> Result<Vec<u32>> {
        let listed =
            Command::new("ip").args(["netns", "pids", &self.lab.namespace(Role::Balancer)]).output()?;
        Ok(String::from_utf8_lossy(&listed.stdout).lines().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// Starts a server: an nginx with its share of the cores that listens on the port of every
    /// peer.
    fn serve(&self, role: Role) -> Result<Process> {
        let addr = |peer: &Peer| match peer {
            // The server has the VIP, too.
            Peer::Delivering(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), peer.port()),
            _ => SocketAddr::new(role.address().into(), peer.port()),
        };
        let mut listen: Vec<String> =
            Peer::ALL.iter().map(|peer| format!("        listen {} backlog=4096;", addr(peer))).collect();
        // Balancers use HTTP/1.1 to servers. Without a balancer, clients use HTTP/2 to the servers.
        let http2 = SocketAddr::new(role.address().into(), Peer::Direct.http2_port());
        listen.push(format!("        listen {http2} http2 backlog=4096;"));
        let words = [
            ("NUMBER", role.to_string()),
            ("WORKERS", cores().div_ceil(SERVERS.len()).to_string()),
            ("LISTEN", listen.join("\n")),
        ];
        let config = self.configure(&format!("{role}.conf"), include_str!("config/server.conf"), &words)?;
        let mut command = self.lab.command(role, "nginx");
        command.arg("-p").arg(self.directory.path()).arg("-c").arg(config);
        command.arg("-e").arg(self.path(&format!("{role}.log")));
        let process = Process::spawn(&mut command);
        wait_for(&format!("nginx on {role}"), || {
            let connect = || std::net::TcpStream::connect(addr(&Peer::Direct)).ok();
            self.lab.enter(role, connect).ok().flatten()
        });
        Ok(process)
    }
}
