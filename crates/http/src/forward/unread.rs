//! Sockets that a transfer does not read: no event reports their end, so convey polls them from
//! time to time.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::transfer::{RunningTransfer, TransferEnd};

/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(1);

/// Timer of the checks. A transfer that reads both sides needs none.
#[derive(Default)]
pub(super) struct UnreadCheck(Option<Pin<Box<Sleep>>>);

impl UnreadCheck {
    /// Waits until a socket that the transfer does not read has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        transfer: &impl RunningTransfer,
    ) -> Poll<TransferEnd> {
        while transfer.has_unread_socket() {
            let timer = self.0.get_or_insert_with(|| Box::pin(sleep(PERIOD)));
            ready!(timer.as_mut().poll(cx));
            timer.as_mut().reset(Instant::now() + PERIOD);
            if let Some(end) = transfer.unread_end() {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    }
}
