//! Peers of a comparison. Only one runs at a time: listeners, packet sockets or NAT rules of
//! another one would have a cost even without a connection.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use convey_lab::{INTERFACE, Role, VIP};
use convey_model::Mode;
use convey_testkit::{Process, TlsClient, TlsSettings, binary, clock, fetch, tool};
use rustix::process::Signal;

use crate::compared::Compared;
use crate::delivery::{Delivery, VipServers};
use crate::extra::Extra;
use crate::feature::Feature;
use crate::floor::Variant;
use crate::http::SMALL;
use crate::site::{NAME, SERVERS, Site, cores};

/// Longest wait for a peer to stop.
const TO_STOP: Duration = Duration::from_secs(20);

/// Path of nginx's stream module in Debian.
pub(crate) const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Path from the client to the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// No balancer: half of the connections go to each server.
    Direct,
    /// A relay that does no more than it must, with at most one part of a load balancer.
    Floor(Variant),
    Convey,
    /// Another build of convey.
    Before,
    /// convey with clients that use HTTP/2 within TLS, while clients of other peers use HTTP/3.
    ConveyHttp2,
    /// convey with a feature switched on.
    With(Feature),
    /// convey in mode dsr with another delivery, whose servers have the VIP.
    Delivering(Delivery),
    Haproxy,
    /// HAProxy with `option splice-auto`.
    HaproxySplice,
    /// nginx's stream module.
    Nginx,
    /// nginx's HTTP proxy, with keep-alive connections to servers.
    NginxHttp,
    /// nginx's HTTP proxy with `proxy_pass` alone: a connection to a server for each request.
    NginxPlain,
    /// nginx's HTTP proxy with `proxy_buffering off`.
    NginxUnbuffered,
    /// A proxy made of the pingora crates.
    Pingora,
    /// nginx that serves files itself.
    NginxFiles,
    /// Apache that serves files itself.
    Apache,
    /// Apache's HTTP proxy.
    ApacheHttp,
    /// Caddy's reverse proxy.
    Caddy,
    /// The kernel's NAT, with connection tracking.
    Nftables,
}

/// Peer that serves. Dropping it stops it.
pub(crate) struct Running<'a> {
    pub(crate) peer: Peer,
    /// Processes of the peer; none for the kernel's NAT, and without a balancer.
    pub(crate) processes: Vec<u32>,
    process: Option<Process>,
    pub(crate) compared: Compared,
    mode: Mode,
    vip_servers: Option<VipServers>,
    site: &'a Site,
}

impl Peer {
    pub(crate) const ALL: [Peer; 39] = [
        Peer::Direct,
        Peer::Floor(Variant::Plain),
        Peer::Floor(Variant::Route),
        Peer::Floor(Variant::Strict),
        Peer::Floor(Variant::Counters),
        Peer::Floor(Variant::Deadlines),
        Peer::Floor(Variant::Drain),
        Peer::Floor(Variant::Touch1),
        Peer::Floor(Variant::Touch2),
        Peer::Floor(Variant::Touch4),
        Peer::Floor(Variant::Touch8),
        Peer::Floor(Variant::All),
        Peer::Floor(Variant::Bytes),
        Peer::Convey,
        Peer::Before,
        Peer::ConveyHttp2,
        Peer::With(Feature::AccessLog),
        Peer::With(Feature::Routes),
        Peer::With(Feature::Limits),
        Peer::With(Feature::Headers),
        Peer::With(Feature::RegexRoute),
        Peer::With(Feature::Cors),
        Peer::With(Feature::Weighted),
        Peer::With(Feature::Scraped),
        Peer::Delivering(Delivery::L2),
        Peer::Delivering(Delivery::IpInIp),
        Peer::Delivering(Delivery::Gue),
        Peer::Haproxy,
        Peer::HaproxySplice,
        Peer::Nginx,
        Peer::NginxHttp,
        Peer::NginxPlain,
        Peer::NginxUnbuffered,
        Peer::Pingora,
        Peer::NginxFiles,
        Peer::Apache,
        Peer::ApacheHttp,
        Peer::Caddy,
        Peer::Nftables,
    ];

