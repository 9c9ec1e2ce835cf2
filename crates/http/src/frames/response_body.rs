//! Body of a response between its server and its client: compressed if the client and the rules
//! allow it, and stored while the client has no room.

use std::task::{Context, Poll, ready};
use std::{io, mem};

use bytes::Bytes;
use convey_compression::EncoderFault;
use convey_http_core::{Frame, Trailers};

use super::client::FrameClient;
use crate::compress::Compression;
use crate::data_queue::{DataQueue, FRAME};
use crate::held_responses::{ALWAYS_HELD, HeldResponse, MAX_HELD, WaitingClient};
use crate::hooks::Hooks;
use crate::transfer::TransferEnd;

/// Frames that the client has not accepted yet.
#[derive(Debug, Default)]
pub(crate) struct WaitingFrames {
    data: DataQueue,
    last: LastFrame,
    /// Place in the memory budget. With a place, more than [`ALWAYS_HELD`] bytes may wait.
    place: Option<HeldResponse>,
}

/// Last frame of a body.
#[derive(Debug, Default)]
enum LastFrame {
    /// The server has not sent it.
    #[default]
    Missing,
    End,
    Trailers(Trailers),
    /// The client has accepted it.
    Sent,
}

/// Body of a response, and how it is compressed.
#[derive(Debug)]
pub(crate) struct ResponseBody<'a> {
    pub(super) waiting: WaitingFrames,
    pub(crate) compression: Compression,
    /// Output of the encoder.
    encoded: Vec<u8>,
    /// Hooks of the embedding application that follow the request.
    pub(super) hooks: &'a mut Hooks,
}

impl WaitingFrames {
    /// Number of bytes of data.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether the client has accepted all frames of the body.
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.last, LastFrame::Sent)
    }

    /// Whether the server has sent the last frame.
    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.last, LastFrame::Missing)
    }

    /// Notes that the response has no body, and that its head was sent as the end of the stream.
    pub(super) fn end_with_head(&mut self) {
        self.last = LastFrame::Sent;
    }

    /// Number of further bytes that may wait for this client.
    pub(super) fn room(&mut self, client: WaitingClient<'_>) -> usize {
        if self.len() >= ALWAYS_HELD && self.place.is_none() {
            self.place = client.take_place();
        }
        let most = if self.place.is_some() { MAX_HELD } else { ALWAYS_HELD };
        most.saturating_sub(self.len())
    }

    /// Sends the frames, as far as the client accepts them. Adds the number of accepted bytes to
    /// `sent`.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut FrameClient<'_>,
        sent: &mut u64,
    ) -> Poll<io::Result<()>> {
        ready!(client.poll_flush(cx))?;
        while !self.data.is_empty() {
            let room = ready!(client.poll_room(cx, self.data.len().min(FRAME)))?;
            let Some(data) = self.data.take(room) else { break };
            *sent += data.len() as u64;
            let is_last = self.data.is_empty() && matches!(self.last, LastFrame::End);
            client.send_data(data, is_last)?;
            if is_last {
                self.last = LastFrame::Sent;
            }
            ready!(client.poll_flush(cx))?;
        }
        match &self.last {
            LastFrame::Missing | LastFrame::Sent => return Poll::Ready(Ok(())),
            LastFrame::End => client.send_data(Bytes::new(), true)?,
            LastFrame::Trailers(trailers) => client.send_trailers(trailers)?,
        }
        (self.last, self.place) = (LastFrame::Sent, None);
        client.poll_flush(cx)
    }
}

/// Receiver of the data of a response, during a read from its server.
pub(super) struct BodyReceiver<'r, 'a> {
    pub(super) body: &'r mut ResponseBody<'a>,
    pub(super) client: &'r mut FrameClient<'a>,
    /// Number of bytes that the client has accepted.
    pub(super) sent: &'r mut u64,
}

impl BodyReceiver<'_, '_> {
    /// Sends a copy of data to the client's stream, or stores the part that the client does not
    /// accept now.
    ///
    /// # Errors
    /// The client's stream is over, or the encoder has failed.
    pub(super) fn put_copy(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Result<(), TransferEnd> {
        let is_direct = self.body.waiting.len() == 0 && !self.body.compression.is_on();
        if !is_direct {
            return Ok(self.body.put_copy(data)?);
        }
        self.body.hooks.response_data(data);
        let sent = self.client.send_copy(cx, data).map_err(|_| TransferEnd::ClientGone)?;
        *self.sent += sent as u64;
        self.body.waiting.data.put_copy(&data[sent..]);
        Ok(())
    }

    /// Stores a frame for the client.
    ///
    /// # Errors
    /// The encoder has failed.
    pub(super) fn put_frame(&mut self, frame: Frame<Bytes>) -> Result<(), EncoderFault> {
        self.body.put_frame(frame)
    }
}

impl<'a> ResponseBody<'a> {
    /// Creates a body of which no frame has arrived.
    pub(super) fn new(hooks: &'a mut Hooks) -> ResponseBody<'a> {
        let (waiting, compression) = Default::default();
        ResponseBody { waiting, compression, encoded: Vec::new(), hooks }
    }

    /// Appends a copy of data.
    ///
    /// # Errors
    /// The encoder has failed.
    pub(super) fn put_copy(&mut self, data: &[u8]) -> Result<(), EncoderFault> {
        self.hooks.response_data(data);
        if !self.compression.is_on() {
            self.waiting.data.put_copy(data);
            return Ok(());
        }
        self.compression.write(data, &mut self.encoded)?;
        self.take_encoded();
        Ok(())
    }

    /// Appends data.
    ///
    /// # Errors
    /// The encoder has failed.
    pub(super) fn put(&mut self, data: Bytes) -> Result<(), EncoderFault> {
        if self.compression.is_on() {
            return self.put_copy(&data);
        }
        self.hooks.response_data(&data);
        self.waiting.data.put(data);
        Ok(())
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The encoder has failed.
    pub(super) fn put_frame(&mut self, frame: Frame<Bytes>) -> Result<(), EncoderFault> {
        let last = match frame {
            Frame::Data(data) => return self.put(data),
            Frame::End => {
                self.hooks.response_end(None);
                LastFrame::End
            }
            Frame::Trailers(trailers) => {
                self.hooks.response_end(Some(&trailers));
                LastFrame::Trailers(trailers)
            }
        };
        self.compression.finish(&mut self.encoded)?;
        self.take_encoded();
        self.waiting.last = last;
        Ok(())
    }

    /// Appends all output that the client needs to decode the data so far. Returns whether there
    /// was such output.
    ///
    /// # Errors
    /// The encoder has failed.
    pub(super) fn flush(&mut self) -> Result<bool, EncoderFault> {
        let has_output = self.compression.flush(&mut self.encoded)?;
        self.take_encoded();
        Ok(has_output)
    }

    fn take_encoded(&mut self) {
        if !self.encoded.is_empty() {
            self.waiting.data.put(Bytes::from(mem::take(&mut self.encoded)));
        }
    }
}
