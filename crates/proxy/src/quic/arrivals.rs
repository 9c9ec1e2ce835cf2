//! Queue of datagrams that one worker has received for another worker.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::{Mutex, PoisonError};

use futures_util::task::AtomicWaker;
use quinn::udp::RecvMeta;

/// Upper bound of the bytes in a worker's queue. convey drops further datagrams, as the kernel does
/// at a full socket.
const MAX_WAITING: usize = 1024 * 1024;

/// Queue of datagrams for one worker.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    waiting: Mutex<Waiting>,
    /// Waker of the task that reads the worker's datagrams.
    pub(super) reader: AtomicWaker,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: usize,
    datagrams: VecDeque<(RecvMeta, Box<[u8]>)>,
}

impl Arrivals {
    /// Adds one datagram, or several that the kernel has joined (GRO). Returns whether there was
    /// room.
    pub(super) fn push(&self, meta: RecvMeta, bytes: &[u8]) -> bool {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.bytes + bytes.len() > MAX_WAITING {
                return false;
            }
            waiting.bytes += bytes.len();
            waiting.datagrams.push_back((meta, bytes.into()));
        }
        self.reader.wake();
        true
    }

    /// Takes as many datagrams as there are buffers. Returns their number, 0 if the queue is empty.
    pub(super) fn take(&self, rooms: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        for (room, place) in rooms.iter_mut().zip(metas) {
            let Some((meta, bytes)) = waiting.datagrams.pop_front() else { break };
            waiting.bytes -= bytes.len();
            // Nothing is cut off here, because the buffers of all workers have the same size.
            let len = bytes.len().min(room.len());
            room[..len].copy_from_slice(&bytes[..len]);
            *place = RecvMeta { len, ..meta };
            taken += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_keep_their_order_and_their_queue_is_bounded() {
        let arrivals = Arrivals::default();
        let meta = |len| RecvMeta { len, stride: len, ..RecvMeta::default() };
        let sent: Vec<Vec<u8>> = (0..=255).map(|number| vec![number; 8 * 1024]).collect();
        let taken_in = sent.iter().filter(|bytes| arrivals.push(meta(bytes.len()), bytes)).count();
        assert_eq!(taken_in, 128);
        let (mut first, mut second) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
        let mut metas = [RecvMeta::default(); 2];
        let mut seen = 0;
        loop {
            let mut rooms = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            let taken = arrivals.take(&mut rooms, &mut metas);
            for (room, meta) in rooms.iter().zip(&metas).take(taken) {
                assert_eq!((meta.len, room[0]), (8 * 1024, seen as u8));
                seen += 1;
            }
            if taken == 0 {
                break;
            }
        }
        assert_eq!(seen, 128);
        assert!(arrivals.push(meta(3), b"abc"), "there is room again");
    }
}
