//! Sends SYNs and receives the answers through packet sockets, because the host's own TCP stack
//! does not know these connections.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use convey_model::{DsrKind, NextHop};
use convey_wire::{VipAnswer, VipProbe};
use pnet_datalink::DataLinkReceiver;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::PathToServer;
use super::judge::{ClientHandshakes, PathTarget, SeenOnPath};
use crate::frames::{CAPTURE_TIMEOUT, open, send};
use crate::statistics;

/// Maximum wait for an answer to each SYN.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of SYNs for each probe.
const TRIES: u8 = 3;

/// Maximum wait for a connection to a server's own address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A probe in progress. It holds a port of this host until it is dropped.
struct Probing<'a> {
    at: usize,
    way: &'a PathToServer,
    hop: NextHop,
    probe: VipProbe,
    _port: Socket,
}

/// Index of a probe, with its outcome.
type ReceivedAnswer = (usize, SeenOnPath);

/// Runs all probes in parallel; returns their outcomes in order.
pub(super) fn all(ways: &[PathToServer]) -> Vec<SeenOnPath> {
    let mut seen: Vec<SeenOnPath> = ways
        .iter()
        .map(|way| if way.hop.is_some() { SeenOnPath::NotTried } else { SeenOnPath::NoNextHop })
        .collect();
    let probing: Vec<Probing> = ways.iter().enumerate().filter_map(|(at, way)| begin(at, way)).collect();
    let interfaces: BTreeSet<u32> = probing.iter().map(|one| one.hop.interface).collect();
    thread::scope(|scope| {
        let on = |interface: u32| probing.iter().filter(move |one| one.hop.interface == interface).collect();
        let threads: Vec<_> = interfaces
            .into_iter()
            .map(|interface| scope.spawn(move || listen(interface, on(interface))))
            .collect();
        for heard in threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()) {
            seen[heard.0] = heard.1;
        }
        // Connects to the own address of each silent server, to find out whether its host is up.
        let silent = ways.iter().zip(&mut seen).filter(|(_, seen)| matches!(seen, SeenOnPath::Silence(_)));
        for (way, seen) in silent {
            scope.spawn(move || {
                let tried = TcpStream::connect_timeout(&way.target.server, CONNECT_TIMEOUT);
                *seen = SeenOnPath::Silence(tried.err().map(|error| error.kind()));
            });
        }
    });
    seen
}

/// Takes a port of this host for a probe.
fn begin(at: usize, way: &PathToServer) -> Option<Probing<'_>> {
    let port = Socket::new(Domain::for_address(way.target.vip), Type::STREAM, None).ok()?;
    port.bind(&SocketAddr::new(way.client, 0).into()).ok()?;
    let client = port.local_addr().ok()?.as_socket()?;
    let PathTarget { vip, server, dsr, .. } = way.target;
    let seq = u32::from_ne_bytes(convey_random::secret());
    let probe = VipProbe { client, vip, server, dsr, seq };
    Some(Probing { at, way, hop: way.hop?, probe, _port: port })
}

/// Sends the probes of one interface, and repeats the probes that get no answer. Returns the
/// outcomes.
fn listen(interface: u32, probing: Vec<&Probing>) -> Vec<ReceivedAnswer> {
    let Some((mut sender, receiver)) = open(interface) else { return Vec::new() };
    let (over, (tell, told)) = (AtomicBool::new(false), channel());
    let mut heard: Vec<ReceivedAnswer> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| receive(receiver, &probing, &tell, &over));
        let mut frame = Vec::new();
        for _ in 0..TRIES {
            let is_open = |one: &&&Probing| !heard.iter().any(|(at, _)| *at == one.at);
            for one in probing.iter().filter(is_open) {
                one.probe.syn(&one.hop, &mut frame);
                send(&mut sender, &frame);
                if let Some(question) = question(one) {
                    send(&mut sender, &question);
                }
            }
            while heard.len() < probing.len()
                && let Ok((at, seen)) = told.recv_timeout(PATIENCE)
            {
                add(&mut heard, at, seen);
            }
        }
        // A server's ARP reply may arrive after its SYN-ACK.
        while let Ok((at, seen)) = told.recv_timeout(CAPTURE_TIMEOUT) {
            add(&mut heard, at, seen);
        }
        over.store(true, Ordering::Relaxed);
        for one in &probing {
            one.probe.reset(&one.hop, &mut frame);
            send(&mut sender, &frame);
        }
    });
    for one in &probing {
        if !heard.iter().any(|(at, _)| *at == one.at) {
            heard.push((one.at, SeenOnPath::Silence(Some(ErrorKind::TimedOut))));
        }
    }
    heard
}

