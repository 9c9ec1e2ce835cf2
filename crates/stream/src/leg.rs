//! Connection to a client or a server, and the way in which it is closed: in order, or with a
//! reset.

use tokio::net::TcpStream;

use super::ByteStream;

/// Connection to a client or a server. A drop without [`Leg::close_in_order`] resets the
/// connection, so that the peer knows that the data is incomplete.
pub struct Leg {
    /// Byte stream of the connection.
    pub stream: ByteStream,
    in_order: bool,
}

impl Leg {
    /// Wraps a connected socket.
    pub fn new(stream: TcpStream) -> Leg {
        Leg { stream: stream.into(), in_order: false }
    }

    /// Socket of the connection.
    pub fn tcp(&self) -> &TcpStream {
        self.stream.tcp()
    }

    /// Makes the drop close the connection in order, so that the peer still receives all written
    /// bytes.
    pub fn close_in_order(&mut self) {
        self.stream.send_close_notify();
        self.in_order = true;
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        if !self.in_order {
            let _ = self.tcp().set_zero_linger();
        }
    }
}
