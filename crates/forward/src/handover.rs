//! Handover of flows to another forwarder, for example at an upgrade of the program: the next
//! forwarder continues where this forwarder has stopped. Pure.
//!
//! Both forwarders must count time from the same moment. [`encode`] and [`decode`] connect two
//! processes with a format that has a version and a checksum, independent of the layout in memory.
//! Two builds of the program may therefore lay flows out differently.

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::flow::{Flow, ForwardingMethod};
use super::journal;
use super::state::{FlowState, Segment, View};
use convey_model::{Addr, FlowKey, Timestamp};

/// State of a flow, independent of the process that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFlow {
    /// Key of the client's packets: from the client to the VIP.
    pub client: FlowKey,
    /// Key of the server's packets as they leave the server.
    pub server: FlowKey,
    /// Whether convey sees the packets of both sides or of the client alone.
    pub view: View,
    /// How packets reach the server.
    pub method: ForwardingMethod,
    /// Whether the flow cache forwarded its packets.
    pub was_cached: bool,
    /// State of the connection.
    pub state: FlowState,
    /// Number of the server, on which both processes have agreed.
    pub server_id: u32,
    /// Number of the frontend, on which both processes have agreed.
    pub frontend_id: u32,
    /// Deadline, in ticks of a quarter of a second.
    pub(crate) deadline: u32,
    /// Time of the last change of state, in nanoseconds.
    pub(crate) since: u64,
    /// Sequence numbers of client and server.
    pub(crate) sequence: [u32; 3],
    /// Remaining state as flags: picked up mid-connection, narrowness of the path, pending FIN.
    pub(crate) notes: u8,
    /// Notes of the journal; without a journal only the time when the flow began, and zeroes if
    /// that is not known.
    pub(crate) journal: [u64; 4],
}

impl KnownFlow {
    /// Returns the flow with other numbers for its server and frontend.
    #[must_use]
    pub fn owned_by(&self, server_id: u32, frontend_id: u32) -> KnownFlow {
        KnownFlow { server_id, frontend_id, ..*self }
    }

    /// Time of the first packet, if known.
    pub(crate) fn began(&self) -> Option<Timestamp> {
        journal::began(self.journal)
    }

    /// Whether the flow is open, as far as convey can see, so that its loss would be noticed.
    pub fn is_open(&self) -> bool {
        !self.state.is_over(self.view) && !self.state.is_handshake() && self.state != FlowState::UdpNew
    }
}

/// Reason why flows of another process cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// The bytes are not a table of the requested kind.
    #[error("this is not a flow table")]
    NoTable,
    /// Another version of convey has written the table.
    #[error("the flows are in format {0}, and this version reads format {VERSION}")]
    Version(u32),
    /// The table was changed after it was written.
    #[error("the table of flows is damaged")]
    Damaged,
}

/// Segment of a handshake, or a FIN, that the flow cache has forwarded.
///
/// In a handover, a segment without flags is the progress of its sender. For a UDP stream, the
/// segment's `seq` is the tick (a quarter of a second) in which the server last sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheEvent {
    /// Key of the packet.
    pub key: FlowKey,
    /// Numbers and flags of the packet.
    pub segment: Segment,
}

/// Version of the format; incremented when an older version would misread it.
const VERSION: u32 = 1;

/// Length of magic, version and number of records.
const HEADER: usize = 8 + 4 + 8;

/// Length of the checksum at the end.
const CHECKSUM: usize = 8;

/// Row of a table in the handover format.
pub trait TableRow: Sized {
    /// Magic bytes at the beginning of the table.
    const MAGIC: &[u8; 8];
    /// Length of a row in bytes.
    const LEN: usize;
    /// Appends the row to `bytes`.
    fn write(&self, bytes: &mut Vec<u8>);
    /// Reads a row; `None` if it is invalid.
    fn read(row: &[u8]) -> Option<Self>;
}

