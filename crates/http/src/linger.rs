//! The end of a connection that convey ends.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use convey_proxy::{ClientStream, poll_read};
use rustix::net::{Shutdown, shutdown};

use crate::buffer;
use crate::time_limit::TimeLimit;

/// How long such a connection is still read from.
const LINGER: Duration = Duration::from_secs(2);

/// Most bytes that are read then.
const MAX_LINGERING: usize = 256 * 1024;

/// Says that nothing else comes, and reads on for a while, so that the last bytes arrive: a client that still sends would be reset else,
/// and might lose them.
pub(crate) async fn close(client: &ClientStream, time_limit: &mut TimeLimit) {
    if shutdown(client.stream(), Shutdown::Write).is_err() {
        return;
    }
    time_limit.renew(LINGER);
    let mut left = MAX_LINGERING;
    poll_fn(|cx| {
        loop {
            match buffer::with(|buffer| poll_read(client.stream(), cx, buffer)) {
                Poll::Ready(Ok(n)) if n > 0 && n < left => left -= n,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return time_limit.poll_over(cx),
            }
        }
    })
    .await;
}
