//! HTTP/1.1 server that keeps connections open and records requests.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::TcpServer;

/// Request that the server received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenRequest {
    /// The request line.
    pub line: String,
    /// Header fields, as the client sent them.
    pub fields: Vec<String>,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

/// HTTP/1.1 server that answers each request with its name and the request.
pub struct TestHttpServer {
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    connections: Arc<AtomicUsize>,
    _server: TcpServer,
}

impl SeenRequest {
    /// Value of a header field. `None` if the request lacks it.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find_map(|field| {
            let (found, value) = field.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl TestHttpServer {
    /// Starts a server whose response bodies are `NAME METHOD TARGET BODY-LENGTH`.
    pub fn named(name: &'static str, addr: SocketAddr) -> TestHttpServer {
        TestHttpServer::start(addr, move |request, stream| {
            let mut words = request.line.split(' ');
            let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let body = format!("{name} {method} {target} {}", request.body.len());
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes())?;
            if method == "HEAD" { Ok(()) } else { stream.write_all(body.as_bytes()) }
        })
    }

    /// Starts a server. `answer` writes the response to each request; if `answer` fails, the
    /// connection ends.
    pub fn start(
        addr: SocketAddr,
        answer: impl Fn(&SeenRequest, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> TestHttpServer {
        let (seen, connections) = (Arc::<Mutex<Vec<SeenRequest>>>::default(), Arc::<AtomicUsize>::default());
        let (list, count) = (seen.clone(), connections.clone());
        let server = TcpServer::start(addr, move |mut stream| {
            count.fetch_add(1, Ordering::Relaxed);
            stream.set_nodelay(true)?;
            let mut reader = BufReader::new(stream.try_clone()?);
            while let Some(request) = read_request(&mut reader)? {
                list.lock().unwrap().push(request.clone());
                answer(&request, &mut stream)?;
            }
            Ok(())
        });
        TestHttpServer { seen, connections, _server: server }
    }

    /// Requests that the server has received so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// Number of connections that the server has accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Reads the next request. `None` if the client has closed the connection.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<SeenRequest>> {
    let line = read_line(reader)?;
    if line.is_empty() {
        return Ok(None);
    }
    let mut fields = Vec::new();
    loop {
        let field = read_line(reader)?;
        if field.is_empty() {
            break;
        }
        fields.push(field);
    }
    let mut request = SeenRequest { line, fields, body: Vec::new() };
    if let Some(length) = request.field("content-length").and_then(|length| length.parse().ok()) {
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body)?;
    } else if request.field("transfer-encoding") == Some("chunked") {
        loop {
            let size = usize::from_str_radix(&read_line(reader)?, 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; size];
            reader.read_exact(&mut chunk)?;
            request.body.extend(chunk);
            read_line(reader)?;
            if size == 0 {
                break;
            }
        }
    }
    Ok(Some(request))
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
