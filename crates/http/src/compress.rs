//! Compression of a response's body on its way to the client: an encoder within the worker's memory
//! budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_compression::{Encoder, EncoderFault};
use convey_http_core::{CompressionOffer, CompressionOutcome, ContentCoding, OutgoingResponse};
use convey_proxy::ClientStream;
use convey_snapshot::HttpRoute;
use convey_snapshot::stats::Counter;

use crate::record::RequestRecord;
use crate::request::HttpRequest;

/// Memory limit of a worker's encoders, in bytes.
const BUDGET: usize = 128 << 20;

/// Part of `BUDGET`, in bytes, that is reserved for gzip. gzip is the fallback if the rest is used
/// up: most clients accept it, and its encoders need the least memory.
const FOR_GZIP: usize = BUDGET / 4;

/// Maximum number of bytes that are compressed in one turn, which takes at most a millisecond.
pub(crate) const PIECE: usize = 16 * 1024;

/// Memory budget of a worker for encoders.
#[derive(Debug, Default)]
pub(crate) struct EncoderMemory {
    /// Memory of the encoders in use, in bytes.
    in_use: AtomicUsize,
}

/// What a route and its client allow for the compression of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompressionTerms<'a> {
    offer: CompressionOffer<'a>,
    memory: &'a Arc<EncoderMemory>,
}

/// Compression of the response to a request. It takes memory only for responses that are compressed,
/// or would be.
#[derive(Debug, Default)]
pub(crate) struct Compression(Option<Box<CompressionWork>>);

#[derive(Debug, Default)]
struct CompressionWork {
    /// Encoder of the body; `None` if no body is being compressed.
    compressor: Option<Compressor>,
    tally: CompressionTally,
}

/// Compression statistics that are not yet added to the counters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct CompressionTally {
    /// Coding of a response whose compression has begun.
    begun: Option<ContentCoding>,
    /// Whether a response is uncompressed for lack of memory.
    had_no_room: bool,
    /// Bytes before and after compression.
    bytes: (u64, u64),
}

#[derive(Debug)]
struct Compressor {
    encoder: Encoder,
    _charge: MemoryCharge,
}

/// Memory taken from the budget. Dropping it returns the memory.
#[derive(Debug)]
struct MemoryCharge {
    bytes: usize,
    memory: Arc<EncoderMemory>,
}

impl<'a> CompressionTerms<'a> {
    /// Returns the terms by the rules of the request's route; `None` if the route does not compress.
    pub(crate) fn of(
        client: &ClientStream,
        request: &'a HttpRequest,
        route: &'a HttpRoute,
        memory: &'a Arc<EncoderMemory>,
    ) -> Option<CompressionTerms<'a>> {
        let rules = route.compression.as_ref()?;
        let has_certificate = client.tls().is_some_and(|tls| !tls.client_subject.is_empty());
        Some(CompressionTerms::new(CompressionOffer::new(rules, request.head(), has_certificate), memory))
    }

    /// Returns the terms of this offer, with encoders that use this memory.
    pub(crate) fn new(offer: CompressionOffer<'a>, memory: &'a Arc<EncoderMemory>) -> CompressionTerms<'a> {
        CompressionTerms { offer, memory }
    }
}

impl Compression {
    /// Decides by these terms whether to compress a response, changes its head accordingly, and
    /// creates the encoder.
    pub(crate) fn decide(
        &mut self,
        terms: Option<CompressionTerms<'_>>,
        response: &mut OutgoingResponse<'_>,
    ) {
        let Some(CompressionTerms { offer, memory }) = terms else { return };
        let mut compressor = None;
        let outcome = offer.decide(response, |coding, len| {
            compressor = Compressor::new(coding, len, memory);
            compressor.is_some()
        });
        let tally = match outcome {
            CompressionOutcome::AsItIs => return,
            CompressionOutcome::NoRoom => {
                CompressionTally { had_no_room: true, ..CompressionTally::default() }
            }
            CompressionOutcome::Compressed(coding) => {
                CompressionTally { begun: Some(coding), ..CompressionTally::default() }
            }
        };
        self.0 = Some(Box::new(CompressionWork { compressor, tally }));
    }

