use std::net::TcpListener;

use convey_config::LogOutput;

use super::*;

fn never() -> bool {
    false
}

fn sink(output: &str) -> SyslogSink {
    let config = format!(
        "frontends.web = {{ listen_addr = '10.0.0.1:80', backend = 'web' }}\n\
         backends.web.servers.a.addr = '10.0.0.2:80'\n[log]\noutput = '{output}?facility=local0&tag=lb'"
    );
    match convey_config::parse("c.toml", &config).unwrap().config.log.output {
        LogOutput::Syslog(target) => SyslogSink::open(&target).unwrap(),
        other => panic!("{other}"),
    }
}

/// Text of a message behind the time and the host, which differ.
fn text(message: &str) -> (&str, &str) {
    let (priority, rest) = message.split_once("1 ").unwrap();
    (priority, rest.split_once(" lb ").unwrap().1)
}

#[test]
fn udp_server_gets_a_datagram_for_each_line() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sink = sink(&format!("syslog+udp://{}", server.local_addr().unwrap()));
    sink.write(b"<4>one\n\ntwo\n", never).unwrap();
    let received = || {
        let mut buffer = [0; 999];
        let len = server.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    let id = process::id();
    assert_eq!(text(&received()), ("<132>", &*format!("{id} - - one")));
    assert_eq!(text(&received()), ("<134>", &*format!("{id} - - two")));
    drop(server);
    // The kernel reports a lost datagram when the next one is sent.
    let lost: u64 = (0..100).filter_map(|_| sink.write(b"lost\n", never).err()).map(|lost| lost.lines).sum();
    assert!((50..=100).contains(&lost), "{lost}");
}

/// Reads messages with their lengths until the connection ends.
fn messages(stream: &mut TcpStream, count: usize) -> Vec<String> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let (mut length, mut byte) = (0, [0]);
        loop {
            stream.read_exact(&mut byte).unwrap();
            match byte[0] {
                b' ' => break,
                digit => length = length * 10 + usize::from(digit - b'0'),
            }
        }
        let mut message = vec![0; length];
        stream.read_exact(&mut message).unwrap();
        messages.push(String::from_utf8(message).unwrap());
    }
    messages
}

#[test]
fn tcp_server_gets_lines_with_their_lengths_also_after_a_restart() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = server.local_addr().unwrap();
    let mut sink = sink(&format!("syslog+tcp://{addr}"));
    sink.write("<3>ä b\nplain\n".as_bytes(), never).unwrap();
    let (mut stream, _) = server.accept().unwrap();
    let received = messages(&mut stream, 2);
    let id = process::id();
    assert_eq!(text(&received[0]), ("<131>", &*format!("{id} - - ä b")));
    assert_eq!(text(&received[1]), ("<134>", &*format!("{id} - - plain")));
    drop((stream, server));
    // At most one connect a second, which fails.
    let lost = |sink: &mut SyslogSink| sink.write(b"lost\nlost\n", never).unwrap_err().lines;
    assert_eq!([lost(&mut sink), lost(&mut sink)], [2, 2]);
    let server = TcpListener::bind(addr).unwrap();
    let SyslogLink::Tcp(link) = &mut sink.link else { panic!() };
    link.connected = None;
    sink.write(b"back\n", never).unwrap();
    let (mut stream, _) = server.accept().unwrap();
    assert!(messages(&mut stream, 1)[0].ends_with(" - - back"));
}

#[test]
fn stalled_tcp_server_loses_the_lines_that_it_did_not_get() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sink = sink(&format!("syslog+tcp://{}", server.local_addr().unwrap()));
    let lines = [b"x".repeat(7_000), b"\n".to_vec()].concat().repeat(2_000);
    let lost = sink.write(&lines, || true).unwrap_err();
    assert!((1..2_000).contains(&lost.lines), "{}", lost.lines);
    assert_eq!(lost.error.kind(), ErrorKind::TimedOut);
}

#[test]
fn service_of_the_host_gets_lines_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut sink = sink(&format!("syslog+unix://{}", path.display()));
    assert_eq!(sink.write(b"early\n", never).unwrap_err().lines, 1);
    for round in ["first", "second"] {
        let service = UnixDatagram::bind(&path).unwrap();
        sink.write(format!("<5>{round}\n").as_bytes(), never).unwrap();
        let mut buffer = [0; 99];
        let len = service.recv(&mut buffer).unwrap();
        let expected = format!("<133>lb[{}]: {round}", process::id());
        assert_eq!(String::from_utf8_lossy(&buffer[..len]), expected);
        fs::remove_file(&path).unwrap();
    }
}
