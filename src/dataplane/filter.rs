//! The capture socket's filter: a classic BPF program that the kernel runs on each frame, so that only ours are
//! copied to us.
//!
//! Conditional jumps reach 255 instructions at most. Here each only skips the next instruction, and what goes
//! further is an unconditional jump, whose distance has 32 bits; so sets of any size need no care.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD,
    BPF_LDX, BPF_MSH, BPF_RET, BPF_W, SKF_AD_OFF, SKF_AD_PKTTYPE, SKF_AD_VLAN_TAG_PRESENT, sock_filter,
};

use super::{Replies, Selection};
use crate::model::TCP;

/// Longest program we load. The kernel takes 4,096 instructions, but expands each to several of its own, and
/// `net.core.optmem_max` (20,480 bytes before Linux 6.7) bounds what they may take.
const MAX_INSTRUCTIONS: usize = 1_000;

const ACCEPT: u32 = u32::MAX;
const REJECT: u32 = 0;

const ICMP: u8 = 1;
/// Destination unreachable, time exceeded, parameter problem (RFC 792).
const ICMP_ERRORS: [u32; 3] = [3, 11, 12];

// Offsets from the beginning of the Ethernet header.
const ETHERTYPE: u32 = 12;
const IP: u32 = 14;
const FRAGMENT: u32 = IP + 6;
const PROTOCOL: u32 = IP + 9;
const SRC: u32 = IP + 12;
const DST: u32 = IP + 16;
// To be added to the length of the IP header.
const SRC_PORT: u32 = IP;
const DST_PORT: u32 = IP + 2;
const ICMP_TYPE: u32 = IP;

/// How closely a filter follows its selection. What it lets in too much, the forwarder finds to be none of ours;
/// that only costs time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Exactly the selection, ICMP errors and later fragments to its addresses.
    Exact,
    /// Too many servers: replies of anybody to our SNAT ports.
    AnyServer,
    /// Too many ports: TCP to all ports of our addresses.
    AnyPort,
    /// Too many addresses: TCP, and ICMP errors, to anybody.
    AnyAddress,
}

/// A filter for frames sent to this host, without a VLAN tag.
#[derive(Clone)]
pub struct Filter {
    instructions: Vec<sock_filter>,
    precision: Precision,
}

impl Filter {
    /// The most precise filter for the selection that the kernel takes. Never lets in less than the selection.
    pub fn new(selection: &Selection) -> Filter {
        let mut filter = Filter::with(selection, Precision::Exact);
        for precision in [Precision::AnyServer, Precision::AnyPort, Precision::AnyAddress] {
            if filter.instructions.len() > MAX_INSTRUCTIONS {
                filter = Filter::with(selection, precision);
            }
        }
        filter
    }

    fn with(selection: &Selection, precision: Precision) -> Filter {
        Filter { instructions: compile(selection, precision), precision }
    }

    /// Lets nothing in: for sockets that only send.
    pub fn nothing() -> Filter {
        let mut program = Program::default();
        program.ret(REJECT);
        Filter { instructions: program.finish(), precision: Precision::Exact }
    }

    /// How closely it follows the selection.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The program; accepted frames are taken whole.
    pub fn instructions(&self) -> &[sock_filter] {
        &self.instructions
    }
}

fn compile(selection: &Selection, precision: Precision) -> Vec<sock_filter> {
    let mut p = Program::default();
    let (tcp, to_ours) = (p.label(), p.label());

    p.load_info(SKF_AD_VLAN_TAG_PRESENT);
    p.reject_unless(0);
    // Not what a bridge or a sniffer makes the interface take beside its own.
    p.load_info(SKF_AD_PKTTYPE);
    p.reject_unless(u32::from(libc::PACKET_HOST));
    p.load(BPF_H, ETHERTYPE);
    p.reject_unless(libc::ETH_P_IP as u32);
    p.load_header_len();
    p.load(BPF_B, PROTOCOL);
    p.goto_if(u32::from(TCP), tcp);
    p.reject_unless(u32::from(ICMP));

    p.load(BPF_H, FRAGMENT);
    p.reject_if_any(0x1fff);
    p.load_indexed(BPF_B, ICMP_TYPE);
    ICMP_ERRORS.iter().for_each(|&kind| p.goto_if(kind, to_ours));
    p.ret(REJECT);

    p.place(tcp);
    p.load(BPF_H, FRAGMENT);
    p.goto_if_any(0x1fff, to_ours);
    match precision {
        Precision::AnyPort | Precision::AnyAddress => p.goto(to_ours),
        Precision::Exact | Precision::AnyServer => ports(&mut p, selection, precision),
    }

    p.place(to_ours);
    if precision == Precision::AnyAddress {
        p.ret(ACCEPT);
    } else {
        p.load(BPF_W, DST);
        addresses(selection).into_iter().for_each(|address| p.accept_if(address));
        p.ret(REJECT);
    }
    p.finish()
}

