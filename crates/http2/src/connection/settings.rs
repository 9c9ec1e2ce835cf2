//! Settings of both sides (RFC 9113, section 6.5).

use super::ClientConnection;
use crate::frame::{ErrorCode, SETTINGS, put_frame};
use crate::limits::{ConnectionLimits, HEAD_ROOM};
use crate::windows::MAX_WINDOW;

/// Length of a setting in bytes.
const LEN: usize = 6;

/// Names of settings.
const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// Bounds of `SETTINGS_MAX_FRAME_SIZE`.
const FRAME_SIZES: std::ops::RangeInclusive<u32> = 16_384..=16_777_215;

/// Appends convey's settings.
pub(super) fn put(limits: &ConnectionLimits, out: &mut Vec<u8>) {
    let settings = [
        (MAX_CONCURRENT_STREAMS, limits.streams),
        (INITIAL_WINDOW_SIZE, limits.stream_window),
        (MAX_HEADER_LIST_SIZE, (limits.head.bytes + HEAD_ROOM) as u32),
        (ENABLE_CONNECT_PROTOCOL, 1),
    ];
    let mut payload = [0; 4 * LEN];
    for (at, (name, value)) in payload.chunks_exact_mut(LEN).zip(settings) {
        at[..2].copy_from_slice(&name.to_be_bytes());
        at[2..].copy_from_slice(&value.to_be_bytes());
    }
    put_frame(SETTINGS, 0, 0, &payload, out);
}

/// Initial windows of streams in one SETTINGS frame.
#[derive(Debug, Clone, Copy)]
struct InitialWindow {
    last: i64,
    largest: i64,
}

impl ClientConnection {
    /// Applies the client's settings.
    pub(super) fn apply_settings(&mut self, payload: &[u8]) -> Result<(), ErrorCode> {
        if !payload.len().is_multiple_of(LEN) {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        // The last window applies. A change of the window reads all streams, so a frame causes only
        // one change.
        let mut window: Option<InitialWindow> = None;
        for setting in payload.chunks_exact(LEN) {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match name {
                HEADER_TABLE_SIZE => self.encoder.resize(value),
                INITIAL_WINDOW_SIZE => {
                    let largest = window.map_or(0, |window| window.largest).max(value.into());
                    window = Some(InitialWindow { last: value.into(), largest });
                }
                ENABLE_PUSH | ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(ErrorCode::PROTOCOL_ERROR),
                MAX_FRAME_SIZE if !FRAME_SIZES.contains(&value) => return Err(ErrorCode::PROTOCOL_ERROR),
                _ => {}
            }
        }
        window.map_or(Ok(()), |window| self.set_initial_window(window))
    }

    /// Changes the send windows of all streams.
    fn set_initial_window(&mut self, window: InitialWindow) -> Result<(), ErrorCode> {
        if window.largest + self.streams.largest_send_delta().max(0) > MAX_WINDOW {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        }
        if window.last > self.initial_window {
            self.streams.wake_all();
        }
        self.initial_window = window.last;
        Ok(())
    }
}
