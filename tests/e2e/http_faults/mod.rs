//! Failing servers and clients in mode http: the client's response, retries on another server, and
//! counters. The guide's table of faults has the same rows.

mod clients;
pub(super) mod one_end;
mod outcome;
mod server_down;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, reset, tests};

use super::http::HTTP;
use super::http::client::read_head;
use clients::*;
use one_end::{
    reset_of_a_server_is_noticed_while_the_client_reads_nothing,
    reset_of_a_server_stream_is_noticed_while_the_client_reads_nothing,
    upload_that_its_server_does_not_read_ends_with_its_client,
};
use outcome::{Outcome, Version, fetch};
use server_down::*;

tests!("http_faults":
    a_server_that_refuses_is_passed_over,
    early_close_by_a_server_is_retried_for_idempotent_methods_only,
    a_server_that_sends_no_response_is_answered_for,
    a_server_that_breaks_off_within_its_response_has_the_client_reset,
    a_server_that_says_nothing_is_answered_for_in_time,
    stall_within_a_response_resets_the_client_after_the_idle_timeout,
    a_server_that_trickles_its_body_is_waited_for,
    excess_bytes_after_a_response_reach_no_client,
    an_early_response_arrives_whole,
    early_response_in_two_segments_arrives_before_the_reset_behind_it,
    a_server_of_http2_that_has_done_nothing_is_asked_anew,
    a_response_of_a_server_that_goes_down_is_broken_off,
    pending_request_of_a_failed_server_is_served_by_another,
    a_client_that_is_gone_takes_no_blame_to_the_server,
    slow_upload_is_served_and_a_stalled_one_gets_408,
    first_byte_and_head_have_separate_timeouts,
    bytes_behind_a_request_body_are_not_a_request,
    a_client_that_never_reads_is_not_waited_for_long,
    client_that_disconnects_while_waiting_leaves_the_queue,
    client_that_leaves_during_a_connect_frees_its_slot,
    upload_that_its_server_does_not_read_ends_with_its_client,
    reset_of_a_server_is_noticed_while_the_client_reads_nothing,
    reset_of_a_server_stream_is_noticed_while_the_client_reads_nothing,
);

/// Fault of a server, once it has the head of a request.
type Fault = fn(TcpStream) -> io::Result<()>;

/// Two servers with the same fault, and the number of their requests.
struct Failing {
    lab: Loopback,
    balancer: BalancerProcess,
    asked: Arc<AtomicUsize>,
    _servers: Vec<TcpServer>,
}

impl Failing {
    fn new(fault: Fault) -> Failing {
        Failing::with("", fault)
    }

    fn with(timeouts: &str, fault: Fault) -> Failing {
        let (lab, asked) = (Loopback::new(), Arc::<AtomicUsize>::default());
        let servers = [1, 2].map(|n| {
            let asked = asked.clone();
            TcpServer::start(lab.server(n), move |mut stream| {
                read_head(&mut stream)?;
                asked.fetch_add(1, Ordering::Relaxed);
                fault(stream)
            })
        });
        let setup = Setup::new(&lab).frontend(HTTP).timeouts(timeouts);
        let setup = setup.server("a", lab.server(1), "").server("b", lab.server(2), "");
        let balancer = BalancerProcess::start(&lab, &setup);
        Failing { lab, balancer, asked, _servers: servers.into() }
    }

    /// Sends a request by each HTTP version. Checks the outcome, and the number of attempts at
    /// servers.
    fn expect(&self, method: &str, outcome: &Outcome, asked: usize) {
        for version in [Version::Http1, Version::Http2] {
            let before = self.asked.load(Ordering::Relaxed);
            let got = fetch(self.lab.vip(), version, method);
            assert_eq!(&got, outcome, "{version:?} {method}");
            assert_eq!(self.asked.load(Ordering::Relaxed) - before, asked, "{version:?} {method}");
        }
        // All slots are free afterwards.
        self.balancer.wait_for_stat("/backends/pool/current_connections", 0);
    }

    fn answered(&self, reason: &str) -> u64 {
        self.balancer.stat(&format!("/frontends/web/requests/local_replies/{reason}")).as_u64().unwrap()
    }
}

fn a_server_that_refuses_is_passed_over() {
    let lab = Loopback::new();
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup.server("b", lab.server(2), ""));
    for version in [Version::Http1, Version::Http2] {
        assert_eq!(fetch(lab.vip(), version, "POST"), Outcome::Status(503), "{version:?}");
    }
    balancer.wait_for_stat("/frontends/web/requests/local_replies/connect_failed", 2);
    balancer.wait_for_stat("/backends/pool/connect_failures", 4);
}

fn early_close_by_a_server_is_retried_for_idempotent_methods_only() {
    let closes: Fault = |_| Ok(());
    let resets: Fault = |stream| {
        reset(stream);
        Ok(())
    };
    for fault in [closes, resets] {
        let failing = Failing::new(fault);
        failing.expect("GET", &Outcome::Status(502), 2);
        failing.expect("POST", &Outcome::Status(502), 1);
        assert_eq!(failing.answered("server_reset"), 4);
    }
}

