//! Servers that listen on unix sockets.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Nginx, Setup, TestHttpServer, binary, check_to_end, connect, fetch, run,
    send, tests, wait_for,
};
use rustix::process::Signal;

use super::http::client::Client;
use super::upgrade::Upgraded;

tests!("unix_sockets":
    connection_of_proxy_mode_reaches_a_unix_socket_in_both_directions,
    requests_reach_nginx_at_a_unix_socket_with_the_clients_host [Need::NGINX],
    abstract_socket_gets_the_proxy_header_of_the_client,
    server_goes_down_without_its_socket_and_returns_with_it,
    full_accept_queue_of_a_socket_delays_clients_without_failures,
    reload_from_tcp_to_a_unix_socket_fails_no_request,
    server_at_a_unix_socket_keeps_its_state_across_an_upgrade,
    socket_where_none_is_allowed_is_an_error_of_check,
);

const FAST: &str = "interval = 0.05\nrise = 1\nfall = 1";

/// Server with a thread per connection. Dropping it removes its socket.
struct UnixServer {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UnixServer {
    fn start(
        addr: SocketAddr,
        handle: impl Fn(UnixStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> UnixServer {
        let listener = UnixListener::bind_addr(&addr).unwrap();
        let (stop, connections) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stopped, count, handle) = (stop.clone(), connections.clone(), Arc::new(handle));
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let handle = handle.clone();
                thread::spawn(move || handle(stream));
            }
        });
        UnixServer { addr, connections, stop, thread: Some(thread) }
    }

    fn at(path: &Path, handle: impl Fn(UnixStream) -> io::Result<()> + Send + Sync + 'static) -> UnixServer {
        UnixServer::start(SocketAddr::from_pathname(path).unwrap(), handle)
    }

    /// HTTP server that keeps connections open, and answers with `NAME TARGET HOST`.
    fn http(path: &Path, name: &'static str) -> UnixServer {
        UnixServer::at(path, move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone()?);
            loop {
                let head = read_head(&mut reader)?;
                let Some(target) = head.first().and_then(|line| line.split(' ').nth(1)) else {
                    return Ok(());
                };
                let host = head.iter().find_map(|line| line.strip_prefix("Host: ")).unwrap_or("?");
                let body = format!("{name} {target} {host}");
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
            }
        })
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for UnixServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect_addr(&self.addr);
        let _ = self.thread.take().map(JoinHandle::join);
        self.addr.as_pathname().map(fs::remove_file);
    }
}

/// Lines of the next request's head; empty at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(head);
        }
        head.push(line.to_owned());
    }
}

fn socket(lab: &Loopback, name: &str) -> (PathBuf, String) {
    let path = lab.directory().join(name);
    let addr = format!("unix:{}", path.display());
    (path, addr)
}

fn connection_of_proxy_mode_reaches_a_unix_socket_in_both_directions() {
    const UPLOAD: u64 = 8 << 20;
    const DOWNLOAD: u64 = 32 << 20;
    let lab = Loopback::new();
    let (path, addr) = socket(&lab, "app.sock");
    let _server = UnixServer::at(&path, |mut stream| {
        let mut first = [0; 6];
        stream.read_exact(&mut first)?;
        assert_eq!(check_to_end(&mut stream), UPLOAD);
        stream.write_all(&first)?;
        send(&mut stream, DOWNLOAD)?;
        stream.shutdown(Shutdown::Write)
    });
    let log = lab.directory().join("access.log");
    let setup = Setup::new(&lab).health(FAST).server("a", &addr, "");
    let setup = setup.and(&format!("[access_log]\noutput = \"{}\"\n", log.display()));
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("a", true);
    let mut client = connect(lab.vip());
    client.write_all(b"hello!").unwrap();
    let open = wait_for("the connection in the list", || {
        let listed = run(balancer.command().arg("flows")).stdout;
        listed.contains("established").then_some(listed)
    });
    assert!(open.contains("pool/a"), "{open}");
    let explained = run(balancer.command().args(["explain", "127.0.0.1", "web"])).stdout;
    assert!(explained.contains(&format!("convey connects to {addr};")), "{explained}");
    send(&mut client, UPLOAD).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut first = [0; 6];
    client.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"hello!");
    assert_eq!(check_to_end(&mut client), DOWNLOAD);
    let line = wait_for("the line of the connection", || {
        fs::read_to_string(&log).ok().filter(|text| text.contains("bytes_tx"))
    });
    assert!(line.contains(&format!("server=pool/a server_addr={addr} ")), "{line}");
    assert!(line.contains("termination=closed"), "{line}");
    assert_eq!(balancer.stat("/backends/pool/servers/a/addr"), addr);
    let status = run(balancer.command().arg("status")).stdout;
    assert!(status.contains(&addr), "{status}");
}

