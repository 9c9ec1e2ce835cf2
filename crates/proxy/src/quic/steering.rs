//! Which worker a datagram of QUIC is for, and of which process. Pure.
//!
//! A connection id of ours says both ([`ConnectionIdLayout`]). The id in the first packets of a client is one of its own choice: by the same
//! rule it leads to some worker, always the same. So the kernel needs one rule for all packets ([`filter`](super::sockets)).

/// Bytes of a connection id of ours.
pub(super) const ID_LEN: usize = 14;

/// Bytes of it that say the worker, and of which process it is.
const KEY: usize = 2;

/// Which process, and which of its addresses, has made an id.
pub(super) type ProcessTag = [u8; 4];

/// What the ids of one worker have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionIdLayout {
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) tag: ProcessTag,
}

/// Where a datagram belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuicDestination {
    /// The worker's number, times some.
    key: u16,
    /// The process, if the id is as long as ours.
    pub(super) tag: Option<ProcessTag>,
}

impl ConnectionIdLayout {
    /// An id of this worker, from bytes that nobody can guess.
    pub(super) fn id(self, random: [u8; ID_LEN]) -> [u8; ID_LEN] {
        let workers = u16::try_from(self.workers).unwrap_or(u16::MAX).max(1);
        let drawn = u16::from_be_bytes([random[0], random[1]]);
        // The last range may be cut short.
        let ranges = u16::MAX / workers;
        let key = drawn % ranges * workers + u16::try_from(self.worker).unwrap_or_default();
        let mut id = random;
        id[..KEY].copy_from_slice(&key.to_be_bytes());
        id[KEY..KEY + self.tag.len()].copy_from_slice(&self.tag);
        id
    }
}

impl QuicDestination {
    /// Of a datagram, by the first packet in it (RFC 8999, section 5); `None`: it is too short to be one.
    pub(super) fn of(datagram: &[u8]) -> Option<QuicDestination> {
        /// Of a header that says how long its ids are.
        const LONG: u8 = 0x80;
        /// Before the length of the id there are flags and a version.
        const ID_LENGTH: usize = 5;
        if datagram.first()? & LONG == 0 {
            return QuicDestination::of_id(datagram.get(1..1 + ID_LEN)?);
        }
        let len = usize::from(*datagram.get(ID_LENGTH)?);
        QuicDestination::of_id(datagram.get(ID_LENGTH + 1..ID_LENGTH + 1 + len)?)
    }

    /// The worker, of so many.
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
    fn the_ids_of_each_worker_lead_back_to_it_in_every_kind_of_packet() {
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
    fn an_id_of_a_clients_choice_leads_to_one_worker_and_to_no_process() {
        let to = QuicDestination::of(&long(&[0, 7, 3, 4, 5, 6, 7, 8])).unwrap();
        assert_eq!((to.worker(4), to.tag), (3, None));
    }

    #[test]
    fn what_is_too_short_has_no_destination() {
        let id = ConnectionIdLayout { worker: 0, workers: 1, tag: [0; 4] }.id([0; ID_LEN]);
        for datagram in
            [&[][..], &[0x40], &short(&id)[..ID_LEN], &long(&id)[..5], &long(&id)[..10], &long(&[])]
        {
            assert_eq!(QuicDestination::of(datagram), None, "{datagram:?}");
        }
    }
}
