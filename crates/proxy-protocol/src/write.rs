//! Writer of PROXY headers.

use std::io::Write;
use std::net::SocketAddr;

use convey_model::{Protocol, ProxyVersion};

use crate::parse::{FIXED, SIGNATURE};
use crate::{Addresses, tlvs};

/// Appends a PROXY header for a client's connection to `to`. Without addresses, or with addresses
/// of two families, the header marks the client as unknown.
///
/// `tlvs` are the additional fields of the received header. If they contain a checksum, it is
/// computed again. Version 1 has no additional fields.
pub fn write(version: ProxyVersion, addresses: Option<Addresses>, tlvs: &[u8], to: &mut Vec<u8>) {
    match version {
        ProxyVersion::V1 => line(addresses, to),
        ProxyVersion::V2 => binary(addresses, tlvs, to),
    }
}

/// Returns the PROXY header of a connection that convey opens for itself, such as a health check.
pub fn local(version: ProxyVersion) -> &'static [u8] {
    match version {
        ProxyVersion::V1 => b"PROXY UNKNOWN\r\n",
        ProxyVersion::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    }
}

fn line(addresses: Option<Addresses>, to: &mut Vec<u8>) {
    let Some(Addresses { source, destination, .. }) = addresses else {
        return to.extend_from_slice(local(ProxyVersion::V1));
    };
    let family = match (source, destination) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => "TCP4",
        (SocketAddr::V6(_), SocketAddr::V6(_)) => "TCP6",
        _ => return to.extend_from_slice(local(ProxyVersion::V1)),
    };
    let (from, at) = (source.ip(), destination.ip());
    // A write to memory cannot fail.
    let _ = write!(to, "PROXY {family} {from} {at} {} {}\r\n", source.port(), destination.port());
}

fn binary(addresses: Option<Addresses>, tlvs: &[u8], to: &mut Vec<u8>) {
    let begin = to.len();
    to.extend_from_slice(&SIGNATURE);
    to.push(0x21);
    to.extend_from_slice(&[0; FIXED - SIGNATURE.len() - 1]);
    let family = match addresses.map(|of| (of.source, of.destination, of.transport)) {
        Some((SocketAddr::V4(source), SocketAddr::V4(destination), transport)) => {
            to.extend_from_slice(&source.ip().octets());
            to.extend_from_slice(&destination.ip().octets());
            0x10 | of_transport(transport)
        }
        Some((SocketAddr::V6(source), SocketAddr::V6(destination), transport)) => {
            to.extend_from_slice(&source.ip().octets());
            to.extend_from_slice(&destination.ip().octets());
            0x20 | of_transport(transport)
        }
        _ => 0,
    };
    if let Some(of) = addresses.filter(|_| family != 0) {
        to.extend_from_slice(&of.source.port().to_be_bytes());
        to.extend_from_slice(&of.destination.port().to_be_bytes());
    }
    let fields = to.len() - begin;
    // Leaves out the fields for the unspecified family, because receivers ignore them.
    to.extend_from_slice(if family == 0 { &[] } else { tlvs });
    let header = &mut to[begin..];
    header[13] = family;
    let len = u16::try_from(header.len() - FIXED).unwrap_or_default();
    header[14..FIXED].copy_from_slice(&len.to_be_bytes());
    tlvs::renew_checksum(header, fields);
}

fn of_transport(transport: Protocol) -> u8 {
    match transport {
        Protocol::Tcp => 1,
        Protocol::Udp => 2,
    }
}
