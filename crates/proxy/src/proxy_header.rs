//! PROXY header at the beginning of a client's TCP connection.

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::clients::Counted;
use super::header_error::{HEADER_TIMEOUT, HeaderError};
use super::session::TcpSession;
use convey_proxy_protocol::{MAX_HEADER, ProxyHeaderError, parse};
use convey_snapshot::stats::Counter;
use convey_stream::Leg;
use convey_trace::ConnectionStep;
use convey_upstream::Origin;

/// PROXY header of a connection, and the bytes that follow it.
#[derive(Debug, Default)]
pub(super) struct ReceivedHeader {
    /// Content of the header; empty without one.
    pub(super) origin: Origin,
    /// Bytes of the client that have arrived after the header.
    pub(super) early: Vec<u8>,
}

impl ReceivedHeader {
    /// Whether there is a header, or bytes of the client.
    pub(super) fn has_content(&self) -> bool {
        self.origin.addresses.is_some() || !self.origin.tlvs.is_empty() || !self.early.is_empty()
    }
}

impl TcpSession {
    /// Receives the PROXY header, if the frontend requires one, and admits the client that the
    /// header names.
    ///
    /// # Errors
    /// Reason of the end; `None` if the peer closed in order without a byte.
    pub(super) async fn take_header(&mut self, client: &mut Leg) -> Result<ReceivedHeader, Option<Counter>> {
        if !self.awaits_header {
            return Ok(ReceivedHeader::default());
        }
        let received = match receive(client.tcp()).await {
            Ok(received) => received,
            Err(HeaderError::Silent) => {
                client.close_in_order();
                return Err(None);
            }
            Err(why) => {
                if why != HeaderError::Reset {
                    self.log_header_error(why);
                }
                return Err(why.end());
            }
        };
        let named = received.origin.addresses.map(|addresses| addresses.client());
        self.named = named.map(Box::new);
        if let Some(record) = &mut self.record {
            record.has_header();
        }
        self.counted = Counted::default();
        self.entry.set_client(named);
        self.trace(None, ConnectionStep::Header);
        self.admit_named()?;
        Ok(received)
    }
}

/// Receives the PROXY header of a connection, and the bytes of the client that have arrived after
/// it.
async fn receive(stream: &TcpStream) -> Result<ReceivedHeader, HeaderError> {
    timeout(HEADER_TIMEOUT, read(stream)).await.unwrap_or(Err(HeaderError::Late))
}

async fn read(stream: &TcpStream) -> Result<ReceivedHeader, HeaderError> {
    let mut held = Vec::new();
    loop {
        stream.readable().await.map_err(|_| HeaderError::Reset)?;
        if let Some(received) = take(stream, &mut held)? {
            return Ok(received);
        }
    }
}