    /// Peers of a comparison, convey included.
    pub(crate) fn of(compared: Compared, extra: &Extra) -> Vec<Peer> {
        let (mode, is_tls) = (compared.mode(), compared.is_tls());
        let takes_part = |peer: &Peer| match peer {
            Peer::Floor(variant) => compared.has_floor(*variant) && extra.floor.is_some(),
            Peer::ConveyHttp2 => compared.is_http3(),
            Peer::Caddy => (compared.is_http3() || compared.is_plain_http()) && tool("caddy").is_some(),
            Peer::ApacheHttp => compared.is_plain_http(),
            Peer::Direct | Peer::Pingora | Peer::HaproxySplice if is_tls => false,
            Peer::NginxFiles | Peer::Apache => compared.is_files(),
            Peer::Before => extra.before.is_some(),
            Peer::Convey => true,
            Peer::Delivering(_) => mode == Mode::Dsr,
            _ if compared.is_files() || compared.is_http3() || compared.is_budget() => false,
            Peer::With(feature) => extra.with.contains(feature) && (mode.is_http() || !feature.is_of_http()),
            Peer::Pingora => extra.pingora.is_some() && mode.is_http(),
            Peer::Nftables => mode.forwards_packets(),
            Peer::NginxHttp => mode.is_proxied(),
            Peer::NginxPlain => mode.is_proxied() && !mode.is_http(),
            Peer::NginxUnbuffered => mode.is_http(),
            Peer::Nginx => !mode.is_http(),
            _ => true,
        };
        Peer::ALL.into_iter().filter(takes_part).collect()
    }

    fn is_convey(self) -> bool {
        matches!(self, Peer::Convey | Peer::Before | Peer::ConveyHttp2 | Peer::With(_) | Peer::Delivering(_))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Direct => "direct",
            Peer::Floor(variant) => variant.peer_name(),
            Peer::Convey => "convey",
            Peer::Before => "convey before",
            Peer::ConveyHttp2 => "convey, HTTP/2",
            Peer::With(feature) => feature.peer_name(),
            Peer::Delivering(delivery) => delivery.peer_name(),
            Peer::Haproxy => "HAProxy",
            Peer::HaproxySplice => "HAProxy, splice",
            Peer::Nginx => "nginx stream",
            Peer::NginxHttp => "nginx",
            Peer::NginxPlain => "nginx, proxy_pass alone",
            Peer::NginxUnbuffered => "nginx, no buffering",
            Peer::Pingora => "pingora",
            Peer::NginxFiles => "nginx",
            Peer::Apache | Peer::ApacheHttp => "Apache",
            Peer::Caddy => "Caddy",
            Peer::Nftables => "nftables DNAT",
        }
    }

    /// Port on the VIP and on the servers. Each peer has its own, so that it does not meet
    /// connections that another peer left in TIME_WAIT.
    pub(crate) fn port(self) -> u16 {
        let number = Peer::ALL.into_iter().position(|peer| peer == self).expect("all are listed");
        8000 + number as u16
    }

    /// Port for HTTP/2: the same port, or another one if the peer needs to be configured for the
    /// version.
    pub(crate) fn http2_port(self) -> u16 {
        if self.is_convey() || self == Peer::Pingora { self.port() } else { 100 + self.port() }
    }

    /// Addresses that clients connect to.
    pub(crate) fn targets(self) -> Vec<SocketAddr> {
        self.at(self.port())
    }

    /// Addresses that HTTP/2 clients connect to, in mode http.
    pub(crate) fn http2_targets(self) -> Vec<SocketAddr> {
        self.at(self.http2_port())
    }

    /// Servers behind the peer.
    fn servers(self) -> Vec<SocketAddr> {
        SERVERS.map(|server| SocketAddr::new(server.address().into(), self.port())).to_vec()
    }

    fn at(self, port: u16) -> Vec<SocketAddr> {
        let target = |ip: std::net::Ipv4Addr| SocketAddr::new(ip.into(), port);
        match self {
            Peer::Direct => SERVERS.map(|server| target(server.address())).to_vec(),
            _ => vec![target(VIP)],
        }
    }
}

