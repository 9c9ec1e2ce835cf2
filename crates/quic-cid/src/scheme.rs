//! QUIC-LB schemes: how servers encode their server ids in connection ids. The servers and the load
//! balancer must have the same configuration.

use std::fmt;

use aes::Aes128;
use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

use crate::{ServerId, destination, feistel};

/// Greatest number of a scheme. The number is in the first three bits of a connection id. The value
/// 7 means that the id contains no server id.
pub const MAX_ROTATION: u8 = 6;

/// Minimum length of a nonce, in bytes.
pub const MIN_NONCE: usize = 4;

/// Default length of server id and nonce together, in bytes. They fill exactly one AES block, so
/// that decoding takes one AES operation instead of four.
pub const DEFAULT_LEN: usize = 16;

/// Maximum length of server id and nonce together, in bytes.
const MAX_LEN: usize = 19;

/// Parameters that servers and load balancer share: a number, two lengths, and a key
/// (draft-ietf-quic-load-balancers-21, section 5).
#[derive(Clone, PartialEq, Eq)]
pub struct Scheme {
    rotation: u8,
    server_id_len: usize,
    nonce_len: usize,
    key: Option<QuicKey>,
}

/// AES-128 key that encrypts server ids.
#[derive(Clone)]
pub struct QuicKey {
    bytes: [u8; 16],
    cipher: Aes128,
}

/// Schemes that are in use at the same time, while servers migrate from one scheme to another. Each
/// number has at most one scheme.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schemes([Option<Scheme>; MAX_ROTATION as usize + 1]);

/// Reasons why a scheme is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidScheme {
    /// The number is above [`MAX_ROTATION`].
    Rotation,
    /// The nonce is shorter than [`MIN_NONCE`].
    ShortNonce,
    /// Server id and nonce are longer than 19 bytes together.
    Long,
}

impl Scheme {
    /// Creates the scheme with the number `rotation`. The lengths are in bytes. Without a `key`,
    /// anybody can read the server ids.
    ///
    /// # Errors
    /// The draft does not allow these parameters.
    pub fn new(
        rotation: u8,
        server_id_len: usize,
        nonce_len: usize,
        key: Option<QuicKey>,
    ) -> Result<Scheme, InvalidScheme> {
        if rotation > MAX_ROTATION {
            Err(InvalidScheme::Rotation)
        } else if nonce_len < MIN_NONCE {
            Err(InvalidScheme::ShortNonce)
        } else if server_id_len + nonce_len > MAX_LEN {
            Err(InvalidScheme::Long)
        } else {
            Ok(Scheme { rotation, server_id_len, nonce_len, key })
        }
    }

    /// Returns the server id in a connection id; `None` if the connection id belongs to another
    /// scheme or is too short. Ignores bytes after server id and nonce. If a client has chosen the
    /// connection id at random, the result is an arbitrary server id.
    pub fn server_of(&self, cid: &[u8]) -> Option<ServerId> {
        let (first, rest) = cid.split_first()?;
        if first >> 5 != self.rotation {
            return None;
        }
        let mut id = [0; MAX_LEN];
        let id = &mut id[..self.len()];
        id.copy_from_slice(rest.get(..self.len())?);
        match &self.key {
            None => {}
            Some(key) if self.len() == DEFAULT_LEN => {
                key.cipher.decrypt_block((&mut *id).try_into().ok()?);
            }
            Some(key) => feistel::decrypt(&key.cipher, id),
        }
        ServerId::new(&id[..self.server_id_len])
    }

    /// Encodes a connection id as a server does; the first byte contains the number of the scheme
    /// and the length. Returns `None` if `server` or `nonce` does not have the length that the
    /// scheme defines.
    pub fn encode(&self, server: &ServerId, nonce: &[u8]) -> Option<Vec<u8>> {
        if server.len() != self.server_id_len || nonce.len() != self.nonce_len {
            return None;
        }
        let mut cid = vec![self.rotation << 5 | self.len() as u8];
        cid.extend(server.bytes());
        cid.extend(nonce);
        let id = &mut cid[1..];
        match &self.key {
            None => {}
            Some(key) if self.len() == DEFAULT_LEN => {
                let block: &mut Block<Aes128> = id.try_into().ok()?;
                key.cipher.encrypt_block(block);
            }
            Some(key) => feistel::encrypt(&key.cipher, id),
        }
        Some(cid)
    }

    /// Number of the scheme.
    pub fn rotation(&self) -> u8 {
        self.rotation
    }

    /// Whether the scheme encrypts server ids.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    fn len(&self) -> usize {
        self.server_id_len + self.nonce_len
    }
}

impl QuicKey {
    /// Creates a key from its bytes.
    pub fn new(bytes: [u8; 16]) -> QuicKey {
        QuicKey { bytes, cipher: Aes128::new(&bytes.into()) }
    }
}

impl Schemes {
    /// Adds a scheme. Replaces a scheme with the same number.
    pub fn add(&mut self, scheme: Scheme) {
        let place = usize::from(scheme.rotation);
        self.0[place] = Some(scheme);
    }

    /// Iterates over the schemes in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Scheme> {
        self.0.iter().flatten()
    }

    /// Returns the server id in the connection id of a datagram's first packet; `None` if no scheme
    /// finds a server id in this connection id.
    pub fn server_of(&self, datagram: &[u8]) -> Option<ServerId> {
        let cid = destination(datagram)?;
        let rotation = usize::from(cid.first()? >> 5);
        self.0.get(rotation)?.as_ref()?.server_of(cid)
    }
}

