//! TLS for a load balancer (RFC 8446, RFC 5246), with rustls and ring. This crate uses no sockets,
//! threads or logs.
//!
//! - [`Certificate`] holds one certificate chain with its key, the names that it covers, and its
//!   validity.
//! - [`TlsAcceptor`] holds the settings of a frontend for handshakes with clients. It chooses the
//!   certificate by the server name that the client requests.
//! - [`AcmeChallenges`] holds the proofs that a certificate authority checks before it issues a
//!   certificate.
//! - [`TlsConnector`] holds the settings of a backend for handshakes with servers.
//! - [`TlsSession`] is one side of a connection: bytes of the peer go in, plaintext and bytes for
//!   the peer come out. Between two calls, it holds only the bytes of an unfinished record or
//!   message, so an idle connection needs little memory.
//! - [`ExpiryWatch`] returns warnings about certificates that are about to expire.
//! - [`SessionFacts`] holds the negotiated parameters of a handshake, for logs and servers.
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
