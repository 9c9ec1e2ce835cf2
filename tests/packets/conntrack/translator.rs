//! A balancer in the middle: convey, or the kernel with rules of nftables. The test sends and takes
//! the frames of a client and a server at their interfaces; no stack answers there.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_testkit::{Process, binary};
use convey_wire::TestPacket;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use serde_json::Value;

use super::conversation::{Sender, Step};
use crate::case::{Case, Family};
use crate::network::{DNS, Network, PORT};
use crate::raw::{Tap, Wire};

/// Client port for the datagrams after each segment.
const FENCE_PORT: u16 = 9_999;

/// State of a connection, as the middle sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Reset, or unknown.
    Over,
    SynSent,
    SynReceived,
    Established,
    /// One side has finished.
    HalfClosed,
    /// Both sides have finished, and the last acknowledgement is missing.
    Closing,
    TimeWait,
}

/// Outcome of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The segment came out on the other side.
    pub(super) forwarded: bool,
    /// State of the connection afterwards.
    pub(super) phase: Phase,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let did = if self.forwarded { "forwards" } else { "drops" };
        write!(f, "{did}: {:?}", self.phase)
    }
}

/// Interface of the client or the server.
struct End {
    role: Role,
    wire: Wire,
    tap: Tap,
}

pub(super) struct Translator {
    network: Network,
    convey: Option<Process>,
    client: End,
    server: End,
    /// Addresses and ports that the server saw, by the client's port.
    sources: HashMap<u16, SocketAddr>,
    fences: u32,
}

impl Translator {
    /// convey in this case.
    pub(super) fn convey(case: Case) -> Translator {
        let network = Network::bare(case, &LabPlan::new(1, 1));
        let (vip, dns) = (case.family.vip(PORT), case.family.vip(DNS));
        let [web, fence] =
            [PORT, DNS].map(|port| SocketAddr::new(case.family.address(Role::Server(1)), port));
        let offload = case.offload;
        let text = format!(
            "[passthrough]\noffload = \"{offload}\"\nworkers = 1\n\
             [passthrough.timeouts]\nclosing = 600\ntime_wait = 600\nclosed = 600\nhalf_open = 600\n\
             [frontends.web]\nlisten_addr = \"{vip}\"\nbackend = \"web\"\n\
             [frontends.fence]\nprotocol = \"udp\"\nlisten_addr = \"{dns}\"\nbackend = \"fence\"\n\
             [backends.web]\nhealth_check.kind = \"none\"\nservers.s1.addr = \"{web}\"\n\
             [backends.fence]\nhealth_check.kind = \"none\"\nservers.s1.addr = \"{fence}\"\n"
        );
        fs::write(network.path("config.toml"), text).unwrap();
        let mut translator = Translator::of(network);
        let network = &translator.network;
        let mut command = network.lab.command(Role::Balancer, binary().get_program());
        command.arg("--passthrough").arg("--config").arg(network.path("config.toml"));
        command.env("CONVEY_SOCKET", network.path("control.sock")).env_remove("RUST_LOG");
        translator.convey = Some(convey_testkit::start(command, &network.path("balancer")));
        translator.open_fence();
        translator
    }

