//! Steering of QUIC datagrams to a worker and a process, by the connection id. Pure.
//!
//! Connection ids that convey has issued contain the worker and the process
//! ([`ConnectionIdLayout`]). In the first packets of a connection, the client has chosen the id at
//! random. The same rule maps such an id to an arbitrary but fixed worker. So the kernel needs only
//! one rule for all packets ([`sockets`](super::sockets)).

/// Length of convey's connection ids in bytes.
pub(super) const ID_LEN: usize = 14;

/// Length of the worker key at the beginning of a connection id, in bytes.
const KEY: usize = 2;

/// Random tag of the process and listen address that issued a connection id.
pub(super) type ProcessTag = [u8; 4];

/// Layout of the connection ids of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionIdLayout {
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) tag: ProcessTag,
}

/// Worker and process to which a datagram belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuicDestination {
    /// Worker key: the remainder of its division by the number of workers is the index of the
    /// worker.
    key: u16,
    /// Tag of the process; `None` if the connection id does not have the length of convey's ids.
    pub(super) tag: Option<ProcessTag>,
}

impl ConnectionIdLayout {
    /// Creates a connection id of this worker from unpredictable bytes.
    pub(super) fn id(self, random: [u8; ID_LEN]) -> [u8; ID_LEN] {
        let workers = u16::try_from(self.workers).unwrap_or(u16::MAX).max(1);
        let drawn = u16::from_be_bytes([random[0], random[1]]);
        // Uses only complete ranges of keys, so that each key maps back to this worker.
        let ranges = u16::MAX / workers;
        let key = drawn % ranges * workers + u16::try_from(self.worker).unwrap_or_default();
        let mut id = random;
        id[..KEY].copy_from_slice(&key.to_be_bytes());
        id[KEY..KEY + self.tag.len()].copy_from_slice(&self.tag);
        id
    }
}

impl QuicDestination {
    /// Reads the destination from the first packet of a datagram (RFC 8999, section 5). Returns
    /// `None` if the datagram is too short.
    pub(super) fn of(datagram: &[u8]) -> Option<QuicDestination> {
        /// Flag of a long header, which contains the lengths of its connection ids.
        const LONG: u8 = 0x80;
        /// Offset of the length of the destination connection id, after the flags and the version.
        const ID_LENGTH: usize = 5;
        if datagram.first()? & LONG == 0 {
            return QuicDestination::of_id(datagram.get(1..1 + ID_LEN)?);
        }
        let len = usize::from(*datagram.get(ID_LENGTH)?);
        QuicDestination::of_id(datagram.get(ID_LENGTH + 1..ID_LENGTH + 1 + len)?)
    }

    /// Returns the index of the worker; `workers` is the number of workers.
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
