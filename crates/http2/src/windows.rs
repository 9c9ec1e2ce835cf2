//! Flow control (RFC 9113, section 5.2).

/// Initial window of a connection and of its streams, in bytes.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;

/// Maximum window in bytes (RFC 9113, section 6.9.1).
pub(crate) const MAX_WINDOW: i64 = (1 << 31) - 1;

/// Maximum number of freed bytes that the client does not know of. It is less than the window of a
/// stream, so that streams which hold their whole windows leave a part of the connection's window
/// to each other stream.
const MAX_STEP: u32 = 32 * 1024;

/// Number of bytes that the client may send.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    /// Number of freed bytes at which a WINDOW_UPDATE announces them.
    step: u32,
    left: u32,
    /// Bytes that the client may send again, and does not know of yet.
    freed: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow { step: (size / 2).min(MAX_STEP), left: size, freed: 0 }
    }

    /// Counts received bytes. Returns false if the client must not have sent them.
    pub(crate) fn take(&mut self, len: u32) -> bool {
        let left = self.left.checked_sub(len);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Lets the client send this many bytes again. Returns the increment for a WINDOW_UPDATE frame,
    /// once half of the window is free, or [`MAX_STEP`] bytes.
    pub(crate) fn free(&mut self, len: u32) -> Option<u32> {
        self.freed += len;
        if self.freed < self.step {
            return None;
        }
        self.left += self.freed;
        Some(std::mem::take(&mut self.freed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_announced_again_by_halves() {
        let mut window = ReceiveWindow::new(100);
        assert!(window.take(100) && !window.take(1));
        assert_eq!((window.free(49), window.free(1), window.free(10)), (None, Some(50), None));
        assert!(window.take(50) && !window.take(1));
        assert_eq!(window.free(40), Some(50));
    }

    #[test]
    fn large_window_is_announced_again_in_steps() {
        let mut window = ReceiveWindow::new(1 << 20);
        assert!(window.take(1 << 20));
        assert_eq!((window.free(MAX_STEP - 1), window.free(1)), (None, Some(MAX_STEP)));
    }
}
