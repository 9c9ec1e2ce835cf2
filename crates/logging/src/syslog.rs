//! Sink for log lines: a syslog service, over UDP, TCP or a socket of the host.

mod message;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use convey_config::{SyslogAddress, SyslogTarget};
use humantime::format_rfc3339_millis;

use self::message::{MessageFormat, MessageHeader, host_name};
use super::now as wall_clock;
use super::sink::{Lost, has_room};

/// Upper bound for a connect to a syslog server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum interval between two connects to a syslog server.
const CONNECT_EVERY: Duration = Duration::from_secs(1);

/// Syslog service as a sink.
#[derive(Debug)]
pub struct SyslogSink {
    header: MessageHeader,
    link: SyslogLink,
}

#[derive(Debug)]
enum SyslogLink {
    Udp(UdpSocket),
    Unix(UnixLink),
    Tcp(TcpLink),
}

/// Socket that sends datagrams to a service of the host.
#[derive(Debug)]
struct UnixLink {
    path: PathBuf,
    socket: UnixDatagram,
}

/// Connection to a syslog server.
#[derive(Debug)]
struct TcpLink {
    addr: SocketAddr,
    /// `None`: there is no connection.
    stream: Option<TcpStream>,
    /// Time of the last connect.
    connected: Option<Instant>,
}

/// Lines that were lost so far.
#[derive(Debug, Default)]
struct Losses {
    lines: u64,
    error: Option<io::Error>,
}

impl SyslogSink {
    /// Creates a sink. It does not need the service yet: a service that starts later gets later
    /// lines.
    pub(super) fn open(target: &SyslogTarget) -> io::Result<SyslogSink> {
        let link = match &target.address {
            SyslogAddress::Udp(addr) => SyslogLink::Udp(udp(*addr)?),
            SyslogAddress::Tcp(addr) => {
                SyslogLink::Tcp(TcpLink { addr: *addr, stream: None, connected: None })
            }
            SyslogAddress::Unix(path) => SyslogLink::Unix(UnixLink::new(path)?),
        };
        let format = match &target.address {
            SyslogAddress::Unix(_) => MessageFormat::Local,
            SyslogAddress::Udp(_) | SyslogAddress::Tcp(_) => MessageFormat::Rfc5424,
        };
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let header = MessageHeader {
            format,
            facility: target.facility.code(),
            tag: target.tag.clone(),
            host: host_name(&host),
            process: process::id(),
        };
        Ok(SyslogSink { header, link })
    }

    /// Sends each line as a message. While the service stalls, calls `gives_up` once a second, and
    /// stops if `gives_up` returns true.
    ///
    /// # Errors
    /// Lines were lost.
    pub(super) fn write(&mut self, lines: &[u8], gives_up: impl Fn() -> bool) -> Result<(), Lost> {
        let time = format_rfc3339_millis(wall_clock()).to_string();
        let SyslogSink { header, link } = self;
        let (mut message, mut losses) = (Vec::new(), Losses::default());
        let messages = lines.split_inclusive(|byte| *byte == b'\n');
        if let SyslogLink::Tcp(link) = link {
            let mut frames = Frames::default();
            for line in messages {
                message.clear();
                if header.write(line, &time, &mut message) {
                    frames.push(&message);
                }
            }
            losses.add(link.send(&frames, gives_up));
            return losses.into();
        }
        for line in messages {
            message.clear();
            if header.write(line, &time, &mut message) {
                losses.add(match link {
                    SyslogLink::Udp(socket) => send_udp(socket, &message, &gives_up),
                    SyslogLink::Unix(link) => link.send(&message, &gives_up),
                    SyslogLink::Tcp(_) => Ok(()),
                });
            }
        }
        losses.into()
    }
}

impl Losses {
    fn add(&mut self, sent: Result<(), Lost>) {
        if let Err(Lost { lines, error }) = sent {
            self.lines += lines;
            self.error = Some(error);
        }
    }
}

