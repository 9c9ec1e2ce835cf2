//! TLS of a load balancer (RFC 8446, RFC 5246), by rustls and ring. No socket, no thread, no log.
//!
//! - [`Certificate`] holds one pair of files: a chain, its key, the names that it covers and its
//!   validity.
//! - [`TlsAcceptor`] performs handshakes with clients by the settings of a frontend. It chooses the
//!   certificate by the server name of the client.
//! - [`AcmeChallenges`] are the proofs that a certificate authority checks before it issues a
//!   certificate.
//! - [`TlsConnector`] performs handshakes with servers by the settings of a backend.
//! - [`TlsSession`] is one side of a connection: bytes of the peer go in, plaintext and bytes for
//!   the peer come out. It holds no bytes of its own between two calls, so an idle connection costs
//!   little.
//! - [`ExpiryWatch`] returns a warning for each certificate that is about to expire.
//! - [`SessionFacts`] are the negotiated parameters of a handshake, for logs and servers.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod acceptor;
mod certificate;
mod challenges;
mod chooser;
mod connector;
mod distinguished_name;
mod expiry;
mod facts;
mod fault;
mod quic;
mod records;
mod session;
mod versions;

pub use acceptor::{SessionTickets, TlsAcceptor, TlsFault};
pub use certificate::{
    Certificate, CertificateFault, NoAuthorities, Validity, authorities_of_host, certificates_of,
};
pub use challenges::{ACME_TLS, AcmeChallenges, AcmeProof};
pub use connector::{SpokenWithin, TlsConnector, server_name};
pub use expiry::{Expiry, ExpiryWatch};
pub use facts::SessionFacts;
pub use fault::handshake_fault;
pub use quic::initial_suite;
pub use records::OutgoingRecords;
pub use rustls::Error as TlsError;
pub use rustls::pki_types::CertificateDer;
pub use session::{Received, TlsSession};