fn requests_reach_nginx_at_a_unix_socket_with_the_clients_host() {
    let lab = Loopback::new();
    let (path, addr) = socket(&lab, "nginx.sock");
    let nginx = Nginx::start_unix(&lab, "nginx", &path);
    fs::write(nginx.file("large"), vec![b'x'; 3 << 20]).unwrap();
    let setup = Setup::new(&lab).frontend("mode = \"http\"").server("a", &addr, "");
    let setup = setup.health("kind = \"http\"\npath = \"/up\"\ninterval = 0.05");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("a", true);
    let mut client = Client::new(lab.vip());
    for _ in 0..20 {
        assert_eq!(client.get("shop.example", "/").body, "nginx\n");
    }
    let seen = client.get("shop.example", "/seen").body;
    let (host, requests) = seen.split_once(' ').unwrap();
    assert_eq!(host, "shop.example");
    assert!(requests.parse::<u32>().unwrap() > 10, "idle connections are reused: {requests}");
    assert_eq!(client.get("shop.example", "/large").body.len(), 3 << 20);
}

fn abstract_socket_gets_the_proxy_header_of_the_client() {
    let lab = Loopback::new();
    let name = format!("convey-test-{}", lab.vip());
    let server = SocketAddr::from_abstract_name(&name).unwrap();
    let _server = UnixServer::start(server, |stream| {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        (&stream).write_all(line.as_bytes())?;
        stream.shutdown(Shutdown::Write)
    });
    let setup = Setup::new(&lab).backend("send_proxy = \"v1\"").server("a", format!("unix:@{name}"), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    let from = client.local_addr().unwrap();
    let mut line = String::new();
    client.read_to_string(&mut line).unwrap();
    let (ip, port, vip) = (from.ip(), from.port(), lab.vip());
    assert_eq!(line, format!("PROXY TCP4 {ip} {} {port} {}\r\n", vip.ip(), vip.port()));
}

fn server_goes_down_without_its_socket_and_returns_with_it() {
    let lab = Loopback::new();
    let (path, addr) = socket(&lab, "app.sock");
    let setup = Setup::new(&lab).frontend("mode = \"http\"").server("a", &addr, "");
    let setup = setup.health(&format!("kind = \"http\"\npath = \"/up\"\n{FAST}"));
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_log(&format!("pool/a ({addr}): connect failed: No such file or directory"));
    assert_eq!(Client::new(lab.vip()).get("a", "/").status, 503);
    for _ in 0..2 {
        let server = UnixServer::http(&path, "app");
        balancer.wait_for_health("a", true);
        let mut client = Client::new(lab.vip());
        assert_eq!(client.get("shop.example", "/x").body, "app /x shop.example");
        drop(server);
        balancer.wait_for_health("a", false);
    }
    balancer
        .wait_for_log(&format!("server pool/a ({addr}) is down: connect failed: No such file or directory"));
}

fn full_accept_queue_of_a_socket_delays_clients_without_failures() {
    let lab = Loopback::new();
    let (path, addr) = socket(&lab, "app.sock");
    let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    listener.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    // The queue has room for one connection.
    listener.listen(0).unwrap();
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", &addr, ""));
    let clients = [(); 4].map(|()| connect(lab.vip()));
    balancer.wait_for_stat("/frontends/web/current_connections", 4);
    let server = thread::spawn(move || {
        for _ in 0..4 {
            let (stream, _) = listener.accept().unwrap();
            stream.send(b"hello").unwrap();
        }
    });
    for mut client in clients {
        let mut hello = String::new();
        client.read_to_string(&mut hello).unwrap();
        assert_eq!(hello, "hello");
    }
    server.join().unwrap();
    assert_eq!(balancer.stat("/backends/pool/servers/a/connect_failures"), 0);
}

fn reload_from_tcp_to_a_unix_socket_fails_no_request() {
    let lab = Loopback::new();
    let (path, addr) = socket(&lab, "app.sock");
    let _tcp = TestHttpServer::named("tcp", lab.server(1));
    let unix = UnixServer::http(&path, "unix");
    let setup = |addr: &str| Setup::new(&lab).frontend("mode = \"http\"").server("a", addr, "");
    let tcp = lab.server(1).to_string();
    let balancer = BalancerProcess::start(&lab, &setup(&tcp));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = [(); 3].map(|()| {
            scope.spawn(|| {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let mut client = Client::new(lab.vip());
                    for _ in 0..50 {
                        assert_eq!(client.get("a", "/").status, 200);
                        count += 1;
                    }
                }
                count
            })
        });
        for round in 0..6 {
            let (to, name) = if round % 2 == 0 { (&addr, "unix") } else { (&tcp, "tcp") };
            balancer.save(&setup(to));
            balancer.signal(Signal::HUP);
            let mut client = Client::new(lab.vip());
            wait_for("the other server", || client.get("a", "/").body.starts_with(name).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(clients.into_iter().map(|client| client.join().unwrap()).sum::<u32>() > 100);
    });
    assert!(balancer.log().contains(&format!("address of pool/a {tcp} -> {addr}")), "{}", balancer.log());
    assert_eq!(balancer.stat("/frontends/web/requests/responses/5xx"), 0);
    assert!(unix.connections() > 0);
}

