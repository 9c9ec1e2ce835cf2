//! Steering of QUIC datagrams by connection id: to a worker, and to a process. Pure.
//!
//! The id of a convey connection contains both ([`ConnectionIdLayout`]). A client chooses the id in
//! its first packets: the same rule maps that id to some worker, always the same one. So the kernel
//! needs one rule for all packets ([`sockets`](super::sockets)).

/// Length of convey's connection ids.
pub(super) const ID_LEN: usize = 14;

/// Length of the worker's key at the beginning of an id.
const KEY: usize = 2;

/// Tag of the process and of the listen address that made an id.
pub(super) type ProcessTag = [u8; 4];

/// Layout of the ids of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionIdLayout {
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) tag: ProcessTag,
}

/// Destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuicDestination {
    /// Key of the worker: its index plus a multiple of the number of workers.
    key: u16,
    /// Tag of the process, if the id has the length of convey's ids.
    pub(super) tag: Option<ProcessTag>,
}

impl ConnectionIdLayout {
    /// Creates an id of this worker from unpredictable bytes.
    pub(super) fn id(self, random: [u8; ID_LEN]) -> [u8; ID_LEN] {
        let workers = u16::try_from(self.workers).unwrap_or(u16::MAX).max(1);
        let drawn = u16::from_be_bytes([random[0], random[1]]);
        // The last range may be incomplete.
        let ranges = u16::MAX / workers;
        let key = drawn % ranges * workers + u16::try_from(self.worker).unwrap_or_default();
        let mut id = random;
        id[..KEY].copy_from_slice(&key.to_be_bytes());
        id[KEY..KEY + self.tag.len()].copy_from_slice(&self.tag);
        id
    }
}

impl QuicDestination {
    /// Reads the destination from the first packet of a datagram (RFC 8999, section 5); `None` if
    /// it is too short.
    pub(super) fn of(datagram: &[u8]) -> Option<QuicDestination> {
        /// Flag of a long header, which contains the lengths of its ids.
        const LONG: u8 = 0x80;
        /// Offset of the id's length, after the flags and the version.
        const ID_LENGTH: usize = 5;
        if datagram.first()? & LONG == 0 {
            return QuicDestination::of_id(datagram.get(1..1 + ID_LEN)?);
        }
        let len = usize::from(*datagram.get(ID_LENGTH)?);
        QuicDestination::of_id(datagram.get(ID_LENGTH + 1..ID_LENGTH + 1 + len)?)
    }

    /// Index of the worker, among this number of workers.
    pub(super) fn worker(self, workers: usize) -> usize {
        usize::from(self.key) % workers.max(1)
    }

    fn of_id(id: &[u8]) -> Option<QuicDestination> {
        let key = u16::from_be_bytes([*id.first()?, *id.get(1)?]);
        let tag = (id.len() == ID_LEN).then(|| [id[2], id[3], id[4], id[5]]);
        Some(QuicDestination { key, tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(id: &[u8]) -> Vec<u8> {
        [&[0x40][..], id, &[9; 20]].concat()
    }

    fn long(id: &[u8]) -> Vec<u8> {
        [&[0xc0, 0, 0, 0, 1, id.len() as u8][..], id, &[8; 30]].concat()
    }

    #[test]
    fn connection_ids_lead_back_to_their_worker_in_every_packet_type() {
        for workers in [1, 2, 3, 64, 1000, 4096] {
            for worker in [0, workers / 2, workers - 1] {
                let layout = ConnectionIdLayout { worker, workers, tag: [1, 2, 3, 4] };
                for drawn in [0, 1, 77, 0x7fff, 0xfffe, 0xffff] {
                    let mut random = [5; ID_LEN];
                    random[..2].copy_from_slice(&u16::to_be_bytes(drawn));
                    let id = layout.id(random);
                    for datagram in [short(&id), long(&id)] {
                        let to = QuicDestination::of(&datagram).unwrap();
                        assert_eq!(
                            (to.worker(workers), to.tag),
                            (worker, Some([1, 2, 3, 4])),
                            "{workers} {drawn}"
                        );
                    }
                    assert_eq!(id[6..], [5; 8], "the rest is left to chance");
                }
            }
        }
    }

    #[test]
    fn client_chosen_id_selects_a_worker_but_no_process() {
        let to = QuicDestination::of(&long(&[0, 7, 3, 4, 5, 6, 7, 8])).unwrap();
        assert_eq!((to.worker(4), to.tag), (3, None));
    }

    #[test]
    fn short_datagram_has_no_quic_destination() {
        let id = ConnectionIdLayout { worker: 0, workers: 1, tag: [0; 4] }.id([0; ID_LEN]);
        for datagram in
            [&[][..], &[0x40], &short(&id)[..ID_LEN], &long(&id)[..5], &long(&id)[..10], &long(&[])]
        {
            assert_eq!(QuicDestination::of(datagram), None, "{datagram:?}");
        }
    }
}
