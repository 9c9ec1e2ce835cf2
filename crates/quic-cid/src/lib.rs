//! Finds the server of a QUIC packet by its destination connection id.
//!
//! When a client changes its address, its packets look like the packets of another flow. But the
//! servers have chosen the connection id, and can put their server id into it. So convey finds the
//! server by the connection id.
//!
//! This crate reads the parts of a packet that are equal in all versions of QUIC (RFC 8999), and
//! connection ids as QUIC-LB encodes them (draft-ietf-quic-load-balancers-21).
//!
//! ```
//! use convey_quic_cid::{Scheme, ServerId};
//!
//! let server: ServerId = "c4605e".parse()?;
//! let scheme = Scheme::new(0, server.len(), 4, None)?;
//! let cid = scheme.encode(&server, &[0x45, 0x04, 0xcc, 0x4f]).ok_or("lengths")?;
//! let packet = [&[0x40][..], &cid, b"payload"].concat();
//! let found = convey_quic_cid::destination(&packet).and_then(|cid| scheme.server_of(cid));
//! assert_eq!(found, Some(server));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod feistel;
mod packet;
mod scheme;
mod server_id;

pub use packet::destination;
pub use scheme::{DEFAULT_LEN, InvalidScheme, MAX_ROTATION, MIN_NONCE, QuicKey, Scheme, Schemes};
pub use server_id::{InvalidServerId, MAX_SERVER_ID, ServerId};
