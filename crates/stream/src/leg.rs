//! Connection to a client or a server, which the drop resets or closes in order.

use tokio::net::TcpStream;

use super::ByteStream;

/// Connection to a client or a server. Without [`Leg::close_in_order`] the drop resets the
/// connection, so that the peer does not mistake a part of the bytes for the whole.
pub struct Leg {
    /// Bytes of the connection.
    pub stream: ByteStream,
    in_order: bool,
}

impl Leg {
    /// Takes a connected socket.
    pub fn new(stream: TcpStream) -> Leg {
        Leg { stream: stream.into(), in_order: false }
    }

    /// Socket of the connection.
    pub fn tcp(&self) -> &TcpStream {
        self.stream.tcp()
    }

    /// Makes the drop close the connection in order, so that all written bytes still arrive.
    pub fn close_in_order(&mut self) {
        self.stream.say_end();
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
