//! Small TCP servers with behaviour that nginx lacks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use socket2::{Domain, Socket, Type};

use crate::wait_for;

/// Server with a thread per connection. Dropping it closes its listening socket; open connections
/// continue.
pub struct TcpServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Starts a server that passes every connection to `handle`. An error of `handle` ends only
    /// that connection.
    pub fn start(
        addr: SocketAddr,
        handle: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> TcpServer {
        let listener = listen(addr);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let handle = Arc::new(handle);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let handle = handle.clone();
                thread::spawn(move || handle(stream));
            }
        });
        TcpServer { addr, stop, thread: Some(thread) }
    }

    /// Starts an echo server.
    pub fn echo(addr: SocketAddr) -> TcpServer {
        TcpServer::start(addr, |mut stream| {
            let mut buffer = vec![0; 128 * 1024];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => stream.write_all(&buffer[..n])?,
                }
            }
        })
    }

    /// Starts a server that answers one HTTP request per connection with its name.
    pub fn named(name: &'static str, addr: SocketAddr) -> TcpServer {
        TcpServer::start(addr, move |mut stream| {
            let mut lines = BufReader::new(stream.try_clone()?).lines();
            while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
            let length = name.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{name}")
        })
    }

    /// Starts a server that accepts connections and keeps them idle. The returned list contains the
    /// connections.
    pub fn holding(addr: SocketAddr) -> (TcpServer, Arc<Mutex<Vec<TcpStream>>>) {
        let held: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let list = held.clone();
        let server = TcpServer::start(addr, move |stream| {
            list.lock().unwrap().push(stream);
            Ok(())
        });
        (server, held)
    }

    /// Starts a server that accepts connections, and sends nothing until the peer closes them.
    pub fn silent(addr: SocketAddr) -> TcpServer {
        TcpServer::start(addr, |mut stream| io::copy(&mut stream, &mut io::sink()).map(drop))
    }
}

/// Listens with a backlog for thousands of concurrent connections. The address of an earlier server
/// may still be in use for a moment: a child process that another test starts inherits all open
/// files until it runs its program.
fn listen(addr: SocketAddr) -> TcpListener {
    wait_for("the address of the server to be free", || match try_listen(addr) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        listening => Some(listening.unwrap()),
    })
}

fn try_listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.addr); // wakes the thread
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
