//! Limits for a client of an API server: the size of answers, the number of pages of a list, and
//! the rate of watches.

use std::time::Duration;

use tokio::time::Instant;

use convey_pacing::BackoffPolicy;

use crate::watcher::WATCH_SECONDS;

/// Size limit of any other answer than a watch, in bytes, such as a page of slices, a Service or an
/// error.
const MAX_ANSWER: usize = 32 << 20;
/// Size limit of a line of a watch, in bytes. An object of Kubernetes takes at most 1.5 MB in etcd.
const MAX_LINE: usize = 8 << 20;
/// Size limit of a watch, in bytes. A watch lasts half a minute.
const MAX_WATCH: usize = 64 << 20;
/// Maximum number of pages of a list. The slices of the largest Services need less than half of
/// this number.
const MAX_PAGES: u32 = 32;
/// Minimum time between the starts of two watches.
const WATCH_PACE: Duration = Duration::from_secs(1);
/// Size limit of a token file, in bytes.
pub(crate) const MAX_TOKEN: usize = 64 << 10;
/// Maximum time for which the API server may send nothing. It is slightly longer than a watch.
/// After this time, convey requests a new list. If the list is not answered either, the time limits
/// of both requests have expired within 65 s.
pub(crate) const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 3);

/// Delays between attempts to reach an API server. A watch of slices resets the delays once the
/// watch is settled, see `watch`; a watch of annotations resets the delays if it has lasted for
/// `reset_after`.
pub(crate) const ATTEMPTS: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(1_600),
    cap: Duration::from_secs(60),
    jitter: 0.5,
    reset_after: Duration::from_secs(120),
};

/// Current time of the async runtime.
#[expect(clippy::disallowed_methods, reason = "requests and watches are this crate's shell")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Limits for the requests of a client: number of pages, and time between watches.
#[derive(Debug, Default)]
pub(crate) struct RequestPace {
    pages: u32,
    next_watch: Option<Instant>,
}

impl RequestPace {
    /// Earliest time of the next request.
    ///
    /// # Errors
    /// The list has too many pages.
    pub(crate) fn next(&mut self, is_watch: bool, now: Instant) -> Result<Instant, String> {
        if is_watch {
            let begin = self.next_watch.map_or(now, |next| next.max(now));
            self.next_watch = Some(begin + WATCH_PACE);
            return Ok(begin);
        }
        self.pages += 1;
        match self.pages {
            ..=MAX_PAGES => Ok(now),
            _ => Err(format!("the list of the API server has more than {MAX_PAGES} pages")),
        }
    }
}

/// Counter for the bytes of an answer that have arrived so far.
#[derive(Debug)]
pub(crate) struct AnswerBytes {
    is_watch: bool,
    all: usize,
    line: usize,
}

impl AnswerBytes {
    pub(crate) fn new(is_watch: bool) -> AnswerBytes {
        AnswerBytes { is_watch, all: 0, line: 0 }
    }

    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), String> {
        self.all += data.len();
        let max = if self.is_watch { MAX_WATCH } else { MAX_ANSWER };
        if self.all > max {
            let answer = if self.is_watch { "watch" } else { "answer" };
            return Err(format!("the {answer} of the API server is longer than {} MiB", max >> 20));
        }
        let mut pieces = data.split(|byte| *byte == b'\n');
        let mut longest = self.line + pieces.next().map_or(0, <[u8]>::len);
        self.line = longest;
        for piece in pieces {
            self.line = piece.len();
            longest = longest.max(self.line);
        }
        if self.is_watch && longest > MAX_LINE {
            return Err(format!("a line of the API server's watch is longer than {} MiB", MAX_LINE >> 20));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of times that an answer may contain `piece`. Counting stops at a million.
    fn pieces(is_watch: bool, piece: &[u8]) -> usize {
        let mut bytes = AnswerBytes::new(is_watch);
        (0..1_000_000).take_while(|_| bytes.add(piece).is_ok()).count()
    }

    #[test]
    fn answers_and_lines_of_watches_are_bounded() {
        let kibibyte = [b'x'; 1 << 10];
        assert_eq!(pieces(false, &kibibyte), MAX_ANSWER >> 10);
        assert_eq!(pieces(true, &kibibyte), MAX_LINE >> 10);
        let mut line = kibibyte;
        line[500] = b'\n';
        assert_eq!(pieces(true, &line), MAX_WATCH >> 10);
        assert_eq!(pieces(true, &[b'\n'; 256]), MAX_WATCH / 256);
    }

    #[test]
    fn pages_are_bounded_and_watches_keep_a_pace() {
        let (mut requests, now) = (RequestPace::default(), now());
        assert!((0..MAX_PAGES).all(|_| requests.next(false, now) == Ok(now)));
        assert!(requests.next(false, now).is_err());
        let begins: Vec<_> = (0..3).map(|_| requests.next(true, now).unwrap()).collect();
        assert_eq!(begins, [now, now + WATCH_PACE, now + 2 * WATCH_PACE]);
        let late = now + 30 * WATCH_PACE;
        assert_eq!(requests.next(true, late), Ok(late), "a watch that lasted is followed at once");
    }
}
