//! The capture socket's filter: a classic BPF program that the kernel runs on each frame, so that only ours are
//! copied to us.

mod family;
mod program;

use libc::{SKF_AD_PKTTYPE, SKF_AD_VLAN_TAG_PRESENT, sock_filter};

use self::family::{DST_PORT, Family, ICMP_TYPE, Keys, Ours, PROTOCOL, SRC_PORT, V4, V6};
use self::program::{Field, Label, Program, kernel_instructions};
use super::Selection;

/// Longest program we load, in the kernel's instructions of 8 bytes. `net.core.optmem_max` (20,480 bytes before
/// Linux 6.7) bounds what they may take, and while one filter replaces another it has to hold both.
const MAX_KERNEL_INSTRUCTIONS: usize = 1_200;

/// How closely a filter follows its selection. What it lets in too much, the forwarder finds to be none of ours;
/// that only costs time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Exactly the selection, and to its addresses: ICMP errors, later fragments, and what follows an extension
    /// header of IPv6.
    Exact,
    /// Too many servers: replies of anybody to our SNAT ports.
    AnyServer,
    /// Too many ports: the selection's protocols to all ports of our addresses.
    AnyPort,
    /// Too many addresses: all that, to anybody.
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
            if kernel_instructions(&filter.instructions) > MAX_KERNEL_INSTRUCTIONS {
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
        let mut program = Program::new();
        program.goto(program.reject);
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
    let mut p = Program::new();
    p.load(Field::info(SKF_AD_VLAN_TAG_PRESENT));
    p.goto_unless(0, p.reject);
    // Not what a bridge or a sniffer makes the interface take beside its own.
    p.load(Field::info(SKF_AD_PKTTYPE));
    p.goto_unless(u32::from(libc::PACKET_HOST), p.reject);

    let mut families = Vec::new();
    p.load(Field::half(12));
    for family in [V4, V6] {
        let ours = Ours::new(selection, &family);
        if !ours.addresses.is_empty() {
            let label = p.label();
            p.goto_if(family.ethertype, label);
            families.push((label, family, ours));
        }
    }
    p.goto(p.reject);
    for (label, family, ours) in families {
        p.place(label);
        packets(&mut p, &family, &ours, selection, precision);
    }
    p.finish()
}

/// Takes or leaves a packet of the family.
fn packets(p: &mut Program, family: &Family, ours: &Ours, selection: &Selection, precision: Precision) {
    let (icmp, ports, to_ours) = (p.label(), p.label(), p.label());
    family.store_destination(p);
    p.goto_if(family.icmp, icmp);
    family.extensions.iter().for_each(|&extension| p.goto_if(extension, to_ours));
    one_of(p, &[PROTOCOL], &ours.protocols, ports, p.reject);

    p.place(icmp);
    family.index_transport(p, p.reject);
    let errors = family.icmp_errors.iter().map(|&kind| vec![kind]).collect();
    one_of(p, &[ICMP_TYPE], &errors, to_ours, p.reject);

    p.place(ports);
    family.index_transport(p, to_ours);
    match precision {
        Precision::AnyPort | Precision::AnyAddress => p.goto(to_ours),
        Precision::Exact | Precision::AnyServer => by_port(p, family, ours, selection, precision),
    }

    p.place(to_ours);
    match precision {
        Precision::AnyAddress => p.goto(p.accept),
        _ => one_of(p, family.dst(), &ours.addresses, p.accept, p.reject),
    }
}

/// Takes what is for a frontend, and what a server replies to a SNAT port.
fn by_port(p: &mut Program, family: &Family, ours: &Ours, selection: &Selection, precision: Precision) {
    let (other, to_snat) = (p.label(), p.label());
    family.store_destination_port(p);
    let frontend = [&[PROTOCOL], family.dst(), &[DST_PORT]].concat();
    one_of(p, &frontend, &ours.frontends, p.accept, other);

    p.place(other);
    one_of(p, family.dst(), &ours.snat, to_snat, p.reject);

    p.place(to_snat);
    if let Some(replies) = &selection.replies {
        p.load(DST_PORT);
        p.goto_outside(&replies.snat_ports, p.reject);
    }
    if precision == Precision::Exact {
        family.store_source(p);
        let (server, at_any_port) =
            ([&[PROTOCOL, SRC_PORT], family.src()].concat(), [&[PROTOCOL], family.src()].concat());
        let no_server = if ours.servers_at_any_port.is_empty() { p.reject } else { p.label() };
        one_of(p, &server, &ours.servers, p.accept, no_server);
        if !ours.servers_at_any_port.is_empty() {
            p.place(no_server);
            one_of(p, &at_any_port, &ours.servers_at_any_port, p.accept, p.reject);
        }
    } else {
        p.goto(p.accept);
    }
}

fn one_of(p: &mut Program, fields: &[Field], keys: &Keys, yes: Label, no: Label) {
    let keys: Vec<&[u32]> = keys.iter().map(Vec::as_slice).collect();
    p.goto_one_of(fields, &keys, yes, no);
}

#[cfg(test)]
mod tests;
