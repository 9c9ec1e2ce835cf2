//! PROXY headers to and from real HAProxy and nginx.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Process, Setup, TcpServer, connect, connect_from, tests, tool, wait_for,
};

const HAPROXY: Need = Need::Tool("haproxy", "haproxy");

tests!("proxy_peers":
    nginx_and_haproxy_see_the_clients_address_and_port_by_either_version [Need::NGINX, HAPROXY, Need::Ipv6],
    haproxy_in_front_is_believed_and_its_fields_reach_haproxy_behind [Need::NGINX, HAPROXY, Need::Ipv6],
    nginx_in_front_is_believed [Need::NGINX, Need::Other(missing_stream_module), Need::Ipv6],
    checks_of_haproxy_in_front_find_convey_up [HAPROXY],
);

/// A module of nginx: `proxy_protocol on` is for its streams alone.
const STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

fn missing_stream_module() -> Option<String> {
    let is_there = Path::new(STREAM).exists();
    (!is_there).then(|| format!("no {STREAM} (Debian package libnginx-mod-stream)"))
}

/// nginx with this configuration in a folder of its own.
fn nginx(lab: &Loopback, name: &str, config: &str, at: &[SocketAddr]) -> Process {
    let dir = lab.directory().join(name);
    fs::create_dir_all(&dir).unwrap();
    let pid = dir.join("pid");
    let config = format!("{config}\ndaemon off; master_process off; pid {}; events {{}}\n", pid.display());
    fs::write(dir.join("nginx.conf"), config).unwrap();
    let mut command = Command::new(tool("nginx").unwrap());
    command.arg("-p").arg(&dir).args(["-c", "nginx.conf", "-e"]).arg(dir.join("error.log"));
    listening(Process::spawn(command.stderr(Stdio::null())), at)
}

/// Answers with the contents of the header: address and port of the client, and the address and
/// port to which it connected.
fn nginx_behind(lab: &Loopback, at: &[SocketAddr]) -> Process {
    let prefix = lab.directory().join("behind");
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {}/{what};\n", prefix.display()))
        .concat();
    let listen: String = at.iter().map(|addr| format!("listen {addr} proxy_protocol;\n")).collect();
    let says =
        "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port";
    let server = format!("{listen}location / {{ return 200 \"{says}\"; }}");
    let config = format!("http {{ access_log off;\n{temporary}server {{\n{server}\n}}\n}}");
    nginx(lab, "behind", &config, at)
}

/// HAProxy with this configuration beside timeouts.
fn haproxy(lab: &Loopback, name: &str, config: &str, at: &[SocketAddr]) -> Process {
    let file = lab.directory().join(format!("{name}.cfg"));
    let timeouts = "defaults\ntimeout connect 20s\ntimeout client 20s\ntimeout server 20s\n";
    fs::write(&file, format!("{timeouts}{config}")).unwrap();
    let mut command = Command::new(tool("haproxy").unwrap());
    command.args(["-db", "-q", "-f"]).arg(&file).stderr(Stdio::null());
    listening(Process::spawn(&mut command), at)
}

/// Answers like [`nginx_behind`], and with the unique id that the header has.
fn haproxy_behind(lab: &Loopback, at: &[SocketAddr]) -> Process {
    let bind: String = at.iter().map(|addr| format!("bind {addr} accept-proxy\n")).collect();
    let config = format!(
        "frontend behind\nmode http\n{bind}http-request return status 200 content-type text/plain \
         lf-string \"%[src] %[src_port] %[dst] %[dst_port]%[fc_pp_unique_id]\"\n"
    );
    haproxy(lab, "behind", &config, at)
}

fn listening(process: Process, at: &[SocketAddr]) -> Process {
    at.iter().for_each(|addr| {
        wait_for(&format!("somebody to listen on {addr}"), || TcpStream::connect(addr).ok());
    });
    process
}

/// Response of the server behind this connection.
fn fetch(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}")).1.to_owned()
}

/// A client of each family, and the expected answer of a server that gets a header.
fn clients(lab: &Loopback, at: [SocketAddr; 2]) -> [(TcpStream, String); 2] {
    [connect_from(lab.ip(99), at[0]).unwrap(), connect(at[1])].map(|stream| {
        let (client, asked) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let says = format!("{} {} {} {}", client.ip(), client.port(), asked.ip(), asked.port());
        (stream, says)
    })
}

/// A frontend of both families. Checks over HTTP fail where they have no header.
fn setup(lab: &Loopback, frontend: &str, version: &str, server: SocketAddr) -> Setup {
    Setup::new(lab)
        .listen(&[lab.vip(), lab.v6(0)])
        .frontend(frontend)
        .backend(&format!("send_proxy = \"{version}\""))
        .health("kind = \"http\"\ninterval = 0.1")
        .server("a", server, "")
}

const REASON: &str = "/backends/pool/servers/a/health/reason";

