//! Small servers for what nginx cannot be made to do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use socket2::{Domain, Socket, Type};

/// A server with a thread for each connection. Dropping it closes its listening socket; connections that
/// are open go on.
pub struct TcpServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Lets `handle` have every connection; its errors end the connection and nothing else.
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

    /// Sends back what it is sent.
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

    /// Answers one HTTP request for each connection with its name.
    pub fn named(name: &'static str, addr: SocketAddr) -> TcpServer {
        TcpServer::start(addr, move |mut stream| {
            let mut lines = BufReader::new(stream.try_clone()?).lines();
            while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
            let length = name.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{name}")
        })
    }

    /// Accepts, and does nothing with the connections it has: they are in the list.
    pub fn holding(addr: SocketAddr) -> (TcpServer, Arc<Mutex<Vec<TcpStream>>>) {
        let held: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let list = held.clone();
        let server = TcpServer::start(addr, move |stream| {
            list.lock().unwrap().push(stream);
            Ok(())
        });
        (server, held)
    }

    /// Accepts, and says nothing until the other side closes.
    pub fn silent(addr: SocketAddr) -> TcpServer {
        TcpServer::start(addr, |mut stream| io::copy(&mut stream, &mut io::sink()).map(drop))
    }
}

/// A listener that thousands may connect to at once.
fn listen(addr: SocketAddr) -> TcpListener {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&addr.into()).unwrap();
    socket.listen(4096).unwrap();
    socket.into()
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
