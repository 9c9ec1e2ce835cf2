//! Actions of a client on a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use convey_testkit::{check_to_end, connect, reset, send};
use fastrand::Rng;

use crate::server::{Order, encode};

/// Counts of clients' actions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) connections: u64,
    /// Connections that the client reset.
    pub(crate) resets: u64,
    /// Connections that the server reset.
    pub(crate) was_reset: u64,
    /// Bytes that clients received.
    pub(crate) received: u64,
    pub(crate) udp_clients: u64,
    /// Datagrams that UDP clients sent.
    pub(crate) asked: u64,
    /// Datagrams that answered a question in full.
    pub(crate) answered: u64,
}

impl Tally {
    pub(crate) fn and(self, other: Tally) -> Tally {
        Tally {
            connections: self.connections + other.connections,
            resets: self.resets + other.resets,
            was_reset: self.was_reset + other.was_reset,
            received: self.received + other.received,
            udp_clients: self.udp_clients + other.udp_clients,
            asked: self.asked + other.asked,
            answered: self.answered + other.answered,
        }
    }
}

/// Runs one random action on a connection, from beginning to end. Panics if the outcome is wrong.
pub(crate) fn any(vip: SocketAddr, random: &mut Rng, tally: &mut Tally) {
    let stream = connect(vip);
    tally.connections += 1;
    // Mostly small, sometimes enough to splice for long.
    let bytes = if random.u8(..8) == 0 { random.u64(..8 << 20) } else { random.u64(..32 << 10) };
    match random.u8(..16) {
        0..6 => download(stream, bytes, tally),
        6 => slow_download(stream, bytes, random, tally),
        7..9 => half_close(stream, bytes, tally),
        9..12 => upload(stream, bytes, tally),
        12 => reset_download(stream, bytes, random, tally),
        13 => reset_by_server(stream, bytes, tally),
        14 => reset_stuck_upload(stream, tally),
        // A client that sends nothing at all.
        _ => drop(stream),
    }
}

fn download(mut stream: TcpStream, bytes: u64, tally: &mut Tally) {
    order(&mut stream, Order::Download, bytes);
    assert_eq!(check_to_end(&mut stream), bytes);
    tally.received += bytes;
}

fn slow_download(mut stream: TcpStream, bytes: u64, random: &mut Rng, tally: &mut Tally) {
    order(&mut stream, Order::Download, bytes);
    // Pauses let buffers on the way fill up; then the client reads the rest in one go.
    for _ in 0..random.u8(1..10) {
        thread::sleep(Duration::from_millis(random.u64(..50)));
        if stream.peek(&mut [0]).is_ok_and(|n| n == 0) {
            break;
        }
    }
    assert_eq!(check_to_end(&mut stream), bytes);
    tally.received += bytes;
}

/// The server sends everything before the client does.
fn half_close(mut stream: TcpStream, bytes: u64, tally: &mut Tally) {
    order(&mut stream, Order::HalfClose, bytes);
    assert_eq!(check_to_end(&mut stream), bytes);
    send(&mut stream, bytes).expect("a server that still reads");
    tally.received += bytes;
}

/// The client sends everything before the server sends anything.
fn upload(mut stream: TcpStream, bytes: u64, tally: &mut Tally) {
    order(&mut stream, Order::Upload, bytes);
    send(&mut stream, bytes).expect("a server that reads");
    stream.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(check_to_end(&mut stream), bytes);
    tally.received += bytes;
}

fn reset_download(mut stream: TcpStream, bytes: u64, random: &mut Rng, tally: &mut Tally) {
    order(&mut stream, Order::Download, bytes + 1);
    let some = random.u64(..=bytes) as usize;
    stream.read_exact(&mut vec![0; some]).expect("a server that sends more");
    tally.received += some as u64;
    tally.resets += 1;
    reset(stream);
}

fn reset_by_server(mut stream: TcpStream, bytes: u64, tally: &mut Tally) {
    order(&mut stream, Order::Reset, bytes);
    let mut block = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut block) {
            Ok(0) => panic!("a reset by the server came as an end"),
            Ok(n) => tally.received += n as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break;
            }
        }
    }
    tally.was_reset += 1;
}

fn reset_stuck_upload(mut stream: TcpStream, tally: &mut Tally) {
    order(&mut stream, Order::Stall, 0);
    stream.set_write_timeout(Some(Duration::from_millis(2))).expect("a time above 0");
    let stuck = send(&mut stream, 64 << 20).expect_err("nobody reads");
    assert_eq!(stuck.kind(), ErrorKind::WouldBlock);
    tally.resets += 1;
    reset(stream);
}

fn order(stream: &mut TcpStream, order: Order, bytes: u64) {
    stream.write_all(&encode(order, bytes)).expect("a balancer that reads");
}
