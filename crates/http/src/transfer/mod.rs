//! Transfer of one request and its response between two connections of HTTP/1. It moves bytes, as
//! [`Exchange`] decides. [`frames`](crate::frames) has the transfers with streams.

mod down;
mod end;
mod outgoing;
mod running;
mod unread;
mod up;

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use convey_http_core::{Exchange, ExchangeState, FieldRules};
use convey_proxy::ClientStream;
use convey_stream::{ByteStream, PipePool};

use crate::bulk::Bulk;
use crate::compress::{Compression, CompressionTerms};
use crate::forward::{RewrittenRequest, StatusRetry};
use crate::hooks::Hooks;
use crate::record::RequestRecord;

pub(crate) use end::{TransferEnd, client_broke, server_broke};
pub(crate) use outgoing::Outgoing;
pub(crate) use running::{RunningTransfer, Step, TransferMeter};

/// Transfer of a request to a server and of the response to the client, during a poll. Between two
/// polls, only its state exists.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a mut ByteStream,
    pub(crate) server: &'a mut ByteStream,
    /// Bytes received from the client that are not processed yet.
    pub(crate) received: &'a mut BytesMut,
    pub(crate) changes: ResponseChanges<'a>,
    /// Pipes for large bodies.
    pub(crate) pipes: &'a Arc<PipePool>,
    pub(crate) state: &'a mut TransferState,
}

/// How a response is changed on its way to the client.
#[derive(Debug)]
pub(crate) struct ResponseChanges<'a> {
    /// Configured changes of the fields.
    pub(crate) fields: &'a FieldRules,
    /// Rewritten request, by which URLs and cookies are translated; `None`: they stay.
    pub(crate) rewritten: Option<RewrittenRequest<'a>>,
    /// Terms of its compression; `None`: it is not compressed.
    pub(crate) terms: Option<CompressionTerms<'a>>,
    /// Hooks of the embedding application that follow the request.
    pub(crate) hooks: &'a mut Hooks,
    /// Retry by the status of the response; `None`: the client gets each response.
    pub(crate) retry: Option<&'a mut StatusRetry<'a>>,
}

/// State of a [`Transfer`] between two polls.
#[derive(Debug)]
pub(crate) struct TransferState {
    exchange: Exchange,
    meter: TransferMeter,
    to_server: Outgoing,
    to_client: Outgoing,
    /// Bulk transfer of the response's body.
    down: Bulk,
    /// Bulk transfer of the request's body.
    up: Bulk,
    /// Received part of the response's head; `None`: no part has arrived, or all of it.
    head: Option<Box<BytesMut>>,
    compression: Compression,
    /// Whether the server sent bytes after the response.
    has_surplus: bool,
    /// Whether the transfer waits for bytes of the client, and so notices its end.
    reads_client: bool,
    /// Whether the transfer waits for bytes of the server.
    reads_server: bool,
    /// Whether the client has closed its side.
    client_is_done: bool,
    /// Whether a write to the server has failed, so that the server accepts no more bytes. Its
    /// response may still arrive.
    server_takes_nothing: bool,
    /// Whether the server has closed its side.
    server_is_done: bool,
}

impl TransferState {
    /// State at the begin of an exchange. `head` is the head of the request for the server.
    #[inline]
    pub(crate) fn new(exchange: Exchange, head: Vec<u8>) -> TransferState {
        TransferState {
            exchange,
            meter: TransferMeter::default(),
            to_server: Outgoing::new(head),
            to_client: Outgoing::default(),
            down: Bulk::default(),
            up: Bulk::default(),
            head: None,
            compression: Compression::default(),
            has_surplus: false,
            reads_client: false,
            reads_server: false,
            client_is_done: false,
            server_takes_nothing: false,
            server_is_done: false,
        }
    }

    /// Status of the final response, once its head has arrived.
    pub(crate) fn status(&self) -> Option<u16> {
        self.meter.status
    }

    /// Progress of the exchange.
    pub(crate) fn progress(&self) -> &ExchangeState {
        self.exchange.state()
    }

    /// Whether the server has accepted all received bytes of the request, and sent nothing after
    /// its response. Otherwise, its connection must not be reused: the server would read the next
    /// request as the missing bytes.
    pub(crate) fn is_clean(&self) -> bool {
        self.is_with_server() && !self.has_surplus
    }

    /// Whether this client has received only a part of the waiting bytes, so that no other response
    /// can follow.
    pub(crate) fn is_torn(&self, client: &ByteStream) -> bool {
        self.to_client.is_torn() || client.is_writing() && self.to_client.left() > 0
    }

    /// Whether all received bytes of the request were written to the server.
    fn is_with_server(&self) -> bool {
        !self.server_takes_nothing && self.to_server.left() == 0 && self.up.is_empty()
    }
}

impl RunningTransfer for Transfer<'_> {
    fn has_sent_request(&self) -> bool {
        let state = self.state.progress();
        state.is_request_whole() && !state.has_changed() && self.state.is_with_server()
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        Transfer::poll_up(self, cx)
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        Transfer::poll_down(self, cx)
    }

    fn is_compressing(&self) -> bool {
        self.state.compression.is_on()
    }

    fn server_takes_nothing(&self) -> bool {
        self.state.server_takes_nothing
    }

    fn meter(&self) -> &TransferMeter {
        &self.state.meter
    }

    fn meter_mut(&mut self) -> &mut TransferMeter {
        &mut self.state.meter
    }

    fn state(&self) -> &ExchangeState {
        self.state.progress()
    }

    fn count_compression(&mut self, client: &ClientStream, record: &mut RequestRecord) {
        self.state.compression.count(client, record);
    }

    fn waiting_for_client(&self) -> u64 {
        (self.state.to_client.left() + self.state.down.left()) as u64
    }

    fn has_unread_socket(&self) -> bool {
        !self.state.reads_client || !self.state.reads_server
    }

    fn unread_end(&self) -> Option<TransferEnd> {
        Transfer::unread_end(self)
    }
}

#[cfg(test)]
mod tests;
