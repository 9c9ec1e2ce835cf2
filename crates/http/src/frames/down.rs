//! Direction of a [`FrameTransfer`] to the client: the response.

use std::task::{Context, Poll, ready};

use convey_http_core::{FieldRules, HeadVerdict, OutgoingResponse, ResponseHead, ServerFault};

use super::response_body::BodyReceiver;
use super::{FrameTransfer, Step};
use crate::compress::PIECE;
use crate::data_queue::FRAME;
use crate::forward::RewrittenRequest;
use crate::held_responses::ALWAYS_HELD;
use crate::streams::websocket;
use crate::transfer::TransferEnd;

impl FrameTransfer<'_> {
    /// Moves frames towards the client.
    pub(super) fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        self.reads_server = false;
        let waited = self.body.waiting.len();
        let sent = self.body.waiting.poll_send(cx, &mut self.client, &mut self.meter.moved.1);
        self.server.release_accepted(self.body.waiting.len());
        if waited > 0 {
            self.takes_frames = sent.is_ready() && waited >= ALWAYS_HELD;
        }
        let is_behind = match sent {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(TransferEnd::ClientGone)),
            // The rest waits for the client, and needs no server.
            Poll::Pending if self.held_room().is_some() && self.body.waiting.has_ended() => {
                return Poll::Ready(Ok(Step::Over));
            }
            Poll::Pending => true,
        };
        if self.body.waiting.has_ended() {
            if is_behind {
                return Poll::Pending;
            }
            // The client of a tunnel learns that the server has ended its side, and may still send.
            if self.state.has_changed() {
                ready!(self.client.poll_finish(cx)).map_err(|_| TransferEnd::ClientGone)?;
            }
            return Poll::Ready(Ok(Step::Over));
        }
        if self.state.awaits_head() {
            return if is_behind { Poll::Pending } else { self.poll_head(cx) };
        }
        let room = match is_behind {
            true => self.held_room().unwrap_or(0),
            // The client's window is not reserved for data that may come late: other streams of its
            // connection would miss it. What the client has no window for has to fit without a
            // place in the memory budget.
            false if self.takes_frames || self.stream_of.is_none() => FRAME,
            false => ALWAYS_HELD,
        };
        if room == 0 {
            return Poll::Pending;
        }
        let most = if self.body.compression.is_on() { room.min(PIECE) } else { room };
        match self.poll_body(cx, most) {
            Poll::Ready(read) => Poll::Ready(read.map(|()| {
                if self.body.waiting.has_ended() {
                    self.state.note_response_end();
                }
                Step::Moved
            })),
            Poll::Pending => {
                self.reads_server = true;
                if !is_behind {
                    self.flush_stream(cx)?;
                }
                // The client gets all data that the encoder still has, because the server pauses.
                match !is_behind && self.body.flush()? {
                    true => Poll::Ready(Ok(Step::Moved)),
                    false => Poll::Pending,
                }
            }
        }
    }

    /// Receives about `most` bytes of the body. Sends them to the client's stream, or stores them.
    fn poll_body(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Result<(), TransferEnd>> {
        let mut sent = 0;
        let mut receiver = BodyReceiver { body: &mut self.body, client: &mut self.client, sent: &mut sent };
        let read = self.server.poll_body(cx, most, &mut receiver);
        self.meter.moved.1 += sent;
        if sent > 0 {
            self.takes_frames = self.body.waiting.len() == 0 && sent >= ALWAYS_HELD as u64;
        }
        read
    }

    /// Sends what the client's stream still has, while the server pauses.
    fn flush_stream(&mut self, cx: &mut Context<'_>) -> Result<(), TransferEnd> {
        match self.client.poll_flush_stream(cx) {
            Poll::Ready(Err(_)) => Err(TransferEnd::ClientGone),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Number of further bytes of the response that may wait for the client. `None`: no byte may
    /// wait, because the client uses no stream, the head is missing, or the protocol has changed.
    fn held_room(&mut self) -> Option<usize> {
        let may_wait = self.meter.status.is_some() && !self.state.has_changed();
        let client = self.stream_of.filter(|_| may_wait)?;
        Some(self.body.waiting.room(client))
    }

    /// Receives the next head, and sends it to the client.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        let head = self.server.poll_head(cx);
        if self.server.has_sent_bytes() {
            self.state.note_server_bytes();
        }
        let head = match head {
            Poll::Ready(head) => head?,
            Poll::Pending => {
                self.reads_server = true;
                self.flush_stream(cx)?;
                return Poll::Pending;
            }
        };
        match self.state.take_head(&head).map_err(TransferEnd::ServerFault)? {
            HeadVerdict::DropInterim => {}
            HeadVerdict::PassInterim => {
                let none = FieldRules::default();
                let sent = self.client.send_interim(&OutgoingResponse::new(&head, &none));
                sent.map_err(|_| TransferEnd::ClientGone)?;
            }
            HeadVerdict::Final if self.discards(&head) => {
                self.drop_response(cx, &head);
                return Poll::Ready(Err(TransferEnd::Discarded(head.status())));
            }
            HeadVerdict::Final => self.pass_head(&head)?,
        }
        Poll::Ready(Ok(Step::Moved))
    }

    /// Whether the response with this head is discarded, because another server gets the request.
    fn discards(&mut self, head: &ResponseHead) -> bool {
        let Some(retry) = &mut self.retry else { return false };
        let mut state = self.state.clone();
        if self.client.has_kept_body() {
            state.note_body_taken_back();
        }
        retry.discards(head.status(), &state)
    }

    /// Drops the part of a discarded response that has arrived. If that is the whole response, the
    /// connection can be used again.
    fn drop_response(&mut self, cx: &mut Context<'_>, head: &ResponseHead) {
        self.server.begin_body(head, false);
        if self.server.drop_arrived(cx) {
            self.state.note_response_end();
        }
    }

    /// Checks the response to a stream that asks for a tunnel.
    fn check_tunnel(&self, head: &ResponseHead) -> Result<(), TransferEnd> {
        let Some(key) = self.tunnel_key else { return Ok(()) };
        let fault = match head.status() {
            101 if !websocket::is_accepted(key, head) => ServerFault::WebSocketAccept,
            200..300 => ServerFault::NotSwitched,
            _ => return Ok(()),
        };
        Err(TransferEnd::ServerFault(fault))
    }

    fn pass_head(&mut self, head: &ResponseHead) -> Result<(), TransferEnd> {
        let has_changed = self.state.has_changed();
        self.check_tunnel(head)?;
        self.meter.status = Some(head.status());
        self.server.begin_body(head, has_changed);
        self.is_up_over &= !has_changed;
        let fields = self.body.hooks.edit(head, self.fields, false);
        let reversal = self.rewritten.as_ref().map(RewrittenRequest::reversal);
        let mut response = OutgoingResponse::new(head, &fields).reversed(reversal.as_ref());
        self.body.compression.decide(self.terms, &mut response);
        let is_over = self.state.is_response_whole();
        let connection = self.state.client_connection();
        let sent = self.client.send_head(&response, connection, is_over);
        self.state.note_answer();
        self.meter.moved.1 += sent.as_ref().map_or(0, |len| *len as u64);
        self.body.hooks.response_log.note(&response, response.head_len());
        if is_over {
            self.body.hooks.response_end(None);
            self.body.waiting.end_with_head();
        }
        sent.map(drop).map_err(|_| TransferEnd::ClientGone)
    }
}
