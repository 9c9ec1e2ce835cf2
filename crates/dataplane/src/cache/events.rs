//! Ring buffer of events from the flow cache: handshake segments and FINs that the kernel has
//! forwarded.

use std::fmt;
use std::mem::offset_of;

use aya::maps::{MapData, RingBuf};

use crate::kernel_types::SegmentEvent;
use convey_forward::{CacheEvent, Segment};
use convey_model::{Addr, FlowKey};

/// Events that the kernel has written and no worker has taken. New events wake no thread.
pub struct SegmentEvents(RingBuf<MapData>);

const LEN: usize = size_of::<SegmentEvent>();

impl SegmentEvents {
    pub(super) fn new(ring: RingBuf<MapData>) -> SegmentEvents {
        SegmentEvents(ring)
    }

    /// Takes the oldest event; `None` if the ring is empty.
    pub fn take(&mut self) -> Option<CacheEvent> {
        let event = self.0.next()?;
        // The conversion cannot fail: the kernel writes only events of this length.
        Some(read(event.first_chunk()?))
    }
}

impl fmt::Debug for SegmentEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentEvents").finish_non_exhaustive()
    }
}

fn read(bytes: &[u8; LEN]) -> CacheEvent {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let port = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let addr = |at: usize| bytes[at..].first_chunk().map_or_else(Addr::default, |addr| Addr::v6(*addr));
    let key = FlowKey {
        src: addr(offset_of!(SegmentEvent, key.src)),
        dst: addr(offset_of!(SegmentEvent, key.dst)),
        src_port: port(offset_of!(SegmentEvent, key.src_port)),
        dst_port: port(offset_of!(SegmentEvent, key.dst_port)),
        protocol: bytes[offset_of!(SegmentEvent, key.protocol)],
        reserved: [0; 3],
    };
    let segment = Segment {
        flags: word(offset_of!(SegmentEvent, flags)) as u8,
        seq: word(offset_of!(SegmentEvent, seq)),
        ack: word(offset_of!(SegmentEvent, ack)),
        len: word(offset_of!(SegmentEvent, len)),
    };
    CacheEvent { key, segment }
}

#[cfg(test)]
mod tests {
    use super::super::OBJECT;
    use super::*;
    use crate::kernel_types::btf::Btf;
    use convey_forward::{ACK, FIN};

    /// The test writes fields at the offsets of the committed object's type.
    #[test]
    fn an_event_is_read_as_the_kernel_program_writes_it() {
        let btf = Btf::of(OBJECT);
        let key = FlowKey::tcp("10.0.0.9:4242".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
        let segment = Segment { flags: FIN | ACK, seq: 7, ack: 8, len: 1 };
        let mut bytes = [0; LEN];
        let mut write = |path: &[(&str, &str)], value: &[u8]| {
            let at: usize = path.iter().map(|(of, field)| btf.field(of, field).offset).sum();
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        let in_key = |field| [("segment_event", "key"), ("flow_key", field)];
        write(&in_key("src"), key.src.bytes());
        write(&in_key("dst"), key.dst.bytes());
        write(&in_key("src_port"), &key.src_port.to_ne_bytes());
        write(&in_key("dst_port"), &key.dst_port.to_ne_bytes());
        write(&in_key("protocol"), &[key.protocol]);
        for (field, word) in [
            ("seq", segment.seq),
            ("ack", segment.ack),
            ("len", segment.len),
            ("flags", segment.flags.into()),
        ] {
            write(&[("segment_event", field)], &word.to_ne_bytes());
        }
        assert_eq!(read(&bytes), CacheEvent { key, segment });
    }
}