impl PartialEq for QuicKey {
    fn eq(&self, other: &QuicKey) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for QuicKey {}

impl fmt::Debug for QuicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicKey")
    }
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scheme { rotation, server_id_len, nonce_len, key } = self;
        let secrecy = if key.is_some() { "encrypted" } else { "plain" };
        write!(f, "{rotation}: {server_id_len} bytes of server id, {nonce_len} of nonce, {secrecy}")
    }
}

impl fmt::Display for InvalidScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidScheme::Rotation => "a scheme is a number from 0 to 6",
            InvalidScheme::ShortNonce => "a nonce has at least 4 bytes",
            InvalidScheme::Long => "server id and nonce have at most 19 bytes together",
        })
    }
}

impl std::error::Error for InvalidScheme {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap()
    }

    fn key(hex: &str) -> QuicKey {
        QuicKey::new(bytes(hex).try_into().unwrap())
    }

    /// Examples of the draft (appendix B and section 5.4.2): number, server id, nonce, key,
    /// connection id.
    #[test]
    fn ids_are_those_of_the_draft() {
        let (first, second) = ("8f95f09245765f80256934e50c66207f", "fdf726a9893ec05c0632d3956680baf0");
        for (rotation, server, nonce, key_of, expected) in [
            (0, "c4605e", "4504cc4f", None, "07c4605e4504cc4f"),
            (1, "350d28b420", "3487d970b0", None, "2a350d28b4203487d970b0"),
            (0, "ed793a", "ee080dbf", Some(first), "0720b1d07b359d3c"),
            (1, "ed793a51d49b8f5fab65", "ee080dbf48", Some(first), "2fcc381bc74cb4fbad2823a3d1f8fed2"),
            (2, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", Some(first), "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
            (0, "31441a", "9c69c275", Some(second), "0767947d29be054a"),
        ] {
            let id: ServerId = server.parse().unwrap();
            let scheme = Scheme::new(rotation, id.len(), nonce.len() / 2, key_of.map(key)).unwrap();
            assert_eq!(scheme.encode(&id, &bytes(nonce)), Some(bytes(expected)), "{server}");
            assert_eq!(scheme.server_of(&bytes(expected)), Some(id), "{expected}");
        }
    }

    #[test]
    fn schemes_that_the_draft_does_not_allow_are_refused() {
        let refused = |rotation, server, nonce| Scheme::new(rotation, server, nonce, None).err();
        assert_eq!(refused(7, 1, 15), Some(InvalidScheme::Rotation));
        assert_eq!(refused(6, 1, 3), Some(InvalidScheme::ShortNonce));
        assert_eq!(refused(6, 15, 5), Some(InvalidScheme::Long));
        assert_eq!(refused(6, 15, 4), None);
    }

    #[test]
    fn a_scheme_reads_its_own_ids_alone() {
        let id: ServerId = "0a0b".parse().unwrap();
        let mut schemes = Schemes::default();
        for rotation in [0, 3] {
            let key = QuicKey::new([rotation + 1; 16]);
            schemes.add(Scheme::new(rotation, 2, 14, Some(key)).unwrap());
        }
        let datagram = |cid: &[u8]| [&[0x5f][..], cid, &[9; 30]].concat();
        for scheme in schemes.iter() {
            let cid = scheme.encode(&id, &[7; 14]).unwrap();
            assert_eq!(schemes.server_of(&datagram(&cid)), Some(id));
            assert_eq!(schemes.server_of(&datagram(&cid)[..17]), None, "a byte is missing");
            for other in [1, 7] {
                let mut cid = cid.clone();
                cid[0] = other << 5 | cid[0] & 0x1f;
                assert_eq!(schemes.server_of(&datagram(&cid)), None, "{other} is no scheme");
            }
        }
    }

    proptest! {
        #[test]
        fn encoded_connection_id_decodes_to_its_server(
            (server, nonce) in (1..=15_usize).prop_flat_map(|len| {
                let bytes = |len| prop::collection::vec(any::<u8>(), len);
                (bytes(len..=len), bytes(4..=MAX_LEN - len))
            }),
            key in prop::option::of(any::<[u8; 16]>()),
            rotation in 0..=MAX_ROTATION,
        ) {
            let id = ServerId::new(&server).unwrap();
            let scheme = Scheme::new(rotation, id.len(), nonce.len(), key.map(QuicKey::new));
            let scheme = scheme.unwrap();
            let cid = scheme.encode(&id, &nonce).unwrap();
            prop_assert_eq!(scheme.server_of(&cid), Some(id));
            prop_assert_eq!(cid.len(), 1 + server.len() + nonce.len());
        }

        #[test]
        fn server_lookup_does_not_panic_on_arbitrary_datagrams(datagram in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut schemes = Schemes::default();
            // Schemes without encryption, with one block (3 and 13 bytes), and with other lengths.
            for n in 0..=MAX_ROTATION {
                let key = (n > 1).then(|| QuicKey::new([n; 16]));
                schemes.add(Scheme::new(n, 3, 10 + usize::from(n), key).unwrap());
            }
            let _ = schemes.server_of(&datagram);
        }
    }
}
