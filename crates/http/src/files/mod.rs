//! Static files: responses to requests for the files of a backend.
//!
//! - `find` finds the file of a request, in the form that the client accepts.
//! - `store` caches small files and descriptors of open files for each worker, and opens other
//!   files.
//! - `directory_page` makes the page of a directory, part by part.
//! - `disk` has the threads that wait for disks.
//! - `reply` builds the response head for a file: status, fields, parts.
//! - `send` sends the file to the client, `send_compressed` compresses it on the way.
//! - `date` formats times for HTTP.

mod date;
mod directory_page;
mod disk;
mod find;
mod reply;
mod send;
mod send_compressed;
mod store;

pub use disk::{MIN_DISK_THREADS, start_disk_threads};
pub(crate) use store::FileCache;

use std::io;
use std::sync::Arc;

use convey_files::FileName;
use convey_http_core::{
    AcceptedEncodings, BodyEncoder, BodyFraming, ClientConnection, HttpMethod, OutgoingResponse, RequestHead,
    rewritten_path,
};
use convey_model::FilesConfig;
use convey_snapshot::Pool;
use convey_snapshot::stats::Counter;

use self::find::{Found, Unfound};
use self::reply::{Reply, ReplyTo};
use self::send::Sending;
use self::store::FileUser;
use crate::compress::{Compression, CompressionTerms};
use crate::ends::ClientEnd;
use crate::forward::{ClientHasShare, Forwarding, RequestEnd, StallLimit};
use crate::local_reply::{LocalReply, LocalReplyReason};

/// Answers a request with a file of this pool.
pub(crate) async fn serve(
    request: &mut Forwarding<'_, '_>,
    pool: &Arc<Pool>,
    files: &FilesConfig,
) -> RequestEnd {
    let core = request.client.core();
    pool.live.traffic.add(core, Counter::Requests, 1);
    request.record.asks_for_file_of(&pool.live.name);
    let user = FileUser { cache: &request.worker.files, live: &pool.live, core };
    // An open file counts for its client's share, like a request at a server. It counts before it
    // is opened.
    let end = match request.hold() {
        Ok(held) => match find(request, user, files).await {
            Ok((found, status)) => {
                let _held = held.filter(|_| found.file().is_some_and(|file| file.is_open()));
                request.reply(found, status, pool).await
            }
            Err(answer) => RequestEnd::Unanswered(answer),
        },
        Err(ClientHasShare) => RequestEnd::Unanswered(LocalReplyReason::QueueTimeout.into()),
    };
    if let RequestEnd::Unanswered(answer) = &end {
        pool.live.traffic.add(core, Counter::of_status(answer.status()), 1);
    }
    end
}

/// Finds the file of a request and the status of its response. An error is the local reply in place
/// of the file.
async fn find(
    request: &Forwarding<'_, '_>,
    user: FileUser<'_>,
    files: &FilesConfig,
) -> Result<(Found, u16), LocalReply> {
    let (head, route) = (request.request.head(), request.route);
    if !matches!(head.method(), HttpMethod::Get | HttpMethod::Head) {
        let mut answer = LocalReply::from(LocalReplyReason::FileMethod);
        let _ = answer.set_field("Allow", "GET, HEAD");
        return Err(answer);
    }
    // If routes match paths as sent, a path with additional slashes would bypass the route of its
    // file.
    if let Some(path) = with_single_slashes(head.path()) {
        return Err(redirect(&path, query_of(head)));
    }
    let path = rewritten_path(head, route.rewrite.as_ref());
    let encodings = head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"accept-encoding"));
    let encodings = AcceptedEncodings::of(encodings.map(|field| field.value));
    let found = match FileName::of(&path, files.dot_files) {
        // Browsers resolve links of a page against the path that they requested.
        Ok(name) if name.is_directory() && !head.path().ends_with(b"/") => Err(Unfound::IsDirectory),
        Ok(name) => find::find(user, files, &name, &encodings).await,
        Err(_) => Err(Unfound::NotFound),
    };
    match found {
        Ok(found) => Ok((found, 200)),
        // The slash makes relative links on the page resolve below the directory.
        Err(Unfound::IsDirectory) => Err(redirect(&[head.path(), b"/"].concat(), query_of(head))),
        Err(Unfound::NotFound) => {
            let fallback = files.fallback.as_ref().map(|page| (page, 200));
            let Some((page, status)) = fallback.or(files.not_found.as_ref().map(|page| (page, 404))) else {
                return Err(LocalReplyReason::FileNotFound.into());
            };
            let found = find::of_name(user, files, page.as_bytes(), &encodings).await;
            found.map(|page| (page, status)).map_err(|_| LocalReplyReason::FileNotFound.into())
        }
        Err(Unfound::Forbidden) => Err(LocalReplyReason::FileForbidden.into()),
        Err(Unfound::Failed) => Err(LocalReplyReason::FileFailed.into()),
    }
}

