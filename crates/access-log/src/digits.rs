//! Digits of numbers, addresses and durations. Pure.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// For each number below 1,000, its digits, and the number of its digits in the last byte.
static DIGITS: [[u8; 4]; 1_000] = {
    let mut table = [[0; 4]; 1_000];
    let mut n = 0;
    while n < 1_000 {
        let [hundreds, tens, ones] = PADDED[n];
        table[n] = match n {
            0..10 => [ones, 0, 0, 1],
            10..100 => [tens, ones, 0, 2],
            _ => [hundreds, tens, ones, 3],
        };
        n += 1;
    }
    table
};

/// For each number below 1,000, its three digits.
static PADDED: [[u8; 3]; 1_000] = {
    let mut table = [[0; 3]; 1_000];
    let mut n = 0;
    while n < 1_000 {
        table[n] = [b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    table
};

/// Bytes of the longest IPv4 address with a port, and the ones that a copy of fixed length writes
/// behind it.
const ADDR: usize = 32;

/// Writes a decimal number.
#[inline]
pub(super) fn write_number(out: &mut Vec<u8>, n: u64) {
    match DIGITS.get(n as usize) {
        Some([digits @ .., len]) => append(out, digits, usize::from(*len)),
        None => write_long_number(out, n),
    }
}

fn write_long_number(out: &mut Vec<u8>, n: u64) {
    write_number(out, n / 1_000);
    write_three_digits(out, (n % 1_000) as u16);
}

/// Writes a number below 1,000 with three digits.
#[inline]
pub(super) fn write_three_digits(out: &mut Vec<u8>, n: u16) {
    out.extend_from_slice(&PADDED[usize::from(n) % 1_000]);
}

/// Writes milliseconds with three decimals.
pub(super) fn write_milliseconds(out: &mut Vec<u8>, time: Duration) {
    write_number(out, time.as_secs().saturating_mul(1_000).saturating_add(time.subsec_millis().into()));
    out.push(b'.');
    write_three_digits(out, (time.subsec_micros() % 1_000) as u16);
}

/// Writes an address like `Display` does, but faster for IPv4.
pub(super) fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            let (text, len) = octets(ip);
            append(out, &text, len);
        }
        IpAddr::V6(ip) => drop(write!(out, "{ip}")),
    }
}

/// Writes an address with its port.
pub(super) fn write_addr(out: &mut Vec<u8>, addr: SocketAddr) {
    let SocketAddr::V4(v4) = addr else { return drop(write!(out, "{addr}")) };
    let (mut text, len) = octets(*v4.ip());
    text[len] = b':';
    append(out, &text, len + 1);
    write_number(out, v4.port().into());
}

/// Text of an IPv4 address, and its length.
#[inline]
fn octets(ip: Ipv4Addr) -> ([u8; ADDR], usize) {
    let (mut text, mut at) = ([0; ADDR], 0);
    for octet in ip.octets() {
        let [digits @ .., len] = DIGITS[usize::from(octet)];
        // An address is far shorter than the array.
        text[at..at + 3].copy_from_slice(&digits);
        at += usize::from(len);
        text[at] = b'.';
        at += 1;
    }
    (text, at - 1)
}

/// Appends the first `len` bytes. A copy of fixed length is faster than one of these bytes alone.
#[inline]
pub(super) fn append<const N: usize>(out: &mut Vec<u8>, bytes: &[u8; N], len: usize) {
    let end = out.len() + len;
    out.extend_from_slice(bytes);
    out.truncate(end);
}