    /// The kernel, with rules equivalent to convey's. It adopts no connection in the middle.
    pub(super) fn kernel(case: Case) -> Translator {
        let network = Network::bare(case, &LabPlan::new(1, 1));
        let (vip, server) = (case.family.vip(PORT).ip(), case.family.address(Role::Server(1)));
        let (ip, to) = match case.family {
            Family::V4 => ("ip", format!("{server}")),
            Family::V6 => ("ip6", format!("[{server}]")),
        };
        let rules = format!(
            "table {ip} middle {{\n\
             chain invalid {{ type filter hook prerouting priority -150; ct state invalid drop; }}\n\
             chain to {{ type nat hook prerouting priority dstnat;\n\
             {ip} daddr {vip} tcp dport {PORT} dnat to {to}:{PORT}; {ip} daddr {vip} udp dport {DNS} dnat to {to}:{DNS}; }}\n\
             chain from {{ type nat hook postrouting priority srcnat; {ip} daddr {server} meta l4proto {{ tcp, udp }} masquerade to :33768-61000; }}\n\
             chain own {{ type filter hook input priority 0; meta l4proto {{ tcp, udp }} drop; }}\n\
             }}\n"
        );
        fs::write(network.path("rules"), rules).unwrap();
        let run = |program: &str, words: &[&str]| network.lab.run(Role::Balancer, program, words).unwrap();
        run("nft", &["-f", network.path("rules").to_str().unwrap()]);
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv4.conf.all.send_redirects=0",
            "net.ipv4.conf.eth0.send_redirects=0",
            "net.ipv6.conf.all.forwarding=1",
            "net.netfilter.nf_conntrack_tcp_loose=0",
            "net.netfilter.nf_conntrack_tcp_timeout_close=600",
            "net.netfilter.nf_conntrack_tcp_timeout_time_wait=600",
            "net.netfilter.nf_conntrack_tcp_timeout_last_ack=600",
        ] {
            run("sysctl", &["-qw", setting]);
        }
        let mut translator = Translator::of(network);
        translator.open_fence();
        translator
    }

    fn of(network: Network) -> Translator {
        let family = network.case.family;
        for role in [Role::Client(1), Role::Server(1)] {
            let mac = role.mac().map(|byte| format!("{byte:02x}")).join(":");
            let to = family.address(role).to_string();
            let neighbour = ["neigh", "replace", &to, "lladdr", &mac, "dev", INTERFACE, "nud", "permanent"];
            network.lab.run(Role::Balancer, "ip", &neighbour).unwrap();
            network.lab.run(role, "ip", &["addr", "flush", "dev", INTERFACE]).unwrap();
        }
        let end = |role| {
            let (wire, tap) = network.inside(role, || (Wire::open(), Tap::open()));
            End { role, wire, tap }
        };
        let (client, server) = (end(Role::Client(1)), end(Role::Server(1)));
        Translator { network, convey: None, client, server, sources: HashMap::new(), fences: 0 }
    }

    fn open_fence(&mut self) {
        for from in [Sender::Client, Sender::Server] {
            self.fence(from, |_| {});
        }
    }

    /// Sends a segment. Returns whether it is forwarded.
    pub(super) fn pass(&mut self, port: u16, step: &Step) -> bool {
        let Some((from, to)) = self.way(step.from, port) else { return false };
        // Packets that one CPU sends stay in order.
        let everywhere = sched_getaffinity(None).unwrap();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let (end, balancer) = (self.end(step.from), Role::Balancer.mac());
        let packet = TestPacket::from(from).to(to).macs(end.role.mac(), balancer);
        let packet = step.fill(packet);
        let mut frame = packet.bytes();
        if step.is_damaged {
            // The urgent pointer, which is not evaluated.
            let l4 = if from.is_ipv4() { 34 } else { 54 };
            frame[l4 + 18] ^= 0x40;
        }
        end.wire.send(&frame);
        let mut came: Option<SocketAddr> = None;
        self.fence(step.from, |frame| {
            let Ok(headers) = convey_wire::parse(frame) else { return };
            let is_it = headers.key.protocol == convey_model::TCP
                && headers.seq == step.seq
                && step.ack.is_none_or(|ack| ack == headers.ack)
                && headers.payload_len == step.len
                && (headers.flags.syn(), headers.flags.fin(), headers.flags.rst())
                    == (step.syn, step.fin, step.rst);
            if is_it {
                came = Some(SocketAddr::new(headers.key.src.ip(), headers.key.src_port));
                assert_eq!(has_valid_checksum(frame), !step.is_damaged, "{step}");
            }
        });
        sched_setaffinity(None, &everywhere).unwrap();
        if let Some(source) = came.filter(|_| step.is_to_server()) {
            self.sources.insert(port, source);
        }
        came.is_some()
    }

    /// State of the connection of a client's port.
    pub(super) fn phase(&self, port: u16) -> Phase {
        match &self.convey {
            Some(_) => self.phase_of_convey(port),
            None => self.phase_of_kernel(port),
        }
    }

    fn phase_of_convey(&self, port: u16) -> Phase {
        let client = SocketAddr::new(self.network.case.family.address(Role::Client(1)), port);
        let mut stream = UnixStream::connect(self.network.path("control.sock")).unwrap();
        write!(stream, "GET /v1/flows?client={client} HTTP/1.1\r\nHost: convey\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let json: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let flow = json["flows"].as_array().unwrap().first();
        match flow.map(|flow| flow["state"].as_str().unwrap()) {
            None | Some("closed") => Phase::Over,
            Some("syn_sent") => Phase::SynSent,
            Some("syn_received") => Phase::SynReceived,
            Some("established") => Phase::Established,
            Some("half_closed_by_client" | "half_closed_by_server") => Phase::HalfClosed,
            Some("closing") => Phase::Closing,
            Some("time_wait") => Phase::TimeWait,
            Some(other) => panic!("{other}: {json:#}"),
        }
    }

    fn phase_of_kernel(&self, port: u16) -> Phase {
        let table = self
            .network
            .inside(Role::Balancer, || fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap());
        let client = self.network.case.family.address(Role::Client(1));
        let of_port = |line: &&str| {
            let mut words = line.split_whitespace();
            // The first address and port belong to the side that began.
            let source =
                words.find_map(|word| word.strip_prefix("src=")).and_then(|ip| ip.parse::<IpAddr>().ok());
            let from = words.find_map(|word| word.strip_prefix("sport="));
            line.contains(" tcp ") && source == Some(client) && from == Some(port.to_string().as_str())
        };
        let state = table.lines().find(of_port).and_then(|line| line.split_whitespace().nth(5));
        match state {
            None | Some("CLOSE") => Phase::Over,
            Some("SYN_SENT") => Phase::SynSent,
            Some("SYN_RECV") => Phase::SynReceived,
            Some("ESTABLISHED") => Phase::Established,
            Some("FIN_WAIT" | "CLOSE_WAIT") => Phase::HalfClosed,
            Some("LAST_ACK") => Phase::Closing,
            Some("TIME_WAIT") => Phase::TimeWait,
            Some(other) => panic!("{other}"),
        }
    }

    fn end(&mut self, of: Sender) -> &mut End {
        match of {
            Sender::Client => &mut self.client,
            Sender::Server => &mut self.server,
        }
    }

    /// Source and destination of a segment; `None` while the server has not seen the client.
    fn way(&self, from: Sender, port: u16) -> Option<(SocketAddr, SocketAddr)> {
        let family = self.network.case.family;
        match from {
            Sender::Client if port == FENCE_PORT => {
                Some((SocketAddr::new(family.address(Role::Client(1)), port), family.vip(DNS)))
            }
            Sender::Client => {
                Some((SocketAddr::new(family.address(Role::Client(1)), port), family.vip(PORT)))
            }
            Sender::Server => {
                let of = if port == FENCE_PORT { DNS } else { PORT };
                Some((SocketAddr::new(family.address(Role::Server(1)), of), *self.sources.get(&port)?))
            }
        }
    }

    /// Sends a datagram behind a segment, and waits until it comes out: the segment has come out
    /// before it, or never does. Passes the frames before it to `see`. A worker forwards a datagram
    /// with options, so it stays behind segments that a worker forwards.
    fn fence(&mut self, from: Sender, mut see: impl FnMut(&[u8])) {
        self.fences += 1;
        let number = self.fences.to_be_bytes();
        let (source, to) = self.way(from, FENCE_PORT).expect("the client's fence comes first");
        let (end, balancer) = (self.end(from), Role::Balancer.mac());
        let packet = TestPacket::from(source).to(to).macs(end.role.mac(), balancer).udp().payload(&number);
        let packet = match source {
            SocketAddr::V4(_) => packet.ip_options(&[1; 4]),
            SocketAddr::V6(_) => packet.extension(60, &[0, 1, 4, 0, 0, 0, 0]),
        };
        end.wire.send(&packet.bytes());
        let is_fence = |frame: &[u8]| {
            let headers = convey_wire::parse(frame).ok()?;
            let is_it =
                headers.key.protocol == convey_model::UDP && frame.get(..headers.end)?.ends_with(&number);
            is_it.then(|| SocketAddr::new(headers.key.src.ip(), headers.key.src_port))
        };
        // The tap has a copy of each frame that leaves, so that none is left in it for later.
        end.tap.find(is_fence);
        let far = match from {
            Sender::Client => &mut self.server,
            Sender::Server => &mut self.client,
        };
        let mac = far.role.mac();
        let source = far.tap.find(|frame| {
            if !frame.starts_with(&mac) {
                return None;
            }
            let source = is_fence(frame);
            if source.is_none() {
                see(frame);
            }
            source
        });
        if from == Sender::Client {
            self.sources.insert(FENCE_PORT, source);
        }
    }
}

/// Whether the checksum of a TCP segment is valid.
fn has_valid_checksum(frame: &[u8]) -> bool {
    let headers = convey_wire::parse(frame).unwrap();
    let segment = &frame[headers.l4..headers.end];
    let addresses = if frame[12..14] == [8, 0] { &frame[26..34] } else { &frame[22..54] };
    let words = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u64::from(*byte)))
            .sum()
    };
    let mut sum = words(addresses) + words(segment) + 6 + segment.len() as u64;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}
