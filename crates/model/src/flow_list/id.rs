//! Identifier of a flow in a list. Pure.

use std::fmt;
use std::str::FromStr;

/// Kind of worker that forwards a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowKind {
    /// Worker of the packet modes.
    Packets,
    /// Worker of proxy mode: TCP connection.
    Connection,
    /// Worker of proxy mode: UDP session.
    Session,
}

impl FlowKind {
    const ALL: [FlowKind; 3] = [FlowKind::Packets, FlowKind::Connection, FlowKind::Session];

    fn letter(self) -> char {
        match self {
            FlowKind::Packets => 'p',
            FlowKind::Connection => 't',
            FlowKind::Session => 'u',
        }
    }
}

/// Identifier of one flow of this process. A worker may reuse the place of an ended flow, but with
/// another serial number, so that identifiers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListedFlowId {
    /// Kind of worker that forwards the flow.
    pub kind: FlowKind,
    /// Number of the worker.
    pub worker: u16,
    /// Index of the flow in the worker's storage of flows.
    pub place: u32,
    /// Serial number of the flow at that place.
    pub serial: u32,
}

/// Formats as `p0.1f.9a3c2d`.
impl fmt::Display for ListedFlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListedFlowId { kind, worker, place, serial } = self;
        write!(f, "{}{worker}.{place:x}.{serial:x}", kind.letter())
    }
}

impl FromStr for ListedFlowId {
    type Err = ();

    fn from_str(text: &str) -> Result<ListedFlowId, ()> {
        let kind = FlowKind::ALL.into_iter().find(|kind| text.starts_with(kind.letter())).ok_or(())?;
        let mut parts = text[1..].split('.');
        let mut next = |radix| {
            let part = parts.next().filter(|part| !part.starts_with('+')).ok_or(())?;
            u32::from_str_radix(part, radix).map_err(|_| ())
        };
        let (worker, place, serial) = (next(10)?, next(16)?, next(16)?);
        let worker = u16::try_from(worker).map_err(|_| ())?;
        if parts.next().is_some() { Err(()) } else { Ok(ListedFlowId { kind, worker, place, serial }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        for kind in FlowKind::ALL {
            for (worker, place, serial) in [(0, 0, 0), (3, 0x1f, 0x9a3c), (u16::MAX, u32::MAX, u32::MAX)] {
                let id = ListedFlowId { kind, worker, place, serial };
                assert_eq!(id.to_string().parse(), Ok(id));
            }
        }
        let id = ListedFlowId { kind: FlowKind::Packets, worker: 10, place: 31, serial: 255 };
        assert_eq!(id.to_string(), "p10.1f.ff");
    }

    #[test]
    fn invalid_flow_ids_are_refused() {
        for wrong in [
            "",
            "p",
            "p0",
            "p0.1",
            "x0.1.2",
            "p0.1.2.3",
            "p.1.2",
            "p0.g.2",
            "p65536.1.2",
            "p+1.2.3",
            "ä0.1.2",
        ] {
            assert_eq!(wrong.parse::<ListedFlowId>(), Err(()), "{wrong}");
        }
    }
}