impl Running<'_> {
    /// Starts a peer and waits until it serves. convey starts in the mode of the comparison.
    pub(crate) fn start(site: &Site, peer: Peer, compared: Compared) -> Result<Running<'_>> {
        let mode = compared.mode();
        let mut running =
            Running { peer, processes: Vec::new(), process: None, compared, mode, vip_servers: None, site };
        let ports = [("PORT", peer.port().to_string()), ("HTTP2_PORT", peer.http2_port().to_string())];
        match peer {
            Peer::Direct => {}
            Peer::Convey | Peer::Before | Peer::ConveyHttp2 | Peer::With(_) | Peer::Delivering(_) => {
                running.start_convey()?
            }
            Peer::Haproxy | Peer::HaproxySplice => {
                running.start_haproxy(site.configure(
                    "haproxy.cfg",
                    include_str!("config/haproxy.cfg"),
                    &ports,
                )?)?;
            }
            Peer::Nginx => {
                let words = [ports[0].clone(), ("STREAM_MODULE", STREAM_MODULE.to_owned())];
                running.start_nginx(site.configure(
                    "nginx.conf",
                    include_str!("config/nginx.conf"),
                    &words,
                )?)?;
            }
            Peer::NginxHttp | Peer::NginxUnbuffered => {
                let buffering = if peer == Peer::NginxHttp { "on" } else { "off" };
                let [port, http2_port] = ports;
                let ssl = if compared.is_tls() { " ssl http2" } else { "" };
                let words = [port, http2_port, ("BUFFERING", buffering.to_owned()), ("SSL", ssl.to_owned())];
                let template = include_str!("config/nginx-http.conf");
                running.start_nginx(site.configure("nginx.conf", template, &words)?)?;
            }
            Peer::NginxPlain => {
                let template = include_str!("config/nginx-plain.conf");
                running.start_nginx(site.configure("nginx.conf", template, &ports)?)?;
            }
            Peer::NginxFiles => {
                let template = include_str!("config/nginx-files.conf");
                running.start_nginx(site.configure("nginx.conf", template, &ports)?)?;
            }
            Peer::Apache | Peer::ApacheHttp => {
                let template = match peer {
                    Peer::Apache => include_str!("config/apache.conf"),
                    _ => include_str!("config/apache-http.conf"),
                };
                let config = site.configure("apache.conf", template, &ports)?;
                let mut command = site.lab.command(Role::Balancer, "apache2");
                command.arg("-DFOREGROUND").arg("-f").arg(config);
                running.spawn(command)?;
            }
            Peer::Caddy => {
                let template = match compared.is_http3() {
                    true => include_str!("config/Caddyfile"),
                    false => include_str!("config/Caddyfile-http"),
                };
                let config = site.configure("Caddyfile", template, &ports)?;
                let program = tool("caddy").context("caddy is not installed")?;
                let mut command = site.lab.command(Role::Balancer, program);
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
                // Caddy's data is removed with the run.
                command.env("XDG_DATA_HOME", site.path("caddy")).env("GOMAXPROCS", cores().to_string());
                running.spawn(command)?;
            }
            Peer::Floor(variant) => {
                let program = site.extra.floor.as_ref().context("it is not built")?;
                let mut command = site.lab.command(Role::Balancer, program);
                command.args(variant.arguments());
                command.args(peer.targets().into_iter().chain(peer.servers()).map(|addr| addr.to_string()));
                running.spawn(command)?;
            }
            Peer::Pingora => {
                let program = site.extra.pingora.as_ref().context("nobody has said where it is")?;
                let mut command = site.lab.command(Role::Balancer, program);
                command.args(peer.targets().into_iter().chain(peer.servers()).map(|addr| addr.to_string()));
                running.spawn(command)?;
            }
            Peer::Nftables => {
                let rules = site.configure("rules.nft", include_str!("config/nftables.nft"), &ports)?;
                site.lab.run(Role::Balancer, "nft", &["-f", &rules.to_string_lossy()])?;
                running.forward_in_kernel(true)?;
            }
        }
        running.wait_until_it_serves()?;
        running.processes = if running.process.is_some() { site.balancers()? } else { Vec::new() };
        Ok(running)
    }

    /// Log of the process.
    pub(crate) fn log(&self) -> String {
        match self.process {
            Some(_) => fs::read_to_string(self.site.path("log")).unwrap_or_default(),
            None => String::new(),
        }
    }

    fn start_convey(&mut self) -> Result<()> {
        // convey uses round robin where the other peers do, and hashes addresses and ports where
        // the kernel's NAT does.
        let algorithm = if self.mode.is_proxied() { "round_robin" } else { "maglev" };
        let mut backend = "";
        if let Peer::Delivering(delivery) = self.peer {
            backend = delivery.config();
            self.vip_servers = Some(VipServers::start(&self.site.lab, delivery)?);
        } else if self.mode == Mode::Dsr {
            self.site.lab.answer_directly(&[self.peer.port()])?;
        }
        // No other peer limits the requests of a connection here.
        let http = if self.mode.is_http() { "[frontends.web.http]\nmax_requests = 1000000000" } else { "" };
        let tls = match self.compared.is_tls() {
            true => "[frontends.web.tls]\ncertificate = \"site.pem\"\nkey = \"site.key\"",
            false => "",
        };
        let http3 = if self.compared.is_http3() { "http3 = true" } else { "" };
        let feature = match self.peer {
            Peer::With(feature) => feature.config(self.site),
            _ => String::new(),
        };
        let words = [
            ("FEATURE", feature),
            ("PORT", self.peer.port().to_string()),
            ("MODE", self.mode.name().to_owned()),
            ("ALGORITHM", algorithm.to_owned()),
            ("BACKEND", backend.to_owned()),
            ("HTTP", format!("{http}\n{tls}\n{http3}")),
        ];
        let template = match self.compared.is_files() {
            true => include_str!("config/convey-files.toml"),
            false => include_str!("config/convey.toml"),
        };
        let config = self.site.configure("convey.toml", template, &words)?;
        let ours = binary();
        let program = match &self.site.extra.before {
            Some(before) if self.peer == Peer::Before => before.as_os_str(),
            _ => ours.get_program(),
        };
        let mut command = self.site.lab.command(Role::Balancer, program);
        command.arg("--config").arg(config);
        // A request before that might lose a client's first packet, and the retry comes a second
        // later.
        self.process = Some(convey_testkit::start(command, &self.site.path("log")));
        Ok(())
    }

    fn start_haproxy(&mut self, config: PathBuf) -> Result<()> {
        let mut command = self.site.lab.command(Role::Balancer, "haproxy");
        command.arg("-db").arg("-f").arg(config);
        if self.peer == Peer::HaproxySplice {
            command.env("SPLICE", "1");
        }
        if self.mode.is_http() {
            command.env("HTTP", "1");
        }
        if self.compared.is_tls() {
            command.env("TLS", "1");
        }
        self.spawn(command)
    }

    fn start_nginx(&mut self, config: PathBuf) -> Result<()> {
        let site = self.site;
        let mut command = site.lab.command(Role::Balancer, "nginx");
        command.arg("-p").arg(site.path("")).arg("-c").arg(config);
        command.arg("-e").arg(site.path("nginx.log"));
        self.spawn(command)
    }

    fn spawn(&mut self, mut command: std::process::Command) -> Result<()> {
        let log = File::create(self.site.path("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(Process::spawn(&mut command));
        Ok(())
    }

    /// Enables or disables IP forwarding in the balancer's namespace.
    fn forward_in_kernel(&self, on: bool) -> Result<()> {
        const SETTINGS: [&str; 2] = ["ip_forward", "conf/all/send_redirects"];
        // The content of this folder depends on the network namespace of the thread that opens it.
        let set = || -> io::Result<()> {
            fs::write(format!("/proc/sys/net/ipv4/{}", SETTINGS[0]), if on { "1" } else { "0" })?;
            fs::write(format!("/proc/sys/net/ipv4/{}", SETTINGS[1]), "0")?;
            fs::write(format!("/proc/sys/net/ipv4/conf/{INTERFACE}/send_redirects"), "0")
        };
        Ok(self.site.lab.enter(Role::Balancer, set)??)
    }

    /// Waits until a client has had some answers in a row, which wakes both servers.
    fn wait_until_it_serves(&mut self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(10);
        const ANSWERS: u32 = 8;
        let (start, targets) = (clock(), self.peer.targets());
        let mut answers = 0;
        while answers < ANSWERS {
            let target = targets[answers as usize % targets.len()];
            let said = self.site.lab.enter(Role::Client(1), || self.fetch(target))?;
            answers = match &said {
                Ok((200, body)) if body.len() == SMALL.1 => answers + 1,
                _ => 0,
            };
            if let Some(status) = self.process.as_mut().and_then(Process::ended) {
                bail!("it ended: {status}\n{}", self.log());
            }
            if start.elapsed() > PATIENCE {
                bail!("no answer through it in {PATIENCE:?}: {said:?}\n{}", self.log());
            }
        }
        Ok(())
    }

    /// Requests the small file.
    fn fetch(&self, target: SocketAddr) -> io::Result<(u16, String)> {
        let path = format!("/{}", SMALL.0);
        if !self.compared.is_tls() {
            return fetch(target, &path);
        }
        let config = TlsSettings::trusting(&self.site.authority).client();
        let mut client = TlsClient::connect(target, NAME, &config)?;
        write!(client, "GET {path} HTTP/1.1\r\nHost: peers\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take()
            && process.ended().is_none()
        {
            process.signal(Signal::TERM);
            let signalled = clock();
            while process.ended().is_none() {
                if signalled.elapsed() > TO_STOP {
                    let log = fs::read_to_string(self.site.path("log"))?;
                    bail!("it has not ended in {TO_STOP:?}\n{log}");
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        if self.peer == Peer::Nftables {
            self.forward_in_kernel(false)?;
            self.site.lab.run(Role::Balancer, "nft", &["delete", "table", "ip", "peers"])?;
        }
        if let Some(servers) = self.vip_servers.take() {
            servers.stop(&self.site.lab)?;
        } else if self.peer.is_convey() && self.mode == Mode::Dsr {
            for server in SERVERS {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tc/dsr-server-nft.sh");
                self.site.lab.run(server, "sh", &[script, "down"]).context("ending direct answers")?;
            }
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            // The namespaces are removed at the end of the run. Until then, leftovers of this peer
            // may disturb the next one.
            eprintln!("{} did not stop as it should: {error:#}", self.peer.name());
        }
    }
}
