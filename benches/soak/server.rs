//! Servers that do as their clients ask.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};

use convey_testkit::{TcpServer, check_to_end, reset, send};

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Send so many bytes and close.
    Download,
    /// Send so many bytes, say that this was all, and read to the end.
    HalfClose,
    /// Send so many bytes and reset.
    Reset,
    /// Read so many bytes to the end of the stream, and send them back.
    Upload,
    /// Read nothing and wait for the end.
    Stall,
}

const ORDERS: [Order; 5] = [Order::Download, Order::HalfClose, Order::Reset, Order::Upload, Order::Stall];

/// What an order looks like on the wire.
pub(crate) fn encode(order: Order, bytes: u64) -> [u8; 9] {
    let mut wire = [order as u8; 9];
    wire[1..].copy_from_slice(&bytes.to_be_bytes());
    wire
}

/// A server that does as it is asked.
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
                // Returns once the client's reset has been passed on.
                while stream.peek(&mut [0]).is_ok_and(|n| n > 0) && stream.take_error()?.is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
        Ok(())
    })
}
