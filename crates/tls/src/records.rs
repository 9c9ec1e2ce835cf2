//! Buffer of outgoing TLS records. Pure.

/// Buffer of outgoing TLS records. The buffer reuses its memory, and fills it with zeros only once.
#[derive(Debug, Default)]
pub struct OutgoingRecords {
    memory: Vec<u8>,
    len: usize,
}

impl OutgoingRecords {
    /// Bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// Removes the bytes, and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends the bytes that `write` produces. `write` gets a buffer of at least `room` bytes, and
    /// returns the number of bytes that it has written.
    ///
    /// # Errors
    /// Errors of `write`. After an error, nothing is appended.
    pub(crate) fn add<E>(
        &mut self,
        room: usize,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let needed = self.len + room;
        if self.memory.len() < needed {
            self.memory.resize(needed, 0);
        }
        let written = write(&mut self.memory[self.len..])?;
        self.len += written;
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_added_behind_each_other_and_a_failure_adds_none() {
        let mut records = OutgoingRecords::default();
        for text in ["ab", "cde"] {
            let added = records.add(text.len(), |free| {
                free[..text.len()].copy_from_slice(text.as_bytes());
                Ok::<_, ()>(text.len())
            });
            assert_eq!(added, Ok(text.len()));
        }
        assert_eq!(records.add(100, |_| Err("no")), Err("no"));
        assert_eq!(records.bytes(), b"abcde");
        records.clear();
        assert!(records.bytes().is_empty());
    }
}
