//! Sends a file to its client, and compresses it on the way.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use convey_compression::EncoderFault;
use convey_files::beneath::{self, DiskWait};
use convey_snapshot::stats::Counter;
use convey_stream::More;
use tokio::task::yield_now;

use super::reply::{Pieces, ReplyPiece};
use super::send::{AHEAD, Sending, has_in_memory, part, read_ahead};
use super::store::{FileContent, LoadedFile};
use crate::buffer;
use crate::compress::{Compression, PIECE};

/// Threshold in bytes: once this much compressed output is ready, convey writes it before it
/// compresses more.
const WRITTEN: usize = 8 * 1024;

impl Sending<'_, '_> {
    /// Sends the whole response, compressed. `out` contains the response head.
    ///
    /// # Errors
    /// Returns the reason why the connection is over.
    pub(super) async fn send_compressed(
        mut self,
        mut out: Vec<u8>,
        pieces: Pieces,
        file: Option<&LoadedFile>,
        compression: &mut Compression,
    ) -> Result<(), Counter> {
        self.time_limit.renew(self.stall.bound());
        let content = file.map(|file| &file.content);
        for piece in pieces {
            match (&piece, content) {
                (ReplyPiece::Bytes(bytes), _) => self.compress(bytes, compression, &mut out).await?,
                (ReplyPiece::OfFile(range), Some(FileContent::Small(content))) => {
                    let part = part(content, range).ok_or(Counter::FileChanged)?;
                    self.compress(part, compression, &mut out).await?;
                }
                (ReplyPiece::OfFile(range), Some(FileContent::Open(opened))) => {
                    self.compress_range(opened, range.clone(), compression, &mut out).await?;
                }
                (ReplyPiece::Page(page), _) => {
                    let mut page = page.clone();
                    while let Some(part) = page.next().await? {
                        self.compress(part.as_bytes(), compression, &mut out).await?;
                    }
                }
                (ReplyPiece::OfFile(_), None) => return Err(Counter::FileChanged),
            }
        }
        let begin = out.len();
        compression.finish(&mut out).map_err(failed)?;
        self.encoder.enclose(&mut out, begin);
        self.encoder.end(None, &mut out);
        self.write(&out, &[], More::No).await?;
        self.end()
    }

    /// Compresses bytes in memory.
    async fn compress(
        &mut self,
        bytes: &[u8],
        compression: &mut Compression,
        out: &mut Vec<u8>,
    ) -> Result<(), Counter> {
        for piece in bytes.chunks(PIECE) {
            let begin = out.len();
            compression.write(piece, out).map_err(failed)?;
            self.encoder.enclose(out, begin);
            self.write_some(out).await?;
        }
        Ok(())
    }

    /// Compresses a part of an open file.
    async fn compress_range(
        &mut self,
        file: &Arc<OwnedFd>,
        range: Range<u64>,
        compression: &mut Compression,
        out: &mut Vec<u8>,
    ) -> Result<(), Counter> {
        let (mut at, mut in_memory_to) = (range.start, range.start);
        while at < range.end {
            if at >= in_memory_to {
                in_memory_to = range.end.min(at + AHEAD);
                if !has_in_memory(file, at..in_memory_to) {
                    read_ahead(file.clone(), at..in_memory_to).await?;
                }
            }
            let most = usize::try_from(in_memory_to - at).unwrap_or(PIECE).min(PIECE);
            let begin = out.len();
            at += buffer::with(|buffer| {
                // The part is in the page cache, or was a moment ago.
                match beneath::read_at(file, &mut buffer[..most], at, DiskWait::Allowed) {
                    // The file has become shorter.
                    Ok(0) | Err(_) => Err(Counter::FileChanged),
                    Ok(read) => compression.write(&buffer[..read], out).map(|()| read as u64).map_err(failed),
                }
            })?;
            self.encoder.enclose(out, begin);
            self.write_some(out).await?;
        }
        Ok(())
    }

    /// Writes the output once it has `WRITTEN` bytes. Gives other connections a turn, even if it
    /// writes nothing.
    async fn write_some(&mut self, out: &mut Vec<u8>) -> Result<(), Counter> {
        if out.len() >= WRITTEN {
            self.write(out, &[], More::Data).await?;
            out.clear();
        }
        yield_now().await;
        Ok(())
    }
}

fn failed(_: EncoderFault) -> Counter {
    Counter::CompressionFailed
}
