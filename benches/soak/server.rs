//! Servers that follow their clients' orders.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};

use convey_testkit::{TcpServer, check_to_end, reset, send};

/// Order of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Send a number of bytes and close.
    Download,
    /// Send a number of bytes, shut down the sending side, and read to the end.
    HalfClose,
    /// Send a number of bytes and reset.
    Reset,
    /// Read a number of bytes to the end of the stream, and send them back.
    Upload,
    /// Read nothing and wait for the end.
    Stall,
}

const ORDERS: [Order; 5] = [Order::Download, Order::HalfClose, Order::Reset, Order::Upload, Order::Stall];

/// Encodes an order.
pub(crate) fn encode(order: Order, bytes: u64) -> [u8; 9] {
    let mut wire = [order as u8; 9];
    wire[1..].copy_from_slice(&bytes.to_be_bytes());
    wire
}

/// Starts a server that follows orders.
pub(crate) fn start(addr: SocketAddr) -> TcpServer {
    TcpServer::start(addr, |mut stream| {
        let mut wire = [0; 9];
        stream.read_exact(&mut wire)?;
        let order = ORDERS.get(usize::from(wire[0])).copied().ok_or(io::ErrorKind::InvalidData)?;
        let bytes = u64::from_be_bytes(wire[1..].try_into().map_err(io::Error::other)?);
        match order {
            Order::Download => send(&mut stream, bytes)?,
            Order::HalfClose => {
                send(&mut stream, bytes)?;
                stream.shutdown(Shutdown::Write)?;
                check_to_end(&mut stream);
            }
            Order::Reset => {
                send(&mut stream, bytes)?;
                reset(stream);
            }
            Order::Upload => {
                let read = check_to_end(&mut stream);
                send(&mut stream, read)?;
            }
            Order::Stall => {
                // Returns once convey has passed the client's reset on.
                while stream.peek(&mut [0]).is_ok_and(|n| n > 0) && stream.take_error()?.is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
        Ok(())
    })
}