    /// Whether a body is being compressed.
    pub(crate) fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|work| work.compressor.is_some())
    }

    /// Compresses some of the body, and appends the encoder's output to `out`.
    pub(crate) fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        let work = self.0.as_mut().ok_or(EncoderFault)?;
        work.tally.bytes.0 += bytes.len() as u64;
        work.encode(out, |encoder, out| encoder.write(bytes, out))
    }

    /// Appends all output that the client needs to decode the bytes so far. Returns whether there
    /// was such output.
    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) -> Result<bool, EncoderFault> {
        let Some(work) = &mut self.0 else { return Ok(false) };
        if !work.compressor.as_ref().is_some_and(|compressor| compressor.encoder.has_unflushed()) {
            return Ok(false);
        }
        let before = out.len();
        work.encode(out, Encoder::flush)?;
        Ok(out.len() > before)
    }

    /// Appends the last output of the encoder, and frees its memory. Does nothing without an
    /// encoder.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        if let Some(work) = self.0.as_mut().filter(|work| work.compressor.is_some()) {
            work.encode(out, Encoder::finish)?;
            work.compressor = None;
        }
        Ok(())
    }

    /// Adds the statistics since the last call to the counters.
    pub(crate) fn count(&mut self, client: &ClientStream, record: &mut RequestRecord) {
        let Some(tally) = self.take_tally() else { return };
        tally.count(|counter, n| client.count(counter, n));
        if let Some(coding) = tally.begun {
            record.is_compressed(coding);
        }
    }

    /// Takes the statistics since the last call; `None` if there are none.
    fn take_tally(&mut self) -> Option<CompressionTally> {
        let tally = std::mem::take(&mut self.0.as_mut()?.tally);
        (tally != CompressionTally::default()).then_some(tally)
    }
}

impl CompressionWork {
    /// Appends the encoder's output.
    fn encode(
        &mut self,
        out: &mut Vec<u8>,
        encode: impl FnOnce(&mut Encoder, &mut Vec<u8>) -> Result<(), EncoderFault>,
    ) -> Result<(), EncoderFault> {
        let Some(compressor) = &mut self.compressor else { return Err(EncoderFault) };
        let before = out.len();
        encode(&mut compressor.encoder, out)?;
        self.tally.bytes.1 += (out.len() - before) as u64;
        Ok(())
    }
}

impl CompressionTally {
    /// Calls `add` with each counter and the number to add.
    fn count(&self, mut add: impl FnMut(Counter, u64)) {
        if let Some(coding) = self.begun {
            add(counter_of(coding), 1);
        }
        if self.had_no_room {
            add(Counter::CompressionNoRoom, 1);
        }
        add(Counter::CompressionBytesIn, self.bytes.0);
        add(Counter::CompressionBytesOut, self.bytes.1);
    }
}

impl Compressor {
    /// Creates an encoder for a body of `len` bytes, or of unknown length. Returns `None` if the
    /// budget has too little memory left.
    fn new(coding: ContentCoding, len: Option<u64>, memory: &Arc<EncoderMemory>) -> Option<Compressor> {
        let budget = if coding == ContentCoding::Gzip { BUDGET } else { BUDGET - FOR_GZIP };
        let charge = memory.charge(Encoder::memory(coding), budget)?;
        Some(Compressor { encoder: Encoder::new(coding, len).ok()?, _charge: charge })
    }
}

