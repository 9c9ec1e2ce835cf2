//! One side of a TLS connection, without a socket: bytes in, bytes out.

use std::fmt;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};

use crate::chooser;
use crate::{AcmeChallenges, OutgoingRecords, SessionFacts, TlsAcceptor};

/// Upper bound of the plaintext of one record (RFC 8446, section 5.1).
const MAX_RECORD: usize = 16 * 1024;

/// Upper bound of the overhead of a record in bytes: header, content type, tag and, in TLS 1.2,
/// nonce.
const RECORD_OVERHEAD: usize = 64;

/// Upper bound of an encrypted alert, in bytes.
const ALERT: usize = 128;

/// One side of a TLS connection.
pub struct TlsSession {
    side: Side,
    /// Server name that the client requested (SNI). Only on the server's side.
    server_name: Option<Box<str>>,
    /// Bytes of an unfinished record or handshake message. Each call passes these bytes to rustls
    /// again; rustls remembers how many of them it has processed.
    unfinished: Vec<u8>,
    /// Whether the session has failed. rustls must not be called again then.
    has_failed: bool,
    /// Set until the ClientHello is complete, if ACME challenges are served. The ClientHello
    /// decides whether the client gets the certificate of a challenge.
    undecided: Option<Box<Undecided>>,
}