fn server_at_a_unix_socket_keeps_its_state_across_an_upgrade() {
    let lab = Loopback::new();
    let (paths, addrs): (Vec<_>, Vec<_>) =
        ["a.sock", "b.sock", "c.sock"].map(|name| socket(&lab, name)).into_iter().unzip();
    let _servers = [("a", 0), ("b", 1), ("c", 2)].map(|(name, n)| UnixServer::http(&paths[n], name));
    let setup = Setup::new(&lab).frontend("mode = \"http\"").health(FAST);
    let setup = setup.server("a", &addrs[0], "").server("b", &addrs[1], "weight = 3");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let command = |upgraded: &Upgraded<'_>, line: &str| {
        let ran = run(upgraded.first.command().args(line.split(' ')));
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        ran.stdout
    };
    command(&upgraded, "server drain pool/a");
    command(&upgraded, &format!("server add pool/c {}", addrs[2]));
    command(&upgraded, "server weight pool/b 0");
    upgraded.first.wait_for_health("c", true);
    upgraded.upgrade();
    for _ in 0..4 {
        assert_eq!(fetch(lab.vip(), "/").unwrap().0, 200);
        assert!(Client::new(lab.vip()).get("x", "/").body.starts_with("c "));
    }
    let status = command(&upgraded, "status");
    for part in ["pool/a: drain, for ", &format!("pool/c: added at {}", addrs[2]), "pool/b: weight 0"] {
        assert!(status.contains(part), "{part}: {status}");
    }
}

fn socket_where_none_is_allowed_is_an_error_of_check() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).frontend("mode = \"passthrough\"").server("a", "unix:/run/app.sock", "");
    fs::write(lab.directory().join("check.toml"), setup.to_string()).unwrap();
    let checked = run(binary().current_dir(lab.directory()).args(["check", "--config", "check.toml"]));
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let message = "backends.pool.servers.a.addr: unix:/run/app.sock needs mode proxy or http with protocol tcp; frontend \
                   \"web\" is in passthrough mode with protocol tcp; write the server's IP:port";
    assert!(checked.stderr.contains(message), "{checked:?}");
}
