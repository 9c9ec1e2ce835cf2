//! Choice of local ports for connections to servers, when the kernel finds no free port itself.
//!
//! The side that closes a connection first keeps its port for a minute (TIME-WAIT). If clients
//! half-close their connections, convey closes first. Then 470 short connections a second would use
//! up all ports towards a server: by default, Linux has 28,232.
//!
//! The kernel itself chooses ports in TIME-WAIT only if `net.ipv4.tcp_tw_reuse` is 1. But a socket
//! that is explicitly bound to such a port may connect, because timestamps distinguish old segments
//! from new ones.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;

use convey_stream::PollClock;

/// Upper bound of the random ports that convey tries for one connection, in about 0.5 ms. A port in
/// TIME-WAIT succeeds, a port of an open connection does not.
const MAX_TRIED_PORTS: usize = 128;

/// Divisor: convey never chooses one of the first `1 / PART` of the ports. Before Linux 6.18, the
/// kernel does not choose ports to which sockets are explicitly bound. So the kernel can still
/// choose these first ports for probes and other programs.
const PART: u32 = 8;

/// Time for which convey itself chooses ports after the kernel has found no free port. The kernel's
/// search is expensive, because it tries every port.
const SHORT: Duration = Duration::from_millis(100);

/// Range of local ports that this host uses for outgoing connections.
#[derive(Debug)]
pub struct LocalPorts {
    ranges: Vec<RangeInclusive<u16>>,
    count: u32,
    created: Instant,
    /// End of the time in which convey chooses ports itself, in nanoseconds since `created`. All
    /// workers share it, because they share the ports. It is written only when ports are short.
    short_until: AtomicU64,
}

impl Default for LocalPorts {
    fn default() -> LocalPorts {
        LocalPorts::new([])
    }
}

impl LocalPorts {
    /// Creates the set of local ports from these ranges, which must not overlap.
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<u16>>) -> LocalPorts {
        let ranges: Vec<_> = ranges.into_iter().collect();
        let count = ranges.iter().map(|range| range.len() as u32).sum();
        LocalPorts { ranges, count, created: Instant::now(), short_until: AtomicU64::new(0) }
    }

    /// Number of local ports that are usable towards one address and port of a server, even if all
    /// of them are in TIME-WAIT.
    pub fn count(&self) -> u32 {
        self.count - self.count / PART
    }

    /// Begins a connection by `connect(None)`, for which the kernel chooses a port. If the kernel
    /// finds no free port, calls `connect` with random ports instead. Returns the result of
    /// `connect`.
    ///
    /// # Errors
    /// Errors of `connect`; `ADDRNOTAVAIL` if no port is free.
    pub fn connect<T>(&self, mut connect: impl FnMut(Option<u16>) -> io::Result<T>) -> io::Result<T> {
        let now = PollClock::now().saturating_duration_since(self.created);
        let is_short = now.as_nanos() < u128::from(self.short_until.load(Ordering::Relaxed));
        if !is_short {
            match connect(None) {
                Err(error) if is_taken(&error) => {
                    self.short_until.store((now + SHORT).as_nanos() as u64, Ordering::Relaxed);
                }
                begun => return begun,
            }
        }
        for port in (0..MAX_TRIED_PORTS).filter_map(|_| self.any()) {
            match connect(Some(port)) {
                Err(error) if is_taken(&error) => {}
                begun => return begun,
            }
        }
        Err(Errno::ADDRNOTAVAIL.into())
    }

    /// Returns a random port, but none of the first `1 / PART`. `None` if there are no ports.
    fn any(&self) -> Option<u16> {
        let first = self.count / PART;
        let offset = convey_random::secret_u64().checked_rem(u64::from(self.count - first))?;
        let mut at = first + offset as u32;
        for range in &self.ranges {
            let len = range.len() as u32;
            if at < len {
                return Some(*range.start() + at as u16);
            }
            at -= len;
        }
        None
    }
}

/// Whether the error concerns the local port: the kernel found none, or the chosen port is in use.
fn is_taken(error: &io::Error) -> bool {
    let errnos = [Errno::ADDRNOTAVAIL, Errno::ADDRINUSE];
    errnos.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_in_time_wait_is_reused_when_the_kernel_has_none_left() {
        let ports = LocalPorts::new([10..=19, 30..=39]);
        assert_eq!(ports.count(), 18);
        let mut asked = Vec::new();
        let mut connect = |free: fn(u16) -> bool| {
            asked.clear();
            let port = ports.connect(|port| {
                asked.push(port);
                port.filter(|port| free(*port)).ok_or_else(|| Errno::ADDRNOTAVAIL.into())
            });
            (port.ok(), asked.clone())
        };
        let (port, asked) = connect(|_| true);
        assert!((12..=39).contains(&port.unwrap()) && asked == [None, port], "{asked:?}");
        let (port, asked) = connect(|_| true);
        assert_eq!(asked, [port], "the kernel is not asked");
        let (port, asked) = connect(|_| false);
        assert_eq!((port, asked.len()), (None, MAX_TRIED_PORTS), "it gives up");
        assert!(
            asked.iter().all(|port| (12..=39).contains(&port.unwrap())),
            "not the first eighth: {asked:?}"
        );
    }

    #[test]
    fn other_errors_try_no_other_port() {
        let ports = LocalPorts::new([10..=19]);
        let mut asked = 0;
        let refused = ports.connect(|_| {
            asked += 1;
            Err::<(), _>(Errno::CONNREFUSED.into())
        });
        assert_eq!((asked, refused.unwrap_err().kind()), (1, io::ErrorKind::ConnectionRefused));
    }
}
