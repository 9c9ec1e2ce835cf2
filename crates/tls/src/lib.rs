//! TLS as a balancer has it (RFC 8446, RFC 5246), by rustls and ring. No socket, no thread, no log.
//!
//! - [`Certificate`] is what one pair of files holds: a chain, its key, the names and the days that it is good for.
//! - [`TlsAcceptor`] shakes hands with clients as a frontend's settings say. It chooses the certificate by the name that a client asks for.
//! - [`AcmeChallenges`] are what an authority looks for that is to issue a certificate.
//! - [`TlsConnector`] shakes hands with servers as a backend's settings say.
//! - [`TlsSession`] is one side of a connection: bytes of the other side go in, plaintext and bytes for the other side come out. It holds
//!   no bytes of its own between two calls, so a connection that rests costs little.
//! - [`ExpiryWatch`] says when operators are told that a certificate expires.
//! - [`SessionFacts`] are what a handshake has agreed on, for logs and servers.
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
pub use certificate::{Certificate, CertificateFault, Validity, authorities_of_host, certificates_of};
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
