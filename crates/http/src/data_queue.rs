//! Queue of received data.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Usual size of a frame in bytes, and maximum size of a copied part.
pub(crate) const FRAME: usize = 16 * 1024;

/// Minimum length in bytes of data that waits without a copy. Shorter data is copied, because it
/// would hold the memory of all bytes that were read with it.
const LONG: usize = 8 * 1024;

/// Data in the order of its arrival. The caller bounds its length.
#[derive(Debug, Default)]
pub(crate) struct DataQueue {
    /// Parts before `last`.
    parts: VecDeque<Bytes>,
    /// Copies of short data.
    last: BytesMut,
    len: usize,
}

impl DataQueue {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory of the data in bytes: the buffer for short data, and all long data.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum::<usize>() + self.last.capacity()
    }

    /// Appends data. Long data is not copied.
    pub(crate) fn put(&mut self, data: Bytes) {
        self.len += data.len();
        match data.len() < LONG {
            true => self.last.extend_from_slice(&data),
            false => self.put_part(data),
        }
    }

    /// Appends a copy of data.
    pub(crate) fn put_copy(&mut self, data: &[u8]) {
        self.len += data.len();
        for part in data.chunks(FRAME) {
            match part.len() < LONG {
                true => self.last.extend_from_slice(part),
                false => self.put_part(Bytes::copy_from_slice(part)),
            }
        }
    }

    /// Removes data from the front: the first part, or its first `most` bytes if it is longer.
    /// `None`: there is no data.
    pub(crate) fn take(&mut self, most: usize) -> Option<Bytes> {
        let data = match self.parts.front_mut() {
            Some(first) if first.len() > most => first.split_to(most),
            Some(_) => self.parts.pop_front()?,
            None if self.last.len() > most => self.last.split_to(most).freeze(),
            None => std::mem::take(&mut self.last).freeze(),
        };
        self.len -= data.len();
        Some(data).filter(|data| !data.is_empty())
    }

    fn put_part(&mut self, data: Bytes) {
        if !self.last.is_empty() {
            self.parts.push_back(std::mem::take(&mut self.last).freeze());
        }
        self.parts.push_back(data);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn data_leaves_in_order_and_short_data_is_copied(
            pieces in prop::collection::vec(
                (prop_oneof![0..100_usize, 0..3 * LONG], any::<bool>(), prop::option::of(1..3 * LONG)),
                0..40,
            ),
        ) {
            let all = Bytes::from((0..pieces.len() * 3 * LONG).map(|n| (n / 7) as u8).collect::<Vec<_>>());
            let (mut queue, mut left, mut at) = (DataQueue::default(), Vec::new(), 0);
            for (len, is_lent, most) in pieces {
                match is_lent {
                    true => queue.put(all.slice(at..at + len)),
                    false => queue.put_copy(&all[at..at + len]),
                }
                at += len;
                let lent = queue.parts.iter().filter(|part| all.as_ptr_range().contains(&part.as_ptr()));
                prop_assert!(lent.skip(1).all(|part| part.len() >= LONG), "only the first part can be cut");
                if let Some(most) = most {
                    let data = queue.take(most).unwrap_or_default();
                    prop_assert!(data.len() <= most);
                    left.extend(data);
                }
                prop_assert_eq!(queue.len(), at - left.len());
            }
            while let Some(data) = queue.take(FRAME) {
                prop_assert!((1..=FRAME).contains(&data.len()));
                left.extend(data);
            }
            prop_assert!(queue.is_empty() && left == all[..at]);
        }
    }
}