/// Accepts TCP to the frontends and replies of servers, rejects all else.
fn ports(p: &mut Program, selection: &Selection, precision: Precision) {
    let frontends = by_first(selection.listen().filter_map(v4).map(|(ip, port)| (ip, u32::from(port))));
    let snat: BTreeSet<u32> = selection.replies.iter().flat_map(snat_addresses).collect();
    let reply = p.label();
    let groups: Vec<_> = frontends.into_iter().map(|(ip, ports)| (ip, ports, p.label())).collect();

    p.load(BPF_W, DST);
    groups.iter().for_each(|(ip, _, group)| p.goto_if(*ip, *group));
    snat.iter().for_each(|ip| p.goto_if(*ip, reply));
    p.ret(REJECT);

    for (ip, ports, group) in groups {
        p.place(group);
        p.load_indexed(BPF_H, DST_PORT);
        ports.into_iter().for_each(|port| p.accept_if(port));
        if snat.contains(&ip) { p.goto(reply) } else { p.ret(REJECT) }
    }

    p.place(reply);
    if let Some(replies) = &selection.replies {
        from_servers(p, replies, precision);
    }
    p.ret(REJECT);
}

/// Accepts what comes from a server to a SNAT port, rejects all else.
fn from_servers(p: &mut Program, replies: &Replies, precision: Precision) {
    p.load_indexed(BPF_H, DST_PORT);
    p.reject_outside(u32::from(*replies.snat_ports.start()), u32::from(*replies.snat_ports.end()));
    if precision != Precision::Exact {
        p.ret(ACCEPT);
        return;
    }
    let servers = by_first(replies.servers.iter().filter_map(v4).map(|(ip, port)| (u32::from(port), ip)));
    let groups: Vec<_> = servers.into_iter().map(|(port, ips)| (port, ips, p.label())).collect();
    p.load_indexed(BPF_H, SRC_PORT);
    groups.iter().for_each(|(port, _, group)| p.goto_if(*port, *group));
    p.ret(REJECT);
    for (_, ips, group) in groups {
        p.place(group);
        p.load(BPF_W, SRC);
        ips.into_iter().for_each(|ip| p.accept_if(ip));
        p.ret(REJECT);
    }
}

/// All our addresses: the VIPs and those of SNAT.
fn addresses(selection: &Selection) -> BTreeSet<u32> {
    let vips = selection.listen().filter_map(v4).map(|(ip, _)| ip);
    vips.chain(selection.replies.iter().flat_map(snat_addresses)).collect()
}

fn snat_addresses(replies: &Replies) -> impl Iterator<Item = u32> {
    replies.snat_addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(u32::from(*ip)),
        IpAddr::V6(_) => None,
    })
}

fn v4(addr: &SocketAddr) -> Option<(u32, u16)> {
    match addr {
        SocketAddr::V4(addr) => Some((u32::from(*addr.ip()), addr.port())),
        SocketAddr::V6(_) => None,
    }
}

fn by_first(pairs: impl Iterator<Item = (u32, u32)>) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut groups: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    pairs.for_each(|(first, second)| {
        groups.entry(first).or_default().insert(second);
    });
    groups
}

/// A place in a program that can be jumped to before it is known.
#[derive(Clone, Copy)]
struct Label(usize);

/// A program in the making. Comparisons are with the accumulator, which the load before has filled.
#[derive(Default)]
struct Program {
    instructions: Vec<sock_filter>,
    places: Vec<usize>,
    jumps: Vec<(usize, Label)>,
}

impl Program {
    fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.places[label.0] = self.instructions.len();
    }

    fn load(&mut self, size: u32, offset: u32) {
        self.push(BPF_LD | BPF_ABS | size, 0, 0, offset);
    }

    /// What the kernel knows of the frame beside its bytes.
    fn load_info(&mut self, what: i32) {
        self.load(BPF_W, (SKF_AD_OFF + what) as u32);
    }

    /// Makes the length of the IP header the index.
    fn load_header_len(&mut self) {
        self.push(BPF_LDX | BPF_MSH | BPF_B, 0, 0, IP);
    }

    fn load_indexed(&mut self, size: u32, offset: u32) {
        self.push(BPF_LD | BPF_IND | size, 0, 0, offset);
    }

    fn ret(&mut self, verdict: u32) {
        self.push(BPF_RET | BPF_K, 0, 0, verdict);
    }

    fn goto(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(BPF_JMP | BPF_JA, 0, 0, 0);
    }

    fn accept_if(&mut self, value: u32) {
        self.push(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value);
        self.ret(ACCEPT);
    }

    fn goto_if(&mut self, value: u32, label: Label) {
        self.push(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value);
        self.goto(label);
    }

    fn goto_if_any(&mut self, bits: u32, label: Label) {
        self.push(BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits);
        self.goto(label);
    }

    fn reject_unless(&mut self, value: u32) {
        self.push(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, value);
        self.ret(REJECT);
    }

    fn reject_if_any(&mut self, bits: u32) {
        self.push(BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits);
        self.ret(REJECT);
    }

    fn reject_outside(&mut self, first: u32, last: u32) {
        self.push(BPF_JMP | BPF_JGE | BPF_K, 1, 0, first);
        self.ret(REJECT);
        self.push(BPF_JMP | BPF_JGT | BPF_K, 0, 1, last);
        self.ret(REJECT);
    }

    fn push(&mut self, code: u32, jt: u8, jf: u8, k: u32) {
        self.instructions.push(sock_filter { code: code as u16, jt, jf, k });
    }

    fn finish(mut self) -> Vec<sock_filter> {
        for (at, label) in self.jumps {
            self.instructions[at].k = (self.places[label.0] - at - 1) as u32;
        }
        self.instructions
    }
}

#[cfg(test)]
mod tests;