/// Encodes a table: little-endian, with the version in front and a checksum at the end.
pub fn encode<R: TableRow>(records: &[R]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + records.len() * R::LEN + CHECKSUM);
    bytes.extend(R::MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((records.len() as u64).to_le_bytes());
    records.iter().for_each(|record| record.write(&mut bytes));
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// Decodes the records of a table.
///
/// # Errors
/// [`Unreadable`]; no record is returned then.
pub fn decode<R: TableRow>(bytes: &[u8]) -> Result<Vec<R>, Unreadable> {
    let mut rest = ByteReader(bytes);
    if rest.take::<8>() != Some(*R::MAGIC) {
        return Err(Unreadable::NoTable);
    }
    let version = rest.u32().ok_or(Unreadable::Damaged)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let (written, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(Unreadable::Damaged)?;
    if xxh3_64(written) != u64::from_le_bytes(*checksum) {
        return Err(Unreadable::Damaged);
    }
    let (count, rows) = (rest.u64(), written.get(HEADER..).ok_or(Unreadable::Damaged)?);
    if rows.len() % R::LEN != 0 || count != Some((rows.len() / R::LEN) as u64) {
        return Err(Unreadable::Damaged);
    }
    rows.chunks_exact(R::LEN).map(|row| R::read(row).ok_or(Unreadable::Damaged)).collect()
}

impl TableRow for CacheEvent {
    const MAGIC: &[u8; 8] = b"cvyevent";
    const LEN: usize = 2 * 16 + 2 * 2 + 2 + 3 * 4;

    fn write(&self, bytes: &mut Vec<u8>) {
        let CacheEvent { key, segment } = self;
        [&key.src, &key.dst].iter().for_each(|addr| bytes.extend(addr.bytes()));
        [key.src_port, key.dst_port].iter().for_each(|port| bytes.extend(port.to_le_bytes()));
        bytes.extend([key.protocol, segment.flags]);
        [segment.seq, segment.ack, segment.len].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    }

    fn read(row: &[u8]) -> Option<CacheEvent> {
        let mut from = ByteReader(row);
        let (src, dst) = (from.addr()?, from.addr()?);
        let (src_port, dst_port) = (from.u16()?, from.u16()?);
        let [protocol, flags] = from.take()?;
        let segment = Segment { flags, seq: from.u32()?, ack: from.u32()?, len: from.u32()? };
        let key = FlowKey { src, dst, src_port, dst_port, protocol, reserved: [0; 3] };
        Some(CacheEvent { key, segment })
    }
}

impl TableRow for KnownFlow {
    const MAGIC: &[u8; 8] = b"cvyflows";
    const LEN: usize = 4 * 16 + 4 * 2 + 4 + 2 * 4 + 4 + 8 + 3 * 4 + 4 * 8;

    fn write(&self, bytes: &mut Vec<u8>) {
        let (client, server) = (&self.client, &self.server);
        for addr in [&client.src, &client.dst, &server.src, &server.dst] {
            bytes.extend(addr.bytes());
        }
        for port in [client.src_port, client.dst_port, server.src_port, server.dst_port] {
            bytes.extend(port.to_le_bytes());
        }
        let view = u8::from(self.view == View::ClientSide)
            | u8::from(self.method == ForwardingMethod::OnLink) << 1
            | u8::from(self.was_cached) << 2
            | u8::from(self.method == ForwardingMethod::Tunneled) << 3;
        bytes.extend([client.protocol, self.state as u8, view, self.notes]);
        bytes.extend(self.server_id.to_le_bytes());
        bytes.extend(self.frontend_id.to_le_bytes());
        bytes.extend(self.deadline.to_le_bytes());
        bytes.extend(self.since.to_le_bytes());
        self.sequence.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        self.journal.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }

    fn read(row: &[u8]) -> Option<KnownFlow> {
        let mut from = ByteReader(row);
        let [client, vip, server, snat] = [from.addr()?, from.addr()?, from.addr()?, from.addr()?];
        let [client_port, vip_port, server_port, snat_port] =
            [from.u16()?, from.u16()?, from.u16()?, from.u16()?];
        let [protocol, state, view, notes] = from.take()?;
        let key = |src, dst, src_port, dst_port| FlowKey {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
            reserved: [0; 3],
        };
        Some(KnownFlow {
            client: key(client, vip, client_port, vip_port),
            server: key(server, snat, server_port, snat_port),
            view: if view & 1 != 0 { View::ClientSide } else { View::BothSides },
            method: match view & (2 | 8) {
                2 => ForwardingMethod::OnLink,
                8 => ForwardingMethod::Tunneled,
                _ => ForwardingMethod::Rewritten,
            },
            was_cached: view & 4 != 0,
            state: *FlowState::ALL.get(usize::from(state))?,
            server_id: from.u32()?,
            frontend_id: from.u32()?,
            deadline: from.u32()?,
            since: from.u64()?,
            sequence: [from.u32()?, from.u32()?, from.u32()?],
            notes,
            journal: [from.u64()?, from.u64()?, from.u64()?, from.u64()?],
        })
        .filter(|flow| Flow::fits(flow.client.protocol, flow.state))
    }
}

/// Reader of the remaining bytes.
struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn addr(&mut self) -> Option<Addr> {
        self.take().map(Addr::v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FIN, NewFlow, SYN};

    fn known() -> Vec<KnownFlow> {
        let client = FlowKey::tcp("203.0.113.9:4242".parse().unwrap(), "192.0.2.1:80".parse().unwrap());
        let server = FlowKey::tcp("10.0.0.1:8080".parse().unwrap(), "10.0.0.254:40000".parse().unwrap());
        let new = NewFlow {
            client,
            server,
            view: View::BothSides,
            method: ForwardingMethod::Rewritten,
            server_id: 7,
            frontend_id: 9,
            to_server: 1,
            to_client: 2,
            segment: Segment { flags: SYN, seq: 1_000, ack: 0, len: 1 },
        };
        let v6 = |port| format!("[2001:db8::1]:{port}").parse().unwrap();
        let other = NewFlow {
            client: FlowKey::tcp(v6(5), v6(6)),
            server: FlowKey::tcp(v6(7), v6(5)),
            view: View::ClientSide,
            method: ForwardingMethod::OnLink,
            ..new
        };
        let third =
            NewFlow { client: FlowKey::tcp(v6(8), v6(6)), method: ForwardingMethod::Tunneled, ..other };
        [new, other, third].iter().map(|new| Flow::new(new).known()).collect()
    }

    #[test]
    fn flows_are_read_as_they_were_written() {
        assert_eq!(decode(&encode(&known())), Ok(known()));
        assert_eq!(decode::<KnownFlow>(&encode::<KnownFlow>(&[])), Ok(Vec::new()));
        for known in known() {
            assert_eq!(Flow::restored(&known, [1, 2]).known(), known);
        }
        let known = KnownFlow { was_cached: true, journal: [1, 2, 3, u64::MAX], ..known()[0] };
        assert_eq!(decode(&encode(&[known])), Ok(vec![known]));
        let segment = Segment { flags: FIN, seq: 1, ack: 2, len: 3 };
        let event = CacheEvent { key: known.client, segment };
        assert_eq!(decode(&encode(&[event, event])), Ok(vec![event, event]));
    }

    #[test]
    fn damaged_or_newer_flow_tables_are_refused() {
        let bytes = encode(&known());
        assert_eq!(decode::<KnownFlow>(b"something else"), Err(Unreadable::NoTable));
        assert_eq!(decode::<CacheEvent>(&bytes), Err(Unreadable::NoTable));
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert_eq!(decode::<KnownFlow>(&newer), Err(Unreadable::Version(2)));
        for len in [8, 12, 20, bytes.len() - 1] {
            assert_eq!(decode::<KnownFlow>(&bytes[..len]), Err(Unreadable::Damaged), "{len} bytes");
        }
        for at in 12..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert_eq!(decode::<KnownFlow>(&flipped), Err(Unreadable::Damaged), "byte {at}");
        }
    }
}
