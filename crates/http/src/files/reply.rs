//! Response to a request for a file: status, fields, and the parts of the file that follow.

use std::ops::Range;

use bytes::Bytes;
use convey_files::{Condition, MultipartBody, RangeSelection};
use convey_http_core::{
    BodyFraming, ClientConnection, HttpMethod, RequestHead, ResponseBuilder, ResponseHead,
};
use smallvec::{SmallVec, smallvec};

use super::date;
use super::directory_page::{DirectoryPage, PageInParts};
use super::find::{Found, FoundContent};
use super::store::LoadedFile;
use crate::local_reply::{LocalReply, LocalReplyReason};

/// A response with a file.
pub(super) struct Reply {
    pub(super) head: ResponseHead,
    pub(super) pieces: Pieces,
    /// State of the client's connection after the response.
    pub(super) connection: ClientConnection,
}

/// Parts of a body; most bodies have one.
pub(super) type Pieces = SmallVec<[ReplyPiece; 1]>;

/// Part of a response's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplyPiece {
    Bytes(Bytes),
    OfFile(Range<u64>),
    /// The page is the only piece of its body.
    Page(PageInParts),
}

/// Context of a response with a file.
pub(super) struct ReplyTo<'a> {
    pub(super) head: &'a RequestHead,
    /// 200, or 404 for the operator's "not found" page, which is sent whole, without conditions.
    pub(super) status: u16,
    /// Whether the client's connection may stay open.
    pub(super) client_stays: bool,
}

/// Selected parts of a file.
struct Parts {
    status: u16,
    pieces: Pieces,
    /// Framing of the body. A page in parts is `UntilClose` for a client of HTTP/1.0, which has no
    /// chunks.
    framing: BodyFraming,
    content_range: Option<String>,
    /// Content type that replaces the file's own.
    content_type: Option<String>,
}

impl Reply {
    /// Builds the response with this file or page. An error is the local reply that convey sends
    /// instead.
    pub(super) fn of(found: &Found, to: &ReplyTo<'_>) -> Result<Reply, LocalReply> {
        let parts = match &found.content {
            FoundContent::Page(DirectoryPage::Whole(page)) => Parts {
                pieces: smallvec![ReplyPiece::Bytes(page.clone())],
                ..Parts::none(200, page.len() as u64)
            },
            FoundContent::Page(DirectoryPage::InParts(page)) => Parts {
                pieces: smallvec![ReplyPiece::Page(page.clone())],
                framing: if to.head.is_http11() { BodyFraming::Chunked } else { BodyFraming::UntilClose },
                ..Parts::none(200, 0)
            },
            FoundContent::File(file) if to.status == 200 => parts_of(file, found, to.head)?,
            FoundContent::File(file) => Parts::whole(to.status, file.len),
        };
        let connection = match to.client_stays && parts.framing != BodyFraming::UntilClose {
            true if to.head.is_http11() => ClientConnection::Stays,
            true => ClientConnection::StaysHttp10,
            false => ClientConnection::Closes,
        };
        let head = head_of(found, &parts);
        let is_head = to.head.method() == HttpMethod::Head;
        let pieces = if is_head { Pieces::new() } else { parts.pieces };
        Ok(Reply { head, pieces, connection })
    }
}

impl Parts {
    fn none(status: u16, len: u64) -> Parts {
        let framing = BodyFraming::Length(len);
        Parts { status, pieces: Pieces::new(), framing, content_range: None, content_type: None }
    }

    fn whole(status: u16, len: u64) -> Parts {
        let pieces = if len > 0 { smallvec![ReplyPiece::OfFile(0..len)] } else { Pieces::new() };
        Parts { pieces, ..Parts::none(status, len) }
    }
}

/// Selects parts of a file by the conditions and ranges of the request.
fn parts_of(file: &LoadedFile, found: &Found, head: &RequestHead) -> Result<Parts, LocalReply> {
    match file.validators.evaluate(head) {
        Condition::Fails => return Err(LocalReplyReason::FilePrecondition.into()),
        Condition::NotModified => return Ok(Parts::none(304, 0)),
        Condition::Holds => {}
    }
    let len = file.len;
    // `Range` has no effect on a HEAD request (RFC 9110, section 14.2).
    let range = head.field("range").filter(|_| head.method() == HttpMethod::Get);
    let Some(range) = range.filter(|_| file.validators.may_have_range(head)) else {
        return Ok(Parts::whole(200, len));
    };
    match RangeSelection::of(range, len) {
        RangeSelection::Whole => Ok(Parts::whole(200, len)),
        RangeSelection::Unsatisfiable => {
            let mut answer = LocalReply::from(LocalReplyReason::FileRange);
            let _ = answer.set_field("Content-Range", &format!("bytes */{len}"));
            Err(answer)
        }
        RangeSelection::One(range) => Ok(Parts {
            content_range: Some(format!("bytes {}-{}/{len}", range.start, range.end - 1)),
            pieces: smallvec![ReplyPiece::OfFile(range.clone())],
            ..Parts::none(206, range.end - range.start)
        }),
        RangeSelection::Many(ranges) => {
            let boundary = format!("{:032x}", u128::from_ne_bytes(convey_random::secret()));
            let body = MultipartBody::new(&ranges, found.content_type, len, &boundary);
            let of_part = |part: convey_files::PartOfFile| {
                [ReplyPiece::Bytes(part.before.into()), ReplyPiece::OfFile(part.range)]
            };
            let mut pieces: Pieces = body.parts.into_iter().flat_map(of_part).collect();
            pieces.push(ReplyPiece::Bytes(body.end.into()));
            let content_type = Some(format!("multipart/byteranges; boundary={boundary}"));
            Ok(Parts { pieces, content_type, ..Parts::none(206, body.len) })
        }
    }
}

/// Adds `Date` and the validators of the file. A page that is sent with 404 has no validators.
fn add_validators(head: &mut ResponseBuilder, file: Option<&LoadedFile>, status: u16) {
    date::with_present(|present, text| {
        head.field("Date", text);
        let Some(file) = file.filter(|_| status != 404) else { return };
        head.field("ETag", &file.validators.etag);
        // A time in the future is invalid (RFC 9110, section 8.8.2.1).
        if file.validators.modified <= present && status != 304 {
            head.field("Last-Modified", &file.last_modified);
        }
    });
}

fn head_of(found: &Found, parts: &Parts) -> ResponseHead {
    let mut head = ResponseBuilder::new(parts.status);
    let is_of_file = found.file().is_some() && parts.status != 404;
    head.field("Server", "convey");
    add_validators(&mut head, found.file().map(|file| &**file), parts.status);
    if parts.status != 304 {
        head.field("Content-Type", parts.content_type.as_deref().unwrap_or(found.content_type));
        if let BodyFraming::Length(len) = parts.framing {
            head.field("Content-Length", itoa::Buffer::new().format(len));
        }
        if let Some(form) = found.form {
            head.field("Content-Encoding", form.name());
        }
        if is_of_file {
            head.field("Accept-Ranges", "bytes");
        }
    }
    if let Some(range) = &parts.content_range {
        head.field("Content-Range", range);
    }
    if found.varies {
        head.field("Vary", "Accept-Encoding");
    }
    match &found.cache_control {
        _ if !is_of_file => head.field("Cache-Control", "no-store"),
        Some(value) => head.field("Cache-Control", value),
        None => &mut head,
    };
    head.build(parts.framing)
}