fn a_server_that_sends_no_response_is_answered_for() {
    let faults: [Fault; 6] = [
        |mut stream| stream.write_all(b"220 mail.example ESMTP\r\n"),
        |mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nx"),
        |mut stream| stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
        // The server closes within its head, so it may have processed the request.
        |mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le"),
        |mut stream| write!(stream, "HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(2 << 20)),
        |mut stream| stream.write_all(&[b"HTTP/1.1 200 OK\r\nX: ", &[0; 9][..], b"\r\n\r\n"].concat()),
    ];
    for fault in faults {
        let failing = Failing::new(fault);
        failing.expect("GET", &Outcome::Status(502), 1);
        assert_eq!(failing.answered("server_fault"), 2);
    }
}

fn a_server_that_breaks_off_within_its_response_has_the_client_reset() {
    let faults: [Fault; 4] = [
        |mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
        |mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
        |mut stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")?;
            sleep(Duration::from_millis(100));
            stream.write_all(b"-4\r\n")
        },
        |mut stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil it closes")?;
            sleep(Duration::from_millis(100));
            reset(stream);
            Ok(())
        },
    ];
    for fault in faults {
        Failing::new(fault).expect("GET", &Outcome::BrokenOff, 1);
    }
}

fn a_server_that_says_nothing_is_answered_for_in_time() {
    let silent: Fault = |mut stream| io::copy(&mut stream, &mut io::sink()).map(drop);
    let trickles: Fault = |mut stream| {
        for byte in b"HTTP/1.1 200 OK\r\nX: ".iter().chain([b'x'; 1_000].iter()) {
            stream.write_all(&[*byte])?;
            sleep(Duration::from_millis(100));
        }
        Ok(())
    };
    for fault in [silent, trickles] {
        let failing = Failing::with("idle = 1", fault);
        failing.expect("GET", &Outcome::Status(504), 1);
        assert_eq!(failing.answered("server_timeout"), 2);
    }
    // The server does not read the request either.
    let failing = Failing::with("idle = 1", |stream| {
        sleep(Duration::from_secs(20));
        drop(stream);
        Ok(())
    });
    let mut client = convey_testkit::connect(failing.lab.vip());
    client.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    let mut sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || while sender.write_all(&[0; 65_536]).is_ok() {});
    assert!(read_head(&mut client).unwrap().starts_with("HTTP/1.1 504 "));
    drop(client);
    sending.join().unwrap();
    assert_eq!((failing.answered("server_timeout"), failing.answered("request_timeout")), (1, 0));
}

fn stall_within_a_response_resets_the_client_after_the_idle_timeout() {
    let failing = Failing::with("idle = 1", |mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")?;
        stream.read(&mut [0]).map(drop)
    });
    failing.expect("GET", &Outcome::BrokenOff, 1);
}

fn a_server_that_trickles_its_body_is_waited_for() {
    let failing = Failing::with("idle = 1", |mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n")?;
        (0..15).try_for_each(|_| {
            sleep(Duration::from_millis(300));
            stream.write_all(b"x")
        })
    });
    failing.expect("GET", &Outcome::Body("x".repeat(15)), 1);
}

fn excess_bytes_after_a_response_reach_no_client() {
    let at_once: Fault = |mut stream| {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmineHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers",
        )?;
        stream.read(&mut [0]).map(drop)
    };
    let later: Fault = |mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")?;
        sleep(Duration::from_millis(50));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers")?;
        stream.read(&mut [0]).map(drop)
    };
    for fault in [at_once, later] {
        let failing = Failing::new(fault);
        for _ in 0..5 {
            failing.expect("GET", &Outcome::Body("mine".into()), 1);
            sleep(Duration::from_millis(100));
        }
    }
}

fn an_early_response_arrives_whole() {
    // More than all buffers hold at once, while the client's body never ends.
    let failing = Failing::new(|mut stream| {
        write!(stream, "HTTP/1.1 413 Content Too Large\r\nContent-Length: {}\r\n\r\n", outcome::LARGE)?;
        stream.write_all(&vec![b'x'; outcome::LARGE])?;
        sleep(Duration::from_secs(1));
        Ok(())
    });
    for version in [Version::Http1, Version::Http2] {
        assert_eq!(
            outcome::early(failing.lab.vip(), version, outcome::LARGE),
            (413, outcome::LARGE),
            "{version:?}"
        );
    }
}

/// Without TCP_NODELAY, the second segment waits until the first one is acknowledged. The server closes
/// before convey would acknowledge it with the next data, and its unread bytes reset the connection.
fn early_response_in_two_segments_arrives_before_the_reset_behind_it() {
    let failing = Failing::new(|mut stream| {
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\n")?;
        sleep(Duration::from_millis(5));
        stream.write_all(b"early")?;
        sleep(Duration::from_millis(5));
        Ok(())
    });
    for version in [Version::Http1, Version::Http2].repeat(5) {
        assert_eq!(outcome::early(failing.lab.vip(), version, 5), (403, 5), "{version:?}");
    }
}
