//! Idle connections, each after one request.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::http;

/// Threads that open connections at the same time.
const OPENERS: usize = 8;

/// Opens connections to the targets in turn and makes a request on each. They close when dropped.
pub(crate) fn open(targets: &[SocketAddr], count: usize) -> io::Result<Vec<TcpStream>> {
    let share = |opener: usize| -> io::Result<Vec<TcpStream>> {
        (opener..count).step_by(OPENERS).map(|n| used_once(targets[n % targets.len()])).collect()
    };
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS).map(|opener| scope.spawn(move || share(opener))).collect();
        let mut all = Vec::with_capacity(count);
        for opener in openers {
            all.extend(opener.join().expect("an opener does not panic")?);
        }
        Ok(all)
    })
}

fn used_once(target: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(http::REQUEST)?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 2048]);
    while !http::is_whole(&answer)? {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..count]);
    }
    Ok(stream)
}
