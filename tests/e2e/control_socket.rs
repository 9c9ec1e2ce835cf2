//! The control socket of a convey that cannot bind it at once.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, tests};

use crate::operator::{command_output, run_command};

tests!("control_socket":
    control_socket_of_another_process_is_taken_once_it_is_free,
);

fn control_socket_of_another_process_is_taken_once_it_is_free() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let other = UnixListener::bind(lab.directory().join("control.sock")).unwrap();
    let answers = thread::spawn(move || {
        let (mut client, _) = other.accept().unwrap();
        assert!(client.read(&mut [0; 1 << 10]).unwrap() > 0);
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\nok\n").unwrap();
        other
    });
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let other = answers.join().unwrap();
    balancer.wait_for_log(
        "another convey process uses this socket (--socket selects another path); convey tries again",
    );
    assert!(!balancer.log().contains("control socket /"), "{}", balancer.log());
    drop(other);
    balancer.wait_for_log("control socket /");
    assert!(command_output(&balancer, "status").contains("pool"));
    assert_eq!(balancer.log().matches("no control socket").count(), 1, "{}", balancer.log());
    assert_eq!(run_command(&balancer, "log-level debug").code, Some(0));
}
