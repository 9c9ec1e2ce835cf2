//! Logs that go to syslog services.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;

use convey_testkit::{BalancerProcess, Loopback, PATIENCE, Setup, TestHttpServer, tests};

use crate::http::client::Client;

tests!("syslog":
    access_log_reaches_syslog_services_and_a_reload_changes_them,
    log_reaches_a_syslog_service_with_levels,
);

fn setup(lab: &Loopback, output: &str) -> Setup {
    let log = format!("[access_log]\noutput = \"{output}\"\nformat = \"{{method}} {{target}} {{status}}\"\n");
    Setup::http(lab).and(&log)
}

fn access_log_reaches_syslog_services_and_a_reload_changes_them() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let udp = UdpSocket::bind((lab.ip(9), 0)).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let tcp = TcpListener::bind((lab.ip(9), 0)).unwrap();
    let socket = lab.directory().join("syslog");
    let local = UnixDatagram::bind(&socket).unwrap();
    local.set_read_timeout(Some(PATIENCE)).unwrap();
    let outputs = [
        format!("syslog+udp://{}?facility=local0&tag=lb", udp.local_addr().unwrap()),
        format!("syslog+tcp://{}?facility=local7", tcp.local_addr().unwrap()),
        format!("syslog+unix://{}", socket.display()),
    ];
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &outputs[0]));
    let get = |path: &str| assert_eq!(Client::new(lab.vip()).get("a", path).status, 200);
    let reload = |output: &str| {
        balancer.save(&setup(&lab, output));
        balancer.wait_for_log(&format!("-> {output}"));
    };
    let mut buffer = [0; 999];
    get("/udp");
    let len = udp.recv(&mut buffer).unwrap();
    let message = String::from_utf8_lossy(&buffer[..len]).into_owned();
    assert!(message.starts_with("<134>1 20"), "{message}");
    assert!(message.contains(" lb ") && message.ends_with(" - - GET /udp 200"), "{message}");

    reload(&outputs[1].replace("local7", "local7&tag=convey"));
    get("/tcp");
    let (mut stream, _) = tcp.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"GET /tcp 200") {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&buffer[..len]);
    }
    let received = String::from_utf8(received).unwrap();
    let (length, message) = received.split_once(' ').unwrap();
    assert_eq!(length.parse(), Ok(message.len()));
    assert!(message.starts_with("<190>1 20"), "{message}");

    reload(&format!("{}?facility=daemon&tag=convey", outputs[2]));
    get("/local");
    let len = local.recv(&mut buffer).unwrap();
    let message = String::from_utf8_lossy(&buffer[..len]).into_owned();
    assert!(message.starts_with("<30>convey[") && message.ends_with("]: GET /local 200"), "{message}");
}

fn log_reaches_a_syslog_service_with_levels() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let udp = UdpSocket::bind((lab.ip(9), 0)).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let setup = Setup::http(&lab);
    let setup = setup.health("kind = \"tcp\"\ninterval = 0.1\nfall = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let log = format!("[log]\noutput = \"syslog+udp://{}\"\n", udp.local_addr().unwrap());
    balancer.save(&setup.and(&log));
    balancer.wait_for_log("the log continues in syslog+udp://");
    drop(server);
    let mut buffer = [0; 2000];
    loop {
        let len = udp.recv(&mut buffer).expect("a line about the server");
        let message = String::from_utf8_lossy(&buffer[..len]).into_owned();
        if message.contains(" is down: ") {
            assert!(message.starts_with("<28>1 20"), "{message}");
            return;
        }
    }
}
