//! FTP server (RFC 959, with extended passive mode of RFC 2428) with the same content for every
//! file.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU16, Ordering};

use super::TcpServer;

/// State that all control connections share.
struct Ftp {
    /// Contents of every file, whatever its name.
    content: String,
    addr: SocketAddr,
    data_ports: RangeInclusive<u16>,
    turn: AtomicU16,
}

/// Starts a server. It accepts control connections on `addr`, and data connections on `data_ports`
/// of the same address.
pub fn ftp_server(addr: SocketAddr, data_ports: RangeInclusive<u16>, content: &str) -> TcpServer {
    let ftp = Ftp { content: content.to_owned(), addr, data_ports, turn: AtomicU16::new(0) };
    TcpServer::start(addr, move |stream| ftp.serve(stream))
}

impl Ftp {
    fn serve(&self, mut control: TcpStream) -> io::Result<()> {
        let mut commands = BufReader::new(control.try_clone()?).lines();
        let mut data = None;
        control.write_all(b"220 ready\r\n")?;
        while let Some(command) = commands.next().transpose()? {
            let answer = match command.split(' ').next().unwrap_or_default() {
                "USER" => "331 password?".to_owned(),
                "PASS" => "230 welcome".to_owned(),
                "PWD" => "257 \"/\" is it".to_owned(),
                "CWD" | "TYPE" => "200 as you like".to_owned(),
                "SIZE" => format!("213 {}", self.content.len()),
                "EPSV" => {
                    let (listener, port) = self.listen()?;
                    data = Some(listener);
                    format!("229 passive (|||{port}|)")
                }
                "RETR" => {
                    control.write_all(b"150 here it is\r\n")?;
                    let listener = data.take().ok_or(io::ErrorKind::InvalidInput)?;
                    listener.accept()?.0.write_all(self.content.as_bytes())?;
                    "226 sent".to_owned()
                }
                "QUIT" => return control.write_all(b"221 bye\r\n"),
                _ => "502 no such command".to_owned(),
            };
            control.write_all(format!("{answer}\r\n").as_bytes())?;
        }
        Ok(())
    }

    /// Binds a free data port.
    fn listen(&self) -> io::Result<(TcpListener, u16)> {
        let ports = self.data_ports.len() as u16;
        let mut last = io::ErrorKind::AddrInUse.into();
        for _ in 0..ports {
            let port = self.data_ports.start() + self.turn.fetch_add(1, Ordering::Relaxed) % ports;
            match TcpListener::bind(SocketAddr::new(self.addr.ip(), port)) {
                Ok(listener) => return Ok((listener, port)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
