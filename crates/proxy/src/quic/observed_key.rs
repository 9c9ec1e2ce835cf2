//! Packet keys that report packets to an observer. The keys of the library still encrypt and
//! decrypt.

use bytes::BytesMut;
use quinn::crypto::{CryptoError, PacketKey};

/// Observer of the packets that one key encrypts or decrypts.
pub(super) trait PacketObserver: Send + Sync {
    /// Called before a packet is encrypted. `bytes` is its length with header and authentication
    /// tag.
    fn on_sent(&self, _payload: &[u8], _bytes: usize) {}

    /// Whether the key must refuse to decrypt packets from now on.
    fn refuses_packets(&self) -> bool {
        false
    }

    /// Called after a packet was decrypted. `bytes` is the length of the encrypted packet.
    fn on_decrypted(&self, bytes: usize);
}

/// Packet key with its observer.
pub(super) struct ObservedKey<O> {
    pub(super) key: Box<dyn PacketKey>,
    pub(super) observer: O,
}

impl<O: PacketObserver> PacketKey for ObservedKey<O> {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.observer.on_sent(buf.get(header_len..).unwrap_or_default(), buf.len());
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        if self.observer.refuses_packets() {
            return Err(CryptoError);
        }
        let bytes = header.len() + payload.len();
        self.key.decrypt(packet, header, payload)?;
        self.observer.on_decrypted(bytes);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}
