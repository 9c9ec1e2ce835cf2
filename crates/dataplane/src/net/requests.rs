//! Netlink socket for requests only. Change notifications arrive on another socket: if many of them
//! filled the receive buffer, the kernel would drop answers.

use std::io;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use rtnetlink::Handle;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::KERNEL_TIMEOUT;
use super::list_attempts::ListAttempts;

type NetlinkRequest = NetlinkMessage<RouteNetlinkMessage>;

/// Error of a netlink request.
#[derive(Debug, Error)]
#[error("netlink: {what}: {source}")]
pub struct Error {
    what: &'static str,
    source: io::Error,
}

impl Error {
    pub(super) fn new(what: &'static str, source: io::Error) -> Error {
        Error { what, source }
    }

    /// Whether the kernel has refused the request (in contrast to a lost answer).
    pub(super) fn is_refusal(&self) -> bool {
        self.source.raw_os_error().is_some()
    }

    /// Whether the kernel does not support this kind of request.
    pub(super) fn is_unsupported(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EOPNOTSUPP)
    }

    /// Whether the request failed because this process lacks a privilege.
    pub fn is_not_permitted(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }

    /// Whether the request failed because the kernel has no route, or a route that rejects packets.
    pub(super) fn is_no_route(&self) -> bool {
        let refusals = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
        self.source.raw_os_error().is_some_and(|error| refusals.contains(&error))
    }

    /// Whether the request failed because the kernel has no such address.
    pub(super) fn is_not_available(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrNotAvailable
    }
}

/// Netlink socket that sends one request at a time: the kernel creates one list at a time for a
/// socket, and refuses a second. After a lost answer, the next request opens a new socket.
#[derive(Debug)]
pub(super) struct Requests(Mutex<Option<Socket>>);

impl Requests {
    /// Opens a socket in the calling thread's network namespace. A socket that replaces it later is
    /// in the namespace of the thread that makes the request.
    pub(super) fn open() -> io::Result<Requests> {
        Ok(Requests(Mutex::new(Some(Socket::open()?))))
    }

    /// Requests a list; returns the items that `pick` extracts from the answer. Repeats the request
    /// if the list changed while the kernel created it.
    pub(super) async fn list<T>(
        &self,
        what: &'static str,
        question: RouteNetlinkMessage,
        mut pick: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut attempts = ListAttempts::default();
        loop {
            let mut list = Vec::new();
            let each = |answer| list.extend(pick(answer));
            let is_interrupted = self.request(what, question.clone(), NLM_F_DUMP, each).await?;
            if attempts.is_last(is_interrupted).map_err(|error| Error::new(what, error))? {
                return Ok(list);
            }
        }
    }

    /// Sends a request that has one answer, and returns the answer. `None` if the kernel sends no
    /// answer.
    pub(super) async fn one(
        &self,
        what: &'static str,
        question: RouteNetlinkMessage,
    ) -> Result<Option<RouteNetlinkMessage>, Error> {
        let mut one = None;
        self.request(what, question, 0, |answer| one = Some(answer)).await?;
        Ok(one)
    }

    /// Sends a command, and waits for the kernel's acknowledgement.
    pub(super) async fn order(
        &self,
        what: &'static str,
        order: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), Error> {
        self.request(what, order, NLM_F_ACK | flags, |_| {}).await.map(drop)
    }