fn nginx_and_haproxy_see_the_clients_address_and_port_by_either_version() {
    let lab = Loopback::new();
    let (of_nginx, of_haproxy) = ([lab.server(1), lab.v6(1)], [lab.server(2), lab.v6(2)]);
    let (_nginx, _haproxy) = (nginx_behind(&lab, &of_nginx), haproxy_behind(&lab, &of_haproxy));
    for server in [of_nginx, of_haproxy].concat() {
        for version in ["v1", "v2"] {
            let balancer = BalancerProcess::start(&lab, &setup(&lab, "", version, server));
            balancer.wait_for_stat(REASON, "HTTP status 200");
            for (stream, says) in clients(&lab, [lab.vip(), lab.v6(0)]) {
                assert_eq!(fetch(stream), says, "{version} to {server}");
            }
        }
    }
}

fn haproxy_in_front_is_believed_and_its_fields_reach_haproxy_behind() {
    let lab = Loopback::new();
    let (of_nginx, of_haproxy) = (lab.server(1), lab.server(2));
    let (_nginx, _behind) = (nginx_behind(&lab, &[of_nginx]), haproxy_behind(&lab, &[of_haproxy]));
    let fronts = [SocketAddr::new(lab.ip(60), 8080), lab.v6(1), SocketAddr::new(lab.ip(60), 8081), lab.v6(2)];
    let front = |name: &str, at: [SocketAddr; 2], sends: &str| {
        format!(
            "frontend {name}\nmode tcp\nunique-id-format %[str(the-id)]\nbind {}\nbind {}\ndefault_backend {name}\n\
             backend {name}\nmode tcp\nserver convey {} source {} {sends}\n",
            at[0],
            at[1],
            lab.vip(),
            lab.ip(60)
        )
    };
    let config = [
        front("first", [fronts[0], fronts[1]], "send-proxy"),
        front("second", [fronts[2], fronts[3]], "send-proxy-v2 proxy-v2-options unique-id"),
    ];
    let _front = haproxy(&lab, "front", &config.concat(), &fronts);

    let frontend = format!("accept_proxy = true\ntrusted_proxies = \"{}\"", lab.ip(60));
    let each = [[fronts[0], fronts[1]], [fronts[2], fronts[3]]];
    for (server, version) in [(of_nginx, "v2"), (of_nginx, "v1"), (of_haproxy, "v1"), (of_haproxy, "v2")] {
        let balancer = BalancerProcess::start(&lab, &setup(&lab, &frontend, version, server));
        balancer.wait_for_stat(REASON, "HTTP status 200");
        for (n, front) in each.into_iter().enumerate() {
            // Version 2 carries the id to the far end, if nothing between has to do without.
            let id = if n == 1 && version == "v2" && server == of_haproxy { "the-id" } else { "" };
            for (stream, says) in clients(&lab, front) {
                assert_eq!(fetch(stream), format!("{says}{id}"), "{front:?} by {version} to {server}");
            }
        }
    }
}

fn nginx_in_front_is_believed() {
    let lab = Loopback::new();
    let of_nginx = lab.server(1);
    let _behind = nginx_behind(&lab, &[of_nginx]);
    let fronts = [SocketAddr::new(lab.ip(60), 8080), lab.v6(1)];
    let listen = fronts.map(|addr| format!("listen {addr};\n")).concat();
    let pass = format!("proxy_protocol on; proxy_bind {}; proxy_pass {};", lab.ip(60), lab.vip());
    let config = format!("load_module {STREAM};\nstream {{ server {{\n{listen}{pass}\n}} }}");
    let _front = nginx(&lab, "front", &config, &fronts);
    let frontend = format!("accept_proxy = true\ntrusted_proxies = \"{}\"", lab.ip(60));
    for version in ["v1", "v2"] {
        let balancer = BalancerProcess::start(&lab, &setup(&lab, &frontend, version, of_nginx));
        balancer.wait_for_stat(REASON, "HTTP status 200");
        for (stream, says) in clients(&lab, fronts) {
            assert_eq!(fetch(stream), says, "by {version}");
        }
    }
}

/// HAProxy checks with headers that name no client (LOCAL), and closes without a byte of its own.
fn checks_of_haproxy_in_front_find_convey_up() {
    let lab = Loopback::new();
    let frontend = format!("accept_proxy = true\ntrusted_proxies = \"{}\"", lab.ip(60));
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend(&frontend).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let [front, stats] = [8080, 8081].map(|port| SocketAddr::new(lab.ip(60), port));
    let config = format!(
        "frontend front\nmode tcp\nbind {front}\ndefault_backend convey\nbackend convey\nmode tcp\n\
         server convey {} source {} check inter 50 send-proxy-v2 check-send-proxy\n\
         frontend stats\nmode http\nbind {stats}\nstats enable\nstats uri /\n",
        lab.vip(),
        lab.ip(60)
    );
    let _front = haproxy(&lab, "front", &config, &[front, stats]);
    let is_up =
        |line: &str| line.starts_with("convey,convey,") && line.contains(",UP,") && line.contains(",L4OK,");
    wait_for("HAProxy to call convey up", || {
        convey_testkit::fetch(stats, "/;csv").ok().filter(|(_, csv)| csv.lines().any(is_up))
    });
    wait_for("some checks", || {
        (balancer.stat("/frontends/web/total_connections").as_u64()? > 5).then_some(())
    });
    for reason in ["proxy_header_invalid", "proxy_header_timeout", "proxy_untrusted"] {
        assert_eq!(balancer.stat(&format!("/frontends/web/ended/{reason}")), 0, "{reason}");
    }
}
