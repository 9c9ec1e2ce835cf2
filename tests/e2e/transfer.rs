//! Transferred data: every byte arrives in order, and the end of one side reaches the other in the
//! same way.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Nginx, Setup, TcpServer, check_to_end, connect, ping, reset, run, send,
    tests, tool, was_reset,
};

tests!("transfer":
    a_gibibyte_goes_up_and_comes_back_byte_for_byte,
    a_big_file_from_nginx_arrives_whole_through_curl [Need::NGINX, Need::CURL],
    a_client_that_has_said_everything_still_reads_everything,
    a_server_that_has_said_everything_still_reads_everything,
    response_is_delivered_even_if_the_server_left_the_request_unread,
    a_reset_by_the_server_is_a_reset_for_the_client,
    a_reset_by_the_client_is_a_reset_for_the_server,
);

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

fn a_gibibyte_goes_up_and_comes_back_byte_for_byte() {
    let (lab, balancer, _server) = in_front_of(TcpServer::echo);
    let mut stream = connect(lab.vip());
    let mut sending = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            send(&mut sending, GIB).unwrap();
            sending.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(check_to_end(&mut stream), GIB);
    });
    balancer.wait_for_stat("/current_connections", 0);
    let stats = balancer.stats();
    assert_eq!((&stats["total_bytes_rx"], &stats["total_bytes_tx"]), (&GIB.into(), &GIB.into()));
    assert_eq!(stats["frontends"]["web"]["ended"]["client_reset"], 0);
    assert_eq!(stats["frontends"]["web"]["ended"]["server_reset"], 0);
}

fn a_big_file_from_nginx_arrives_whole_through_curl() {
    let lab = Loopback::new();
    let nginx = Nginx::start(&lab, "a", lab.server(1));
    send(&mut File::create(nginx.file("big")).unwrap(), 100 * MIB + 1).unwrap();
    let _balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let copy = lab.directory().join("copy");
    let url = format!("http://{}/big", lab.vip());
    let curl = run(Command::new(tool("curl").unwrap()).args(["-sS", "--fail", "-o"]).arg(&copy).arg(url));
    assert_eq!((curl.code, curl.stderr.as_str()), (Some(0), ""));
    assert!(fs::read(nginx.file("big")).unwrap() == fs::read(copy).unwrap(), "the copy differs");
}

fn a_client_that_has_said_everything_still_reads_everything() {
    let (lab, balancer, _server) = in_front_of(|addr| {
        TcpServer::start(addr, |mut stream| {
            // The answer starts only after the end of the question.
            assert_eq!(check_to_end(&mut stream), MIB);
            send(&mut stream, 8 * MIB)
        })
    });
    let mut stream = connect(lab.vip());
    send(&mut stream, MIB).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(check_to_end(&mut stream), 8 * MIB);
    balancer.wait_for_stat("/current_connections", 0);
}

fn a_server_that_has_said_everything_still_reads_everything() {
    let (message, received) = mpsc::channel();
    let (lab, balancer, _server) = in_front_of(move |addr| {
        TcpServer::start(addr, move |mut stream| {
            stream.write_all(b"bye")?;
            stream.shutdown(Shutdown::Write)?;
            message.send(check_to_end(&mut stream)).unwrap();
            Ok(())
        })
    });
    let mut stream = connect(lab.vip());
    let mut output = String::new();
    stream.read_to_string(&mut output).unwrap();
    assert_eq!(output, "bye");
    send(&mut stream, 8 * MIB).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(received.recv().unwrap(), 8 * MIB);
    balancer.wait_for_stat("/current_connections", 0);
}

fn response_is_delivered_even_if_the_server_left_the_request_unread() {
    let (lab, _balancer, _server) = in_front_of(|addr| {
        TcpServer::start(addr, |mut stream| {
            stream.read_exact(&mut [0])?;
            stream.write_all(b"go away") // and closed with much to read: the kernel resets
        })
    });
    let mut stream = connect(lab.vip());
    let mut sending = stream.try_clone().unwrap();
    thread::scope(|scope| {
        // The server stops reading somewhere on the way, so this may fail.
        scope.spawn(move || send(&mut sending, 64 * MIB));
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"go away");
    });
}

fn a_reset_by_the_server_is_a_reset_for_the_client() {
    let (lab, balancer, _server) = in_front_of(|addr| {
        TcpServer::start(addr, |mut stream| {
            stream.read_exact(&mut [0])?;
            stream.write_all(b"!")?;
            stream.read_exact(&mut [0])?;
            reset(stream);
            Ok(())
        })
    });
    let mut stream = connect(lab.vip());
    ping(&mut stream).unwrap();
    stream.write_all(b"!").unwrap();
    assert!(was_reset(&mut stream));
    balancer.wait_for_stat("/frontends/web/ended/server_reset", 1);
    balancer.wait_for_stat("/current_connections", 0);
}

fn a_reset_by_the_client_is_a_reset_for_the_server() {
    let (message, seen) = mpsc::channel();
    let (lab, balancer, _server) = in_front_of(move |addr| {
        TcpServer::start(addr, move |mut stream| {
            stream.read_exact(&mut [0])?;
            stream.write_all(b"!")?;
            message.send(was_reset(&mut stream)).unwrap();
            Ok(())
        })
    });
    let mut stream = connect(lab.vip());
    ping(&mut stream).unwrap();
    reset(stream);
    assert!(seen.recv().unwrap());
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 1);
    balancer.wait_for_stat("/current_connections", 0);
}

/// A balancer with a single server.
fn in_front_of(start: impl FnOnce(SocketAddr) -> TcpServer) -> (Loopback, BalancerProcess, TcpServer) {
    let lab = Loopback::new();
    let server = start(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    (lab, balancer, server)
}
