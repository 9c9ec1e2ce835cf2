//! Encryption of server id and nonce if they do not fill exactly one AES block: a Feistel network
//! of four passes with AES-128 (draft-ietf-quic-load-balancers-21, section 5.4.2).

use aes::Aes128;
use aes::cipher::{Block, BlockCipherEncrypt};

/// Numbers of the passes, in the order of encryption.
const PASSES: [u8; 4] = [1, 2, 3, 4];

/// Left and right half of an id. If the length is odd, each half has four bits of the byte in the
/// middle.
#[derive(Default)]
struct Halves {
    left: [u8; 16],
    right: [u8; 16],
    /// Length of the id in bytes.
    len: usize,
}

/// Encrypts a server id and its nonce in place. Together they have 5 to 19 bytes.
pub(super) fn encrypt(key: &Aes128, id: &mut [u8]) {
    let mut halves = Halves::split(id);
    PASSES.into_iter().for_each(|pass| halves.pass(key, pass));
    halves.join(id);
}

/// Decrypts a server id and its nonce in place: the inverse of [`encrypt`].
pub(super) fn decrypt(key: &Aes128, id: &mut [u8]) {
    let mut halves = Halves::split(id);
    PASSES.into_iter().rev().for_each(|pass| halves.pass(key, pass));
    halves.join(id);
}

impl Halves {
    fn split(id: &[u8]) -> Halves {
        let mut halves = Halves { len: id.len(), ..Halves::default() };
        let half = halves.half();
        halves.left[..half].copy_from_slice(&id[..half]);
        halves.right[..half].copy_from_slice(&id[id.len() - half..]);
        halves.clear_foreign_bits();
        halves
    }

    fn join(&self, id: &mut [u8]) {
        let half = self.half();
        id[..half].copy_from_slice(&self.left[..half]);
        let right = &mut id[self.len - half..];
        let shared = if self.is_odd() { right[0] } else { 0 };
        right.copy_from_slice(&self.right[..half]);
        right[0] |= shared;
    }

    /// Runs one pass: XORs one half with the encryption of the other half. Odd passes change the
    /// right half, even passes the left half.
    fn pass(&mut self, key: &Aes128, pass: u8) {
        let half = self.half();
        let (from, to) = match pass % 2 {
            1 => (&self.left, &mut self.right),
            _ => (&self.right, &mut self.left),
        };
        let mut block = Block::<Aes128>::default();
        block[..half].copy_from_slice(&from[..half]);
        (block[14], block[15]) = (self.len as u8, pass);
        key.encrypt_block(&mut block);
        to[..half].iter_mut().zip(&block).for_each(|(to, by)| *to ^= by);
        self.clear_foreign_bits();
    }

    fn clear_foreign_bits(&mut self) {
        if self.is_odd() {
            self.left[self.half() - 1] &= 0xf0;
            self.right[0] &= 0x0f;
        }
    }

    fn half(&self) -> usize {
        self.len.div_ceil(2)
    }

    fn is_odd(&self) -> bool {
        !self.len.is_multiple_of(2)
    }
}