/// Returns the path with single slashes; `None` if it has no slashes in a row.
fn with_single_slashes(path: &[u8]) -> Option<Vec<u8>> {
    if !path.windows(2).any(|pair| pair == b"//") {
        return None;
    }
    let mut single = path.to_vec();
    single.dedup_by(|next, last| *next == b'/' && *last == b'/');
    Some(single)
}

/// Query of a request, with its question mark.
fn query_of(head: &RequestHead) -> &[u8] {
    &head.path_and_query()[head.path().len()..]
}

/// Redirects to this path, which begins with one slash: after two slashes browsers would read a
/// host.
fn redirect(path: &[u8], query: &[u8]) -> LocalReply {
    let mut answer = LocalReply::from(LocalReplyReason::Redirect);
    let _ = answer.set_field("Location", &String::from_utf8_lossy(&[path, query].concat()));
    answer
}

impl ClientEnd<'_> {
    /// Sends the head of a response on a stream. For a connection of HTTP/1, returns the head's
    /// bytes, which are sent together with the body.
    fn send_head(&mut self, response: &OutgoingResponse<'_>, reply: &Reply) -> io::Result<Vec<u8>> {
        let mut written = Vec::new();
        match self {
            ClientEnd::Stream(stream) => _ = stream.send_head(response, reply.pieces.is_empty())?,
            ClientEnd::Socket(_) => {
                written.reserve(512);
                response.write(reply.connection, &mut written);
            }
        }
        Ok(written)
    }
}

impl Forwarding<'_, '_> {
    /// Sends the response with a file or page. If a condition or a range of the request fails,
    /// returns the local reply instead.
    async fn reply(&mut self, found: Found, status: u16, pool: &Arc<Pool>) -> RequestEnd {
        let head = self.request.head();
        let has_body = !head.framing().is_empty();
        let client_stays = !self.is_last && head.keeps_alive() && !has_body;
        let to = ReplyTo { head, status, client_stays };
        let reply = match Reply::of(&found, &to) {
            Ok(reply) => reply,
            Err(answer) => return RequestEnd::Unanswered(answer),
        };
        let terms = CompressionTerms::of(self.client, self.request, self.route, &self.worker.encoders);
        let mut compression = Compression::default();
        let fields = self.hooks.edit(&reply.head, self.request.response_changes(self.route), false);
        let mut response = OutgoingResponse::new(&reply.head, &fields);
        compression.decide(terms, &mut response);
        let Ok(written) = self.end.send_head(&response, &reply) else {
            return RequestEnd::Broken(Counter::ClientReset);
        };
        self.hooks.response_log.note(&response, written.len());
        let status = response.status();
        let core = self.client.core();
        self.count_status(status);
        pool.live.traffic.add(core, Counter::of_status(status), 1);
        let is_counted = self.end.is_stream();
        let (client, record) = (self.client, &mut *self.record);
        let sending = Sending {
            encoder: BodyEncoder::new(if is_counted { BodyFraming::UntilClose } else { response.framing() }),
            has_ended: reply.pieces.is_empty(),
            end: self.end,
            time_limit: self.time_limit,
            client,
            cache: &self.worker.files,
            stall: StallLimit::of_file(&self.timeouts),
            moved: &mut |bytes| {
                if !is_counted {
                    client.count_bytes(0, bytes);
                }
                record.count(0, bytes);
                pool.live.traffic.add(core, Counter::BytesTx, bytes);
            },
        };
        let client_stays = reply.connection != ClientConnection::Closes;
        let file = found.file().map(|file| &**file);
        let sent = match compression.is_on() {
            true => sending.send_compressed(written, reply.pieces, file, &mut compression).await,
            false => sending.send(written, reply, file).await,
        };
        compression.count(self.client, self.record);
        match sent {
            Ok(()) => RequestEnd::Answered {
                client_stays,
                is_silent: self.received.is_empty() && !has_body && !head.keeps_alive(),
            },
            Err(reason) => RequestEnd::Broken(reason),
        }
    }

    fn count_status(&mut self, status: u16) {
        match status {
            404 => {
                self.record.answered(self.client, 404, LocalReplyReason::FileNotFound);
                self.client.count(Counter::AnsweredFileNotFound, 1);
            }
            status => {
                self.record.has_file(self.client, status);
                self.client.count(Counter::AnsweredFile, 1);
            }
        }
        self.client.count(Counter::of_status(status), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_slashes_in_a_path_become_single_ones() {
        let single =
            |path: &str| with_single_slashes(path.as_bytes()).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(single("//evil.example/").as_deref(), Some("/evil.example/"));
        assert_eq!(single("///a//b///").as_deref(), Some("/a/b/"));
        assert_eq!((single("/"), single("/a/b/")), (None, None));
    }
}
