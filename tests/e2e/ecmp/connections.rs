//! Servers that return their names, and connections of the lab's client to them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use convey_lab::{ANNOUNCED_VIP, EcmpLab, EcmpRole};
use convey_testkit::{Process, clock};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Port of servers.
pub(super) const PORT: u16 = 80;

/// Timeout for the answers of all connections together.
const PATIENCE: Duration = Duration::from_secs(15);

/// Variable with the number of a server process.
const NUMBER: &str = "CONVEY_TEST_NUMBER_SERVER";

/// Starts a server that answers each byte with its own number. It is a separate process, to have
/// enough descriptors.
pub(super) fn start_number_server(lab: &EcmpLab, number: u8) -> Process {
    let mut command = lab.command(EcmpRole::Server(number), std::env::current_exe().unwrap());
    Process::spawn(command.env(NUMBER, number.to_string()))
}

/// Whether this process is such a server. If so, it serves until it is killed.
pub(crate) fn serves_numbers() -> bool {
    let Some(number) = std::env::var(NUMBER).ok().and_then(|number| number.parse::<u8>().ok()) else {
        return false;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind((EcmpRole::Server(number).address(), PORT)).await.unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while stream.read_u8().await.is_ok() && stream.write_u8(number).await.is_ok() {}
            });
        }
    })
}

/// A connection that has ended, or got no answer in time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// The client's.
    pub(super) port: u16,
    /// Its former server.
    pub(super) server: u8,
    why: io::ErrorKind,
}

struct Connection {
    stream: TcpStream,
    port: u16,
    server: u8,
}

/// Lasting connections.
pub(super) struct Connections(Vec<Connection>);

impl Connections {
    /// Opens so many connections, from this port of the client on.
    pub(super) fn open(lab: &EcmpLab, first: u16, count: u16) -> Connections {
        let open = || (first..first + count).map(|port| connect(port).unwrap()).collect();
        Connections(lab.enter(EcmpRole::Client, open).unwrap())
    }

    /// Servers of new connections from each of these ports. The connections are reset.
    pub(super) fn fetch(lab: &EcmpLab, ports: impl Iterator<Item = u16> + Send) -> BTreeMap<u16, u8> {
        let fetch = |port| {
            let Connection { stream, server, .. } = connect(port).unwrap();
            convey_testkit::reset(stream);
            (port, server)
        };
        lab.enter(EcmpRole::Client, || ports.map(fetch).collect()).unwrap()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sends a request on all of them at once. Returns the connections without an answer of their
    /// server, and removes them.
    pub(super) fn use_all(&mut self) -> Vec<Broken> {
        let since = clock();
        let asked: Vec<_> = self.0.iter_mut().map(|connection| connection.stream.write_all(b"?")).collect();
        let (mut broken, mut left) = (Vec::new(), Vec::new());
        for (mut connection, asked) in std::mem::take(&mut self.0).into_iter().zip(asked) {
            let wait = PATIENCE.saturating_sub(since.elapsed()).max(Duration::from_millis(1));
            connection.stream.set_read_timeout(Some(wait)).unwrap();
            match asked.and_then(|()| answer(&mut connection.stream)) {
                Ok(server) => {
                    assert_eq!(server, connection.server, "a connection does not change its server");
                    left.push(connection);
                }
                Err(error) => {
                    let Connection { port, server, .. } = connection;
                    broken.push(Broken { port, server, why: error.kind() });
                }
            }
        }
        self.0 = left;
        broken
    }
}

/// Connects from this port of the client, whose namespace the calling thread is in.
fn connect(port: u16) -> io::Result<Connection> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((EcmpRole::Client.address(), port)).into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(&SocketAddr::from((ANNOUNCED_VIP, PORT)).into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.write_all(b"?")?;
    let server = answer(&mut stream)?;
    Ok(Connection { stream, port, server })
}

/// Number of the server that answers.
fn answer(stream: &mut TcpStream) -> io::Result<u8> {
    let mut number = [0];
    stream.read_exact(&mut number)?;
    Ok(number[0])
}