/// Possible handshake settings of a client whose ClientHello is incomplete: the settings of a
/// challenge, or the usual settings.
struct Undecided {
    challenges: Arc<AcmeChallenges>,
    usual: Arc<ServerConfig>,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Result of [`TlsSession::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Whether the handshake is complete, so that both sides may send.
    pub is_open: bool,
    /// Whether the peer has closed its direction (`close_notify`).
    pub is_closed: bool,
}

impl TlsSession {
    /// Upper bound of the bytes that a session keeps between calls: one unfinished handshake
    /// message (RFC 8446, section 4) and one record.
    pub const MAX_UNFINISHED: usize = 72 * 1024;

    /// Creates the server's side of a connection with a client.
    ///
    /// # Errors
    /// rustls cannot create a session, for example without random numbers.
    pub fn accept(acceptor: &TlsAcceptor) -> Result<TlsSession, Error> {
        let session = TlsSession::new(Side::Server(UnbufferedServerConnection::new(acceptor.config())?));
        let undecided = acceptor
            .challenges()
            .map(|challenges| Box::new(Undecided { challenges, usual: acceptor.config() }));
        Ok(TlsSession { undecided, ..session })
    }

    /// Creates the client's side of a connection with a server. `name` is the server name to
    /// request and to verify.
    ///
    /// # Errors
    /// rustls cannot create a session, for example without random numbers.
    pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<TlsSession, Error> {
        Ok(TlsSession::new(Side::Client(UnbufferedClientConnection::new(config, name)?)))
    }

    fn new(side: Side) -> TlsSession {
        TlsSession { side, server_name: None, unfinished: Vec::new(), has_failed: false, undecided: None }
    }

    /// Number of bytes of an unfinished record or message that the session keeps.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Decrypts bytes of the peer in place. `incoming` must begin with space for
    /// [`TlsSession::unfinished`] bytes; the new bytes follow. Calls `plaintext` with the decrypted
    /// bytes, and appends the reply to `out`. After an error, `out` may hold an alert for the peer.
    ///
    /// # Errors
    /// The connection has failed: the peer breaks the protocol, or fails authentication.
    pub fn receive(
        &mut self,
        incoming: &mut [u8],
        out: &mut OutgoingRecords,
        plaintext: impl FnMut(&[u8]),
    ) -> Result<Received, Error> {
        self.check()?;
        incoming[..self.unfinished.len()].copy_from_slice(&self.unfinished);
        if self.decide(incoming)? {
            return Ok(Received::default());
        }
        let mut taken = 0;
        let received = match &mut self.side {
            Side::Server(connection) => {
                let received = receive(connection, incoming, &mut taken, out, plaintext);
                if let Some(name) = chooser::take_server_name() {
                    self.server_name = Some(name.into());
                }
                received
            }
            Side::Client(connection) => receive(connection, incoming, &mut taken, out, plaintext),
        };
        let left = &incoming[taken.min(incoming.len())..];
        self.has_failed = received.is_err() || left.len() > TlsSession::MAX_UNFINISHED;
        self.unfinished = if self.has_failed { Vec::new() } else { left.to_vec() };
        let received = received?;
        self.check().map(|()| received)
    }

    /// Chooses the handshake settings by the client's first bytes. If the ClientHello is
    /// incomplete, keeps the bytes and returns `true`.
    fn decide(&mut self, incoming: &[u8]) -> Result<bool, Error> {
        let Some(Undecided { challenges, usual }) = self.undecided.as_deref() else { return Ok(false) };
        let Some(config) = challenges.choose(incoming, usual) else {
            self.has_failed = incoming.len() > TlsSession::MAX_UNFINISHED;
            self.unfinished = incoming.to_vec();
            return self.check().map(|()| true);
        };
        if !Arc::ptr_eq(&config, usual) {
            self.side = Side::Server(UnbufferedServerConnection::new(config)?);
        }
        self.undecided = None;
        Ok(false)
    }

    /// Encrypts bytes for the peer, and appends the records to `out`. Call this function only after
    /// the handshake.
    ///
    /// # Errors
    /// The handshake is incomplete, the session has ended or failed, or its keys have encrypted the
    /// maximum number of records.
    pub fn send(&mut self, plaintext: &[u8], out: &mut OutgoingRecords) -> Result<(), Error> {
        self.transmit(Some(plaintext), out)
    }

    /// Appends `close_notify` to `out`: this side sends nothing more (RFC 8446, section 6.1).
    ///
    /// # Errors
    /// Errors of [`TlsSession::send`].
    pub fn close(&mut self, out: &mut OutgoingRecords) -> Result<(), Error> {
        self.transmit(None, out)
    }

    fn transmit(&mut self, plaintext: Option<&[u8]>, out: &mut OutgoingRecords) -> Result<(), Error> {
        self.check()?;
        let (unfinished, mut taken) = (&mut self.unfinished, 0);
        let sent = match &mut self.side {
            Side::Server(connection) => send(connection, unfinished, &mut taken, plaintext, out),
            Side::Client(connection) => send(connection, unfinished, &mut taken, plaintext, out),
        };
        self.has_failed = sent.is_err();
        self.unfinished.drain(..taken.min(self.unfinished.len()));
        sent
    }

    fn check(&self) -> Result<(), Error> {
        match self.has_failed {
            false => Ok(()),
            true => Err(Error::General("the TLS session has failed".to_owned())),
        }
    }

    /// Returns the facts of the handshake.
    pub fn facts(&self) -> SessionFacts {
        SessionFacts::of(self.state(), self.server_name.as_deref())
    }

    /// Protocol within TLS (ALPN, RFC 7301), if one was negotiated.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("facts", &self.facts()).finish()
    }
}

/// Connection of rustls, of a server or a client.
trait Unbuffered {
    type Data;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Whether rustls has bytes to send. [`Unbuffered::process`] returns them before it reads
    /// `incoming`.
    fn wants_write(&self) -> bool;
}

impl Unbuffered for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn wants_write(&self) -> bool {
        CommonState::wants_write(self)
    }
}

impl Unbuffered for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn wants_write(&self) -> bool {
        CommonState::wants_write(self)
    }
}

/// Processes received bytes until rustls needs more. Adds the number of processed bytes of
/// `incoming` to `taken`.
fn receive(
    connection: &mut impl Unbuffered,
    incoming: &mut [u8],
    taken: &mut usize,
    out: &mut OutgoingRecords,
    mut plaintext: impl FnMut(&[u8]),
) -> Result<Received, Error> {
    let mut received = Received::default();
    loop {
        let UnbufferedStatus { mut discard, state } = connection.process(&mut incoming[*taken..]);
        let mut waits = false;
        match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    plaintext(record.payload);
                    discard += record.discard;
                }
            }
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out)?,
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::PeerClosed) => received.is_closed = true,
            Ok(ConnectionState::WriteTraffic(_)) => (received.is_open, waits) = (true, true),
            Ok(ConnectionState::Closed) => (received.is_closed, waits) = (true, true),
            Ok(ConnectionState::BlockedHandshake) => waits = true,
            // Other states exist only for 0-RTT, which is disabled over TCP.
            Ok(_) => return Err(Error::General("unexpected state of a TLS session".to_owned())),
            Err(error) => {
                *taken += discard;
                encode_alert(connection, &mut incoming[*taken..], out);
                return Err(error);
            }
        }
        *taken += discard;
        if waits {
            return Ok(received);
        }
    }
}

/// Encodes the alert of a connection that has just failed, and the bytes before the alert. Stops
/// before rustls reads further bytes, because rustls would fail again and send a second alert.
fn encode_alert(connection: &mut impl Unbuffered, incoming: &mut [u8], out: &mut OutgoingRecords) {
    while connection.wants_write() {
        let Ok(ConnectionState::EncodeTlsData(data)) = connection.process(incoming).state else { return };
        if encode(data, out).is_err() {
            // An error is ignored, because the connection has failed anyway.
            return;
        }
    }
}

/// Encrypts `plaintext`. If `plaintext` is `None`, encrypts `close_notify` instead. Adds the number
/// of processed bytes of `unfinished` to `taken`.
fn send(
    connection: &mut impl Unbuffered,
    unfinished: &mut [u8],
    taken: &mut usize,
    plaintext: Option<&[u8]>,
    out: &mut OutgoingRecords,
) -> Result<(), Error> {
    loop {
        let UnbufferedStatus { discard, state } = connection.process(&mut unfinished[*taken..]);
        match state? {
            ConnectionState::EncodeTlsData(data) => encode(data, out)?,
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::PeerClosed => {}
            ConnectionState::WriteTraffic(mut traffic) => {
                let sent = match plaintext {
                    Some(bytes) => {
                        let room = bytes.len() + bytes.len().div_ceil(MAX_RECORD).max(1) * RECORD_OVERHEAD;
                        out.add(room, |free| traffic.encrypt(bytes, free))
                    }
                    None => out.add(ALERT, |free| traffic.queue_close_notify(free)),
                };
                *taken += discard;
                return sent.map(drop).map_err(cannot_encrypt);
            }
            _ => return Err(Error::General("the TLS session accepts no data".to_owned())),
        }
        *taken += discard;
    }
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, out: &mut OutgoingRecords) -> Result<(), Error> {
    let room = match out.add(0, |free| data.encode(free)) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => required_size,
        Err(error) => return Err(Error::General(error.to_string())),
    };
    out.add(room, |free| data.encode(free)).map(drop).map_err(|error| Error::General(error.to_string()))
}

fn cannot_encrypt(error: EncryptError) -> Error {
    Error::General(error.to_string())
}

#[cfg(test)]
mod tests;
