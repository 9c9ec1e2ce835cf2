//! Abstract Unix socket on which a running process receives requests of `convey upgrade`. The
//! socket disappears with the process.
//!
//! Its name contains the statistics address of the process, and an unpredictable number so that no
//! other process can have bound it before. Only root and the user of the process are accepted.

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use rustix::process::geteuid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Maximum number of concurrent clients. Further clients are disconnected.
const MAX_CLIENTS: usize = 8;

/// Maximum length of a request in bytes.
const MAX_REQUEST: u64 = 64;

/// Time for a client to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept. Without it, accepting would spin while descriptors are lacking.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Prefix of the names of these sockets.
pub(super) const PREFIX: &str = "convey control ";

/// Request to this process. `answer` receives the result, or the reason of a failure.
pub(in crate::app) struct Request {
    pub(in crate::app) what: Asked,
    pub(in crate::app) answer: oneshot::Sender<Result<String, String>>,
}

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::app) enum Asked {
    /// Hand over to a new process.
    Upgrade,
    /// Give up the statistics socket if this process is stopping.
    Release,
}

impl Asked {
    /// Name of the request in the protocol.
    pub(super) fn name(self) -> &'static str {
        match self {
            Asked::Upgrade => "upgrade",
            Asked::Release => "release",
        }
    }

    fn named(name: &str) -> Option<Asked> {
        [Asked::Upgrade, Asked::Release].into_iter().find(|asked| asked.name() == name)
    }
}

/// Control socket for upgrades. Dropping it closes the socket.
pub(in crate::app) struct Control {
    requests: mpsc::Receiver<Request>,
    task: AbortHandle,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Control {
    /// Listens for requests from now on. Must be called within the runtime.
    pub(in crate::app) fn listen(statistics: SocketAddr) -> io::Result<Control> {
        let (request, requests) = mpsc::channel(MAX_CLIENTS);
        Ok(Control { requests, task: listen(statistics, request)? })
    }

    /// Waits for the next request.
    pub(in crate::app) async fn next(&mut self) -> Request {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

fn listen(statistics: SocketAddr, requests: mpsc::Sender<Request>) -> io::Result<AbortHandle> {
    let name = format!("{PREFIX}{statistics} #{:016x}", convey_random::secret_u64());
    let listener = unix::UnixListener::bind_addr(&unix::SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let requests = requests.clone();
            tokio::spawn(async move {
                if is_authorized(&stream) {
                    let _ = converse(stream, requests).await;
                }
                drop(place);
            });
        }
    });
    Ok(task.abort_handle())
}

fn is_authorized(stream: &UnixStream) -> bool {
    // The kernel cannot report a peer that has no id in this PID namespace.
    let Ok(peer) = stream.peer_cred() else { return false };
    let may = [0, geteuid().as_raw()].contains(&peer.uid());
    if !may {
        warn!(
            "refused an upgrade requested by user {}: only root and the user of this process may request it",
            peer.uid()
        );
    }
    may
}

async fn converse(stream: UnixStream, requests: mpsc::Sender<Request>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(MAX_REQUEST));
    timeout(REQUEST_TIMEOUT, reader.read_line(&mut line)).await??;
    let said = match Asked::named(line.trim_end()) {
        Some(what) => {
            let (answer, answered) = oneshot::channel();
            let _ = requests.send(Request { what, answer }).await;
            answered.await.unwrap_or_else(|_| Err("this process is ending".to_owned()))
        }
        None => Err(format!("this version of convey does not support the request {:?}", line.trim_end())),
    };
    let said = match said {
        Ok(done) => format!("ok {done}\n"),
        Err(why) => format!("error {}\n", why.replace('\n', "; ")),
    };
    writer.write_all(said.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_dataplane::net::unix_sockets;

    fn connect(name: &[u8]) -> UnixStream {
        let address = unix::SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let stream = unix::UnixStream::connect_addr(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        UnixStream::from_std(stream).unwrap()
    }

    #[tokio::test]
    async fn upgrade_clients_beyond_the_limit_are_disconnected() {
        // The port is derived from the process id, so that no other process uses the same address.
        let at = SocketAddr::from(([192, 0, 2, 1], 1_024 + (std::process::id() % 60_000) as u16));
        let mut control = Control::listen(at).unwrap();
        let name = unix_sockets(format!("\0{PREFIX}{at} ").as_bytes()).unwrap().remove(0).name;
        let mut clients: Vec<UnixStream> = (0..MAX_CLIENTS).map(|_| connect(&name)).collect();
        let mut said = String::new();
        assert_eq!(connect(&name).read_to_string(&mut said).await.unwrap(), 0);
        clients[0].write_all(b"upgrade\n").await.unwrap();
        let Request { what, answer } = control.next().await;
        assert_eq!(what, Asked::Upgrade);
        answer.send(Err("not now".to_owned())).unwrap();
        clients[0].read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "error not now\n");
    }
}