impl EncoderMemory {
    /// Charges these bytes to the budget; `None` if the memory of all encoders would exceed `most`.
    fn charge(self: &Arc<EncoderMemory>, bytes: usize, most: usize) -> Option<MemoryCharge> {
        let add = |in_use: usize| Some(in_use + bytes).filter(|sum| *sum <= most);
        self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(MemoryCharge { bytes, memory: self.clone() })
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.memory.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn counter_of(coding: ContentCoding) -> Counter {
    match coding {
        ContentCoding::Zstd => Counter::CompressedZstd,
        ContentCoding::Brotli => Counter::CompressedBrotli,
        ContentCoding::Gzip => Counter::CompressedGzip,
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use convey_http_core::{
        BodyFraming, CompressionRules, FieldRules, HeadLimits, HeadReader, RequestHead, ResponseBuilder,
    };

    use super::*;

    fn decide(terms: CompressionTerms<'_>) -> Compression {
        let mut compression = Compression::default();
        let mut head = ResponseBuilder::new(200);
        head.field("Content-Type", "text/plain");
        let (head, rules) = (head.build(BodyFraming::Chunked), FieldRules::default());
        compression.decide(Some(terms), &mut OutgoingResponse::new(&head, &rules));
        compression
    }

    /// Request with this `Accept-Encoding`.
    fn request(encodings: &str) -> RequestHead {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {encodings}\r\n\r\n");
        let head = HeadReader::default().request(&mut BytesMut::from(&*head), &HeadLimits::default());
        head.unwrap().unwrap()
    }

    #[test]
    fn memory_of_an_encoder_is_freed_with_the_end_of_its_body() {
        let (rules, request) = (CompressionRules::default(), request("gzip"));
        let memory = Arc::<EncoderMemory>::default();
        let in_use = || memory.in_use.load(Ordering::Relaxed);
        let terms = CompressionTerms::new(CompressionOffer::new(&rules, &request, false), &memory);
        let (mut out, mut compression) = (Vec::new(), decide(terms));
        assert!(compression.is_on() && in_use() == Encoder::memory(ContentCoding::Gzip));
        assert_eq!(compression.flush(&mut out), Ok(false), "nothing was written");
        compression.write(b"so much", &mut out).unwrap();
        assert_eq!(compression.flush(&mut out), Ok(true));
        assert_eq!(compression.flush(&mut out), Ok(false), "the client has it all");
        compression.finish(&mut out).unwrap();
        compression.finish(&mut out).unwrap();
        assert!(!compression.is_on() && in_use() == 0);
        let mut counted = Vec::new();
        compression.take_tally().unwrap().count(|counter, n| counted.push((counter, n)));
        let expected = [
            (Counter::CompressedGzip, 1),
            (Counter::CompressionBytesIn, 7),
            (Counter::CompressionBytesOut, out.len() as u64),
        ];
        assert_eq!((&counted[..], compression.take_tally()), (&expected[..], None));
    }

    #[test]
    fn beyond_the_budget_a_cheaper_coding_is_taken_and_then_none() {
        let (rules, request) = (CompressionRules::default(), request("zstd, gzip"));
        let memory = Arc::<EncoderMemory>::default();
        let in_use = || memory.in_use.load(Ordering::Relaxed);
        let terms = CompressionTerms::new(CompressionOffer::new(&rules, &request, false), &memory);
        let mut all = Vec::new();
        let outcome = loop {
            let mut compression = decide(terms);
            let tally = compression.take_tally().unwrap();
            if tally.had_no_room {
                break compression;
            }
            all.push((compression, tally.begun));
        };
        assert!(!outcome.is_on());
        let of = |coding| all.iter().filter(|(_, begun)| *begun == Some(coding)).count();
        let (zstd, gzip) = (of(ContentCoding::Zstd), of(ContentCoding::Gzip));
        assert_eq!(zstd, (BUDGET - FOR_GZIP) / Encoder::memory(ContentCoding::Zstd));
        assert!(gzip >= FOR_GZIP / Encoder::memory(ContentCoding::Gzip), "{zstd} {gzip}");
        assert!(in_use() <= BUDGET);
        drop(all);
        let compression = decide(terms);
        assert!(compression.is_on(), "there is room again");
        drop(compression);
        assert_eq!(in_use(), 0);
    }
}
