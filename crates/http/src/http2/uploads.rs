//! Open uploads on a connection to a server: requests with a body, until their responses are over.

use std::ops::{AddAssign, Sub};

use convey_model::{Prefix, networks_of};
use foldhash::HashMap;

use super::send_window::SendWindow;

/// Assumed length in bytes of a body of unknown length, far above every window.
const ENDLESS: u64 = 1 << 40;

/// A request with a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upload {
    pub(crate) client: Prefix,
    /// Length of the body in bytes; `None` if the head of the request does not announce it.
    pub(crate) length: Option<u64>,
}

impl Upload {
    /// Upper bound for the length of the body, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.length.unwrap_or(ENDLESS).min(ENDLESS)
    }
}

/// Sent bytes of a body, and an upper bound for the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadProgress {
    sent: u64,
    /// Upper bound for the rest.
    left: u64,
}

impl UploadProgress {
    /// Returns the progress before the first byte.
    pub(super) fn new(upload: &Upload) -> UploadProgress {
        UploadProgress { sent: 0, left: upload.size() }
    }

    fn after(self, bytes: u64, is_last: bool) -> UploadProgress {
        let left = match self.left {
            _ if is_last => 0,
            ENDLESS => ENDLESS,
            left => left.saturating_sub(bytes),
        };
        UploadProgress { sent: self.sent + bytes, left }
    }

    /// Upper bound for the bytes that are still to be sent.
    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    #[cfg(test)]
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    fn is_unfinished(self) -> bool {
        self.left > 0
    }
}

/// Open uploads on a connection.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    all: UploadSums,
    /// Uploads of a client, and of the networks around it.
    by_network: HashMap<Prefix, UploadSums>,
    /// Bytes that were passed to the library. The library discards some of them when a stream is
    /// reset.
    given: u64,
}

/// Sums over uploads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UploadSums {
    pub(super) open: usize,
    /// Uploads that are not sent in full.
    pub(super) unfinished: usize,
    /// Upper bound for the bytes that are still to be sent.
    pub(super) left: u64,
    /// Upper bound for the bytes of all bodies, sent or not.
    pub(super) size: u64,
}

impl UploadSums {
    fn of(progress: UploadProgress) -> UploadSums {
        let UploadProgress { sent, left } = progress;
        UploadSums { open: 1, unfinished: usize::from(progress.is_unfinished()), left, size: sent + left }
    }
}

impl AddAssign for UploadSums {
    fn add_assign(&mut self, other: UploadSums) {
        self.open += other.open;
        self.unfinished += other.unfinished;
        self.left += other.left;
        self.size += other.size;
    }
}

impl Sub for UploadSums {
    type Output = UploadSums;

    fn sub(self, other: UploadSums) -> UploadSums {
        UploadSums {
            open: self.open - other.open,
            unfinished: self.unfinished - other.unfinished,
            left: self.left - other.left,
            size: self.size - other.size,
        }
    }
}

impl Uploads {
    /// Adds an upload to the sums.
    pub(super) fn begin(&mut self, client: Prefix, progress: UploadProgress) {
        self.all += UploadSums::of(progress);
        for at in networks_of(client) {
            *self.by_network.entry(at.network).or_default() += UploadSums::of(progress);
        }
    }

    /// Notes that `bytes` of an upload were passed to the library; `is_last`: the body is complete.
    pub(super) fn advance(
        &mut self,
        client: Prefix,
        progress: &mut UploadProgress,
        bytes: u64,
        is_last: bool,
    ) {
        self.remove(client, *progress);
        *progress = progress.after(bytes, is_last);
        self.begin(client, *progress);
        self.given += bytes;
    }

    /// Removes an upload, because its response is over or its stream was reset.
    pub(super) fn end(&mut self, client: Prefix, progress: UploadProgress, window: &SendWindow) {
        self.remove(client, progress);
        for at in networks_of(client) {
            if self.of_network(&at.network).open == 0 {
                self.by_network.remove(&at.network);
            }
        }
        if self.is_empty() {
            self.given = window.sent();
        }
    }

    fn remove(&mut self, client: Prefix, progress: UploadProgress) {
        self.all = self.all - UploadSums::of(progress);
        for at in networks_of(client) {
            let sums = self.by_network.entry(at.network).or_default();
            *sums = *sums - UploadSums::of(progress);
        }
    }

    /// Number of bytes that the server accepts now, for all streams together.
    pub(super) fn window(&self, window: &SendWindow) -> u64 {
        window.granted().saturating_sub(self.given.max(window.sent()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.open == 0
    }

    /// Sums over all uploads.
    pub(super) fn all(&self) -> UploadSums {
        self.all
    }

    /// Sums over the uploads of a client, or of a network around it.
    pub(super) fn of_network(&self, network: &Prefix) -> UploadSums {
        self.by_network.get(network).copied().unwrap_or_default()
    }

    /// Sums over the uploads of all clients outside this network.
    pub(super) fn outside(&self, network: &Prefix) -> UploadSums {
        self.all - self.of_network(network)
    }

    /// Largest size in bytes of the uploads of a single client or network outside this network.
    pub(super) fn largest_outside(&self, network: &Prefix) -> u64 {
        let is_outside = |at: &Prefix| !network.contains(at.first()) && !at.contains(network.first());
        let outside = self.by_network.iter().filter(|(at, _)| is_outside(at));
        outside.map(|(_, sums)| sums.size).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use convey_model::client_of;
    use proptest::prelude::*;

    use super::super::send_window::INITIAL_WINDOW;
    use super::*;

    proptest! {
        #[test]
        fn sums_of_uploads_are_those_of_each(
            uploads in proptest::collection::vec(
                (0u8..3, proptest::option::of(1u64..100), 0u64..100, any::<bool>()), 0..20,
            ),
        ) {
            let (mut all, window) = (Uploads::default(), SendWindow::default());
            let mut opened = Vec::new();
            for (n, length, bytes, is_last) in uploads {
                let upload = Upload { client: client_of([192, 0, 2, n].into()), length };
                let mut progress = UploadProgress::new(&upload);
                all.begin(upload.client, progress);
                all.advance(upload.client, &mut progress, bytes, is_last);
                opened.push((upload, progress, is_last));
            }
            let given: u64 = opened.iter().map(|(_, progress, _)| progress.sent).sum();
            prop_assert_eq!(all.window(&window), INITIAL_WINDOW - given);
            while !opened.is_empty() {
                let sums = all.all();
                prop_assert_eq!(sums.open, opened.len());
                prop_assert_eq!(sums.left, opened.iter().map(|(_, progress, _)| progress.left).sum::<u64>());
                let are_whole = opened.iter().all(|(upload, progress, is_last)| {
                    *is_last || upload.length.is_some_and(|length| length <= progress.sent)
                });
                prop_assert_eq!(sums.unfinished == 0, are_whole);
                let (upload, progress, _) = opened.remove(0);
                all.end(upload.client, progress, &window);
            }
            prop_assert!(all.is_empty());
            prop_assert_eq!(all.window(&window), INITIAL_WINDOW, "the library has dropped the bytes");
        }
    }

    #[test]
    fn body_of_unknown_length_is_unfinished_until_its_end() {
        let upload = Upload { client: client_of([192, 0, 2, 1].into()), length: None };
        let progress = UploadProgress::new(&upload).after(1 << 50, false);
        assert!(progress.is_unfinished());
        assert!(!progress.after(0, true).is_unfinished());
    }
}