impl From<Losses> for Result<(), Lost> {
    fn from(losses: Losses) -> Result<(), Lost> {
        losses.error.map_or(Ok(()), |error| Err(Lost { lines: losses.lines, error }))
    }
}

/// Messages with their lengths, for a connection (RFC 6587, section 3.4.1).
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    /// Ends of the messages in `bytes`.
    ends: Vec<usize>,
}

impl Frames {
    fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(format!("{} ", message.len()).as_bytes());
        self.bytes.extend_from_slice(message);
        self.ends.push(self.bytes.len());
    }

    /// Loss of all messages that end after this number of bytes.
    fn lost_after(&self, sent: usize, error: io::Error) -> Lost {
        Lost { lines: self.ends.iter().filter(|end| **end > sent).count() as u64, error }
    }
}

impl TcpLink {
    /// Sends messages. After a failure, the next call connects anew.
    fn send(&mut self, frames: &Frames, gives_up: impl Fn() -> bool) -> Result<(), Lost> {
        if frames.ends.is_empty() {
            return Ok(());
        }
        let mut stream = self.connection().map_err(|error| frames.lost_after(0, error))?;
        let mut sent = 0;
        while sent < frames.bytes.len() {
            match stream.write(&frames.bytes[sent..]) {
                Ok(0) => return Err(frames.lost_after(sent, ErrorKind::WriteZero.into())),
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !has_room(stream.as_fd()) && gives_up() {
                        return Err(frames.lost_after(sent, ErrorKind::TimedOut.into()));
                    }
                }
                Err(error) => return Err(frames.lost_after(sent, error)),
            }
        }
        self.stream = Some(stream);
        Ok(())
    }

    /// Takes the connection, or opens one, at most once a second.
    fn connection(&mut self) -> io::Result<TcpStream> {
        if let Some(stream) = self.stream.take().filter(is_open) {
            return Ok(stream);
        }
        let now = clock();
        if self.connected.is_some_and(|last| now.saturating_duration_since(last) < CONNECT_EVERY) {
            return Err(ErrorKind::NotConnected.into());
        }
        self.connected = Some(now);
        let stream = TcpStream::connect_timeout(&self.addr, CONNECT_TIMEOUT)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

/// Whether the server has not closed the connection. Lines sent after its end would be lost.
fn is_open(stream: &TcpStream) -> bool {
    let mut stream = stream;
    match stream.read(&mut [0; 64]) {
        Ok(n) => n > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

impl UnixLink {
    fn new(path: &Path) -> io::Result<UnixLink> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(UnixLink { path: path.to_owned(), socket })
    }

    /// Sends a message. Connects to the service if it has started, or restarted, since.
    fn send(&mut self, message: &[u8], gives_up: &impl Fn() -> bool) -> Result<(), Lost> {
        let sent = send_waiting(&self.socket, gives_up, || self.socket.send(message));
        sent.or_else(|_| {
            self.socket.connect(&self.path)?;
            send_waiting(&self.socket, gives_up, || self.socket.send(message))
        })
        .map_err(|error| Lost { lines: 1, error })
    }
}

fn udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match addr {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    socket.connect(addr)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends a datagram. `ConnectionRefused` is about an earlier one, which is lost.
fn send_udp(socket: &UdpSocket, message: &[u8], gives_up: &impl Fn() -> bool) -> Result<(), Lost> {
    let send = || send_waiting(socket, gives_up, || socket.send(message));
    match send() {
        Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
            let lines = 1 + u64::from(send().is_err());
            Err(Lost { lines, error: refused })
        }
        sent => sent.map_err(|error| Lost { lines: 1, error }),
    }
}

/// Calls `send` again while the socket has no room.
fn send_waiting(
    socket: &impl AsFd,
    gives_up: &impl Fn() -> bool,
    send: impl Fn() -> io::Result<usize>,
) -> io::Result<()> {
    loop {
        match send() {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !has_room(socket.as_fd()) && gives_up() {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the interval between two connects")]
fn clock() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
