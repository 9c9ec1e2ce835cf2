//! Interface by which the forwarding of a request drives its transfer.

use std::task::{Context, Poll};

use convey_http_core::ExchangeState;
use convey_proxy::ClientStream;

use super::TransferEnd;
use crate::record::RequestRecord;

/// Numbers of bytes that a transfer has moved, and the side that the transfer waits for.
#[derive(Debug, Default)]
pub(crate) struct TransferMeter {
    /// Bytes that were read from the client, and written to it, since the caller last took the
    /// numbers.
    pub(crate) moved: (u64, u64),
    /// Bytes of the request's body since the caller last took the number.
    pub(crate) body: u64,
    /// Status of the final response, once its head was received.
    pub(crate) status: Option<u16>,
    /// Whether the transfer waits only for the client to send more of the request's body.
    pub(crate) awaits_client: bool,
    /// Whether the transfer can move more bytes immediately, but first gives a turn to the thread's
    /// other connections.
    pub(crate) has_more: bool,
}

/// Maximum turns of one transfer before it yields to the thread's other connections.
const TURNS: usize = 8;

/// Like [`TURNS`], for compressed responses, which take longer per turn.
const COMPRESSED_TURNS: usize = 2;

/// Result of a step of one direction.
pub(crate) enum Step {
    /// Bytes or frames were moved.
    Moved,
    /// The direction is complete.
    Over,
}

/// Transfer of one request and its response.
pub(crate) trait RunningTransfer {
    /// Moves the request and the response. Returns the end of the transfer once the server has sent
    /// the whole response, and the client has it or convey stores the rest. Also returns if the
    /// client cannot get the response.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd> {
        self.meter_mut().has_more = false;
        for turn in 0..TURNS {
            if turn >= COMPRESSED_TURNS && self.is_compressing() {
                break;
            }
            if self.has_sent_request() {
                // Until the response pauses, nothing else is of interest.
                match self.poll_down(cx) {
                    Poll::Ready(Err(end)) => return Poll::Ready(end),
                    Poll::Ready(Ok(Step::Over)) => return Poll::Ready(TransferEnd::Whole),
                    Poll::Ready(Ok(Step::Moved)) => continue,
                    Poll::Pending => {}
                }
                match self.poll_up(cx) {
                    Poll::Ready(Err(end)) => return Poll::Ready(end),
                    Poll::Ready(Ok(Step::Moved)) => continue,
                    Poll::Ready(Ok(Step::Over)) | Poll::Pending => return self.poll_reset(cx),
                }
            }
            let up = match self.poll_up(cx) {
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Ready(Ok(step)) => Some(step),
                Poll::Pending => None,
            };
            let down = match self.poll_down(cx) {
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Ready(Ok(step)) => Some(step),
                Poll::Pending => None,
            };
            match (up, down) {
                // After a change of the protocol, both directions have to end. The server's end is
                // enough if it accepts nothing either: the client could send for ever.
                (Some(Step::Over), Some(Step::Over)) => return Poll::Ready(TransferEnd::Whole),
                (_, Some(Step::Over)) if !self.state().has_changed() || self.server_takes_nothing() => {
                    return Poll::Ready(TransferEnd::Whole);
                }
                (Some(Step::Moved), _) | (_, Some(Step::Moved)) => {}
                (None | Some(Step::Over), None | Some(Step::Over)) => return self.poll_reset(cx),
            }
        }
        self.meter_mut().has_more = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the server has the whole request, and stays with its protocol.
    fn has_sent_request(&self) -> bool;

    /// Moves a part of the request towards the server.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>>;

    /// Moves a part of the response towards the client.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>>;

    /// Waits until the client or the server resets its stream. A socket reports a reset when it is
    /// read or written.
    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<TransferEnd> {
        Poll::Pending
    }

    /// Whether the response's body is being compressed.
    fn is_compressing(&self) -> bool;

    /// Whether a write to the server has failed, so that the server accepts no more bytes.
    fn server_takes_nothing(&self) -> bool;

    fn meter(&self) -> &TransferMeter;

    fn meter_mut(&mut self) -> &mut TransferMeter;

    /// Progress of the exchange.
    fn state(&self) -> &ExchangeState;

    /// Adds the statistics of compression since the last call to the counters.
    fn count_compression(&mut self, client: &ClientStream, record: &mut RequestRecord);

    /// Number of response bytes that wait for the client.
    fn waiting_for_client(&self) -> u64;

    /// Whether there is a socket that the transfer does not read, so that
    /// [`RunningTransfer::unread_end`] has to check it.
    fn has_unread_socket(&self) -> bool;

    /// Checks the sockets that the transfer does not read. Returns the end of the transfer if the
    /// client has left, or if the server has reset its connection and its response cannot be
    /// completed.
    fn unread_end(&self) -> Option<TransferEnd>;
}
