//! The packets of a trace in a file of pcapng: as they came, and as they went.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use convey_trace::TracedFrames;
use data_encoding::BASE64;

use super::trace::ShownEvent;

/// Blocks of pcapng (draft-ietf-opsawg-pcapng).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// Options of blocks.
const COMMENT: u16 = 1;
const INTERFACE_NAME: u16 = 2;
const TIMESTAMP_RESOLUTION: u16 = 9;

/// Timestamps are in nanoseconds: 10 to the power of minus so many.
const NANOSECONDS: u8 = 9;

/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;

/// A file that grows.
pub struct PacketFile<W: Write> {
    file: W,
    /// Numbers of the interfaces in the file.
    interfaces: HashMap<String, u32>,
}

impl<W: Write> PacketFile<W> {
    /// A file without packets yet.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut to: W) -> io::Result<PacketFile<W>> {
        let header = Block::new(SECTION_HEADER)
            .put(&0x1a2b_3c4d_u32.to_le_bytes())
            // Version 1.0, and a section of unknown length.
            .put(&1_u16.to_le_bytes())
            .put(&0_u16.to_le_bytes())
            .put(&(-1_i64).to_le_bytes());
        to.write_all(&header.finish())?;
        Ok(PacketFile { file: to, interfaces: HashMap::new() })
    }

    /// Adds both sides of a packet, if the event is about one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, event: &ShownEvent) -> io::Result<()> {
        let comment = event.decision();
        if let Some(frame) = &event.frame_in {
            let side = Side { interface: &event.interface, len: Some(event.frame_len), word: "in" };
            self.write(event, side, frame, &comment)?;
        }
        if let Some(frame) = &event.frame_out {
            // An answer goes back where the packet came from.
            let interface = event.out.as_ref().map_or(&event.interface, |out| &out.interface);
            self.write(event, Side { interface, len: None, word: "out" }, frame, &comment)?;
        }
        self.file.flush()
    }

    fn write(&mut self, event: &ShownEvent, side: Side<'_>, frame: &str, comment: &str) -> io::Result<()> {
        let data = BASE64.decode(frame.as_bytes()).map_err(io::Error::other)?;
        let original_len = side.len.unwrap_or(data.len() as u32).max(data.len() as u32);
        let timestamp = since_epoch(&event.at).as_nanos() as u64;
        let packet = Block::new(ENHANCED_PACKET)
            .put(&self.number(side.interface)?.to_le_bytes())
            .put(&((timestamp >> 32) as u32).to_le_bytes())
            .put(&(timestamp as u32).to_le_bytes())
            .put(&(data.len() as u32).to_le_bytes())
            .put(&original_len.to_le_bytes())
            .put_padded(&data)
            .option(COMMENT, format!("{}: {comment}", side.word).as_bytes())
            .end_of_options();
        self.file.write_all(&packet.finish())
    }

    /// The number of an interface, which is described in the file when it first comes.
    fn number(&mut self, name: &str) -> io::Result<u32> {
        if let Some(number) = self.interfaces.get(name) {
            return Ok(*number);
        }
        let described = Block::new(INTERFACE_DESCRIPTION)
            .put(&ETHERNET.to_le_bytes())
            .put(&[0; 2])
            .put(&(TracedFrames::MAX_SNAP as u32).to_le_bytes())
            .option(INTERFACE_NAME, name.as_bytes())
            .option(TIMESTAMP_RESOLUTION, &[NANOSECONDS])
            .end_of_options();
        self.file.write_all(&described.finish())?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(name.to_owned(), number);
        Ok(number)
    }
}

/// One side of a packet.
struct Side<'a> {
    interface: &'a str,
    /// Length of the frame, if it is known to be longer than what is kept.
    len: Option<u32>,
    word: &'a str,
}

/// A block of pcapng, little-endian. All parts are padded to 32 bits.
struct Block(Vec<u8>);

impl Block {
    /// A block of this type; [`Block::finish`] writes its length.
    fn new(kind: u32) -> Block {
        Block([kind.to_le_bytes(), [0; 4]].concat())
    }

    fn put(mut self, bytes: &[u8]) -> Block {
        self.0.extend_from_slice(bytes);
        self
    }

    fn put_padded(self, bytes: &[u8]) -> Block {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.put(bytes).put(&[0; 3][..padding])
    }

    /// Adds an option; a value of more than 64 KiB is cut.
    fn option(self, code: u16, value: &[u8]) -> Block {
        let len = value.len().min(usize::from(u16::MAX));
        self.put(&code.to_le_bytes()).put(&(len as u16).to_le_bytes()).put_padded(&value[..len])
    }

    fn end_of_options(self) -> Block {
        self.put(&[0; 4])
    }

    /// The whole block, its length at both ends.
    fn finish(mut self) -> Vec<u8> {
        let len = (self.0.len() as u32 + 4).to_le_bytes();
        self.0[4..8].copy_from_slice(&len);
        self.put(&len).0
    }
}

fn since_epoch(at: &str) -> Duration {
    let at = humantime::parse_rfc3339(at).ok();
    at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pcap_file::DataLink;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    use pcap_file::pcapng::{Block as ReadBlock, PcapNgReader};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_has_both_sides_with_their_interfaces_and_the_decision() {
        let event: ShownEvent = serde_json::from_value(json!({
            "at": "2026-01-01T12:00:01.234567Z", "event": "packet", "interface": "eth0", "frame_len": 1_000,
            "verdict": "answered", "reason": "no_server", "answer": "reset",
            "frame_in": BASE64.encode(&[1; 61]), "frame_out": BASE64.encode(&[2; 54]),
        }))
        .unwrap();
        let mut bytes = Vec::new();
        PacketFile::new(&mut bytes).unwrap().add(&event).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut interfaces, mut packets) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                ReadBlock::InterfaceDescription(interface) => interfaces.push(interface.into_owned()),
                ReadBlock::EnhancedPacket(packet) => packets.push(packet.into_owned()),
                _ => {}
            }
        }
        let [interface] = &interfaces[..] else { panic!("{interfaces:?}") };
        assert_eq!(
            (interface.linktype, interface.snaplen),
            (DataLink::ETHERNET, TracedFrames::MAX_SNAP as u32)
        );
        let named = InterfaceDescriptionOption::IfName("eth0".into());
        assert_eq!(interface.options, [named, InterfaceDescriptionOption::IfTsResol(NANOSECONDS)]);
        let sides: Vec<_> = packets.iter().map(|packet| (packet.data.len(), packet.original_len)).collect();
        assert_eq!(sides, [(61, 1_000), (54, 54)]);
        let said = "in: dropped: no_server, its sender is told by reset";
        assert_eq!(packets[0].options, [EnhancedPacketOption::Comment(said.into())]);
        let at = humantime::parse_rfc3339("2026-01-01T12:00:01.234567Z").unwrap();
        assert_eq!(packets[1].timestamp, at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
    }
}
