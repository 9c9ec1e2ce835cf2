//! Direction of a [`FrameTransfer`] to the server: the request.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::{Frame, Malformed};

use super::{FrameClient, FrameServer, FrameTransfer, Step};
use crate::transfer::{TransferEnd, client_broke};

/// Maximum number of frames that are moved in one turn.
const FRAMES: usize = 16;

impl FrameTransfer<'_> {
    /// Moves frames towards the server.
    pub(super) fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        (self.meter.awaits_client, self.reads_client) = (false, false);
        let has_moved = self.move_frames(cx)?;
        if let FrameClient::Http1(client) = &mut self.client {
            self.meter.moved.0 += client.take_read();
        }
        let is_flushed = self.server_takes_nothing
            || match self.server.poll_flush(cx) {
                Poll::Ready(Ok(())) => true,
                Poll::Pending => false,
                // The server may have responded before. Its response still arrives.
                Poll::Ready(Err(_)) => {
                    self.server_takes_nothing = true;
                    true
                }
            };
        if has_moved {
            return Poll::Ready(Ok(Step::Moved));
        }
        if !is_flushed {
            return Poll::Pending;
        }
        if self.is_up_over {
            return self.poll_ahead(cx);
        }
        self.meter.awaits_client = self.reads_client && !self.state.has_changed();
        Poll::Pending
    }

    /// Moves available frames, as far as the server has room. Returns whether a frame was moved.
    fn move_frames(&mut self, cx: &mut Context<'_>) -> Result<bool, TransferEnd> {
        for moved in 0..FRAMES {
            if self.is_up_over {
                return Ok(moved > 0);
            }
            let frame = match self.poll_next(cx) {
                Poll::Pending => {
                    self.reads_client = true;
                    return Ok(moved > 0);
                }
                Poll::Ready(frame) => frame?,
            };
            if self.pass_frame(cx, frame)?.is_pending() {
                return Ok(moved > 0);
            }
        }
        Ok(true)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame<Bytes>, TransferEnd>> {
        match self.next.take() {
            Some(frame) => Poll::Ready(Ok(frame)),
            None => self.poll_client(cx),
        }
    }

    /// Receives and counts the next frame of the client.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame<Bytes>, TransferEnd>> {
        let frame = ready!(self.client.poll_frame(cx)).map_err(|error| client_broke(&error))?;
        let hooks = &mut *self.body.hooks;
        match &frame {
            Frame::Data(data) => {
                hooks.request_data(data);
                self.count(data.len() as u64)?;
            }
            Frame::Trailers(trailers) => hooks.request_end(Some(trailers)),
            Frame::End => hooks.request_end(None),
        }
        Poll::Ready(Ok(frame))
    }

    /// Passes a frame to the server. `Pending`: the server has no room, so the frame waits.
    fn pass_frame(&mut self, cx: &mut Context<'_>, frame: Frame<Bytes>) -> Result<Poll<()>, TransferEnd> {
        let mut data = match frame {
            Frame::Data(data) => data,
            last => {
                self.pass_last(&last);
                return Ok(Poll::Ready(()));
            }
        };
        let room = match self.poll_server_room(cx, data.len()) {
            Poll::Ready(room) => room,
            Poll::Pending => {
                self.next = Some(Frame::Data(data));
                return Ok(Poll::Pending);
            }
        };
        let part = data.split_to(room.min(data.len()));
        self.state.note_sent_body();
        let is_last = data.is_empty() && self.is_last(cx)?;
        if !data.is_empty() {
            self.next = Some(Frame::Data(data));
        }
        let len = part.len();
        if !self.server_takes_nothing && self.server.send_data(part, is_last).is_err() {
            self.server_takes_nothing = true;
        }
        self.client.release(len);
        if is_last {
            self.end_request();
        }
        Ok(Poll::Ready(()))
    }

    /// Whether the body ends directly after the last received data, so that a stream to the server
    /// can end with this data. If the client has sent another frame instead, stores the frame in
    /// `next`. Always false for a server of HTTP/1.1.
    fn is_last(&mut self, cx: &mut Context<'_>) -> Result<bool, TransferEnd> {
        if let FrameServer::Http1(_) = self.server {
            return Ok(false);
        }
        match self.poll_client(cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(Frame::End)) => Ok(true),
            Poll::Ready(Ok(frame)) => {
                self.next = Some(frame);
                Ok(false)
            }
            Poll::Ready(Err(end)) => Err(end),
        }
    }

    fn pass_last(&mut self, last: &Frame<Bytes>) {
        if let (true, FrameServer::Http1(server)) = (self.state.has_changed(), &mut self.server) {
            server.close_with_end();
        }
        let sent = match last {
            _ if self.server_takes_nothing => Ok(()),
            Frame::Trailers(trailers) => self.server.send_trailers(trailers),
            Frame::Data(_) | Frame::End => self.server.send_data(Bytes::new(), true),
        };
        self.server_takes_nothing |= sent.is_err();
        self.end_request();
    }

    fn end_request(&mut self) {
        self.is_up_over = true;
        self.state.note_request_end();
    }

    fn poll_server_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<usize> {
        if self.server_takes_nothing {
            return Poll::Ready(most);
        }
        match ready!(self.server.poll_room(cx, most)) {
            Ok(room) => Poll::Ready(room),
            Err(_) => {
                self.server_takes_nothing = true;
                Poll::Ready(most)
            }
        }
    }

    /// Counts received data of the body.
    fn count(&mut self, len: u64) -> Result<(), TransferEnd> {
        if let Some(left) = self.body_left.as_mut().filter(|_| !self.state.has_changed()) {
            *left = left.checked_sub(len).ok_or(TransferEnd::ClientFault(Malformed::BodyTooLong))?;
        }
        self.meter.body += len;
        self.data_up += len;
        if self.meter.status.is_some() {
            self.client.forget_body();
        }
        Ok(())
    }

    /// Reads what a client of HTTP/1 sends after its request.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        let FrameClient::Http1(client) = &mut self.client else { return Poll::Ready(Ok(Step::Over)) };
        let ahead = client.poll_ahead(cx);
        self.meter.moved.0 += client.take_read();
        match ahead {
            Poll::Pending => {
                self.reads_client = true;
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(TransferEnd::ClientGone)),
            Poll::Ready(Ok(true)) => Poll::Ready(Ok(Step::Moved)),
            Poll::Ready(Ok(false)) => Poll::Ready(Ok(Step::Over)),
        }
    }
}
