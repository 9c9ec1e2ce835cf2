//! What the cache tells of: segments it has forwarded of handshakes, and FINs.

use std::fmt;

use aya::maps::{MapData, RingBuf};

use convey_forward::Segment;
use convey_model::{Addr, FlowKey};

/// Those that nobody has asked for yet. They wait in a ring that the kernel writes without waking anybody.
pub struct Told(RingBuf<MapData>);

/// `struct told` of `bpf/maps.h`.
const LEN: usize = 56;

impl Told {
    pub(super) fn new(ring: RingBuf<MapData>) -> Told {
        Told(ring)
    }

    /// The oldest one.
    pub fn take(&mut self) -> Option<(FlowKey, Segment)> {
        let told = self.0.next()?;
        // The kernel writes nothing else.
        let bytes: &[u8; LEN] = told.first_chunk()?;
        Some(read(bytes))
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").finish_non_exhaustive()
    }
}

fn read(bytes: &[u8; LEN]) -> (FlowKey, Segment) {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let port = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let addr = |at: usize| bytes[at..].first_chunk().map_or_else(Addr::default, |addr| Addr::v6(*addr));
    let key = FlowKey {
        src: addr(0),
        dst: addr(16),
        src_port: port(32),
        dst_port: port(34),
        protocol: bytes[36],
        reserved: [0; 3],
    };
    (key, Segment { flags: word(52) as u8, seq: word(40), ack: word(44), len: word(48) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_forward::{ACK, FIN};

    #[test]
    fn a_fin_is_read_as_the_kernel_writes_it() {
        let key = FlowKey::tcp("10.0.0.9:4242".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
        let mut bytes = [0; LEN];
        bytes[..16].copy_from_slice(key.src.bytes());
        bytes[16..32].copy_from_slice(key.dst.bytes());
        bytes[32..34].copy_from_slice(&4242u16.to_ne_bytes());
        bytes[34..36].copy_from_slice(&80u16.to_ne_bytes());
        bytes[36] = key.protocol;
        for (at, word) in [(40, 7u32), (44, 8), (48, 1), (52, (FIN | ACK).into())] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(read(&bytes), (key, Segment { flags: FIN | ACK, seq: 7, ack: 8, len: 1 }));
    }
}
