//! Transfers as the forwarding of a request drives them.

use std::task::{Context, Poll};

use convey_http_core::ExchangeState;
use convey_proxy::ClientStream;

use super::TransferEnd;
use crate::record::RequestRecord;

/// What a transfer has moved, and what it waits for.
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

/// Transfer of one request and its response.
pub(crate) trait RunningTransfer {
    /// Moves the request and the response until the server has sent the whole response, and the
    /// client has it or convey stores the rest, or until the client cannot get it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd>;

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
