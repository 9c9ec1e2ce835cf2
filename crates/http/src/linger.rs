//! Lingering close of a client's connection, so that the client receives the last bytes.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use convey_stream::ByteStream;

use crate::buffer;
use crate::time_limit::TimeLimit;

/// Time for which convey still reads from a connection or stream that it has ended.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Maximum number of bytes that convey still reads from a connection that it has ended: more than
/// the buffers of both hosts hold by default. A client that sends more gets a reset.
const MAX_OF_CONNECTION: usize = 16 * 1024 * 1024;

/// Maximum number of bytes that convey still reads from an HTTP/2 stream that it has ended. The
/// limit is lower than for a connection, because a stream's window is smaller than the buffers of a
/// connection.
pub(crate) const MAX_OF_STREAM: usize = 256 * 1024;

/// Number of reads before the thread's other connections get a turn.
const TURNS: usize = 8;

/// Closes the sending side, and continues to read for a while so that the last bytes arrive.
/// Otherwise, a client that still sends would get a reset, and might lose these bytes.
pub(crate) async fn close(client: &mut ByteStream, time_limit: &mut TimeLimit) {
    time_limit.renew(LINGER);
    let said = poll_fn(|cx| match client.poll_shutdown(cx) {
        Poll::Pending => time_limit.poll_over(cx).map(|()| false),
        said => said.map(|said| said.is_ok()),
    });
    if !said.await {
        return;
    }
    let mut left = MAX_OF_CONNECTION;
    poll_fn(|cx| {
        for _ in 0..TURNS {
            match buffer::with(|buffer| client.poll_read(cx, buffer)) {
                Poll::Ready(Ok(n)) if n > 0 && n < left => left -= n,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return time_limit.poll_over(cx),
            }
        }
        cx.waker().wake_by_ref();
        time_limit.poll_over(cx)
    })
    .await;
}