    /// Sends a request, and passes each part of the answer to `each`. Returns whether the answer is
    /// incomplete because the list changed meanwhile.
    async fn request(
        &self,
        what: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<bool, Error> {
        let failed = |source| Error { what, source };
        let mut place = self.0.lock().await;
        // The socket is put back only when the answer is complete. Otherwise parts of the answer
        // may still arrive, for example because the caller was cancelled.
        let mut socket = match place.take() {
            Some(socket) => socket,
            None => Socket::open().map_err(failed)?,
        };
        let mut message = NetlinkRequest::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        let answer = socket.request(message, each).await.map_err(failed)?;
        *place = Some(socket);
        answer.map_err(failed)
    }
}

/// Open netlink socket. Dropping it closes the socket.
struct Socket {
    handle: Handle,
    /// Messages that belong to no request: reports that messages were lost.
    unasked: BoxStream<'static, NetlinkRequest>,
    _connection: JoinSet<()>,
}

impl Socket {
    fn open() -> io::Result<Socket> {
        let (mut connection, handle, unasked) = rtnetlink::new_connection()?;
        // Forward end messages, because an answer without one is incomplete.
        connection.set_forward_done(true);
        connection.set_forward_ack(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        Ok(Socket { handle, unasked: unasked.map(|(message, _)| message).boxed(), _connection: tasks })
    }

    /// Sends a request and reads the whole answer. Returns the result of [`read_answer`].
    async fn request(
        &mut self,
        message: NetlinkRequest,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<io::Result<bool>> {
        let is_acknowledged = message.header.flags & NLM_F_ACK != 0;
        let answers = self.handle.request(message).map_err(|_| closed())?;
        read_answer(answers, &mut self.unasked, is_acknowledged, each).await
    }
}

/// Passes each part of an answer to `each`.
///
/// Returns an error if the answer is lost, or an `unasked` message reports a loss. The inner result
/// is an error if the kernel refuses the request. Otherwise it is `true` if the answer is
/// incomplete, because the list changed meanwhile.
async fn read_answer(
    mut answers: impl Stream<Item = NetlinkRequest> + Unpin,
    unasked: &mut (impl Stream + Unpin),
    is_acknowledged: bool,
    mut each: impl FnMut(RouteNetlinkMessage),
) -> io::Result<io::Result<bool>> {
    let mut is_interrupted = false;
    loop {
        let next = async {
            tokio::select! {
                biased;
                answer = answers.next() => answer,
                _ = unasked.next() => None,
            }
        };
        let answer = timeout(KERNEL_TIMEOUT, next).await.map_err(|_| lost())?.ok_or_else(closed)?;
        is_interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
        match answer.payload {
            NetlinkPayload::InnerMessage(part) => {
                each(part);
                if answer.header.flags & NLM_F_MULTIPART == 0 && !is_acknowledged {
                    return Ok(Ok(is_interrupted));
                }
            }
            NetlinkPayload::Done(done) if done.code != 0 => {
                return Ok(Err(io::Error::from_raw_os_error(done.code.abs())));
            }
            NetlinkPayload::Error(error) if error.code.is_some() => return Ok(Err(error.to_io())),
            NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(Ok(is_interrupted)),
            _ => return Err(closed()),
        }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

fn lost() -> io::Error {
    let told = format!("the kernel has not answered within {} s", KERNEL_TIMEOUT.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, told)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "an answer of the kernel was lost")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::poll_immediate;
    use futures_util::stream;
    use rtnetlink::packet_core::DoneMessage;
    use rtnetlink::packet_route::link::LinkMessage;

    use super::*;

    async fn links(requests: &Requests) -> Result<usize, Error> {
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        Ok(requests.list("interfaces", question, Some).await?.len())
    }

    /// Netlink socket that never gets an answer.
    fn mute() -> (Socket, impl Sized) {
        let (connection, handle, unasked) = rtnetlink::new_connection().unwrap();
        let unasked = unasked.map(|(message, _)| message).boxed();
        (Socket { handle, unasked, _connection: JoinSet::new() }, connection)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn lost_answer_times_out_after_10_s_and_reopens_the_socket() {
        block_on(async {
            let (socket, _connection) = mute();
            let requests = Requests(Mutex::new(Some(socket)));
            tokio::time::pause();
            let answer = timeout(Duration::from_secs(11), links(&requests)).await;
            let error = answer.expect("it gives up").unwrap_err();
            tokio::time::resume();
            assert!(error.to_string().contains("interfaces") && !error.is_refusal(), "{error}");
            assert!(links(&requests).await.unwrap() > 0);
        });
    }

    #[test]
    fn a_list_that_ends_with_its_connection_is_none() {
        block_on(async {
            let (socket, connection) = mute();
            let requests = Requests(Mutex::new(Some(socket)));
            drop(connection);
            assert!(links(&requests).await.is_err());
            assert!(links(&requests).await.unwrap() > 0);
        });
    }

    #[test]
    fn cancelled_request_leaves_no_answer_to_the_next() {
        block_on(async {
            let requests = Requests::open().unwrap();
            assert!(poll_immediate(links(&requests)).await.is_none());
            assert!(links(&requests).await.unwrap() > 0);
        });
    }

    #[test]
    fn answer_is_interrupted_if_one_of_its_parts_is_or_its_end() {
        let part = |flags: u16| {
            let mut part = NetlinkRequest::from(RouteNetlinkMessage::NewLink(LinkMessage::default()));
            part.header.flags = NLM_F_MULTIPART | flags;
            part
        };
        let end = |flags: u16| {
            let mut end = part(flags);
            end.payload = NetlinkPayload::Done(DoneMessage::default());
            end
        };
        const INTR: u16 = NLM_F_DUMP_INTR;
        for (flags, expected) in
            [([0, 0, 0], false), ([INTR, 0, 0], true), ([0, INTR, 0], true), ([0, 0, INTR], true)]
        {
            let [first, second, last] = flags;
            let answer = stream::iter([part(first), part(second), end(last)]);
            let read = block_on(read_answer(answer, &mut stream::pending::<()>(), false, drop));
            assert_eq!(read.unwrap().unwrap(), expected, "{flags:?}");
        }
    }

    #[test]
    fn kernel_refusal_is_returned_as_an_error() {
        block_on(async {
            let requests = Requests::open().unwrap();
            let mut nothing = LinkMessage::default();
            nothing.header.index = i32::MAX as u32;
            let question = RouteNetlinkMessage::GetLink(nothing);
            let error = requests.one("an interface", question).await.unwrap_err();
            assert!(error.is_refusal(), "{error}");
            assert!(links(&requests).await.unwrap() > 0);
        });
    }
}