/// Reads the available bytes and parses the header. Returns `None` if the header is still
/// incomplete. `held` keeps the part of the header that has arrived so far.
fn take(stream: &TcpStream, held: &mut Vec<u8>) -> Result<Option<ReceivedHeader>, HeaderError> {
    let mut buffer = [0; MAX_HEADER];
    let (before, room) = buffer.split_at_mut(held.len());
    before.copy_from_slice(held);
    let n = match convey_stream::try_read(stream, room) {
        None => return Ok(None),
        Some(Ok(0)) if held.is_empty() => return Err(HeaderError::Silent),
        Some(Ok(0)) => return Err(HeaderError::Cut),
        Some(Ok(n)) => n,
        Some(Err(_)) => return Err(HeaderError::Reset),
    };
    let bytes = &buffer[..held.len() + n];
    match parse(bytes) {
        Ok(header) => {
            let origin = Origin { addresses: header.addresses, tlvs: header.tlvs.into() };
            Ok(Some(ReceivedHeader { origin, early: bytes[header.len..].to_vec() }))
        }
        Err(ProxyHeaderError::Incomplete) => {
            held.extend_from_slice(&bytes[held.len()..]);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use convey_model::{Protocol, ProxyVersion};
    use convey_proxy_protocol::{Addresses, HeaderFault, write};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.8 7 80\r\n";

    #[tokio::test]
    async fn a_header_byte_by_byte_is_taken_and_nothing_of_what_follows() {
        let (mut client, stream) = pair().await;
        let received = tokio::spawn(async move { (receive(&stream).await, stream) });
        for byte in LINE {
            client.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let (received, stream) = received.await.unwrap();
        let ReceivedHeader { origin, early } = received.unwrap();
        assert_eq!(origin.addresses.unwrap().source, "192.0.2.7:7".parse().unwrap());
        assert_eq!(early, b"");
        client.write_all(b"more").await.unwrap();
        stream.readable().await.unwrap();
        let mut rest = [0; 9];
        assert_eq!(convey_stream::try_read(&stream, &mut rest).unwrap().unwrap(), 4);
    }

    #[tokio::test]
    async fn bytes_that_come_with_the_header_are_kept() {
        let (mut client, stream) = pair().await;
        client.write_all(&[LINE, b"GET / HTTP/1.1\r\n"].concat()).await.unwrap();
        let ReceivedHeader { early, .. } = receive(&stream).await.unwrap();
        assert_eq!(early, b"GET / HTTP/1.1\r\n");
    }

    #[tokio::test]
    async fn the_longest_header_is_taken_with_its_fields_and_what_follows() {
        let [source, destination] = ["192.0.2.7:7", "192.0.2.8:80"].map(|addr| addr.parse().unwrap());
        let addresses = Some(Addresses { source, destination, transport: Protocol::Tcp });
        // A filler field (PP2_TYPE_NOOP) pads the header.
        for (fill, is_taken) in [(0, true), (1, false)] {
            let value = MAX_HEADER - 28 - 3 + fill;
            let fields = [&[4][..], &(value as u16).to_be_bytes(), &vec![7; value]].concat();
            let mut bytes = Vec::new();
            write(ProxyVersion::V2, addresses, &fields, &mut bytes);
            assert_eq!(bytes.len(), MAX_HEADER + fill);
            bytes.extend_from_slice(b"early");
            let (mut client, stream) = pair().await;
            let received = tokio::spawn(async move { (receive(&stream).await, stream) });
            client.write_all(&bytes).await.unwrap();
            let (received, stream) = received.await.unwrap();
            if !is_taken {
                assert_eq!(received.unwrap_err(), HeaderError::Malformed(HeaderFault::TooLong));
                continue;
            }
            let ReceivedHeader { origin, mut early } = received.unwrap();
            assert_eq!((origin.addresses, &*origin.tlvs), (addresses, &fields[..]));
            while early.len() < 5 {
                stream.readable().await.unwrap();
                let mut rest = [0; 9];
                let n = convey_stream::try_read(&stream, &mut rest).unwrap().unwrap();
                early.extend_from_slice(&rest[..n]);
            }
            assert_eq!(early, b"early");
        }
    }

    #[tokio::test]
    async fn without_a_whole_header_there_is_a_reason() {
        for (bytes, why) in [
            (&b""[..], HeaderError::Silent),
            (&LINE[..9], HeaderError::Cut),
            (b"GET / HTTP/1.1\r\n", HeaderError::Malformed(HeaderFault::NotAHeader)),
            (b"PROXY TCP4 me you 1 2\r\n", HeaderError::Malformed(HeaderFault::Line)),
        ] {
            let (mut client, stream) = pair().await;
            client.write_all(bytes).await.unwrap();
            drop(client);
            assert_eq!(receive(&stream).await.unwrap_err(), why);
        }
        let (client, stream) = pair().await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert_eq!(receive(&stream).await.unwrap_err(), HeaderError::Reset);
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_never_ends_is_late() {
        let (mut client, stream) = pair().await;
        client.write_all(&LINE[..9]).await.unwrap();
        assert_eq!(receive(&stream).await.unwrap_err(), HeaderError::Late);
    }
}
