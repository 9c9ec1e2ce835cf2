//! Writes the received and sent packets of a trace to a pcapng file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::SystemTime;

use convey_api::{PreciseTime, TracedAction};
use convey_trace::TracedFrames;
use data_encoding::BASE64;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use super::trace::{ShownLine, decision};

/// Resolution of timestamps as a negative power of 10: nanoseconds.
const NANOSECONDS: u8 = 9;

/// A pcapng file that is written packet by packet.
pub struct PacketFile<W: Write> {
    file: PcapNgWriter<W>,
    /// Numbers of the interfaces in the file.
    interfaces: HashMap<String, u32>,
}

impl<W: Write> PacketFile<W> {
    /// Begins a file without packets.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(to: W) -> io::Result<PacketFile<W>> {
        Ok(PacketFile { file: PcapNgWriter::new(to).map_err(io_error)?, interfaces: HashMap::new() })
    }

    /// Adds both sides of a packet, if the line is about one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, line: &ShownLine) -> io::Result<()> {
        let ShownLine::Event(line) = line else { return Ok(()) };
        let TracedAction::Packet(packet) = &line.happened else { return Ok(()) };
        let comment = decision(&line.names, packet);
        if let Some(frame) = &packet.frame_in {
            let side = Side { interface: &packet.interface, len: Some(packet.frame_len), word: "in" };
            self.write(line.at, side, frame, &comment)?;
        }
        if let Some(frame) = &packet.frame_out {
            // convey answers on the interface that received the packet.
            let interface = packet.out.as_ref().map_or(&packet.interface, |out| &out.interface);
            self.write(line.at, Side { interface, len: None, word: "out" }, frame, &comment)?;
        }
        self.file.get_mut().flush()
    }

    fn write(
        &mut self,
        PreciseTime(at): PreciseTime,
        side: Side<'_>,
        frame: &str,
        comment: &str,
    ) -> io::Result<()> {
        let data = BASE64.decode(frame.as_bytes()).map_err(io::Error::other)?;
        let original_len = side.len.unwrap_or(data.len() as u32).max(data.len() as u32);
        let interface_id = self.number(side.interface)?;
        let packet = EnhancedPacketBlock {
            interface_id,
            timestamp: at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            original_len,
            data: Cow::Owned(data),
            options: vec![EnhancedPacketOption::Comment(format!("{}: {comment}", side.word).into())],
        };
        self.file.write_pcapng_block(packet).map(drop).map_err(io_error)
    }

    /// Number of an interface. The first use writes the description of the interface to the file.
    fn number(&mut self, name: &str) -> io::Result<u32> {
        if let Some(number) = self.interfaces.get(name) {
            return Ok(*number);
        }
        let described = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: TracedFrames::MAX_SNAP as u32,
            options: vec![
                InterfaceDescriptionOption::IfName(name.to_owned().into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        self.file.write_pcapng_block(described).map_err(io_error)?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(name.to_owned(), number);
        Ok(number)
    }
}

/// The received or sent side of a packet.
struct Side<'a> {
    interface: &'a str,
    /// Length of the original frame in bytes, if known; the captured bytes may be fewer.
    len: Option<u32>,
    word: &'a str,
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_has_both_sides_with_their_interfaces_and_the_decision() {
        let event = json!({
            "at": "2026-01-01T12:00:01.234567Z", "event": "packet", "interface": "eth0", "frame_len": 1_000,
            "verdict": "answered", "reason": "no_server", "answer": "reset",
            "frame_in": BASE64.encode(&[1; 60]), "frame_out": BASE64.encode(&[2; 54]),
        });
        let line = ShownLine::read(&event.to_string()).unwrap();
        let mut bytes = Vec::new();
        PacketFile::new(&mut bytes).unwrap().add(&line).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut interfaces, mut packets) = (0, Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(_) => interfaces += 1,
                Block::EnhancedPacket(packet) => packets.push(packet.into_owned()),
                _ => {}
            }
        }
        assert_eq!(interfaces, 1);
        let sides: Vec<_> = packets.iter().map(|packet| (packet.data.len(), packet.original_len)).collect();
        assert_eq!(sides, [(60, 1_000), (54, 54)]);
        let said = "in: dropped: no_server, answered with reset";
        assert_eq!(packets[0].options, [EnhancedPacketOption::Comment(said.into())]);
        let at = humantime::parse_rfc3339("2026-01-01T12:00:01.234567Z").unwrap();
        assert_eq!(packets[1].timestamp, at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
    }
}
