//! Forwarding of the client's PROXY header to a server.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use convey_model::{Protocol, ProxyVersion};
use convey_proxy_protocol::{Addresses, write};
use convey_stream::{More, try_write};

/// Content of the PROXY header that was received at the beginning of a client's connection. Empty
/// if there was none.
#[derive(Debug, Default)]
pub struct Origin {
    /// Addresses of the header. With `None`, the addresses of the connection apply.
    pub addresses: Option<Addresses>,
    /// Additional fields (TLVs) of the header. convey passes them on to servers that expect version
    /// 2.
    pub tlvs: Box<[u8]>,
}

impl Origin {
    /// Returns the PROXY header for a server. The `client` has connected to `local`. `named` is the
    /// client of the request, if a trusted proxy has named one.
    pub fn header(
        &self,
        version: ProxyVersion,
        client: SocketAddr,
        named: Option<SocketAddr>,
        local: Option<SocketAddr>,
    ) -> Vec<u8> {
        let of_connection = || {
            let destination = plain(local?);
            Some(Addresses { source: plain(client), destination, transport: Protocol::Tcp })
        };
        let addresses = self.addresses.or_else(of_connection);
        let addresses = match named {
            Some(source) => addresses.map(|of| Addresses { source: plain(source), ..of }),
            None => addresses,
        };
        let mut header = Vec::new();
        write(version, addresses, &self.tlvs, &mut header);
        header
    }
}

/// Sends a PROXY header in one write: it fits into the send buffer of a new connection.
/// `data_waits` means that further bytes follow immediately.
pub(crate) fn send(stream: &TcpStream, header: &[u8], data_waits: bool) -> io::Result<()> {
    let more = if data_waits { More::Data } else { More::No };
    match try_write(stream, header, more) {
        Some(Ok(sent)) if sent == header.len() => Ok(()),
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Address without flow label and interface, which differ between the two ends of a connection.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_client_that_trusted_proxies_name() {
        let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (proxy, local) = (addr("10.0.0.5:4711"), addr("192.0.2.8:80"));
        let line = |origin: &Origin, named: &str| {
            let named = (!named.is_empty()).then(|| addr(named));
            String::from_utf8(origin.header(ProxyVersion::V1, proxy, named, Some(local))).unwrap()
        };
        let none = Origin::default();
        assert_eq!(line(&none, ""), "PROXY TCP4 10.0.0.5 192.0.2.8 4711 80\r\n");
        assert_eq!(line(&none, "203.0.113.7:0"), "PROXY TCP4 203.0.113.7 192.0.2.8 0 80\r\n");
        assert_eq!(line(&none, "[2001:db8::7]:1"), "PROXY UNKNOWN\r\n", "addresses are of one family");
        let (source, destination) = (addr("198.51.100.1:1"), addr("192.0.2.9:443"));
        let addresses = Some(Addresses { source, destination, transport: Protocol::Tcp });
        let received = Origin { addresses, ..Origin::default() };
        assert_eq!(line(&received, ""), "PROXY TCP4 198.51.100.1 192.0.2.9 1 443\r\n");
        assert_eq!(line(&received, "203.0.113.7:5"), "PROXY TCP4 203.0.113.7 192.0.2.9 5 443\r\n");
    }
}
