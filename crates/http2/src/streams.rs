//! Streams of a connection.

use crate::stream::{Stream, StreamFault, StreamKey};

/// Maximum number of unused places that are kept. A connection with few requests at once allocates
/// none, and an idle connection keeps little memory.
const MAX_UNUSED: usize = 16;

/// Streams whose requests are served, or wait for it.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    slots: Vec<Option<Stream>>,
    free: Vec<u32>,
    /// Keys in the order of the streams.
    keys: Vec<StreamKey>,
    /// Number of streams that are not over.
    open: usize,
}

impl Streams {
    /// Number of streams.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no stream.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Number of streams that are not over.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Adds an open stream, whose number is higher than that of all others.
    pub(crate) fn add(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(stream);
                slot
            }
            None => {
                if self.slots.is_empty() {
                    // Many connections have one request at a time.
                    self.slots.reserve_exact(1);
                }
                self.slots.push(Some(stream));
                self.slots.len() as u32 - 1
            }
        };
        let key = StreamKey { slot, id };
        self.keys.push(key);
        self.open += 1;
        key
    }

    /// Key of the stream with this number.
    pub(crate) fn key(&self, id: u32) -> Option<StreamKey> {
        let at = self.keys.binary_search_by_key(&id, |key| key.id).ok()?;
        Some(self.keys[at])
    }

    pub(crate) fn get(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot as usize)?.as_mut().filter(|stream| stream.id == key.id)
    }

    /// Removes a stream.
    pub(crate) fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        let at = self.keys.binary_search_by_key(&key.id, |key| key.id).ok()?;
        let stream = self.slots[key.slot as usize].take()?;
        self.keys.remove(at);
        self.free.push(key.slot);
        if !stream.is_over() {
            self.open -= 1;
        }
        if self.keys.is_empty() && self.slots.capacity() > MAX_UNUSED {
            *self = Streams::default();
        }
        Some(stream)
    }

    /// Changes a stream that exists, and counts it as over if it ends by that.
    pub(crate) fn change(&mut self, key: StreamKey, change: impl FnOnce(&mut Stream)) {
        let Some(stream) = self.get(key) else { return };
        let was_over = stream.is_over();
        change(stream);
        if !was_over && stream.is_over() {
            self.open -= 1;
        }
    }

    /// Ends all streams, because the connection is over.
    pub(crate) fn end_all(&mut self) {
        for stream in self.slots.iter_mut().flatten() {
            if stream.fault.is_none() {
                stream.fault = Some(StreamFault::Gone);
            }
            stream.wake();
        }
        self.open = 0;
    }

    /// Wakes all streams.
    pub(crate) fn wake_all(&mut self) {
        self.slots.iter_mut().flatten().for_each(Stream::wake);
    }

    /// Largest change of a send window since the begin of its stream.
    pub(crate) fn largest_send_delta(&self) -> i64 {
        self.slots.iter().flatten().map(|stream| stream.send_delta).max().unwrap_or_default()
    }
}
