//! Clock that is read once in each poll of a connection's task.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::Cell;

use tokio::time::Instant;

thread_local! {
    static TIME: Cell<PollTime> = const { Cell::new(PollTime::NotPolling) };
}

/// Time of the poll that the thread is in.
#[derive(Debug, Clone, Copy)]
enum PollTime {
    NotPolling,
    NotRead,
    Read(Instant),
}

/// Clock of a thread that polls tasks of connections. While a `PollClock` exists, the thread reads
/// the system's clock only once: a poll is short, and a read takes as long as other steps of a
/// request.
#[derive(Debug)]
pub struct PollClock {
    before: PollTime,
}

impl PollClock {
    /// Begins a poll, which lasts until the drop of the returned value.
    pub fn begin() -> PollClock {
        PollClock { before: TIME.replace(PollTime::NotRead) }
    }

    /// Present time: within a poll, the time of the first call.
    pub fn now() -> Instant {
        match TIME.get() {
            PollTime::Read(time) => time,
            PollTime::NotPolling => Instant::now(),
            PollTime::NotRead => {
                let time = Instant::now();
                TIME.set(PollTime::Read(time));
                time
            }
        }
    }
}

impl Drop for PollClock {
    fn drop(&mut self) {
        TIME.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_stands_still_within_a_poll_only() {
        let began = Instant::now();
        let step = Duration::from_secs(1);
        {
            let _poll = PollClock::begin();
            assert_eq!(PollClock::now(), began);
            tokio::time::advance(step).await;
            assert_eq!(PollClock::now(), began);
            {
                let _nested = PollClock::begin();
                assert_eq!(PollClock::now(), began + step);
            }
            assert_eq!(PollClock::now(), began);
        }
        assert_eq!(PollClock::now(), began + step);
    }
}