/// Adds an outcome. `HasVip` overrides other outcomes, because a server that answers ARP for the
/// VIP may also accept connections.
fn add(heard: &mut Vec<ReceivedAnswer>, at: usize, seen: SeenOnPath) {
    match heard.iter_mut().find(|(of, _)| *of == at) {
        Some(known) if seen == SeenOnPath::HasVip => known.1 = seen,
        Some(_) => {}
        None => heard.push((at, seen)),
    }
}

/// Receives answers, and sends their outcomes to the channel until `over` is set.
fn receive(
    mut frames: Box<dyn DataLinkReceiver>,
    probing: &[&Probing],
    tell: &Sender<ReceivedAnswer>,
    over: &AtomicBool,
) {
    while !over.load(Ordering::Relaxed) {
        let frame = match frames.next() {
            Ok(frame) => frame,
            Err(error) if error.kind() == ErrorKind::TimedOut => continue,
            Err(_) => return,
        };
        for one in probing {
            let answer: Option<VipAnswer> = one.probe.answer(frame);
            let seen =
                answer.map(SeenOnPath::Answer).or_else(|| has_vip(one, frame).then_some(SeenOnPath::HasVip));
            if let Some(seen) = seen
                && tell.send((one.at, seen)).is_err()
            {
                return;
            }
        }
    }
}

/// ARP request for the VIP, which servers with `dsr = "l2"` must not answer; `None` for other
/// servers. IPv6 needs no such check, because Linux does not answer for a VIP on another interface.
fn question(one: &Probing) -> Option<Vec<u8>> {
    let (IpAddr::V4(vip), IpAddr::V4(client)) = (one.way.target.vip.ip(), one.way.client) else {
        return None;
    };
    match one.way.target.dsr {
        DsrKind::L3 | DsrKind::Ipip | DsrKind::Gue => None,
        DsrKind::L2 => {
            let mut frame = [&one.hop.dst_mac[..], &one.hop.src_mac, &ARP_REQUEST, &one.hop.src_mac].concat();
            frame.extend([&client.octets()[..], &[0; 6], &vip.octets()].concat());
            Some(frame)
        }
    }
}

/// EtherType of ARP, followed by the ARP fields from hardware type to operation (RFC 826).
const ARP_REQUEST: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
const ARP_REPLY: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];

/// Whether a frame is the server's ARP reply for the VIP.
fn has_vip(one: &Probing, frame: &[u8]) -> bool {
    let IpAddr::V4(vip) = one.way.target.vip.ip() else { return false };
    frame.get(12..22) == Some(&ARP_REPLY)
        && frame.get(22..28) == Some(&one.hop.dst_mac)
        && frame.get(28..32) == Some(&vip.octets())
}

/// Statistics of the running convey; empty if convey is not running.
pub(super) struct RunningStatistics(Value);

pub(super) fn running(listen: SocketAddr) -> RunningStatistics {
    RunningStatistics(statistics::read(listen).unwrap_or_default())
}

impl RunningStatistics {
    /// Handshakes of clients with a server, and their number since the earlier statistics `before`.
    pub(super) fn clients(&self, before: &RunningStatistics, target: &PathTarget) -> ClientHandshakes {
        let completed = self.count(target, "completed");
        let is_known = before.0.is_object();
        let earlier = if is_known { before.count(target, "completed") } else { completed };
        ClientHandshakes {
            completed,
            completed_meanwhile: completed.saturating_sub(earlier),
            consecutive_incomplete: self.count(target, "consecutive_incomplete"),
        }
    }

    fn count(&self, target: &PathTarget, name: &str) -> u64 {
        let of = &self.0["backends"][&target.backend]["servers"][&target.server_name];
        of["handshakes"][name].as_u64().unwrap_or(0)
    }
}
